"""One exchange, from the client's request to the captured answer: the core applied to the store's records.

Uses core, surfaces and store, but neither mitmproxy nor HTTP servers: hooks, replay and front doors share this package.
"""
