"""The console: web pages at the control API's address that show what the proxy does, and steer it."""
