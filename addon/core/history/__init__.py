"""The history of a request: its turns, their keys in the ledger, and its rewriting."""
