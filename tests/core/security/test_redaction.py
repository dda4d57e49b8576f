"""Secrets are found by their value, whole and in pieces, and unprintable characters are escaped."""

import json

import pytest

from addon.core.security.credentials import secrets_in, secrets_of_environment, secrets_of_executor
from addon.core.security.escaping import printable, printable_json
from addon.core.security.redaction import RedactedStream, Redaction

SECRET = 's3cret/with "quotes"'


def test_a_secret_is_found_as_it_is_and_as_json_and_urls_write_it() -> None:
    redaction = Redaction([SECRET, "short", "12345678"])
    text = f"a {SECRET} b s3cret%2Fwith%20%22quotes%22 c short"
    assert redaction.text(text) == "a *** b *** c short"
    document = json.dumps({"a": [SECRET, 12345678, True, None], SECRET: 1.5}).encode()
    assert json.loads(redaction.data(document)) == {"a": ["***", 12345678, True, None], "***": 1.5}
    same = b'{"a":1}'
    assert redaction.data(same) is same


def test_a_stream_that_is_cut_anywhere_holds_no_secret() -> None:
    redaction = Redaction(["secret-1234", "ssecret-99"])
    whole = b"a secret-1234, ssecret-1234 ssecret-99 secret-12 s"
    expected = redaction.data(whole)
    for size in range(1, len(whole)):
        stream = RedactedStream(redaction)
        pieces = [stream.feed(whole[at : at + size]) for at in range(0, len(whole), size)]
        assert b"".join(pieces) + stream.flush() == expected, size


def test_bytes_that_begin_no_secret_pass_at_once() -> None:
    stream = RedactedStream(Redaction(["secret-1234"]))
    assert stream.feed(b"nothing of it") == b"nothing of it"
    assert stream.feed(b"perhaps sec") == b"perhaps "
    assert stream.feed(b"ond") == b"second"


def test_the_secrets_of_a_message() -> None:
    headers = [
        (b"Authorization", b"Bearer token-of-7"),
        (b"Proxy-Authorization", b"Basic bWU6cGFzc3dvcmQtOA=="),
        (b"Cookie", b'a=cookie-1; b="cookie-2"'),
        (b"Set-Cookie", b"id=cookie-3; Path=/"),
        (b"Referer", b"https://h/?oauth_token=oauth-4"),
        (b"X-Goog-User-Project", b"project-5"),
        (b"X-Goog-Api-Key", b"placeholder"),
    ]
    found = secrets_in("/v1?%24key=key%2F6&alt=sse", headers)
    assert {"token-of-7", "password-8", "cookie-1", "cookie-2", "cookie-3", "oauth-4", "key/6", "key%2F6"} <= found
    assert not {"project-5", "placeholder", "sse", "/"} & found


def test_the_secrets_in_the_configuration() -> None:
    found = secrets_of_executor(
        "https://me:pass-1@h/run?key=key-2",
        [("X-Tenant", "acme"), ("X-Anything", "0123456789abcdef"), ("authorization", "Bearer tok-3")],
    )
    assert found == {"pass-1", "key-2", "0123456789abcdef", "tok-3", "Bearer tok-3"}
    environment = {"PATH": "/usr/bin:/bin", "MODE": "production", "SOME_TOKEN": "tok-4", "DB": "pg://me:pass-5@h/db"}
    assert secrets_of_environment(environment.items()) == {"tok-4", "pass-5"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, and ünïcode 日本", "plain, and ünïcode 日本"),
        ("a\nb\r", "a\\nb\\r"),
        ("\x1b[2J\x9b2J\x7f\x00", "\\x1b[2J\\x9b2J\\x7f\\x00"),
        ("\u202eevil\u2066 \u200f \u2028 \ud800", "\\u202eevil\\u2066 \\u200f \\u2028 \\ud800"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected
    escaped = printable_json(json.dumps([text], ensure_ascii=False, indent=1))
    assert json.loads(escaped) == [text]
    assert all(character.isprintable() or character == "\n" for character in escaped)
