"""Calls run by an HTTP endpoint: it receives POST `{"call_id", "name", "args"}` and answers with the result.

Only configured headers are sent. The caller handles retries and timeouts. Errors name only the endpoint's origin and
status: URLs and bodies may contain secrets.
"""

from collections.abc import Mapping
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Annotated, Any, Literal

import httpx2
import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from addon.core.framing.documents import Malformed, decode
from addon.core.framing.streams import BadEncoding, TooLong, decompressor
from addon.core.history.outcomes import MEDIA_TYPE, BadPart, read_parts
from addon.core.security.secrets import secrets_of_executor
from addon.monitoring.own_secrets import own_secrets
from addon.tools.base import SourceError, ToolError
from addon.tools.http_connections import OWNER, Egress, EgressRefused, EgressTransport, OwnedConnections
from addon.tools.outputs import Media, WithMedia, media_of_part
from addon.urls import header_name

MAX_ANSWER = 16 * 1024 * 1024  # bytes, after decompression
_MAX_REDIRECTS = 3
_RETRYABLE = (408, 429)
_BODY = {"content-type": "application/json"}
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_TIMEOUT = httpx2.Timeout(None, connect=10)


def _http_url(value: str) -> str:
    try:
        url = httpx2.URL(value)
        fits = url.scheme in ("http", "https") and bool(url.host)
    except httpx2.InvalidURL:
        fits = False
    if not fits:  # the given URL may contain a key
        raise ValueError("must be an http or https URL with a host, such as https://tools.example/run")
    return value


def origin_of(url: httpx2.URL) -> str:
    """The part of a URL without secrets: scheme, host and port."""
    return f"{url.scheme}://{url.netloc.decode()}"


def status_words(status: int) -> str:
    """The status code with its standard name, because the server's reason phrase may be anything."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _header_value(value: str) -> str:
    if not value.isprintable() or not value.isascii():
        raise ValueError("a header's value must be printable ASCII on one line")
    return value


HttpUrl = Annotated[str, AfterValidator(_http_url)]
Headers = dict[Annotated[str, AfterValidator(header_name)], Annotated[str, AfterValidator(_header_value)]]


class Endpoint(BaseModel):
    """The executor of a declaration: `"executor": {"type": "http", "url": …, "headers": {…}}`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    type: Literal["http"]
    url: HttpUrl
    headers: Headers = Field(default_factory=dict)


def endpoint_client(egress: Egress) -> httpx2.AsyncClient:
    """The client that all executors share. It keeps no cookies, and separate connections for each owner."""
    return httpx2.AsyncClient(
        transport=OwnedConnections(lambda: EgressTransport(egress)),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        follow_redirects=False,
        trust_env=False,
    )


class HttpExecutor:
    """Runs calls at one endpoint, through an HTTP client that the caller owns and may share.

    `executor` is the declaration's object. Raises SourceError with the name of an invalid field.
    """

    def __init__(self, executor: Mapping[str, Any], client: httpx2.AsyncClient) -> None:
        try:
            self._endpoint = Endpoint.model_validate(executor)
        except ValidationError as e:
            first = e.errors()[0]
            place = ".".join(("executor", *(str(part) for part in first["loc"])))
            raise SourceError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None
        own_secrets.learn_of_executor(secrets_of_executor(self._endpoint.url, self._endpoint.headers.items()))
        self._client = client
        self._url = httpx2.URL(self._endpoint.url)
        self._owner = frozenset(self._endpoint.headers.items()), self._url.userinfo, self._url.query
        self.name = origin_of(self._url)

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        """The endpoint's answer to one call: JSON, text, or an image, sound or file; None if it is empty.

        Raises ToolError for anything but a 2xx answer of at most MAX_ANSWER bytes. The error is retryable for 408, 429,
        5xx and failed connections; `sent` is False if no connection was made. Redirects are followed only to the same
        scheme, host and port.
        """
        request = self._client.build_request(
            "POST",
            self._url,
            content=encoded({"call_id": call_id, "name": name, "args": args}),
            headers={
                "accept": "application/json, text/*, image/*, audio/*, video/*, application/pdf",
                **self._endpoint.headers,
                **_BODY,
            },
            timeout=_TIMEOUT,
            extensions={OWNER: self._owner},
        )
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                response = await self._client.send(request, stream=True, follow_redirects=False)
                try:
                    if not response.has_redirect_location:
                        return await self._result(response)
                    request = self._next(response)
                finally:
                    await response.aclose()
        except EgressRefused as e:
            raise ToolError(f"{self.name} was not asked: {e}", sent=False) from e
        except httpx2.DecodingError as e:
            raise ToolError(f"{self.name} sent an answer that cannot be decompressed") from e
        except httpx2.LocalProtocolError as e:
            raise ToolError(f"{self.name} was not asked: its headers are not valid in HTTP", sent=False) from e
        except httpx2.TransportError as e:
            sent = not isinstance(e, _NOT_SENT)
            raise ToolError(f"{self.name} cannot be reached: {_why(e)}", retryable=True, sent=sent) from e
        raise ToolError(f"{self.name} redirected more than {_MAX_REDIRECTS} times")

    def _next(self, response: httpx2.Response) -> httpx2.Request:
        following, sent = response.next_request, response.request
        if following is None or following.method != "POST" or _origin(following.url) != _origin(sent.url):
            raise ToolError(f"{self.name} answered {response.status_code} with a redirect, which is not followed")
        return following

    async def _result(self, response: httpx2.Response) -> Any:
        if not response.is_success:
            status = response.status_code
            retryable = status in _RETRYABLE or status >= 500
            raise ToolError(f"{self.name} answered {status_words(status)}", retryable=retryable)
        try:
            body = await _read(response)
        except TooLong:
            raise ToolError(f"{self.name} sent more than {MAX_ANSWER} bytes") from None
        except BadEncoding:
            raise ToolError(f"{self.name} sent an answer that cannot be decompressed") from None
        return self._decoded(body, response.headers.get("content-type", ""))

    def _decoded(self, body: bytes, content_type: str) -> Any:
        if not body:
            return None
        kind = content_type.partition(";")[0].strip().lower()
        if _is_media(kind):
            return Media(body, kind)
        if kind == "application/json" or kind.endswith("+json") or not kind:
            try:
                return self._with_parts(decode(body))
            except Malformed:
                if kind:
                    raise ToolError(f"{self.name} sent invalid JSON") from None
        try:
            return body.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{self.name} sent an answer that is neither JSON nor UTF-8 text") from None

    def _with_parts(self, value: Any) -> Any:
        """A JSON answer. An object with `result`, `parts` and nothing else has images or files in `parts`."""
        if not isinstance(value, dict) or value.keys() != {"result", "parts"}:
            return value
        try:
            parts = read_parts(value["parts"])
        except BadPart as e:
            raise ToolError(f"{self.name} sent a result whose {e}") from None
        return WithMedia(value["result"], [media_of_part(part) for part in parts])


def _is_media(kind: str) -> bool:
    """Whether a content type is that of an image, a sound, a video or a PDF. SVG is text."""
    is_one = kind == "application/pdf" or kind.startswith(("image/", "audio/", "video/"))
    return is_one and not kind.endswith("+xml") and MEDIA_TYPE.fullmatch(kind) is not None


async def _read(response: httpx2.Response) -> bytes:
    """The decompressed body. Raises BadEncoding, and TooLong for more than MAX_ANSWER bytes."""
    decompress = decompressor(response.headers.get("content-encoding", ""), MAX_ANSWER)
    if decompress is None:
        raise BadEncoding("unknown content encoding")
    body = bytearray()
    async for chunk in response.aiter_raw():
        if chunk:
            body += decompress(chunk)
    return bytes(body + decompress(b""))


def encoded(call: Mapping[str, Any]) -> bytes:
    """A call, or its arguments, as JSON. Raises ToolError."""
    try:
        return msgspec.json.encode(call)
    except (ValueError, TypeError, RecursionError):
        raise ToolError("the arguments cannot be sent as JSON", sent=False) from None


def _why(error: httpx2.TransportError) -> str:
    """The message of a failed connection; for other errors a fixed text, because theirs may quote data."""
    if isinstance(error, httpx2.ConnectError):
        return str(error) or "the connection failed"
    return "no connection in time" if isinstance(error, _NOT_SENT) else "the connection broke"


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
