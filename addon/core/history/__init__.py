"""The history of a request: its turns, the keys by which the ledger knows them, and how they are rewritten."""
