"""One exchange, from the client's request to the captured answer: applies the core to the store's records.

`ledger` says when a turn of the history is replaced, `machine` how an answer is made.

Imports core, surfaces and store, but neither mitmproxy nor HTTP servers: hooks, replay and front doors share it.
"""
