"""The lines that point each kind of client at this proxy."""

from dataclasses import dataclass
from typing import Any

from addon.control.addresses import first_of


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of clients. `agents`: parts of its user agent, in lower case; empty: any user agent."""

    name: str
    agents: tuple[str, ...] = ()


CLIENTS = {
    "gemini-cli": Kind("gemini-cli", ("geminicli",)),
    "python": Kind("google-genai (Python)", ("google-genai-sdk", "gl-python")),
    "javascript": Kind("@google/genai (JavaScript)", ("google-genai-sdk", "gl-node")),
    "curl": Kind("curl", ("curl/",)),
    "run": Kind("Antigravity, and other clients without a base URL"),
    "env": Kind("any other client, by HTTPS proxy"),
    "openai": Kind("OpenAI's Responses API", ("openai",)),
}


@dataclass(frozen=True, slots=True)
class Client:
    """`key`: of CLIENTS. `lines`: for a shell or a program. `note`: further requirements."""

    key: str
    lines: str
    note: str = ""

    @property
    def name(self) -> str:
        return CLIENTS[self.key].name


def is_from(key: str, user_agent: str) -> bool:
    """Whether a request with this user agent may come from this kind of client."""
    return all(part in user_agent.lower() for part in CLIENTS[key].agents)


def clients(addresses: dict[str, Any], control: str, session: str) -> list[Client]:
    """`addresses`: from the state folder's `proxy.json`. `control`: the control API's URL, as used by this page."""
    found: list[Client] = []
    if reverse := first_of(addresses, "reverse"):
        base = reverse if session == "default" else f"{reverse}/@{session}"
        found += [
            Client("gemini-cli", f"export GOOGLE_GEMINI_BASE_URL={base} CODE_ASSIST_ENDPOINT={base}\ngemini"),
            Client(
                "python",
                f'client = genai.Client(api_key="…", http_options={{"base_url": "{base}"}})',
            ),
            Client(
                "javascript",
                f'const ai = new GoogleGenAI({{ apiKey: "…", httpOptions: {{ baseUrl: "{base}" }} }});',
            ),
            Client(
                "curl",
                f"curl {base}/v1beta/models/gemini-3-flash-preview:generateContent \\\n"
                '  -H "x-goog-api-key: $GEMINI_API_KEY" -H "content-type: application/json" \\\n'
                """  -d '{"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}'""",
            ),
        ]
    if first_of(addresses, "regular"):
        named = "" if session == "default" else f" --session {session}"
        found += [
            Client(
                "run",
                f"toolgraft run{named} -- agy",
                "The regular proxy decrypts only connections to models' hosts. Nothing is set outside the client.",
            ),
            Client(
                "env",
                f'eval "$(toolgraft env --proxy{named})"',
                "It names the proxy and a file of certificates that the client must trust; only connections to models' "
                "hosts are decrypted.",
            ),
        ]
    found.append(
        Client(
            "openai",
            f"export OPENAI_BASE_URL={control}/v1\nexport OPENAI_API_KEY=…",
            "The key is a token that may ask: toolgraft token new --scope ask",
        )
    )
    return found
