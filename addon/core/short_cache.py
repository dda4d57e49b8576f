"""Caches a function's results for short arguments. Long ones are not cached, because clients choose the arguments."""

import functools
from collections.abc import Callable
from typing import Any, cast

LONGEST = 2048
"""The maximum length of an argument whose result is cached."""


def cached_if_short[F: Callable[..., Any]](maxsize: int) -> Callable[[F], F]:
    """Like `functools.lru_cache`, for a function of positional arguments that have a length."""

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
