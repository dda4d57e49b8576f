"""One exchange, from the client's request to the captured answer: applies the core to the store's records.

Imports core, surfaces and store, but neither mitmproxy nor HTTP servers: hooks, replay and front doors share it.
"""
