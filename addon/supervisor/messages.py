"""Messages between the supervisor and a proxy process: JSON objects over a socket pair, with sockets beside them.

| from the process | answer of the supervisor |
|---|---|
| `{"listen": [host, port]}` | `{}` with the slot's listening sockets |
| `{"lock": folder}` | `{}`: the supervisor holds the lock of this state folder |
| `{"ready": true, "ends_within": seconds}` | none |
| `{"collect": number, "question": {…}}` | `{"states": number, "state": state}` for each process, `{"states": number}` |

The supervisor says `{"retire": true}` to a process that another one has replaced, and
`{"describe": number, "question": {…}}` to one that is to send `{"described": number, "state": state}`. With the
question `{"request": id}`, the state is what the process knows of that request; with `{"restart": server}`, the process
restarts that MCP server, and the state is `{"restarts": whether it has it}`. An answer with `error` (and `errno`) means
that it could not be done. A message that is too large for a packet goes as an open file in memory.
"""

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

VARIABLE = "TOOLGRAFT_SUPERVISOR"
"""The environment variable of a proxy process: `SLOT:DESCRIPTOR`."""

_MOST_BYTES = 1 << 20
"""Of packets that wait in a channel."""

_MOST_IN_PACKET = 1 << 16
_FILE = b"file"
_MOST_SOCKETS = 16

type Message = dict[str, Any]


def pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a channel that keeps messages apart."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
    return ends


def send(channel: socket.socket, message: Message, sockets: Sequence[socket.socket] = ()) -> None:
    """Raises OSError if the other end is gone; BlockingIOError if it does not read and the channel does not block."""
    data = json.dumps(message).encode()
    if len(data) <= _MOST_IN_PACKET:
        socket.send_fds(channel, [data], [one.fileno() for one in sockets])
        return
    with os.fdopen(os.memfd_create("a message"), "wb+") as file:
        file.write(data)
        file.seek(0)
        socket.send_fds(channel, [_FILE], [file.fileno()])


def receive(channel: socket.socket) -> tuple[Message, list[socket.socket]]:
    """The next message. Raises EOFError if the other end is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(channel, _MOST_IN_PACKET, _MOST_SOCKETS)
    except ConnectionError:
        data, descriptors = b"", []
    if not data:
        raise EOFError("the other process has ended")
    if data == _FILE:
        with os.fdopen(descriptors[0], "rb") as file:
            return json.load(file), []
    return json.loads(data), [socket.socket(fileno=descriptor) for descriptor in descriptors]
