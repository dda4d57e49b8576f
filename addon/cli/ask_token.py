"""The token that `env --openai` and `run --openai` give to clients, valid only for the front doors of one session.

It is made once and stored in the state folder, so that new shells do not make new tokens.
"""

import json
from pathlib import Path
from typing import Any

from addon.cli.api import Api
from addon.state_folder import make_folder, state_folder, write_file
from addon.web.own_token import TOKEN_PREFIX


def ask_token(session: str, url: str | None) -> tuple[str, str]:
    """The control API's URL, and the token: the user's own, if the API requires none or that token may not make
    tokens."""
    with Api(url) as api:
        own = api.token
        if own is None or (own.startswith(TOKEN_PREFIX) and not api.allows("/v1/tokens")):
            return api.url, own or "off"
        path, key = state_folder() / "ask-tokens.json", f"{api.url} {session}"
        stored = _read(path)
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


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
