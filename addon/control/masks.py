"""Secrets in toolsets: they are shown masked, and a mask that is sent back stands for the value that is kept."""

from urllib.parse import urlsplit

from addon.web.problems import Problem
from store.models import MASK, Executor, Toolset


def restore_masked(toolset: Toolset, stored: Toolset | None) -> Toolset:
    """The toolset with the values that are kept in the place of masks.

    Raises Problem (422) where there is none, or where it would go to another host than it was given for.
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
            why = f"{MASK} stands for the value that is kept, and there is none"
        elif _origin(executor) != _origin(stored):
            why = "the value that is kept was given for another host; give it again"
        if stored is None or why:
            field = f"executor.headers.{name}"
            raise Problem(422, f"{field}: {why}", field=field, tool=tool)
        headers[name] = stored.headers[name]
    return executor.model_copy(update={"headers": headers})


def _origin(executor: Executor) -> tuple[str, str | None, int | None]:
    parts = urlsplit(executor.url or "")
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
