"""The secrets that the proxy has of its own, or sends on behalf of its configuration: its token and keys, passwords of
proxies, headers of executors, MCP servers' headers and environment. They are in nothing that it writes."""

from collections.abc import Iterable

from addon.core.redaction import SHORTEST, Redaction

_MOST = 256
"""Secrets that are remembered: executors may be given new headers again and again. The last ones stay."""


class OwnSecrets:
    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self._redaction = Redaction(())
        self._with: dict[frozenset[str], Redaction] = {}  # clients ask again and again with the same key

    def learn(self, values: Iterable[str]) -> None:
        new = [one for one in values if len(one) >= SHORTEST and one not in self._values]
        if new:
            self._values |= dict.fromkeys(new)
            for old in list(self._values)[:-_MOST]:
                del self._values[old]
            self._redaction = Redaction(self._values)
            self._with.clear()

    @property
    def redaction(self) -> Redaction:
        return self._redaction

    def combined_with(self, values: Iterable[str]) -> Redaction:
        """Together with the secrets of an exchange."""
        others = frozenset(values)
        if not others:
            return self._redaction
        found = self._with.get(others)
        if found is None:
            if len(self._with) >= _MOST:
                self._with.clear()
            found = self._with[others] = Redaction({*self._values, *others})
        return found


own_secrets = OwnSecrets()
"""Those of this process: whoever writes anything asks here."""
