"""Redis Cluster: which node has the store. All keys of a store share a hash tag, so that a write stays one step."""

import binascii
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import hiredis

from store.backends._redis_url import Address
from store.backends._redis_wire import Command, Cut, Wire

_SLOTS = 16384

_ELSEWHERE = ("MOVED", "CLUSTERDOWN")
"""How replies begin of a node that has not, or no longer, the store."""

type Connect = Callable[[str, int], Awaitable[Wire]]


def slot_of(tag: str) -> int:
    return binascii.crc_hqx(tag.encode(), 0) % _SLOTS


class Owner:
    """The primary that has the store's slot. `connect` opens a connection to a node."""

    def __init__(self, address: Address, connect: Connect) -> None:
        self._slot = slot_of(address.prefix)
        self._connect = connect
        self._hosts = address.hosts
        self._nodes = deque(address.hosts)
        self._next: tuple[str, int] | None = None  # where the last node has sent us

    async def find(self) -> tuple[str, int]:
        """Raises OSError."""
        if self._next is not None:
            found, self._next = self._next, None
            return found
        error: Exception | None = None
        for host, port in list(self._nodes):
            self._nodes.rotate(-1)  # the next search begins with another node: this one may be cut off from the others
            try:
                wire = await self._connect(host, port)
                try:
                    (ranges,) = await wire.exchange([("CLUSTER", "SLOTS")])
                finally:
                    wire.close()
                if isinstance(ranges, hiredis.ReplyError):
                    raise ranges
            except OSError as exception:
                error = exception
                continue
            if owner := self._read(ranges, host):
                return owner
        raise Cut(f"no node of the cluster knows a primary for slot {self._slot}: {error or 'it is not assigned'}")

    def _read(self, ranges: list[Any], asked: str) -> tuple[str, int] | None:
        """The slot's primary. All nodes are noted, since those of the URL may go."""
        owner, known = None, dict.fromkeys(self._hosts)
        for first, last, *nodes in ranges:
            places = [(_host(host) or asked, int(port)) for host, port, *_ in nodes]
            known |= dict.fromkeys(places)
            if first <= self._slot <= last:
                owner = places[0]
        kept = [node for node in self._nodes if node in known]
        self._nodes = deque(dict.fromkeys([*kept, *known]))
        return owner

    def is_elsewhere(self, reply: hiredis.ReplyError) -> bool:
        """Whether another node has to be looked for."""
        kind, *rest = str(reply).split()
        if kind == "MOVED":
            host, _, port = rest[1].rpartition(":")
            self._next = (host, int(port)) if host and host != "?" else None
        return kind in _ELSEWHERE

    async def follow(self, commands: Sequence[Command], replies: list[Any]) -> None:
        """Replace the replies which say that a key is being moved: the node that gets it is asked. Raises OSError."""
        asked = [at for at, reply in enumerate(replies) if isinstance(reply, hiredis.ReplyError) and _is_ask(reply)]
        if not asked:
            return
        host, _, port = str(replies[asked[0]]).split()[2].rpartition(":")
        wire = await self._connect(host, int(port))
        try:
            found = await wire.exchange([one for at in asked for one in (("ASKING",), commands[at])])
        finally:
            wire.close()
        for at, reply in zip(asked, found[1::2], strict=True):
            replies[at] = reply


def _is_ask(reply: hiredis.ReplyError) -> bool:
    return str(reply).startswith("ASK ")


def _host(text: bytes | None) -> str:
    """Empty: the node has no name yet, or it is the one that was asked."""
    return "" if text in (None, b"?") else text.decode()
