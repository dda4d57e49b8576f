"""The options: accepted values, and messages for refused ones."""

from typing import Any

import pytest
from pydantic import ValidationError

from addon.hooks.runtime import Runtime
from addon.settings import Settings, explain
from addon.urls import redacted
from store.models import Policy


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
        "http://a/b c",
        "http://ä.example",
    ],
)
def test_the_upstream_of_the_doors_is_a_base_url(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings.from_options({"graft_upstream": url})
    assert explain(refused.value).startswith(f"graft_upstream={url!r}: ")


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "url",
    [
        f"https://me:{SECRET}@gemini.example",
        f"https://:{SECRET}@gemini.example",
        f"https://{SECRET}@gemini.example/v1",
        f"https://me:{SECRET}/@:?#x@gemini.example",
        f"me:{SECRET}@gemini.example",
        f"ftp://me:{SECRET}@gemini.example",
        f"https://me:{SECRET}@gemini.example:x",
        f"https://gemini.example?key={SECRET}",
        f"https://gemini.example#{SECRET}",
        f"https://gemini.example/?\nkey={SECRET}",
    ],
)
@pytest.mark.parametrize(
    "option", ["upstream", "redirect", "redirect_host", "allow_origins", "allow_hosts", "control", "store"]
)
def test_a_refused_url_is_shown_without_its_password(option: str, url: str) -> None:
    choices: dict[str, dict[str, Any]] = {
        "upstream": {"graft_upstream": url},
        "redirect": {"graft_redirect": [f"gemini.example={url}"]},
        "redirect_host": {"graft_redirect": [f"{url}=http://127.0.0.1:1"]},
        "allow_origins": {"graft_allow_origins": [url]},
        "allow_hosts": {"graft_allow_hosts": [url]},
        "control": {"graft_control": f"{url}:x"},
    }
    if option == "store":
        upstreams: Any = None
        with pytest.raises(ValueError, match="graft_store=") as unfit:
            Runtime.start(Settings(store=url), upstreams)
        assert SECRET not in str(unfit.value)
        return
    with pytest.raises(ValidationError) as refused:
        Settings.from_options(choices[option])
    message = explain(refused.value)
    assert SECRET not in message
    assert message.startswith(f"graft_{option.removesuffix('_host')}")


@pytest.mark.parametrize("value", ["{names} done [{turn_id}", "two words", "a@b"])
def test_a_refused_value_is_shown(value: str) -> None:
    assert redacted(value).endswith(f"{value[-3:]}'") or "@" in value


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


@pytest.mark.parametrize("name", Policy.options())
def test_a_session_may_have_what_the_option_may_have(name: str) -> None:
    of_proxy = Settings.model_json_schema()["properties"][name]
    of_session, _ = Policy.model_json_schema()["properties"][name]["anyOf"]
    assert of_session.items() <= of_proxy.items()


def test_headers_that_name_a_user_are_names_of_headers_in_lower_case() -> None:
    assert Settings.from_options({"graft_user_headers": ["X-Tenant", "x_user"]}).user_headers == ("x-tenant", "x_user")
    for name in ("", "x user", "x-user: ann", "x-usér"):
        with pytest.raises(ValidationError) as refused:
            Settings.from_options({"graft_user_headers": [name]})
        assert f"{name!r} is not a header name" in explain(refused.value)
