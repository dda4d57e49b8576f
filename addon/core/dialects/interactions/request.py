"""A request of the Interactions API, read as Gemini's, and written with other tools and another history.

A request names the previous interaction, and the service keeps the history. Each answer that the service keeps begins
with a part that holds its id (`contents.mark_part`). The service already has all Contents up to the last such part, so
the request sends that id instead of them. Thus a loop continues by id, a client's id is mapped to the last id of its
turn, and a client that sends its whole history is served as on other surfaces.
"""

from collections.abc import Mapping, Sequence

from addon.core.dialects.interactions import contents as own
from addon.core.dialects.interactions import tools as interaction_tools
from addon.core.framing.documents import Document, Malformed, camel, decode, encode
from addon.core.history.request import Piece, Request, assemble, parse


class InteractionRequest:
    """`previous`: the interaction that the request names, if any. `is_stored`: the answer is kept. Raises Malformed."""

    def __init__(self, body: bytes) -> None:
        given = decode(body)
        if not isinstance(given, dict):
            raise Malformed("the body is not an object")
        for name in ("agent", "background"):
            if given.get(name):
                raise Malformed(f"tools cannot be grafted into a request with {name!r}")
        self.body = body
        self.members: Document = given
        previous = given.get("previous_interaction_id")
        self.previous = previous if isinstance(previous, str) and previous else None
        self.is_stored = given.get("store") is not False
        self._input = own.input_steps(given.get("input"))

    def gemini(self) -> bytes:
        """The request in Gemini's form."""
        return own.gemini_request(self.members, self.previous, self._input)

    def write(
        self,
        request: Request,
        replaced: Mapping[str, bytes | None],
        contents: Sequence[Piece] | None,
        unfinished: str = "",
    ) -> tuple[bytes, str]:
        """The body for upstream, and a warning about left-out tools. `unfinished`: the interaction whose rest is
        requested."""
        outer = parse(self.body)
        new: dict[str, bytes | None] = {}
        dropped = ""
        if "tools" in replaced:
            tools = decode(replaced["tools"] or b"[]")
            converted = interaction_tools.to_interaction_tools(tools)
            new["tools"] = encode(converted) if converted else None
            if unsupported := interaction_tools.unsupported_tools(tools):
                dropped = f"{', '.join(unsupported)}: the Interactions API has no such tool"
        if "toolConfig" in replaced:
            new["generation_config"] = interaction_tools.with_choice(
                outer.value("generationConfig"), replaced["toolConfig"]
            )
        if "continuationToken" in replaced:
            new["continuation_token"] = replaced["continuationToken"]
        if unfinished:  # its id is enough: the service has the input
            new |= {"previous_interaction_id": encode(unfinished), "input": None}
        elif contents is not None:
            previous, steps = self._split_history(request, contents)
            if previous != self.previous:
                new["previous_interaction_id"] = encode(previous)
            if steps != self._input:
                new["input"] = encode(steps)
        present = {member.name for member in outer.members}
        return assemble(outer, {camel(k) if camel(k) in present else k: value for k, value in new.items()}), dropped

    def _split_history(self, request: Request, contents: Sequence[Piece]) -> tuple[str | None, list[Document]]:
        """The interaction that the Contents continue, and the steps that are new to the service."""
        spans = [span for turn in request.history.turns for span in turn.spans]
        stored = len(spans) - len(self._input)
        previous: str | None = None
        names: dict[str, str] = {}
        steps: list[Document] = []
        for piece in contents:
            if isinstance(piece, bytes):
                content = decode(piece)
                if (interaction := own.marked_id(content)) is not None:
                    previous, names, steps = interaction, own.call_names(content), []
                else:
                    steps += [own.with_call_name(step, names) for step in own.steps_of(content)]
                continue
            for number, (start, end) in enumerate(spans):
                if piece[0] <= start and end <= piece[1]:
                    if number < stored:
                        previous = self.previous
                    else:
                        steps.append(self._input[number - stored])
        return previous, steps
