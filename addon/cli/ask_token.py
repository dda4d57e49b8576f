"""The token that `env --openai` and `run --openai` hand out: for the front doors of one session, and nothing else.

It is made once and kept in the state folder, so that each shell does not add one to the list.
"""

import json
from pathlib import Path
from typing import Any

from addon.cli.api import Api
from addon.control.token import MADE, make_folder, write_file
from addon.settings import state_folder


def ask_token(session: str, url: str | None) -> tuple[str, str]:
    """The control API's URL, and the token. Where nobody is asked for one, or the user's own may make none, it is what
    the user has."""
    with Api(url) as api:
        own = api.token
        if own is None or (own.startswith(MADE) and not api.allows("/v1/tokens")):
            return api.url, own or "off"
        path, key = state_folder() / "ask-tokens.json", f"{api.url} {session}"
        kept = _read(path)
        valid = {one["id"] for one in api.get("/v1/tokens")["items"]}
        found = kept.get(key)
        if isinstance(found, str) and found.removeprefix(MADE).partition("_")[0] in valid:
            return api.url, found
        # `default` is whatever the proxy's own session is
        place: dict[str, Any] = {"own_session": True} if session == "default" else {"session": session}
        made: str = api.post("/v1/tokens", {"scopes": ["ask"], "name": "for OpenAI's clients", **place})["token"]
    make_folder(path.parent)
    write_file(path, json.dumps({**kept, key: made}))
    return api.url, made


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
