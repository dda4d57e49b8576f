"""Connections for flows that mitmproxy has opened none for.

They are copies of a template: mitmproxy's constructor takes three times as long.
"""

import time
import uuid
from typing import Any

from mitmproxy.connection import Client, ConnectionState, Server
from mitmproxy.net.server_spec import ServerSpec

from addon.hooks.headers import shallow_copy

_SERVER = Server(address=None)
_CLIENT = Client(peername=("127.0.0.1", 0), sockname=("127.0.0.1", 0), state=ConnectionState.OPEN)


def new_server(address: tuple[str, int], via: ServerSpec | None = None) -> Server:
    """A server that is not connected. `via`: its upstream proxy."""
    return _made(_SERVER, address=address, via=via)


def new_client(peername: tuple[str, int]) -> Client:
    """A client that is connected."""
    return _made(_CLIENT, peername=peername, timestamp_start=time.time())


def _made[C: (Client, Server)](template: C, **fields: Any) -> C:
    made = shallow_copy(template)
    vars(made).update(fields, id=str(uuid.uuid4()))
    return made
