"""The tool loop: runs calls, sends requests upstream, and joins the rounds into one answer.

Knows the graft, the tool sources and the store; knows neither mitmproxy nor the control API.
"""
