"""Secrets are found by their value, whole and in pieces, and unprintable characters are escaped."""

import json

import pytest

from addon.core.security.secrets import (
    RedactedStream,
    Redaction,
    credentials,
    is_secret_name,
    secrets_in,
    secrets_of_environment,
    secrets_of_executor,
)
from addon.core.security.untrusted import printable, printable_json

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
        (b"X-Vault-Token", b"hvs.token-9"),
        (b"Helicone-Auth", b"Bearer token-10"),
        (b"Idempotency-Key", b"once-11-and-never-again"),
    ]
    found = secrets_in("/v1?%24key=key%2F6&alt=sse", headers)
    assert {"token-of-7", "password-8", "cookie-1", "cookie-2", "cookie-3", "oauth-4", "key/6", "key%2F6"} <= found
    assert {"hvs.token-9", "token-10"} <= found
    assert not {"project-5", "placeholder", "sse", "/", "once-11-and-never-again"} & found


@pytest.mark.parametrize(
    "name",
    """Authorization Proxy-Authorization X-Goog-Api-Key X-Goog-IAM-Authorization-Token api-key X-Api-Key X-Auth-Token
    X-Amz-Security-Token Cookie Set-Cookie X-Vault-Token Ocp-Apim-Subscription-Key Helicone-Auth X-Firebase-AppCheck
    X-Goog-IAP-JWT-Assertion X-Portkey-Api-Key X-Goog-Encryption-Key X-MyPassword Client_Secret Export-Key MyExportKey
    X-RateLimit-Bypass-Token X-Input-Token X-Author-Token""".split(),
)
def test_headers_that_hold_secrets_are_known_by_their_names(name: str) -> None:
    assert is_secret_name(name)
    headers = [(name.encode(), b"value-1")]
    assert credentials("/v1?alt=sse", headers) == (b"value-1",)


@pytest.mark.parametrize(
    "name",
    """X-Goog-User-Project X-Goog-Api-Client X-Goog-IAM-Authority-Selector authority :authority Content-Type
    Content-Security-Policy Accept User-Agent Host Idempotency-Key X-Idempotency-Key Sec-WebSocket-Key
    WWW-Authenticate Proxy-Authenticate Access-Control-Allow-Credentials Access-Control-Request-Private-Network
    X-RateLimit-Remaining-Tokens anthropic-ratelimit-tokens-remaining X-RateLimit-Limit-Tokens
    X-Max-Tokens X-Input-Token-Count X-Graft-Session
    X-Author X-Bypass-Cache X-Credits-Left X-Keyword X-Portkey-Provider Surrogate-Key X-Cache-Key Signature-Input
    Helicone-Session-Name Helicone-Session-Path Traceparent X-Request-Id X-Server-Timeout""".split(),
)
def test_other_headers_stay_readable_and_share_connections(name: str) -> None:
    assert not is_secret_name(name)
    headers = [(name.encode(), b"value-1-of-twenty-and-more")]
    assert credentials("/v1?alt=sse", headers) == ()
    assert secrets_in("/v1?alt=sse", headers) == set()


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
