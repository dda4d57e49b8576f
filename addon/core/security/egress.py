"""Rules for the hosts and addresses that the proxy's tools may connect to. Pure: names are resolved elsewhere."""

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address
type Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PUBLIC, LOOPBACK = "public", "loopback"
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-._")


class EgressRule(NamedTuple):
    """`name`: a host name, `*.` and a domain, `public` or `loopback`; "" with a `network`. `port`: None for any."""

    name: str
    network: Network | None
    port: int | None


def parse_rule(text: str) -> EgressRule:
    """Parse `HOST`, `*.DOMAIN`, an address, `ADDRESS/BITS`, `public` or `loopback`, each with or without `:PORT`. An
    IPv6 address with a port needs brackets. Raises ValueError."""
    wrong = ValueError(
        f"{text!r} must be a host (tools.example, *.tools.example), an address (192.168.1.7, [fd00::7]), a network "
        f"(10.0.0.0/8), {PUBLIC} or {LOOPBACK}, with :PORT or without"
    )
    host, port = text.strip().lower(), ""
    if host.startswith("["):
        host, bracket, rest = host[1:].partition("]")
        port = rest.removeprefix(":")
        if not bracket or ":" not in host or (rest and rest != f":{port}") or (rest and not port):
            raise wrong
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
        if not port:
            raise wrong
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise wrong
    number = int(port) if port else None
    try:
        return EgressRule("", ipaddress.ip_network(host, strict=False), number)
    except ValueError:
        name = host.removeprefix("*.").removesuffix(".")
        if "" in name.split(".") or not _NAME_CHARACTERS.issuperset(name) or name[-1].isdigit():
            raise wrong from None
        return EgressRule(host.removesuffix("."), None, number)


PUBLIC_ONLY = EgressRule(PUBLIC, None, None)
DEFAULT = (PUBLIC_ONLY, EgressRule(LOOPBACK, None, None))


def egress_allowed(rules: Sequence[EgressRule], host: str, address: str, port: int) -> bool:
    """Whether a URL of this host may be connected to at this address and port. Without rules, public addresses and this
    machine are allowed; private and link-local addresses are not. A host named in a rule may have any address."""
    host, found = host.strip("[]").lower().removesuffix("."), unwrap_address(address)
    return any(
        rule.port in (None, port) and _fits(rule, host, found, public=_is_public(found)) for rule in rules or DEFAULT
    )


def unwrap_address(address: str) -> Address:
    """The IPv4 address that an IPv6 address embeds, or the address itself."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found in _NAT64:
            return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        embedded = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        return embedded or found
    return found


def _fits(rule: EgressRule, host: str, address: Address, *, public: bool) -> bool:
    if rule.network is not None:
        return address.version == rule.network.version and address in rule.network
    if rule.name == PUBLIC:
        return public
    if rule.name == LOOPBACK:
        return address.is_loopback or address.is_unspecified
    if rule.name.startswith("*."):
        return host.endswith(rule.name[1:])
    return host == rule.name


def _is_public(address: Address) -> bool:
    return address.is_global and not (address.is_multicast or address.is_reserved)
