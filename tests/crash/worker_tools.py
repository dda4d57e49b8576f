"""Python tools that `toolgraft worker` runs."""

from tests.crash.runs import work, work_async
from toolgraft import tool


def remote(mark: str, seconds: float) -> dict[str, str]:
    """Work in a worker."""
    return work("remote", mark, seconds)


@tool(approval=True)
async def remote_approved(mark: str, seconds: float) -> dict[str, str]:
    """Work in a worker after somebody has approved it."""
    return await work_async("remote_approved", mark, seconds)


@tool(idempotent=True)
async def remote_repeatable(mark: str, seconds: float) -> dict[str, str]:
    """Work in a worker that may be done again."""
    return await work_async("remote_repeatable", mark, seconds)
