"""Python tools that the proxy runs: in a thread, in the event loop, after an approval, and one that may run again."""

from tests.crash import power
from tests.crash.runs import work, work_async
from toolgraft import tool

power.watch()


def plain(mark: str, seconds: float) -> dict[str, str]:
    """Work in a thread."""
    return work("plain", mark, seconds)


async def coroutine(mark: str, seconds: float) -> dict[str, str]:
    """Work in the event loop."""
    return await work_async("coroutine", mark, seconds)


@tool(approval=True)
async def approved(mark: str, seconds: float) -> dict[str, str]:
    """Work after somebody has approved it."""
    return await work_async("approved", mark, seconds)


@tool(idempotent=True)
async def repeatable(mark: str, seconds: float) -> dict[str, str]:
    """Work that may be done again."""
    return await work_async("repeatable", mark, seconds)
