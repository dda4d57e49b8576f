"""The front doors: `/v1/responses` and `/v1/gemini`, for clients that do not call a Gemini host.

A front door parses the format of its callers, keeps their conversations in the store, and sends each turn upstream
through the same graft and loop as any client's request. Uses the control API's routing and the loop, but not mitmproxy:
requests upstream go through an `UpstreamFactory`.
"""
