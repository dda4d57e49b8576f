"""The commands' client of the control API. An error ends the command with one line that says what to do."""

import json
import os
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self
from urllib.parse import urlsplit

import httpx2

from addon.cli.output import fail
from addon.settings import Settings, is_loopback, state_folder
from addon.web.token import load_token, read_address

DEFAULT_URL = "http://127.0.0.1:8741"


class ServerEvent(NamedTuple):
    type: str
    data: Any


def own_token() -> str:
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
    base = (url or _local_url()).rstrip("/")
    local = url is None or is_loopback(urlsplit(url).hostname or "")
    headers = {"User-Agent": "toolgraft"}
    # this machine's token never goes to another machine, only a token that the user gave for it
    token = own_token() if local else os.environ.get("TOOLGRAFT_TOKEN")
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

    def __init__(self, url: str | None) -> None:
        self.url, arguments = client_arguments(url)
        self.token: str | None = arguments["headers"].get("Authorization", "").removeprefix("Bearer ") or None
        self._client = httpx2.Client(**arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, **query: str | None) -> Any:
        return self._request("GET", path, query=query)

    def allows(self, path: str) -> bool:
        """Whether the token may read this path."""
        try:
            return self._client.get(self.url + path).status_code != 403
        except httpx2.HTTPError as error:
            self._fail_as_unreachable(error)

    def problem(self, path: str) -> str:
        """Why the proxy answers this path with a 503; empty if it does not."""
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
        """The items of a list, over all its pages."""
        cursor = None
        while True:
            page = self.get(path, **query, limit="1000", cursor=cursor)
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def events(self, **query: str | None) -> Generator[ServerEvent | None]:
        """The events from now on. The first item is None: from then on no event is missed. The end of the stream ends
        the command."""
        try:
            with self._client.stream(
                "GET", self.url + "/v1/events", params=_without_none(query), timeout=_EVENTS_TIMEOUT
            ) as answer:
                if answer.is_error:
                    answer.read()
                    self._fail_as_refused(answer)
                yield None
                yield from _decode(answer.iter_lines())
        except httpx2.HTTPError as error:
            self._fail_as_unreachable(error)
        fail(f"{self.url} ended the stream of events: the proxy was stopped")

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


# an event stream is silent for at most 15 s
_EVENTS_TIMEOUT = httpx2.Timeout(30, read=60)


def _local_url() -> str:
    try:
        return read_address(state_folder()) or DEFAULT_URL
    except (OSError, ValueError) as error:
        fail(str(error))


def _without_none(query: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in query.items() if value is not None}


def _decode(lines: Iterator[str]) -> Iterator[ServerEvent]:
    """The events of the control API's own SSE: one `event:` and one `data:` line each."""
    kind = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            kind = value
        elif field == "data":
            yield ServerEvent(kind, json.loads(value))
