"""The console: web pages at the control API's address, to watch and control the proxy."""
