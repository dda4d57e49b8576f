"""The front doors: `/v1/responses` and `/v1/gemini`, for clients that do not speak to a Gemini host at all.

A door reads its caller's language, keeps its conversations in the store, and sends each turn upstream through the same
graft and the same loop as any client's. Knows the control API's routing and the loop; knows no mitmproxy: what goes out
and is shown there goes through `upstreams`.
"""
