"""Reads the bodies of `/v1/responses`, with the items and files that they refer to."""

import dataclasses
from typing import Any

from addon.core.dialects.responses import ResponsesRequest, read_compaction, read_leniently, read_request
from addon.gateway.downloads import with_files
from addon.gateway.front_door import FrontDoor
from addon.gateway.items import INPUT, resolved
from addon.gateway.sealing import Sealing


class RequestReader:
    def __init__(self, door: FrontDoor) -> None:
        self._door = door

    async def read(self, session: str, body: Any, *, lenient: bool = False) -> tuple[ResponsesRequest, list[str]]:
        """The request, and the positions of its ignored members. Raises Invalid, Problem."""
        given, whole = await self._whole(session, body)
        unseal = Sealing(self._door.store, session).unseal
        request, ignored = read_leniently(whole, unseal) if lenient else (read_request(whole, unseal), [])
        # Lists of items show the original URLs.
        return dataclasses.replace(request, raw_input=given[INPUT]), ignored

    async def read_compaction(self, session: str, body: Any) -> ResponsesRequest:
        """Raises Invalid, Problem."""
        _, whole = await self._whole(session, body)
        return read_compaction(whole, Sealing(self._door.store, session).unseal)

    async def _whole(self, session: str, body: Any) -> tuple[Any, Any]:
        """The body with the items that it refers to, and the same with the contents of files."""
        max_body = self._door.engine.settings.max_body
        given = await resolved(self._door.store, session, body, max_body)
        return given, await with_files(given, self._door.download, max_body)
