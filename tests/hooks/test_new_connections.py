"""New connections are what mitmproxy's constructors make."""

from mitmproxy.connection import Client, ConnectionState, Server
from mitmproxy.net.server_spec import ServerSpec

from addon.hooks.new_connections import new_client, new_server


def test_a_server_is_as_mitmproxy_makes_it() -> None:
    via: ServerSpec = ("http", ("proxy.test", 8080))
    made, usual = new_server(("a.test", 443), via), Server(address=("a.test", 443), via=via)
    assert made.get_state() | {"id": ""} == usual.get_state() | {"id": ""}
    assert made.id != new_server(("a.test", 443)).id
    made.sni = "a.test"
    assert new_server(("a.test", 443)).sni is None, "they have nothing in common"


def test_a_client_is_as_mitmproxy_makes_it() -> None:
    made = new_client(("10.0.0.7", 4321))
    usual = Client(
        peername=("10.0.0.7", 4321),
        sockname=("127.0.0.1", 0),
        state=ConnectionState.OPEN,
        timestamp_start=made.timestamp_start,
    )
    assert made.get_state() | {"id": ""} == usual.get_state() | {"id": ""}
    assert made.id != new_client(("10.0.0.7", 4321)).id
