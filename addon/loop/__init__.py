"""The tool loop: runs calls, sends requests upstream, and joins the rounds into one answer.

Imports the graft, the tool sources and the store, but neither mitmproxy nor the control API.
"""
