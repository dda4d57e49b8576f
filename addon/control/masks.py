"""Secrets in toolsets are shown masked; a mask in a new toolset stands for the stored value."""

from urllib.parse import urlsplit

from addon.web.problems import Problem
from store.models import MASK, Executor, Toolset


def restore_masked(toolset: Toolset, stored: Toolset | None) -> Toolset:
    """The toolset with its masks replaced by the stored values.

    Raises Problem (422) if there is no stored value, or if it was given for another host.
    """
    rules = dict(toolset.rules)
    for name, rule in toolset.rules.items():
        if rule.executor and MASK in rule.executor.headers.values():
            before = stored.rules.get(name) if stored else None
            executor = _restore(name, rule.executor, before.executor if before else None)
            rules[name] = rule.model_copy(update={"executor": executor})
    return toolset.model_copy(update={"rules": rules})


def _restore(tool: str, executor: Executor, stored: Executor | None) -> Executor:
    headers = dict(executor.headers)
    for name, value in executor.headers.items():
        if value != MASK:
            continue
        why = None
        if stored is None or name not in stored.headers:
            why = f"{MASK} stands for the stored value, but none is stored: give the value"
        elif _origin(executor) != _origin(stored):
            why = "the stored value was given for another host: give the value again"
        if stored is None or why:
            field = f"executor.headers.{name}"
            raise Problem(422, f"{field}: {why}", field=field, tool=tool)
        headers[name] = stored.headers[name]
    return executor.model_copy(update={"headers": headers})


def _origin(executor: Executor) -> tuple[str, str | None, int | None]:
    parts = urlsplit(executor.url or "")
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
