"""The options: what fits, and what is refused in words."""

from typing import Any

import pytest
from pydantic import ValidationError

from addon.settings import Settings, explain


@pytest.mark.parametrize(
    "template", ["[{turn_id}]", "{names} - {turn_id}", "OK: {names} [{turn_id}]", "12345 {turn_id}"]
)
def test_a_placeholder_needs_words_of_its_own(template: str) -> None:
    options: dict[str, Any] = {"graft_placeholder": template}
    with pytest.raises(ValidationError) as refused:
        Settings.from_options(options)
    assert "three letters" in explain(refused.value)


@pytest.mark.parametrize("template", ["Ran {names} [{turn_id}]", "{turn_id} done", "工具已完成 {names} {turn_id}"])
def test_a_placeholder_with_words_fits(template: str) -> None:
    assert Settings.from_options({"graft_placeholder": template}).placeholder == template


@pytest.mark.parametrize(
    "host", ["gemini.example:443", "https://gemini.example", "gemini.example/v1", "a b", "", "*.example"]
)
def test_a_redirect_is_of_a_plain_host_name(host: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings.from_options({"graft_redirect": [f"{host}=http://127.0.0.1:9912"]})
    assert f"{host!r} must be a plain host name, without scheme, port or path" in explain(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "generativelanguage.googleapis.com",
        "ftp://gemini.example",
        "http://",
        "http://a:x",
        "http://a:0",
        "http://a/?key=k",
        "http://a#b",
        "http://me@a",
        "http://a/b c",
        "http://ä.example",
    ],
)
def test_the_upstream_of_the_doors_is_a_base_url(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings.from_options({"graft_upstream": url})
    assert explain(refused.value).startswith(f"graft_upstream={url!r}: ")


@pytest.mark.parametrize("url", ["https://gemini.example", "http://127.0.0.1:9912", "http://[::1]:9912/a/b"])
def test_the_upstream_of_the_doors_may_have_a_path(url: str) -> None:
    assert Settings.from_options({"graft_upstream": f"{url}/"}).upstream == url


@pytest.mark.parametrize("name", [".", "..", "...."])
def test_a_session_is_not_named_by_dots_alone(name: str) -> None:
    """A URL cannot address it."""
    with pytest.raises(ValidationError) as refused:
        Settings.from_options({"graft_session": name})
    assert "must be a name of the form [A-Za-z0-9_.-]{1,64}, and not only dots" in explain(refused.value)
    assert Settings.from_options({"graft_session": f"{name}a"}).session == f"{name}a"


@pytest.mark.parametrize("text", ["", "team", "team=", "=alice", "team=alice,", "a b=alice", "*=alice"])
def test_a_session_is_shared_with_named_users(text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings.from_options({"graft_session_access": [text]})
    assert "must be SESSION=USER,USER" in explain(refused.value)
