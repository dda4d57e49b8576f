"""The commands' client of the control API. An error ends the command with one line that says what to do."""

import json
import os
import time
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self
from urllib.parse import urlsplit

import httpx2

from addon.cli.output import fail, note
from addon.settings import Settings
from addon.state_folder import read_address, state_folder
from addon.urls import is_loopback
from addon.web.own_token import load_token

DEFAULT_URL = "http://127.0.0.1:8741"


class ServerEvent(NamedTuple):
    type: str
    data: Any
    id: str


def local_token() -> str:
    """This machine's token: TOOLGRAFT_TOKEN, else the state folder's, which is created if missing."""
    try:
        return load_token(Settings(), os.environ) or "off"
    except (OSError, ValueError) as error:
        fail(str(error))


UNKNOWN_TOKEN = (
    "the proxy does not know this token. The proxy's token is its option graft_token, else its environment variable "
    "TOOLGRAFT_TOKEN, else the one in its state folder (TOOLGRAFT_HOME). Set TOOLGRAFT_TOKEN to it here"
)


def client_arguments(url: str | None) -> tuple[str, dict[str, Any]]:
    """The control API's URL, without a slash at its end, and the arguments of an httpx2 client for it, with the token.

    `url` None: the proxy on this machine.
    """
    base = (url or local_url()).rstrip("/")
    local = url is None or is_loopback(urlsplit(url).hostname or "")
    headers = {"User-Agent": "toolgraft"}
    # This machine's token never goes to another machine; only a token that the user gave does.
    token = local_token() if local else os.environ.get("TOOLGRAFT_TOKEN")
    if token and token != "off":
        headers["Authorization"] = f"Bearer {token}"
    return base, {
        "headers": headers,
        "timeout": 30,
        "trust_env": not local,  # no environment proxy (maybe this very proxy) for a local port
        "verify": base.startswith("https:"),  # loading the CAs is slow, and plain HTTP does not need them
    }


class Api:
    """`with Api(url) as api`. `url` None: the proxy on this machine. Paths begin with a slash."""

    def __init__(self, url: str | None, *, timeout: float = 30) -> None:
        self._given_url = url
        self._timeout = timeout
        self._client = self._connect(url)

    def _connect(self, url: str | None) -> httpx2.Client:
        self.url, arguments = client_arguments(url)
        self.token: str | None = arguments["headers"].get("Authorization", "").removeprefix("Bearer ") or None
        return httpx2.Client(**arguments | {"timeout": self._timeout})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, **query: str | None) -> Any:
        return self._request("GET", path, query=query)

    def find(self, path: str) -> Any:
        """As `get`; None for a 404."""
        try:
            if self._client.get(self.url + path).status_code == 404:
                return None
        except httpx2.HTTPError as error:
            self._fail_as_unreachable(error)
        return self.get(path)

    def allows(self, path: str) -> bool:
        """Whether the token may read this path."""
        try:
            return self._client.get(self.url + path).status_code != 403
        except httpx2.HTTPError as error:
            self._fail_as_unreachable(error)

    def problem(self, path: str) -> str:
        """The reason if the proxy answers this path with a 503, else empty."""
        try:
            answer = self._client.get(self.url + path)
        except httpx2.HTTPError as error:
            self._fail_as_unreachable(error)
        return str(answer.json()["detail"]) if answer.status_code == 503 else ""

    def put(self, path: str, document: Any) -> Any:
        return self._request("PUT", path, document=document)

    def post(self, path: str, document: Any) -> Any:
        return self._request("POST", path, document=document)

    def delete(self, path: str) -> None:
        self._request("DELETE", path)

    def items(self, path: str, **query: str | None) -> Iterator[Any]:
        """The items of a list, from all its pages."""
        cursor = None
        while True:
            page = self.get(path, **query, limit="1000", cursor=cursor)
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def events(self, **query: str | None) -> Generator[ServerEvent | None]:
        """The events from now on, even across restarts of the proxy. None precedes the events of a connection that does
        not continue an earlier one: no later event is missed. Never ends by itself."""
        last_id, pause = "", _FIRST_PAUSE
        while True:
            try:
                for event in self._stream(query, last_id):
                    if event is None or event.type == "store.reset":
                        pause = _FIRST_PAUSE
                        if event is not None or not last_id:
                            yield None
                        continue
                    last_id = event.id
                    if event.type:
                        yield event
            except httpx2.HTTPError as error:
                if not last_id:
                    self._fail_as_unreachable(error)
            if not last_id:
                fail(f"{self.url} ended the stream of events: the proxy was stopped")
            if pause == _FIRST_PAUSE:
                note(f"the connection to {self.url} is lost: waiting until the proxy is back")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._reconnect()

    def _stream(self, query: dict[str, str | None], last_id: str) -> Iterator[ServerEvent | None]:
        """The events of one connection, after None. Positions are events without a type. Ends immediately if the proxy
        cannot serve them now."""
        headers = {"Last-Event-ID": last_id} if last_id else {}
        with self._client.stream(
            "GET", self.url + "/v1/events", params=_without_none(query), headers=headers, timeout=_EVENTS_TIMEOUT
        ) as answer:
            if answer.status_code >= 500 and last_id:
                return
            if answer.is_error:
                answer.read()
                self._fail_as_refused(answer)
            yield None
            yield from _decode(answer.iter_lines())

    def _reconnect(self) -> None:
        """Use the address of a restarted proxy, or the last address if no proxy runs."""
        self._client.close()
        self._client = self._connect(self._given_url if _has_local_address() else self._given_url or self.url)

    def _request(
        self, method: str, path: str, *, query: dict[str, str | None] | None = None, document: Any = None
    ) -> Any:
        arguments: dict[str, Any] = {"params": _without_none(query or {})}
        if method in ("PUT", "POST"):
            arguments["json"] = document
        try:
            answer = self._client.request(method, self.url + path, **arguments)
        except httpx2.HTTPError as error:
            self._fail_as_unreachable(error)
        if answer.is_error:
            self._fail_as_refused(answer)
        if answer.status_code == 204:
            return None
        try:
            return answer.json()
        except ValueError:
            self._fail_as_stranger(answer)

    def _fail_as_unreachable(self, error: httpx2.HTTPError) -> NoReturn:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            fail(f"nothing answers at {self.url}: is the proxy running? Start it with ./run_proxy.sh")
        fail(f"{self.url}: {str(error) or type(error).__name__}")

    def _fail_as_refused(self, answer: httpx2.Response) -> NoReturn:
        try:
            detail = answer.json()["detail"]
        except (ValueError, TypeError, KeyError):
            self._fail_as_stranger(answer)
        if answer.status_code == 401:
            fail(UNKNOWN_TOKEN)
        fail(str(detail))

    def _fail_as_stranger(self, answer: httpx2.Response) -> NoReturn:
        fail(
            f"{self.url} answers {answer.status_code}, but not as the control API would: "
            "does another program listen there?"
        )


# An event stream is silent for at most 15 s.
_EVENTS_TIMEOUT = httpx2.Timeout(30, read=60)

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 3.0
"""The longest pause before a lost connection is made again, in seconds."""


def local_url() -> str:
    """The URL of the proxy on this machine, or the default if none runs."""
    try:
        return read_address(state_folder()) or DEFAULT_URL
    except (OSError, ValueError) as error:
        fail(str(error))


def _has_local_address() -> bool:
    try:
        return read_address(state_folder()) is not None
    except (OSError, ValueError):
        return False


def _without_none(query: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in query.items() if value is not None}


def _decode(lines: Iterator[str]) -> Iterator[ServerEvent]:
    """The events of the control API's own SSE: at most one `id:`, `event:` and `data:` line each."""
    kind = event_id = data = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "id":
            event_id = value
        elif field == "event":
            kind = value
        elif field == "data":
            data = value
        elif not line and (event_id or kind):
            yield ServerEvent(kind, json.loads(data or "null"), event_id)
            kind = data = ""
