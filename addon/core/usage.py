"""The token counts of an answer that took several requests.

Clients take the prompt count for the size of their context, so the client sees the prompt count of the last request,
which includes all earlier ones, the output counts of all requests, and the total of both. Gemini and the Interactions
API name their counts differently.
"""

from addon.core.framing.documents import Document, camel

_OUTPUT = frozenset(
    {
        "candidatesTokenCount",
        "candidatesTokensDetails",
        "thoughtsTokenCount",
        "responseTokenCount",
        "responseTokensDetails",
        "totalOutputTokens",
        "outputTokensByModality",
        "totalThoughtTokens",
        "groundingToolCount",
    }
)
_TOTALS = {
    "totalTokenCount": ("promptTokenCount", "toolUsePromptTokenCount"),
    "totalTokens": ("totalInputTokens", "totalToolUseTokens"),
}
"""Each total, with its counts other than output: the prompt, and the additions of built-in tools."""
_COUNTED = ("candidatesTokenCount", "thoughtsTokenCount", "totalOutputTokens", "totalThoughtTokens")


class Usage:
    """The counts of an answer's requests. `rounds`: the usage of each request, {} if it has none."""

    def __init__(self) -> None:
        self.rounds: list[Document] = []
        self._outputs: Document = {}  # output counts of the earlier requests
        self._earlier_output = 0  # output tokens of the earlier requests
        self._before: Document = {}  # the last usage of the earlier requests

    def begin_round(self) -> None:
        if self.rounds and (last := self.rounds[-1]):
            for name, value in last.items():
                if camel(name) in _OUTPUT:
                    self._outputs[name] = add_counts(self._outputs.get(name), value)
            self._earlier_output += output_of(last)
            self._before = last
        self.rounds.append({})

    def record(self, counts: Document) -> None:
        """Record the usage of the current request. A later usage replaces an earlier one."""
        self.rounds[-1] = counts

    def visible(self) -> Document:
        last = self.rounds[-1]
        if not last:
            return {**self._before, **self._outputs, **self._totals(self._before, output_of(self._before))}
        outputs = {name: add_counts(value, last.get(name)) for name, value in self._outputs.items()}
        return {**last, **outputs, **self._totals(last, 0)}

    def _totals(self, counts: Document, counted: int) -> Document:
        """The totals plus the output of the earlier requests. `counted`: output tokens already in the totals."""
        totals: Document = {}
        for name in ("totalTokenCount", "total_tokens"):
            if isinstance(total := counts.get(name), int):
                totals[name] = total + self._earlier_output - counted
        return totals


def output_of(counts: Document) -> int:
    """The number of output tokens, thoughts included."""
    by_name = {camel(name): value for name, value in counts.items() if isinstance(value, int)}
    for total, (prompt, used) in _TOTALS.items():
        if total in by_name and prompt in by_name:
            return max(0, by_name[total] - by_name[prompt] - by_name.get(used, 0))
    return sum(by_name.get(name, 0) for name in _COUNTED)


def prompt_of(counts: Document) -> int:
    by_name = {camel(name): value for name, value in counts.items() if isinstance(value, int)}
    return sum(by_name.get(name, 0) for names in _TOTALS.values() for name in names)


def add_counts[T](one: T, other: T) -> T | int | list[Document]:
    """The sum of two counts, or of two lists of counts by modality or tool. Other values are ignored."""
    if isinstance(one, int) and isinstance(other, int) and not isinstance(other, bool):
        return one + other
    if isinstance(one, list) and isinstance(other, list):
        by_kind = {_kind(item): item for item in one if isinstance(item, dict)}
        for item in other:
            if isinstance(item, dict):
                earlier = by_kind.get(_kind(item), {})
                by_kind[_kind(item)] = {**item, **{k: add_counts(earlier.get(k), v) for k, v in item.items()}}
        return list(by_kind.values())
    return one if other is None else other


def _kind(count: Document) -> str:
    """The kind of a count in a list: a modality, or a type of tool."""
    return str(count.get("modality", count.get("type")))
