"""Downloads the images and files that a request names by URLs, for Gemini.

A client chooses the URL, and the proxy may reach hosts that the client cannot. So only connections that `graft_egress`
allows are made, by default only to public addresses, and without credentials.
"""

import asyncio
import base64
import mimetypes
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import httpx2

from addon.core.dialects.responses.errors import Invalid
from addon.core.dialects.responses.items import is_google_s_file
from addon.core.framing.documents import Document
from addon.core.framing.streams import BadEncoding, TooLong, decompressor
from addon.tools.http_connections import Egress, EgressRefused, EgressTransport

_MOST, _AT_ONCE = 32, 4
"""The most URLs of one request, and the most concurrent downloads."""
_SECONDS = 30.0
_TIMEOUT = httpx2.Timeout(_SECONDS, connect=10)
_REDIRECTS = 3
_HEADERS = {"accept-encoding": "identity", "user-agent": "toolgraft"}
_MAGIC = {
    b"\x89PNG\r\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
}
_MEMBERS = {"input_image": "image_url", "input_file": "file_url"}
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]+/[a-z0-9.+-]+")
_UNKNOWN = ("", "application/octet-stream", "binary/octet-stream")


class DownloadFailed(Exception):
    """The message continues a sentence that begins with the URL."""


class Downloaded(NamedTuple):
    media_type: str
    data: bytes


type Download = Callable[[str, int], Awaitable[Downloaded]]
"""Fetches a URL, up to a number of bytes. Raises DownloadFailed."""


class Downloads:
    """`egress`: makes the connections that are allowed."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    async def __call__(self, url: str, most: int) -> Downloaded:
        transport = EgressTransport(self._egress)
        try:
            async with (
                asyncio.timeout(_SECONDS),
                httpx2.AsyncClient(
                    transport=transport,
                    timeout=_TIMEOUT,
                    follow_redirects=True,
                    max_redirects=_REDIRECTS,
                    headers=_HEADERS,
                    trust_env=False,
                ) as client,
                client.stream("GET", url) as response,
            ):
                if response.status_code != 200:
                    raise DownloadFailed(f"answered with status {response.status_code}")
                data = await _read(response, most)
                return Downloaded(_media_type(response, data), data)
        except EgressRefused as error:
            raise DownloadFailed(f"was not fetched: {error}") from error
        except TimeoutError as error:
            raise DownloadFailed(f"took longer than {_SECONDS:.0f} seconds") from error
        except httpx2.TooManyRedirects as error:
            raise DownloadFailed(f"redirected more than {_REDIRECTS} times") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:  # the message may quote data
            raise DownloadFailed("could not be fetched") from error


async def with_files(body: Any, download: Download | None, most: int, member: str = "input") -> Any:
    """The body of a request with data URLs in place of the URLs of images and files. `most`: bytes of all files
    together. `member`: the member with the items. Raises Invalid."""
    found = list(_urls(body, member))
    if not found:
        return body
    if len(found) > _MOST:
        raise Invalid(f"{found[_MOST].at} is one URL too many: {_MOST} are allowed", found[_MOST].at, "invalid_value")
    if download is None:
        raise Invalid(f"{found[0].at} cannot be fetched here: send a data URL", found[0].at, "unsupported_value")
    places, left = asyncio.Semaphore(_AT_ONCE), most

    async def fetch(one: _Url) -> str:
        nonlocal left
        async with places:
            try:
                file = await download(one.url, left)
            except DownloadFailed as error:
                code = f"invalid_{one.member}"
                raise Invalid(f"{one.at}: {one.url[:200]} {error}", one.at, code) from error
        if len(file.data) > left:
            raise Invalid(f"{one.at} is too large: all files may have {most} bytes", one.at, f"invalid_{one.member}")
        left -= len(file.data)
        return f"data:{file.media_type};base64,{base64.b64encode(file.data).decode()}"

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(fetch(one)) for one in found]
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
    items = body[member]
    for one, task in zip(found, running, strict=True):
        items = _replaced(items, one, task.result())
    return {**body, member: items}


class _Url(NamedTuple):
    """A URL in the part number `part` of an item's member (`content` or `output`). `items`: the body's member with the
    items."""

    url: str
    items: str
    item: int
    holder: str
    part: int
    member: str

    @property
    def at(self) -> str:
        return f"{self.items}[{self.item}].{self.holder}[{self.part}].{self.member}"


def _urls(body: Any, where: str) -> Iterator[_Url]:
    items = body.get(where) if isinstance(body, dict) else None
    for at, item in enumerate(items if isinstance(items, list) else ()):
        for holder in ("content", "output") if isinstance(item, dict) else ():
            parts = item.get(holder)
            for index, part in enumerate(parts if isinstance(parts, list) else ()):
                member = _MEMBERS.get(str(part.get("type"))) if isinstance(part, dict) else None
                url = part.get(member) if member is not None else None
                if isinstance(url, str) and url[:8].lower().startswith(("http://", "https://")):
                    if not is_google_s_file(url):
                        yield _Url(url, where, at, holder, index, str(member))


def _replaced(items: list[Document], place: _Url, data: str) -> list[Document]:
    item = items[place.item]
    parts = list(item[place.holder])
    part = {key: value for key, value in parts[place.part].items() if key != place.member}
    parts[place.part] = part | {"image_url" if place.member == "image_url" else "file_data": data}
    return [*items[: place.item], {**item, place.holder: parts}, *items[place.item + 1 :]]


async def _read(response: httpx2.Response, most: int) -> bytes:
    try:
        decompress = decompressor(response.headers.get("content-encoding", ""), most)
        if decompress is None:
            raise BadEncoding("unknown")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += decompress(chunk) if chunk else b""
            if len(body) > most:
                raise TooLong
        return bytes(body + decompress(b""))
    except TooLong:
        raise DownloadFailed(f"has more than {most} bytes") from None
    except BadEncoding:
        raise DownloadFailed("cannot be decompressed") from None


def _media_type(response: httpx2.Response, data: bytes) -> str:
    """The server's media type, else the one that the content or the name suggests."""
    given = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in _UNKNOWN and _MEDIA_TYPE.fullmatch(given):
        return str(given)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    by_content = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
    return by_content or mimetypes.guess_type(response.url.path)[0] or "application/octet-stream"
