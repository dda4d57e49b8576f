"""The proxy's own secrets: its token and keys, passwords of proxies, headers of executors, and MCP servers' headers and
environment. They are removed from everything that the proxy writes."""

from collections.abc import Iterable

from addon.core.security.secrets import SHORTEST, Redaction

_MAX_OF_EXECUTORS = 256
"""The most secrets of executors. Executors may get new headers any number of times; the last used are kept."""
_MAX_COMBINED = 256
"""The most cached redactions with secrets of clients."""


class OwnSecrets:
    def __init__(self) -> None:
        self._values: set[str] = set()
        self._of_executors: dict[str, None] = {}  # the last used is last
        self._redaction = Redaction(())
        self._combined: dict[frozenset[str], Redaction] = {}  # cached: clients repeat the same key

    def learn(self, values: Iterable[str]) -> None:
        """Learn secrets of the configuration, which are never dropped."""
        before = len(self._values)
        self._values.update(value for value in values if len(value) >= SHORTEST)
        if len(self._values) > before:
            self._changed()

    def learn_of_executor(self, values: Iterable[str]) -> None:
        """Learn the secrets of an executor that is used now. The secrets used longest ago are dropped."""
        is_new = False
        for value in values:
            if len(value) >= SHORTEST and value not in self._values:
                is_new |= value not in self._of_executors
                self._of_executors.pop(value, None)
                self._of_executors[value] = None
        if is_new:
            for old in list(self._of_executors)[:-_MAX_OF_EXECUTORS]:
                del self._of_executors[old]
            self._changed()

    def _changed(self) -> None:
        self._redaction = Redaction({*self._values, *self._of_executors})
        self._combined.clear()

    @property
    def redaction(self) -> Redaction:
        return self._redaction

    def combined_with(self, values: Iterable[str]) -> Redaction:
        """The redaction of the proxy's secrets and of these."""
        others = frozenset(values)
        if not others:
            return self._redaction
        found = self._combined.get(others)
        if found is None:
            if len(self._combined) >= _MAX_COMBINED:
                self._combined.clear()
            found = self._combined[others] = Redaction({*self._values, *self._of_executors, *others})
        return found


own_secrets = OwnSecrets()
"""The secrets of this process."""
