"""Removes something from mitmproxy that toolgraft needs."""

from mitmproxy.proxy.layers.http import HttpStream

del HttpStream.make_server_connection
