"""The decorator `@tool`, for functions of tools files. They import it, so nothing heavy is imported here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from addon.tools.base import Behavior, RunRules, Scheduling

_MARK = "__toolgraft_tool__"


@dataclass(frozen=True, slots=True)
class Marked:
    """The arguments of `@tool`. None: the function's own name or docstring is used."""

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
    """Mark a function as a tool and set how its calls are run; the function itself is unchanged.

    `@tool` or `@tool(timeout=5, …)`. `timeout` and `cache_ttl` are seconds. With `retries`, an idempotent tool is
    retried after any exception; after a ToolError only if it is `retryable`. Any other tool is retried only if the
    function has not begun, or raised a ToolError with `retryable=True, sent=False`. The other arguments are those of
    `RunRules`. Raises ValueError or TypeError for invalid arguments.
    """
    if isinstance(after, str):
        raise TypeError(f"after is {after!r}; it must be a list of names, such as [{after!r}]")
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
    """The arguments of the function's `@tool`; None without `@tool`."""
    mark = getattr(function, _MARK, None)
    return mark if isinstance(mark, Marked) else None
