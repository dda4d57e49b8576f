"""Makes this mitmproxy one that does not have what toolgraft needs of it."""

from mitmproxy.proxy.layers.http import HttpStream

del HttpStream.make_server_connection
