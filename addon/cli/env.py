"""`toolgraft env` and `toolgraft run`: point unmodified clients at the running proxy.

Base URLs send a client to the reverse proxy, over plain HTTP. With `--proxy`, a client keeps its own URLs, uses the
regular proxy, and trusts its CA; only connections to models' hosts are decrypted. With `--openai`, an OpenAI client
uses the front door.
"""

import json
import os
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from addon.cli import options, output

Shell = Literal["bash", "zsh", "fish", "powershell", "cmd"]

DEFAULTS = {"reverse": "http://127.0.0.1:8081", "regular": "http://127.0.0.1:8080"}
BASE_URLS = ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL", "CODE_ASSIST_ENDPOINT")
NO_BASE_URL = ("agy", "antigravity")
"""Clients without a setting for base URLs: `run` starts them with the regular proxy."""

_CONNECT_TIMEOUT = 2.0
_GEMINI = "generativelanguage.googleapis.com"

Proxy = Annotated[
    bool, typer.Option("--proxy", help="Use the regular proxy and its CA for models' hosts, instead of base URLs.")
]
OpenAI = Annotated[
    bool, typer.Option("--openai", help="For OpenAI clients: use the front door, with a token as the key.")
]


def env(
    shell: Annotated[Shell | None, typer.Option(help="The shell to write for. Default: $SHELL.")] = None,
    proxy: Proxy = False,
    openai: OpenAI = False,
    session: options.Session = "default",
    url: options.Url = None,
    as_json: options.Json = False,
) -> None:
    """Print the environment variables that point clients at the proxy: eval "$(toolgraft env)".

    The ports are those of the proxy on this machine. If --url names another machine, they are the default ports.
    """
    found = variables(session=session, proxy=proxy, openai=openai, url=url)
    if not openai and (address := _unanswered(found)):
        output.note(f"no proxy listens at {address}: start it with ./run_proxy.sh")
    if as_json:
        output.print_json(found)
        return
    for name, value in found.items():
        print(assignment(shell or _own_shell(), name, value))


def run(
    command: Annotated[list[str], typer.Argument(help="The client and its arguments.", metavar="CMD …")],
    proxy: Proxy = False,
    openai: OpenAI = False,
    session: options.Session = "default",
    url: options.Url = None,
) -> None:
    """Run a client that uses the proxy: toolgraft run -- gemini -p hello. Exits with the client's status.

    Clients that know no base URL (agy) use the regular proxy, as with --proxy. It decrypts only connections to models'
    hosts; all others stay encrypted between the client and the server. Nothing is set outside the client's environment.
    """
    proxy = proxy or (Path(command[0]).name in NO_BASE_URL and not openai)
    found = variables(session=session, proxy=proxy, openai=openai, url=url)
    if not openai and (address := _unanswered(found)):
        output.fail(f"{command[0]} was not started: no proxy listens at {address}. Start it with ./run_proxy.sh")
    try:
        if openai:
            os.environ.pop("TOOLGRAFT_TOKEN", None)  # the client's own token has fewer rights
        os.execvpe(command[0], command, os.environ | found)
    except OSError as error:
        output.note(f"{command[0]}: {error.strerror}")
        raise typer.Exit(127 if isinstance(error, FileNotFoundError) else 126) from None


def variables(*, session: str, proxy: bool = False, openai: bool = False, url: str | None = None) -> dict[str, str]:
    """The variables by name. Ends the command if the running proxy has no port of the required kind."""
    if openai:
        if proxy:
            output.fail("--openai and --proxy exclude each other: choose one")
        return _front_door(session, url)
    if not proxy:
        base = _address_of("reverse", url)
        if session != "default":
            base += f"/@{session}"
        return dict.fromkeys(BASE_URLS, base)
    return _regular_proxy(session, url)


def _regular_proxy(session: str, url: str | None) -> dict[str, str]:
    """The variables for the regular proxy. The user name in its URL names the session, and leaves all hosts except
    models' encrypted."""
    from addon.urls import MODELS_ONLY

    name = "" if session == "default" else session
    address = _address_of("regular", url).replace("://", f"://{name}{MODELS_ONLY}:x@", 1)
    ca = ca_path(url)
    if not ca.exists():
        output.note(f"{ca} does not exist yet: the proxy creates it at its first start")
    found = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), address)  # clients differ in which one takes precedence
    found["NODE_EXTRA_CA_CERTS"] = str(ca)
    found["NODE_USE_ENV_PROXY"] = "1"
    found |= dict.fromkeys(CA_VARIABLES, str(ca_bundle(ca)))
    for variable in ("NO_PROXY", "no_proxy"):
        if patterns := os.environ.get(variable):
            found[variable] = ",".join(one for one in patterns.split(",") if not covers_models(one))
    return found


def covers_models(pattern: str) -> bool:
    """Whether a pattern of NO_PROXY lets clients reach a model's host directly."""
    from addon.surfaces.registry import is_surface_host

    host = pattern.strip().lower().lstrip("*.").partition(":")[0]
    return pattern.strip() == "*" or (bool(host) and (f".{_GEMINI}".endswith(f".{host}") or is_surface_host(host)))


def _unanswered(found: dict[str, str]) -> str:
    """The proxy's address if nothing listens there, else ""."""
    parts = urlsplit(found.get("HTTPS_PROXY") or found[BASE_URLS[0]])
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), _CONNECT_TIMEOUT).close()
    except OSError:
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return ""


def _front_door(session: str, url: str | None) -> dict[str, str]:
    """The variables for OpenAI clients. A header names the session."""
    base, token = ask_token(session, url)
    found = {"OPENAI_BASE_URL": f"{base}/v1", "OPENAI_API_KEY": token}
    return found if session == "default" else found | {"OPENAI_CUSTOM_HEADERS": f"x-graft-session: {session}"}


def assignment(shell: Shell, name: str, value: str) -> str:
    """The line that sets and exports a variable in a shell."""
    match shell:
        case "bash" | "zsh":
            return f"export {name}={shlex.quote(value)}"
        case "fish":
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"set -gx {name} '{escaped}'"
        case "powershell":
            escaped = value.replace("'", "''")
            return f"$env:{name} = '{escaped}'"
        case "cmd":
            return f'set "{name}={value}"'


def _own_shell() -> Shell:
    match Path(os.environ.get("SHELL", "")).name, os.name:
        case "fish", _:
            return "fish"
        case "pwsh", _:
            return "powershell"
        case "", "nt":
            return "powershell"
    return "bash"


def _address_of(kind: Literal["reverse", "regular"], url: str | None) -> str:
    """The first address of a kind in the state folder's proxy file. Without that file, or for a proxy on another
    machine, the default port."""
    host = _remote_host(url)
    if host is not None:
        literal = f"[{host}]" if ":" in host else host
        return f"http://{literal}:{urlsplit(DEFAULTS[kind]).port}"
    addresses = read_proxy_file().get(kind, [DEFAULTS[kind]])
    if not addresses:
        hint = "without --proxy" if kind == "regular" else "with --proxy"
        output.fail(f"the running proxy has no {kind} port: start it with one, or run this command {hint}")
    return str(addresses[0])


def ca_path(url: str | None) -> Path:
    """The CA file named in the proxy file. Without it, or for a proxy on another machine, mitmproxy's usual path."""
    written = read_proxy_file().get("ca") if _remote_host(url) is None else None
    return Path(written) if isinstance(written, str) else Path.home() / ".mitmproxy" / "mitmproxy-ca-cert.pem"


def _remote_host(url: str | None) -> str | None:
    """The host of a proxy on another machine; None for this machine."""
    from addon.urls import is_loopback

    host = urlsplit(url).hostname if url else None
    return None if host is None or is_loopback(host) else host


def read_proxy_file() -> dict[str, Any]:
    """The state folder's `proxy.json`: the URLs of the `regular` and `reverse` proxies, and the file `ca`; {} without
    it. Ends the command if the folder is not safe."""
    from addon.state_folder import check_folder, read_object, state_folder

    try:
        check_folder(state_folder())
    except (OSError, ValueError) as error:
        output.fail(str(error))
    return read_object(state_folder() / "proxy.json")


_BUNDLE = "ca-bundle.pem"
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that replace a client's CAs. NODE_EXTRA_CA_CERTS, by contrast, adds to Node's own."""


def ca_bundle(ca: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Write the file, if the CA exists. Returns its path, or the CA's. Ends the command if it cannot be written."""
    from addon.state_folder import make_folder, state_folder, write_file

    bundle = state_folder() / _BUNDLE
    try:
        own = ca.read_text()
        named = [Path(value) for name in CA_VARIABLES if (value := environ.get(name))]
        trusted = [path for path in named if path not in (bundle, ca)] or [_usual_cas()]
        texts = [path.read_text("utf-8", "replace") for path in dict.fromkeys(trusted) if path.is_file()]
    except FileNotFoundError:
        return ca
    except OSError as error:
        output.fail(f"{error.filename}: {error.strerror}")
    try:
        make_folder(bundle.parent)
        write_file(bundle, "\n".join([own, *texts]))
    except OSError as error:
        output.fail(str(error))
    return bundle


def _usual_cas() -> Path:
    """The system's CAs, else certifi's."""
    import ssl

    found = ssl.get_default_verify_paths().openssl_cafile
    for path in (found, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"):
        if Path(path).is_file():
            return Path(path)
    import certifi

    return Path(certifi.where())


def ask_token(session: str, url: str | None) -> tuple[str, str]:
    """The control API's URL, and the token: the user's own, if the API requires none or that token may not make
    tokens."""
    from addon.cli.api import Api
    from addon.state_folder import make_folder, read_object, state_folder, write_file
    from addon.web.own_token import TOKEN_PREFIX

    with Api(url) as api:
        own = api.token
        if own is None or (own.startswith(TOKEN_PREFIX) and not api.allows("/v1/tokens")):
            return api.url, own or "off"
        path, key = state_folder() / "ask-tokens.json", f"{api.url} {session}"
        stored = read_object(path)
        valid = {token["id"] for token in api.get("/v1/tokens")["items"]}
        found = stored.get(key)
        if isinstance(found, str) and found.removeprefix(TOKEN_PREFIX).partition("_")[0] in valid:
            return api.url, found
        # `default` stands for the proxy's own session.
        place: dict[str, Any] = {"own_session": True} if session == "default" else {"session": session}
        made: str = api.post("/v1/tokens", {"scopes": ["ask"], "name": "for OpenAI's clients", **place})["token"]
    make_folder(path.parent)
    write_file(path, json.dumps({**stored, key: made}))
    return api.url, made
