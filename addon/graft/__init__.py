"""One exchange, from the client's request to the captured answer: the core applied to what the store holds.

Knows core, surfaces and store; knows neither mitmproxy nor HTTP servers, so that the proxy's hooks, the replay
and other front doors share it.
"""
