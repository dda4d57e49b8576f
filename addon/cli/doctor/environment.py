"""Checks of this shell's environment variables that clients read."""

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from addon.cli.doctor.finding import Finding
from addon.cli.env import BASE_URLS, covers_models
from addon.urls import is_loopback, redacted

_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
_KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY")


def variables(environ: Mapping[str, str], reverse: list[str], regular: list[str]) -> Iterator[Finding]:
    """`reverse`, `regular`: the URLs of the running proxy, or of the default ports."""
    yield from _base_urls(environ, reverse)
    yield from _proxies(environ, regular)
    yield from _exceptions(environ, regular)
    if environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("1", "true"):
        note = "GOOGLE_GENAI_USE_VERTEXAI is set: google-genai uses Vertex AI, with GOOGLE_VERTEX_BASE_URL"
        yield Finding("environment", "note", note)
    if url := environ.get("TOOLGRAFT_URL"):
        note = f"TOOLGRAFT_URL is set: commands use the proxy at {redacted(url)}"
        yield Finding("environment", "note", note, "for the proxy on this machine: unset TOOLGRAFT_URL")


def keys(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Keys are never printed."""
    found = {name: value for name in _KEYS if (value := environ.get(name, ""))}
    for name, value in found.items():
        if value != value.strip() or not value.isprintable() or not value.isascii():
            message = f"{name} has spaces or characters that no key has"
            yield Finding("key", "wrong", message, f"copy the key again, and export {name}")
            return
    if not found:
        message = "neither GEMINI_API_KEY nor GOOGLE_API_KEY is set: clients need a key or login of their own"
        yield Finding("key", "note", message, "export GEMINI_API_KEY before ./run_proxy.sh, for the front doors")
    elif len(set(found.values())) > 1:
        message = "GOOGLE_API_KEY and GEMINI_API_KEY differ: google-genai uses the former, the front doors the latter"
        yield Finding("key", "wrong", message, "unset one of the two")
    else:
        yield Finding("key", "ok", f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'} set")


def _base_urls(environ: Mapping[str, str], reverse: list[str]) -> Iterator[Finding]:
    for name in BASE_URLS:
        if not (value := environ.get(name)):
            continue
        if _place(value) in map(_place, reverse):
            yield Finding("environment", "ok", f"{name} points to the proxy")
        else:
            fix = f'eval "$(toolgraft env)", or unset {name} if the client uses --proxy'
            yield Finding("environment", "wrong", f"{name} points elsewhere: {redacted(value)}", fix)


def _proxies(environ: Mapping[str, str], regular: list[str]) -> Iterator[Finding]:
    for name in _PROXIES:
        if not (value := environ.get(name)):
            continue
        if _place(value) in map(_place, regular):
            yield Finding("environment", "ok", f"{name} points to the proxy")
        elif name.upper() == "HTTP_PROXY" and "127.0.0.1" not in _no_proxy(environ):
            message = f"{name} is another proxy ({redacted(value)}), to which clients may send requests for base URLs"
            yield Finding("environment", "wrong", message, "export NO_PROXY=127.0.0.1,localhost")
        else:
            fix = 'for the regular proxy: eval "$(toolgraft env --proxy)"'
            yield Finding("environment", "note", f"{name} is another proxy: {redacted(value)}", fix)


def _exceptions(environ: Mapping[str, str], regular: list[str]) -> Iterator[Finding]:
    uses_proxy = any(_place(environ.get(name, "")) in map(_place, regular) for name in _PROXIES if environ.get(name))
    for pattern in _no_proxy(environ) if uses_proxy else ():
        if covers_models(pattern):
            message = f"NO_PROXY has {pattern!r}: clients reach the model past the proxy"
            yield Finding("environment", "wrong", message, f"remove {pattern!r} from NO_PROXY and no_proxy")


def _no_proxy(environ: Mapping[str, str]) -> list[str]:
    texts = f"{environ.get('NO_PROXY', '')},{environ.get('no_proxy', '')}".split(",")
    return list(dict.fromkeys(text.strip().lower() for text in texts if text.strip()))


def _place(url: str) -> tuple[str, int]:
    """Host and port, with one name for this machine."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return url, 0
    return "127.0.0.1" if is_loopback(host) else host, port or (443 if parts.scheme == "https" else 80)
