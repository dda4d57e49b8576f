"""The lines that point each kind of client at this proxy."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Client:
    """`lines`: for a shell or a program. `note`: what else is needed."""

    name: str
    lines: str
    note: str = ""


def clients(addresses: dict[str, Any], control: str, session: str) -> list[Client]:
    """`addresses`: as in the state folder's `proxy.json`. `control`: the control API's URL, as this page has it."""
    found: list[Client] = []
    if reverse := _first(addresses, "reverse"):
        base = reverse if session == "default" else f"{reverse}/@{session}"
        found += [
            Client("gemini-cli", f"export GOOGLE_GEMINI_BASE_URL={base} CODE_ASSIST_ENDPOINT={base}\ngemini"),
            Client(
                "google-genai (Python)",
                f'client = genai.Client(api_key="…", http_options={{"base_url": "{base}"}})',
            ),
            Client(
                "@google/genai (JavaScript)",
                f'const ai = new GoogleGenAI({{ apiKey: "…", httpOptions: {{ baseUrl: "{base}" }} }});',
            ),
            Client(
                "curl",
                f"curl {base}/v1beta/models/gemini-3-flash-preview:generateContent \\\n"
                '  -H "x-goog-api-key: $GEMINI_API_KEY" -H "content-type: application/json" \\\n'
                """  -d '{"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}'""",
            ),
        ]
    if _first(addresses, "regular"):
        named = "" if session == "default" else f" --session {session}"
        found += [
            Client(
                "Antigravity, and other clients without a base URL",
                f"toolgraft run{named} -- agy",
                "The regular proxy decrypts only connections to models' hosts. Nothing is set outside the client.",
            ),
            Client(
                "any other client, by HTTPS proxy",
                f'eval "$(toolgraft env --proxy{named})"',
                "It names the proxy and a file of certificates that the client must trust; only connections to models' "
                "hosts are decrypted.",
            ),
        ]
    found.append(
        Client(
            "OpenAI's Responses API",
            f"export OPENAI_BASE_URL={control}/v1\nexport OPENAI_API_KEY=…",
            "The key is a token that may ask: toolgraft token new --scope ask",
        )
    )
    return found


def read_addresses(state: Path) -> dict[str, Any]:
    """The proxy's open ports; empty if nothing is known of them."""
    try:
        found = json.loads((state / "proxy.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _first(addresses: dict[str, Any], kind: str) -> str | None:
    urls = addresses.get(kind)
    return str(urls[0]) if isinstance(urls, list) and urls else None
