"""A worker's requests to the control API, and their errors."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import pydantic_core

from addon.core.framing.documents import Document


class Unreachable(Exception):
    """The proxy does not answer, or answers with a temporary error."""


class Refused(Exception):
    """The proxy refused the request, with this HTTP status and message. Status 0: no request was sent."""

    def __init__(self, detail: str, status: int = 0) -> None:
        super().__init__(detail)
        self.status = status


class ControlClient:
    """`client` must have the control API's base URL and token."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def request(
        self,
        method: str,
        path: str,
        body: Document | bytes | None = None,
        *,
        timeout: float = 30,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Send a request and return the successful answer. Raises Unreachable, Refused."""
        content = json_of(body) if isinstance(body, dict) else body
        given = {"Content-Type": "application/json", **(headers or {})}
        try:
            answer = await self._client.request(method, path, content=content, headers=given, timeout=timeout)
        except httpx2.TransportError as error:
            raise Unreachable(str(error) or type(error).__name__) from None
        if answer.is_success:
            return answer
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, TypeError, KeyError):
            detail = f"it answers {answer.status_code}, but not as the control API would"
        if answer.status_code >= 500 or answer.status_code == 429:
            raise Unreachable(detail)
        raise Refused(detail, answer.status_code)


def json_of(body: Document, fallback: Callable[[Any], Any] | None = None) -> bytes:
    return pydantic_core.to_json(body, inf_nan_mode="null", fallback=fallback)
