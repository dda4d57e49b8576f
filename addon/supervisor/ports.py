"""The listening sockets of all slots. Each slot has its own sockets for every address, with SO_REUSEPORT: the kernel
spreads new connections over the slots."""

import socket
from collections import defaultdict

_BACKLOG = 1024

type _Address = tuple[str, int]
type _Place = tuple[socket.AddressFamily, tuple[object, ...]]


class Ports:
    def __init__(self) -> None:
        self._places: dict[_Address, list[_Place]] = {}
        self._sockets: defaultdict[int, dict[_Address, list[socket.socket]]] = defaultdict(dict)

    def open(self, slot: int, host: str, port: int) -> list[socket.socket]:
        """The slot's listening sockets for this address. Port 0 means the same free port for every slot. Raises OSError
        if the address cannot be used."""
        address = host, port
        own = self._sockets[slot]
        if address not in own:
            if address not in self._places:
                self._places[address] = _free_places(host, port)
            own[address] = _listen(self._places[address], shared=True)
        for one in own[address]:
            one.listen(_BACKLOG)  # again, if `pause` has stopped it
        return own[address]

    def pause(self, slot: int) -> None:
        """Send no new connections to the slot until it is opened again. Those that wait for it are reset."""
        for sockets in self._sockets[slot].values():
            for one in sockets:
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for own in self._sockets.values():
            for sockets in own.values():
                for one in sockets:
                    one.close()
        self._sockets.clear()


def _free_places(host: str, port: int) -> list[_Place]:
    """The addresses that a host name stands for. Raises OSError if another program listens there: with SO_REUSEPORT
    alone, a second supervisor of the same user would take a share of the first one's connections."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    places: list[_Place] = list(dict.fromkeys((one[0], one[4]) for one in found))
    opened: list[socket.socket] = []
    try:
        for number, (family, where) in enumerate(places):
            if opened and port == 0:  # the same port for every address
                where = (where[0], opened[0].getsockname()[1], *where[2:])
            opened += _listen([(family, where)], shared=False)
            places[number] = family, opened[-1].getsockname()
    finally:
        for one in opened:
            one.close()
    return places


def _listen(places: list[_Place], *, shared: bool) -> list[socket.socket]:
    opened: list[socket.socket] = []
    try:
        for family, where in places:
            one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            opened.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(where)
            one.listen(_BACKLOG)
            one.setblocking(False)
    except BaseException:
        for one in opened:
            one.close()
        raise
    return opened
