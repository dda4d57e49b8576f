"""Keys, tokens and cookies are masked in output and removed from recordings."""

import io

import pytest

from addon.core.security.secrets import REMOVED_SECRET, masked
from addon.hooks.secrets import _Masked, clean, masked_lines
from tests.hooks.harness import request, response


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("POST https://h/v1:x?key=abc&alt=sse", "POST https://h/v1:x?key=***&alt=sse"),
        ("https://h/?alt=sse&key=abc", "https://h/?alt=sse&key=***"),
        ("https://h/?KEY=abc access_token=x", "https://h/?KEY=*** access_token=x"),
        ("https://h/?access_token=ya29.x\x1b[0m", "https://h/?access_token=***\x1b[0m"),
        ("https://h/?monkey=abc&keys=d", "https://h/?monkey=abc&keys=d"),
        ("https://h/?$key=abc&%6bey=abc&oauth_token=abc", "https://h/?$key=***&%6bey=***&oauth_token=***"),
        ("https://h/#access_token=abc;x=1", "https://h/#access_token=***;x=1"),
        ("nothing at all", "nothing at all"),
    ],
)
def test_keys_in_urls_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("    x-goog-api-key: abc", "    x-goog-api-key: ***"),
        ("    Authorization: Bearer abc def", "    Authorization: ***"),
        ("    \x1b[34mcookie\x1b[0m: a=b; c=d", "    \x1b[34mcookie\x1b[0m: ***"),
        ("    set-cookie: a=b", "    set-cookie: ***"),
        ("    api-key: abc", "    api-key: ***"),
        ("    X-Api-Key: abc", "    X-Api-Key: ***"),
        ("    X-Auth-Token: abc", "    X-Auth-Token: ***"),
        ("    X-Amz-Security-Token: abc", "    X-Amz-Security-Token: ***"),
        ("    content-type: application/json", "    content-type: application/json"),
        ("    X-Vault-Token: abc", "    X-Vault-Token: ***"),
        ("    \x1b[34mOcp-Apim-Subscription-Key\x1b[0m: abc", "    \x1b[34mOcp-Apim-Subscription-Key\x1b[0m: ***"),
        ("    x-goog-user-project: abc", "    x-goog-user-project: abc"),
        ("    x-ratelimit-remaining-tokens: 5", "    x-ratelimit-remaining-tokens: 5"),
        ("    two words of a key: abc", "    two words of a key: abc"),
        ("    alt: sse\n    key: abc\n    x: 1", "    alt: sse\n    key: ***\n    x: 1"),
        (
            "    \x1b[33maccess_token\x1b[0m: \x1b[32m'abc'\n    \x1b[0m",
            "    \x1b[33maccess_token\x1b[0m: ***\n    \x1b[0m",
        ),
        ("    key:\n    - abc\n    - def\n    x: 1", "    key: ***\n    x: 1"),
        ("    \x1b[33mkey\x1b[0m:\n    - \x1b[32mabc\x1b[0m\n    - \x1b[32mdef", "    \x1b[33mkey\x1b[0m: ***"),
        ('    "key": "abc",\n    monkey: 1', '    "key": "abc",\n    monkey: 1'),
    ],
)
def test_secrets_in_lines_of_headers_and_queries_are_masked(line: str, expected: str) -> None:
    assert masked_lines(line) == expected


def test_the_console_writes_what_is_masked_and_else_is_a_file_like_others() -> None:
    file = io.StringIO()
    console = _Masked(file)
    print("GET /?key=abc", file=console)
    print("    cookie: abc", file=console)
    console.flush()
    assert file.getvalue() == "GET /?key=***\n    cookie: ***\n"


def test_a_message_is_cleaned_of_all_of_them() -> None:
    headers = {"Authorization": "Bearer s3", "x-goog-api-key": "s3", "cookie": "s3", "x-other": "stays"}
    headers |= {"X-Vault-Token": "s3", "Helicone-Auth": "Bearer s3", "x-goog-user-project": "stays"}
    headers |= {"X-Auth-Token": "s3", "X-Amz-Security-Token": "s3", "referer": "https://h/?%6bey=s3", "x-a": "b=s"}
    flow = request("https://h/v1?key=s3&x=1", headers=headers)
    made = response(b"", set_cookie="s3")
    made.headers["location"] = "https://h/?$key=s3#access_token=s3"
    clean(flow.request)
    clean(made)
    assert "s3" not in str(flow.request.headers.fields) + flow.request.path + str(made.headers.fields)
    assert flow.request.path == f"/v1?key={REMOVED_SECRET}&x=1"
    assert flow.request.headers["x-other"] == flow.request.headers["x-goog-user-project"] == "stays"
