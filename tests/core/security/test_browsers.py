import pytest

from addon.core.security.browsers import host_allowed, page_allowed


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:8741", True),
        ("LOCALHOST.", True),
        ("app.localhost:1", True),
        ("127.0.0.1", True),
        ("127.0.0.1:8741", True),
        ("192.168.0.2:80", True),
        ("[::1]", True),
        ("[::1]:8741", True),
        ("[2001:db8::1]", True),
        ("graft.example", True),
        ("Graft.Example:443", True),
        ("graft.example.", True),
        ("", False),
        (":8741", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("notlocalhost", False),
        ("127.0.0.1.evil.example", False),
        ("127.1", False),
        ("2130706433", False),
        ("::1", False),
        ("[::1", False),
        ("[::1]x", False),
        ("[::1]evil.example", False),
        ("[127.0.0.1]", False),
        ("[evil.example]", False),
        ("127.0.0.1:80:80", False),
        ("127.0.0.1:x", False),
        ("evil.example@127.0.0.1", False),
        ("127.0.0.1/evil", False),
        ("127.0.0.1, evil.example", False),
    ],
)
def test_a_host_is_allowed_if_no_foreign_name_can_resolve_to_it(host: str, allowed: bool) -> None:
    assert host_allowed(host, ("graft.example",)) is allowed


LISTED = ("https://app.example", "http://other.example:8080")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:8741", True),
        ("http://LOCALHOST.:8741", True),
        ("https://app.example", True),
        ("https://APP.example:443", True),
        ("http://other.example:8080", True),
        ("http://localhost", False),
        ("http://localhost:3000", False),
        ("https://dev.localhost", False),
        ("http://dev.localhost:8741", False),
        ("http://127.0.0.1:8741", False),
        ("http://[::1]:8741", False),
        ("http://other.example", False),
        ("http://app.example", False),
        ("https://app.example:8443", False),
        ("https://app.example.evil.example", False),
        ("https://evil.example", False),
        ("http://192.168.1.7", False),
        ("http://localhost.evil.example:8741", False),
        ("http://evil.example@localhost:8741", False),
        ("http://localhost:99999", False),
        ("http://localhost:8741/path", False),
        ("null", False),
        ("", False),
        ("file://", False),
        ("chrome-extension://abcdef", False),
    ],
)
def test_only_pages_of_the_port_itself_and_of_named_origins_are_served(origin: str, allowed: bool) -> None:
    assert page_allowed(origin, None, LISTED, host="localhost:8741") is allowed


@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        ("localhost", "http://localhost", True),
        ("localhost", "https://localhost:443", True),
        ("localhost:80", "http://localhost", True),
        ("[::1]:8741", "http://[::1]:8741", True),
        ("[::1]", "http://[::1]", True),
        ("graft.example", "https://graft.example", True),
        ("localhost", "http://localhost:8741", False),
        ("[::1]", "http://[::1]:8741", False),
        ("", "http://localhost", False),
        ("", "null", False),
    ],
)
def test_a_ports_own_origin_is_the_host_of_the_request(host: str, origin: str, allowed: bool) -> None:
    assert page_allowed(origin, None, (), host=host) is allowed


@pytest.mark.parametrize(
    ("origin", "site", "allowed"),
    [
        (None, None, True),
        (None, "none", True),
        (None, "same-origin", True),
        (None, "same-site", False),
        (None, "cross-site", False),
        (None, "Cross-Site", False),
        (None, "what comes next", False),
        ("https://app.example", "cross-site", True),
        ("http://localhost:8741", "same-origin", True),
        ("http://localhost:8741", "same-site", False),
        ("http://localhost:8741", "cross-site", False),
        ("https://evil.example", None, False),
        ("https://evil.example", "same-origin", False),
        ("null", "cross-site", False),
    ],
)
def test_the_origin_decides_or_else_the_fetch_site(origin: str | None, site: str | None, allowed: bool) -> None:
    assert page_allowed(origin, site, LISTED, host="localhost:8741") is allowed
