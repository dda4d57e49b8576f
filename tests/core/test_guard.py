import pytest

from addon.core.guard import host_allowed, origin_allowed, page_allowed


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
def test_a_host_is_allowed_where_no_foreign_name_can_lead_here(host: str, allowed: bool) -> None:
    assert host_allowed(host, ("graft.example",)) is allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True),
        ("http://localhost:3000", True),
        ("https://dev.localhost", True),
        ("http://127.0.0.1:5173", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:3000", True),
        ("https://app.example", True),
        ("https://APP.example:443", True),
        ("http://other.example:8080", True),
        ("http://other.example", False),
        ("http://app.example", False),
        ("https://app.example:8443", False),
        ("https://app.example.evil.example", False),
        ("https://evil.example", False),
        ("http://192.168.1.7", False),
        ("http://localhost.evil.example", False),
        ("http://evil.example@localhost", False),
        ("http://localhost:99999", False),
        ("http://localhost/path", False),
        ("null", False),
        ("", False),
        ("file://", False),
        ("chrome-extension://abcdef", False),
    ],
)
def test_an_origin_is_allowed_where_it_is_this_machine_or_listed(origin: str, allowed: bool) -> None:
    assert origin_allowed(origin, ("https://app.example", "http://other.example:8080")) is allowed


@pytest.mark.parametrize(
    ("origin", "site", "allowed"),
    [
        (None, None, True),
        (None, "none", True),
        (None, "same-origin", True),
        (None, "cross-site", False),
        (None, "Cross-Site", False),
        ("https://app.example", "cross-site", True),
        ("http://localhost:3000", "cross-site", False),
        ("http://localhost:3000", "same-site", True),
        ("https://evil.example", None, False),
        ("https://evil.example", "same-origin", False),
        ("null", "cross-site", False),
    ],
)
def test_an_origin_decides_and_else_the_fetch_site(origin: str | None, site: str | None, allowed: bool) -> None:
    assert page_allowed(origin, site, ("https://app.example",)) is allowed
