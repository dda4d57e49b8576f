"""A cache of a function's results for short arguments: clients choose the arguments, so long ones are not kept."""

import functools
from collections.abc import Callable
from typing import Any, cast

LONGEST = 2048
"""The greatest length of an argument with which a result is kept."""


def cached_if_short[F: Callable[..., Any]](maxsize: int) -> Callable[[F], F]:
    """As `functools.lru_cache`, for a function of positional arguments that have a length."""

    def decorate(function: F) -> F:
        cached = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def called(*args: Any) -> Any:
            for arg in args:
                if len(arg) > LONGEST:
                    return function(*args)
            return cached(*args)

        return cast(F, called)

    return decorate
