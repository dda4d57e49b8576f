"""The tool loop's shell: it runs `core.toolloop` with an upstream, executors and a store, and splices the streams.

Knows the graft, the tool sources and the store; knows neither mitmproxy nor the control API.
"""
