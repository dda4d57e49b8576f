"""Runs one call, and retries it if a retry can help and does no harm. Each try has a time limit."""

from collections.abc import Awaitable, Callable
from typing import Any

from addon.core.history.outcomes import redacted_parts
from addon.own_secrets import own_secrets
from addon.tools.base import ToolError
from addon.tools.bounded import bounded
from addon.tools.outputs import ToolOutput, output_of
from addon.tools.retries import with_retries


async def attempt(
    run: Callable[[], Awaitable[Any]], name: str, *, timeout: float, retries: int, idempotent: bool, max_media: int
) -> ToolOutput:
    """The output of `run`, with media of at most `max_media` bytes. `timeout`: seconds for each try. `retries`: tries
    after the first.

    Raises the error of the last try. A tool that is not idempotent is retried only if the try did not reach it.
    """

    async def result() -> ToolOutput:
        output = output_of(await run(), max_media)
        redact = own_secrets.redaction.data
        return ToolOutput(redact(output.data), tuple(redacted_parts(output.parts, redact)))

    return await with_retries(
        lambda: bounded(result, timeout, name), retries, lambda error: is_retryable(error, idempotent=idempotent)
    )


def is_retryable(error: BaseException, *, idempotent: bool) -> bool:
    """Whether the call may be retried after this error."""
    if isinstance(error, ToolError):
        return error.retryable and (idempotent or not error.sent)
    return isinstance(error, TimeoutError) and idempotent
