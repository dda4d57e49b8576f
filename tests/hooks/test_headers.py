"""Headers and bodies: the fast access returns the same as mitmproxy's accessors."""

import gzip

import pytest
from mitmproxy import http

from addon.hooks.messages import body_of, names, new_request, put, set_body, value

FIELDS = [(b"Host", b"h"), (b"X-Twice", b"1"), (b"accept", b"*/*"), (b"x-twice", b"2")]


def headers() -> http.Headers:
    return http.Headers(FIELDS)


def test_names_are_in_lower_case() -> None:
    assert names(headers()) == {b"host", b"x-twice", b"accept"}


@pytest.mark.parametrize(("name", "expected"), [(b"host", "h"), (b"x-twice", "1, 2"), (b"x-none", None)])
def test_a_value_is_all_that_was_given(name: bytes, expected: str | None) -> None:
    assert value(headers(), name) == expected == headers().get(name.decode())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"host", [(b"Host", b"new"), *FIELDS[1:]]),
        (b"x-twice", [FIELDS[0], (b"X-Twice", b"new"), FIELDS[2]]),
        (b"x-none", [*FIELDS, (b"x-none", b"new")]),
    ],
)
def test_a_header_is_set_in_its_place(name: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    changed = headers()
    put(changed, name, b"new")
    assert list(changed.fields) == expected


def test_a_body_is_read_and_replaced_under_its_compression() -> None:
    message = http.Response.make(200, b"old", {"content-encoding": "gzip"})
    assert body_of(message, 1000) == b"old"
    set_body(message, b"new")
    assert gzip.decompress(message.raw_content or b"") == b"new"
    assert message.headers["content-length"] == str(len(message.raw_content or b""))


@pytest.mark.parametrize("encoding", ["gzip", "nothing-known"])
def test_a_body_that_cannot_be_read_is_none(encoding: str) -> None:
    message = http.Response.make(200, b"")
    message.headers["content-encoding"] = encoding
    message.raw_content = b"not that"
    assert body_of(message, 1000) is None


def test_a_chunked_body_gets_no_length() -> None:
    message = http.Response.make(200, b"old")
    del message.headers["content-length"]
    message.headers["transfer-encoding"] = "chunked"
    set_body(message, b"new")
    assert message.content == b"new"
    assert "content-length" not in message.headers


@pytest.mark.parametrize("url", ["https://a.test/b?c=d", "http://[::1]:8080/", "http://a.test:81/%20"])
def test_a_new_request_is_as_mitmproxy_makes_it_whatever_became_of_an_earlier_one(url: str) -> None:
    for _ in range(2):
        made = new_request("PUT", url, FIELDS[1:], b"body")
        expected = http.Request.make("PUT", url, b"body", http.Headers([*FIELDS[1:], (b"content-length", b"4")]))
        expected.timestamp_start, expected.timestamp_end = made.timestamp_start, made.timestamp_end
        assert made.get_state() == {**expected.get_state(), "authority": b""}
        made.url, made.http_version = "http://other.test/", "HTTP/2.0"
        made.headers["x-more"] = "1"
