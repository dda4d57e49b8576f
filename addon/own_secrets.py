"""The proxy's own secrets: its token and keys, passwords of proxies, headers of executors, and MCP servers' headers and
environment. They are removed from everything that the proxy writes."""

from collections.abc import Iterable

from addon.core.security.redaction import SHORTEST, Redaction

_MAX_SECRETS = 256
"""The newest secrets are remembered: executors may get new headers any number of times."""


class OwnSecrets:
    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self._redaction = Redaction(())
        self._combined: dict[frozenset[str], Redaction] = {}  # cached: clients repeat the same key

    def learn(self, values: Iterable[str]) -> None:
        new = [value for value in values if len(value) >= SHORTEST and value not in self._values]
        if new:
            self._values |= dict.fromkeys(new)
            for old in list(self._values)[:-_MAX_SECRETS]:
                del self._values[old]
            self._redaction = Redaction(self._values)
            self._combined.clear()

    @property
    def redaction(self) -> Redaction:
        return self._redaction

    def combined_with(self, values: Iterable[str]) -> Redaction:
        """The redaction of the own secrets and these."""
        others = frozenset(values)
        if not others:
            return self._redaction
        found = self._combined.get(others)
        if found is None:
            if len(self._combined) >= _MAX_SECRETS:
                self._combined.clear()
            found = self._combined[others] = Redaction({*self._values, *others})
        return found


own_secrets = OwnSecrets()
"""The secrets of this process."""
