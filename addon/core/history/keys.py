"""The ledger's keys of turns: digests of what clients send, which nobody can compute without the store's secret.

The hashes in `turns` have no secret, because they never leave the process. The keys here are stored and looked up. Each
key depends on its kind and on who asks: the API key, or else the project that the request names.
Tokens and addresses are not used: tokens are replaced every hour, and load balancers hide addresses.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from urllib.parse import unquote

from addon.core.dialects.interaction_requests import marked_id
from addon.core.framing.documents import Document, get, parts_of
from addon.core.history.calls import decoded_signature
from addon.core.history.own_signatures import own_signature
from addon.core.history.rewriting import DUMMY_SIGNATURE
from addon.core.history.turns import windows
from addon.core.security.secrets import Fields

_PROJECT = re.compile(r"/projects/([^/?:]+)")
_TOKENS = ("ya29.", "eyJ")
"""Prefixes of OAuth tokens and of JSON Web Tokens."""


def asker_of(path: str, header: Callable[[str], str | None]) -> str:
    """Who asks; "" if unknown. The result may be a secret: store only a digest of it.

    `path`: with its query. `header`: returns a header by its name in lower case.
    """
    key = header("x-goog-api-key") or _query_key(path) or _bearer_key(path, header("authorization") or "")
    if key:
        return asker_of_key(key)
    named = _PROJECT.search(path)
    project = unquote(named[1]) if named else header("x-goog-user-project")
    return f"project:{project}" if project else ""


def asker_of_key(key: str) -> str:
    return f"key:{key}"


def _query_key(path: str) -> str:
    """The first key that is not empty. Servers decode the names, too."""
    for pair in path.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if value and unquote(name) in ("key", "$key"):
            return unquote(value)
    return ""


def _bearer_key(path: str, authorization: str) -> str:
    """The API key in a bearer header, as OpenAI's clients send it, or alone in the header. On other paths a bearer is
    always a token."""
    if "/openai/" not in path.partition("?")[0] or _PROJECT.search(path):
        return ""
    words = authorization.split()
    if words and words[0].lower() == "bearer":
        del words[0]
    return words[0] if len(words) == 1 and not words[0].startswith(_TOKENS) else ""


USER_HEADERS = frozenset(
    "x-user x-user-id x-user-email x-user-name x-username x-end-user x-end-user-id "
    "x-session-id x-chat-id x-conversation-id "
    "x-forwarded-user x-forwarded-email x-forwarded-preferred-username remote-user remote-email x-remote-user "
    "x-auth-request-user x-auth-request-email x-auth-request-preferred-username x-authentik-username x-authentik-uid "
    "x-authenticated-user x-webauth-user x-consumer-id x-consumer-username "
    "x-goog-authenticated-user-id x-goog-authenticated-user-email x-amzn-oidc-identity x-ms-client-principal-id "
    "x-ms-client-principal-name cf-access-authenticated-user-email tailscale-user-login "
    "x-openwebui-user-id x-openwebui-user-email x-openwebui-chat-id x-librechat-user-id "
    "x-litellm-end-user-id x-litellm-customer-id helicone-user-id x-gemini-api-privileged-user-id".split()
)
"""The usual headers that name a user or a chat, as sign-in proxies, gateways and chat programs send them."""


def sender_of(fields: Fields, user_headers: Collection[str] = (), user: str = "") -> bytes:
    """What a retry has in common with its first try, besides asker, URL and body: the values of `user_headers` (lower
    case; empty: `USER_HEADERS`), the Idempotency-Key or else the user agent, and `user`, the name or token under which
    the client uses this proxy. Holds secrets, like the asker."""
    sent = [(name.lower().decode("latin-1"), value) for name, value in fields if value]
    agent = "idempotency-key" if "idempotency-key" in dict(sent) else "user-agent"
    found = sorted(one for one in sent if one[0] == agent or one[0] in (user_headers or USER_HEADERS))
    return repr((user, found)).encode()


SIZE = 16

UNGUESSABLE = 16
"""From this size in bytes on, a signature is a mark that nobody guesses, and that no two answers share."""

_HEAD = 6
"""The number of leading bytes that the keys of a turn share, so that a store can keep or pack them together."""

_DUMMIES = {decoded_signature(dummy) for dummy in (DUMMY_SIGNATURE, "context_engineering_is_the_way_to_go")}
"""Signatures that clients send instead of missing ones. They prove nothing."""


def asker_digest(secret: bytes, asker: str | bytes) -> bytes:
    """A digest of who asks, because the asker is often a secret. Bytes are already such a digest."""
    if isinstance(asker, bytes):
        return asker
    return _keyed(secret, b"asker", asker.encode("utf-8", "surrogatepass")).digest()


class Keys:
    """The keys of one request's turns. `asker`: a digest (`asker_digest`). `name`: the client's name for the chat.
    `instruction`: the system instruction or a digest of it. The last two are empty if the request has none.

    `chat` identifies who asks and the chat's name; `root` also identifies the system instruction.
    """

    __slots__ = ("_history", "_own", "_secret", "_whole", "_window", "asker", "chat", "is_named", "root")

    def __init__(self, secret: bytes, asker: bytes = b"", name: str = "", instruction: bytes = b"") -> None:
        self._secret = secret
        self.asker = asker or asker_digest(secret, "")
        self.is_named = bool(name)
        self.chat = _keyed(secret, b"chat", self.asker, name.encode("utf-8", "surrogatepass")).digest()
        self.root = _keyed(secret, b"root", self.chat, instruction).digest()
        self._own = _keyed(secret, b"own", self.asker)
        self._history = _keyed(secret, b"history", self.root)
        self._whole = _keyed(secret, b"whole", self.chat)
        self._window = _keyed(secret, b"window", self.asker)

    def own(self, digest: bytes) -> bytes:
        """The key of a turn's own words, from their digest. Argument `own` of the other keys."""
        own = self._own.copy()
        own.update(digest)
        return own.digest()

    def owns(self, digests: Iterable[bytes]) -> list[bytes]:
        """The keys of the own words of several turns."""
        base = self._own
        found: list[bytes] = []
        for digest in digests:
            own = base.copy()
            own.update(digest)
            found.append(own.digest())
        return found

    def history(self, own: bytes, chain: bytes) -> bytes:
        """The key of a turn with everything before it, including the system instruction and the chat's name."""
        return own[:_HEAD] + _with(self._history, chain)

    def words(self, own: bytes, chain: bytes, sent: Sequence[bytes]) -> list[bytes]:
        """All keys of a turn's words: `own`, and those of `history`, `whole` and each `window`."""
        head = own[:_HEAD]
        keys = [own, head + _with(self._history, chain), head + _with(self._whole, chain)]
        base = self._window
        for window in sent:
            digest = base.copy()
            digest.update(window)
            keys.append(head + digest.digest())
        return keys

    def whole(self, own: bytes, chain: bytes) -> bytes:
        """The key of a turn with everything before it, under any system instruction."""
        return own[:_HEAD] + _with(self._whole, chain)

    def window(self, own: bytes, window: bytes) -> bytes:
        """The key of a turn with some turns before it: see `core.history.turns.windows`."""
        return own[:_HEAD] + _with(self._window, window)

    def pair(self, before: bytes, digest: bytes) -> bytes:
        """The key of a turn with the one turn before it, from their digests."""
        return self.window(self.own(digest), windows([before], digest)[0])

    def bare(self, chain: bytes) -> bytes:
        """The key by which a placeholder without an id finds its step. `chain`: that of the turns before it, see
        `chains_without_ids`."""
        return _keyed(self._secret, b"bare", self.root, chain).digest()

    def bare_window(self, window: bytes) -> bytes:
        """The key of a placeholder without an id after some turns: see `windows_without_ids`."""
        return _keyed(self._secret, b"bare window", self.asker, window).digest()

    def step(self, chain: bytes, digest: bytes) -> bytes:
        """The key of a turn with calls by what all clients keep of it: see `visible.step_digests`. `chain`: that of the
        turns before it."""
        return _keyed(self._secret, b"step", self.root, digest, chain).digest()

    def request(self, sent: bytes) -> bytes:
        """The key of a request, to recognise a retry. `sent`: a digest of its URL, body and sender."""
        return _keyed(self._secret, b"request", self.asker, sent).digest()

    def mark(self, kind: str, value: bytes) -> bytes:
        """The key of a mark: see `marks_of`."""
        return _keyed(self._secret, kind.encode(), self.asker, value).digest()

    def signature(self, turn_id: str) -> str:
        """The proxy's own signature for a turn."""
        return own_signature(self._secret, turn_id)

    def mask_chain(self, name: bytes, chain: bytes) -> bytes:
        """Encrypt or decrypt the chain that is stored with a turn, so that nobody can guess a chat's words from it.
        `name`: the turn's id or, if it has none, the key of its own words."""
        pad = _keyed(self._secret, b"hidden", name).digest()
        return (int.from_bytes(chain) ^ int.from_bytes(pad)).to_bytes(SIZE)


def is_unguessable(kind: str, value: bytes) -> bool:
    """Whether a mark belongs to one answer alone. Models often count the ids of their calls from zero."""
    return kind == "interaction" or (kind == "signature" and len(value) >= UNGUESSABLE)


def marks_of(contents: Sequence[Document]) -> list[tuple[str, bytes]]:
    """The model's marks in these Contents that clients send back: signatures by value, ids of calls, ids of
    interactions. Each once, as (kind, value)."""
    found: dict[tuple[str, bytes], None] = {}
    for content in contents:
        for part in parts_of(content):
            if (interaction := marked_id({"parts": [part]})) is not None:
                found["interaction", interaction.encode("utf-8", "surrogatepass")] = None
                continue
            if isinstance(call := get(part, "functionCall"), dict) and isinstance(call_id := call.get("id"), str):
                found["call", call_id.encode("utf-8", "surrogatepass")] = None
            signature = decoded_signature(get(part, "thoughtSignature"))
            if signature and signature not in _DUMMIES:
                found["signature", signature] = None
    return list(found)


def _keyed(secret: bytes, kind: bytes, *parts: bytes) -> "hashlib.blake2b":
    """A keyed digest that can be continued. All parts but the last have a fixed length, so sequences never collide."""
    return hashlib.blake2b(b"".join(parts), key=secret, digest_size=SIZE, person=kind)


def _with(base: "hashlib.blake2b", value: bytes) -> bytes:
    digest = base.copy()
    digest.update(value)
    return digest.digest()
