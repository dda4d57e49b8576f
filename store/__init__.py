"""The shared store of toolgraft: sessions, captured calls, the ledger and the events. Knows nothing of `addon`."""
