"""`@tool`: how a function of a tools file is declared and run. Those files import it: it may import nothing heavy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from addon.tools.base import Behavior, RunRules, Scheduling

_MARK = "__toolgraft_tool__"


@dataclass(frozen=True, slots=True)
class Marked:
    """What `@tool` says of a function. None: as the function itself says."""

    name: str | None
    description: str | None
    rules: RunRules


@overload
def tool[F: Callable[..., Any]](function: F, /) -> F: ...
@overload
def tool[F: Callable[..., Any]](
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    after: Sequence[str] = (),
    idempotent: bool = False,
    cache_ttl: float | None = None,
    approval: bool = False,
    redeliver: bool = False,
    behavior: Behavior | None = None,
    scheduling: Scheduling | None = None,
) -> Callable[[F], F]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    after: Sequence[str] = (),
    idempotent: bool = False,
    cache_ttl: float | None = None,
    approval: bool = False,
    redeliver: bool = False,
    behavior: Behavior | None = None,
    scheduling: Scheduling | None = None,
) -> Any:
    """Mark a function as a tool and say how its calls are run; the function itself stays as it is.

    `@tool` or `@tool(timeout=5, …)`. `timeout` and `cache_ttl` are seconds. With `retries`, an idempotent tool is tried
    again after any exception but a ToolError, which says itself whether it is `retryable`; another tool only where the
    function has not begun, or raises a ToolError with `retryable=True, sent=False`. The rest is as `RunRules` has it.
    Raises ValueError or TypeError for what cannot be.
    """
    if isinstance(after, str):
        raise TypeError(f"after is {after!r}; it is a list of names, such as [{after!r}]")
    rules = RunRules(
        timeout=timeout,
        retries=retries,
        after=tuple(after),
        idempotent=idempotent,
        redeliver=redeliver,
        cache_ttl=cache_ttl,
        approval=approval,
        behavior=behavior,
        scheduling=scheduling,
    )
    mark = Marked(name, description, rules)

    def marked(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, _MARK, mark)
        return function

    return marked if function is None else marked(function)


def mark_of(function: Callable[..., Any]) -> Marked | None:
    """What `@tool` has said of a function; None if it has not."""
    mark = getattr(function, _MARK, None)
    return mark if isinstance(mark, Marked) else None
