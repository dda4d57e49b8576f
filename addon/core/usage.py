"""Token counts of an answer that took several requests.

Clients take the prompt's count for the size of their context. So what a client sees is the prompt of the last request,
which holds all before it, with the output of all of them, and a total of the two. Gemini's counts and those of the
Interactions API are told apart by their names.
"""

from addon.core.documents import Document, camel

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
"""A total, and what of it is no output: the prompt, and what built-in tools added to it."""
_COUNTED = ("candidatesTokenCount", "thoughtsTokenCount", "totalOutputTokens", "totalThoughtTokens")


class Usage:
    """The counts of an answer's requests: `rounds` has what each says of itself, {} for nothing."""

    def __init__(self) -> None:
        self.rounds: list[Document] = []
        self._outputs: Document = {}  # of the requests before the present one
        self._given_out = 0  # tokens of them
        self._before: Document = {}  # the last of them that says anything

    def begin_round(self) -> None:
        if self.rounds and (last := self.rounds[-1]):
            for name, value in last.items():
                if camel(name) in _OUTPUT:
                    self._outputs[name] = add_counts(self._outputs.get(name), value)
            self._given_out += output_of(last)
            self._before = last
        self.rounds.append({})

    def record(self, counts: Document) -> None:
        """What is said later of a request holds for all of it."""
        self.rounds[-1] = counts

    def visible(self) -> Document:
        """What the client sees by now."""
        last = self.rounds[-1]
        if not last:
            return {**self._before, **self._outputs, **self._totals(self._before, output_of(self._before))}
        outputs = {name: add_counts(value, last.get(name)) for name, value in self._outputs.items()}
        return {**last, **outputs, **self._totals(last, 0)}

    def _totals(self, counts: Document, counted: int) -> Document:
        """The totals, with what the others gave out; `counted` of that are in them already."""
        totals: Document = {}
        for name in ("totalTokenCount", "total_tokens"):
            if isinstance(total := counts.get(name), int):
                totals[name] = total + self._given_out - counted
        return totals


def output_of(counts: Document) -> int:
    """How many tokens the model gave out, thoughts included."""
    by_name = {camel(name): value for name, value in counts.items() if isinstance(value, int)}
    for total, (prompt, used) in _TOTALS.items():
        if total in by_name and prompt in by_name:
            return max(0, by_name[total] - by_name[prompt] - by_name.get(used, 0))
    return sum(by_name.get(name, 0) for name in _COUNTED)


def prompt_of(counts: Document) -> int:
    """How many tokens the model was given."""
    by_name = {camel(name): value for name, value in counts.items() if isinstance(value, int)}
    return sum(by_name.get(name, 0) for names in _TOTALS.values() for name in names)


def add_counts[T](one: T, other: T) -> T | int | list[Document]:
    """Two counts, or two lists of counts by modality (or by tool). What is none is left out."""
    if isinstance(one, int) and isinstance(other, int) and not isinstance(other, bool):
        return one + other
    if isinstance(one, list) and isinstance(other, list):
        by_kind = {_kind(item): item for item in one if isinstance(item, dict)}
        for item in other:
            if isinstance(item, dict):
                held = by_kind.get(_kind(item), {})
                by_kind[_kind(item)] = {**item, **{k: add_counts(held.get(k), v) for k, v in item.items()}}
        return list(by_kind.values())
    return one if other is None else other


def _kind(count: Document) -> str:
    """What a count in a list is of: a modality, or a type of tool."""
    return str(count.get("modality", count.get("type")))
