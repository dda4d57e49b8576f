"""The hosts and addresses that tools may connect to, as a table."""

import pytest

from addon.core.security.egress import egress_allowed, parse_rule


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", True),
        ("::ffff:127.0.0.1", True),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.7", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("fd00:ec2::254", False),
        ("fe80::1%eth0", False),
        ("ff02::1", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("2002:a9fe:a9fe::1", False),
        ("::10.0.0.1", False),
    ],
)
def test_without_rules_public_addresses_and_this_machine_are_allowed_and_private_ones_are_not(
    address: str, allowed: bool
) -> None:
    assert egress_allowed((), "tools.example", address, 443) is allowed


@pytest.mark.parametrize(
    ("rule", "host", "address", "port", "allowed"),
    [
        ("tools.example", "tools.example", "10.0.0.1", 443, True),
        ("tools.example", "TOOLS.example.", "10.0.0.1", 443, True),
        ("tools.example", "a.tools.example", "8.8.8.8", 443, False),
        ("tools.example", "eviltools.example", "8.8.8.8", 443, False),
        ("tools.example:8443", "tools.example", "8.8.8.8", 8443, True),
        ("tools.example:8443", "tools.example", "8.8.8.8", 443, False),
        ("*.tools.example", "a.tools.example", "10.0.0.1", 443, True),
        ("*.tools.example", "tools.example", "10.0.0.1", 443, False),
        ("*.tools.example", "eviltools.example", "8.8.8.8", 443, False),
        ("10.0.0.0/8", "tools.example", "10.9.9.9", 80, True),
        ("10.0.0.0/8", "tools.example", "11.0.0.1", 80, False),
        ("10.0.0.0/8", "tools.example", "::ffff:10.9.9.9", 80, True),
        ("192.168.1.7:8080", "192.168.1.7", "192.168.1.7", 8080, True),
        ("192.168.1.7:8080", "192.168.1.7", "192.168.1.7", 80, False),
        ("fd00::7", "[fd00::7]", "fd00::7", 80, True),
        ("[fd00::7]:80", "[fd00::7]", "fd00::7", 80, True),
        ("[fd00::7]:80", "[fd00::7]", "fd00::7", 81, False),
        ("public", "a.example", "8.8.8.8", 80, True),
        ("public", "localhost", "127.0.0.1", 80, False),
        ("public:443", "a.example", "8.8.8.8", 80, False),
        ("loopback", "localhost", "::1", 80, True),
        ("loopback", "a.example", "8.8.8.8", 80, False),
        ("loopback:9000", "localhost", "127.0.0.1", 9000, True),
        ("loopback:9000", "localhost", "127.0.0.1", 9001, False),
    ],
)
def test_with_rules_only_what_they_name_is_allowed(
    rule: str, host: str, address: str, port: int, allowed: bool
) -> None:
    assert egress_allowed((parse_rule(rule),), host, address, port) is allowed


NOTHING = (
    *("", "*", "*.", "http://a", "a/b", "a b", "a:", "a:x", "a:0", "a:70000", "10.0.0.0/99", "1.2.3"),
    *("[::1]x", "[::1", "[::1]:", "[a]", "[a", "[10.0.0.1]", "a..b", ".a", "*.*.a", "a.."),
)


@pytest.mark.parametrize("text", NOTHING)
def test_a_rule_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a host"):
        parse_rule(text)
