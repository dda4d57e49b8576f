"""Requests and problems as text for people: in the terminal, in the log, and as records.

Names, arguments and conversations come from clients, tools and models. They are escaped, cut, and quoted wherever they
could pass for another part of a line.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from addon.core.framing.documents import Document, content_of, get, objects, parts_of
from addon.core.security.secrets import is_secret_name
from addon.core.security.untrusted import printable
from addon.core.usage import output_of, prompt_of

FIELDS = "graft"
"""The attribute of a log record that holds its fields."""


def problem(event: str, **fields: Any) -> dict[str, Any]:
    """The `extra` argument for a logger."""
    return {FIELDS: {"event": event, **fields}}


LONGEST_ARGUMENTS = 80
"""The most characters shown of a call's arguments."""
_LONGEST_NAME = 64
_LONGEST_TEXT = 200
_LONGEST_USER_AGENT = 200
_MOST_CALLS = 4
"""The most calls named in a line."""
_USAGE_BYTES = 4096
"""The size of an answer's end that is searched for its usage."""
_PLAIN = re.compile(r"[\w./:@+-]+(?: [\w./:@+-]+)*")
_COUNT = re.compile(rb'"(\w+TokenCount)"\s*:\s*(\d{1,15})\b')
_MINUS = "\N{MINUS SIGN}"
ANSWERED_HERE = "answered by the proxy"
SYMBOLS = f"→{_MINUS}…"
_ASCII = str.maketrans({"→": "->", _MINUS: "-", "…": "..."})


CALL_STATES = ("done", "failed", "waiting", "running", "client")


class Run(Protocol):
    """The run of a call. `ran_at`: when it began, on the monotonic clock; None: it has not."""

    ran_at: float | None


@dataclass(slots=True)
class CallSummary:
    """`state`: one of CALL_STATES. `running` also means that the end is unknown, `waiting` waits for an answer by hand
    or a worker, `client` runs at the client. `seconds`: how long the request waited for it. `began`: on the monotonic
    clock; None: unknown. `run`: the run, until its start is known; `ran`: its start."""

    name: str
    args: Document
    state: str = "running"
    seconds: float | None = None
    call_id: str = ""
    began: float | None = None
    run: Run | None = field(default=None, compare=False)
    ran: float | None = None

    @property
    def waited(self) -> float | None:
        """Seconds before it ran, for example for other calls or an approval. None: unknown, or it still waits."""
        ran = self.run.ran_at if self.run is not None else self.ran
        return None if ran is None or self.began is None else max(0.0, ran - self.began)


@dataclass(slots=True)
class RoundSummary:
    """One request of a loop to the model. `began`, `ended`: on the monotonic clock; None: it has not ended."""

    began: float
    ended: float | None = None


@dataclass(slots=True)
class Summary:
    """`added`: the tools given to the model besides the client's; None: the request was not touched. `removed`: the
    client's tools that were left out. `rounds`: the requests that the proxy sent; `loop`: those of a loop, as they
    happen. `turn_id`: of the client's turn, if the model called tools. `status`: 0 if the client got none. `end`: why
    the answer broke off."""

    session: str
    surface: str = ""
    operation: str = ""
    model: str = ""
    added: int | None = None
    removed: int = 0
    calls: list[CallSummary] = field(default_factory=list)
    rounds: int = 1
    loop: list[RoundSummary] = field(default_factory=list)
    turn_id: str = ""
    is_streamed: bool = False
    prompt: int = 0
    output: int = 0
    status: int = 0
    seconds: float = 0.0
    end: str = ""

    _user_agent: str = ""
    _unread: bytes = b""

    @property
    def has_failed(self) -> bool:
        """Whether the client got no usable answer. Known only after the request has ended."""
        return self.end not in ("", ANSWERED_HERE) or not 0 < self.status < 400

    def note_client(self, user_agent: str | None) -> None:
        """Keep the client's user agent, or the beginning of a long one."""
        self._user_agent = user_agent[: _LONGEST_USER_AGENT + 1] if user_agent else ""

    @property
    def user_agent(self) -> str:
        return shortened(self._user_agent, _LONGEST_USER_AGENT)

    def keep_end(self, answer: bytes | bytearray) -> None:
        """Keep the end of an unparsed answer. Its tokens are counted only if they are shown."""
        self._unread = bytes(answer[-_USAGE_BYTES:])

    def count_end(self) -> None:
        """Count the tokens of the answer whose end was kept."""
        if self._unread:
            self.count([usage_at_end(self._unread)])
            self._unread = b""

    def count(self, rounds: Iterable[Document]) -> None:
        for usage in rounds:
            if usage:
                self.prompt += prompt_of(usage)
                self.output += output_of(usage)


def usage_at_end(answer: bytes | bytearray) -> Document:
    """The usage in the last bytes of an unparsed answer, or {}."""
    place = answer.rfind(b'"usageMetadata"', max(0, len(answer) - _USAGE_BYTES))
    return {} if place < 0 else {name.decode(): int(n) for name, n in _COUNT.findall(answer[place:])}


def line_of(summary: Summary) -> str:
    """The request in one line, in parts separated by two spaces."""
    parts = [summary.session]
    if summary.model:
        parts.append(shortened(summary.model, _LONGEST_NAME))
    if summary.operation and summary.operation not in ("generateContent", "streamGenerateContent"):
        parts.append(summary.operation)
    parts.append(", ".join(_middle(summary)))
    if summary.status:
        parts.append(str(summary.status))
    if summary.end:
        parts.append(shortened(summary.end, _LONGEST_TEXT))
    parts.append(duration(summary.seconds))
    return "  ".join(parts)


def fields_of(summary: Summary) -> dict[str, Any]:
    """The request as a record."""
    calls = [
        {"name": shortened(call.name, _LONGEST_NAME), "arguments": arguments(call.args), "state": call.state}
        | ({} if call.seconds is None else {"seconds": round(call.seconds, 3)})
        for call in summary.calls
    ]
    return {
        "event": "request",
        "session": summary.session,
        "surface": summary.surface,
        "operation": summary.operation,
        "model": shortened(summary.model, _LONGEST_NAME),
        "added_tools": summary.added or 0,
        "removed_client_tools": summary.removed,
        "calls": calls,
        "rounds": summary.rounds,
        "streamed": summary.is_streamed,
        "prompt_tokens": summary.prompt,
        "output_tokens": summary.output,
        "status": summary.status or None,
        "end": shortened(summary.end, _LONGEST_TEXT),
        "seconds": round(summary.seconds, 3),
    }


def ascii_only(line: str) -> str:
    """The line for a terminal that cannot show SYMBOLS."""
    return line.translate(_ASCII)


def arguments(args: Document) -> str:
    """The values of a call's arguments, as far as they fit. Secrets are masked by their names."""
    values, length = [], 0
    for name, value in args.items():
        values.append("***" if is_secret_name(str(name)) else _value(value))
        length += len(values[-1]) + 2
        if length > LONGEST_ARGUMENTS + 2:
            break
    text = ", ".join(values)
    return text if len(text) <= LONGEST_ARGUMENTS else text[: LONGEST_ARGUMENTS - 1] + "…"


def shortened(text: str, longest: int) -> str:
    """The text on one line, without unprintable characters, and no longer than this."""
    line = printable(text[:longest])
    if len(text) > longest or len(line) > longest:
        return line[: longest - 1] + "…"
    return " ".join(line.split()) if "  " in line else line


def duration(seconds: float) -> str:
    if seconds < 0.095:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"


def count(number: int, one: str) -> str:
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def amount(tokens: int) -> str:
    """A number of tokens, rounded: `1.2k`."""
    for unit, letter in ((1_000_000, "M"), (1000, "k")):
        if tokens >= unit:
            amount = tokens / unit
            return f"{amount:.1f}{letter}" if amount < 9.95 else f"{amount:.0f}{letter}"
    return str(tokens)


def _middle(summary: Summary) -> Iterator[str]:
    tools = [f"+{count(summary.added, 'tool')}"] if summary.added else []
    if summary.removed:
        tools.append(f"{_MINUS}{count(summary.removed, 'client tool')}")
    text = " ".join(tools) or "no tools added"
    if summary.calls:
        text += f" → {_call(summary.calls[0])}"
    yield text
    yield from map(_call, summary.calls[1:_MOST_CALLS])
    if (more := len(summary.calls) - _MOST_CALLS) > 0:
        yield count(more, "more call")
    if summary.rounds > 1:
        yield count(summary.rounds, "round")
    if summary.is_streamed:
        yield "streamed"
    if summary.prompt or summary.output:
        yield f"{amount(summary.prompt)}→{amount(summary.output)} tokens"


def _call(call: CallSummary) -> str:
    state = {"failed": " failed", "waiting": " waits", "client": " for the client"}.get(call.state, "")
    time = "" if call.seconds is None else f" {duration(call.seconds)}"
    return f"{shortened(call.name, _LONGEST_NAME)}({arguments(call.args)}){state}{time}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        text = value[: LONGEST_ARGUMENTS + 1]
        if _PLAIN.fullmatch(text) and text.isprintable():
            return text
        return printable(json.dumps(text, ensure_ascii=False))
    if isinstance(value, dict):
        return "{…}" if value else "{}"
    if isinstance(value, list):
        return "[…]" if value else "[]"
    return json.dumps(value)[: LONGEST_ARGUMENTS + 1]


_INDENT = "  "
_MOST_CHARACTERS = 4000
"""The most characters shown of a call's arguments or of a result."""
_MOST_TOOLS = 100
_UNITS = ((1024 * 1024, "MB"), (1024, "KB"))


def request_lines(request: Document) -> Iterator[str]:
    """Lines for a GenerateContentRequest. Raises ValueError if it has no contents."""
    contents = list(objects(get(request, "contents")))
    if not contents and get(request, "systemInstruction") is None:
        raise ValueError("no conversation")
    if system := get(request, "systemInstruction"):
        yield from _turn("system", [system] if isinstance(system, dict) else [])
    for content in contents:
        yield from _turn(str(content.get("role", "user")), [content])
    if tools := list(_tools(request)):
        yield "tools"
        yield from (f"{_INDENT}{line}" for line in tools[:_MOST_TOOLS])
        if len(tools) > _MOST_TOOLS:
            yield f"{_INDENT}and {len(tools) - _MOST_TOOLS} more"
    for name in ("toolConfig", "generationConfig", "cachedContent"):
        if value := get(request, name):
            yield f"{name}: {_compact(value)}"


def answer_lines(responses: Sequence[Document]) -> Iterator[str]:
    """Lines for a GenerateContentResponse, or for all events of a stream. Raises ValueError without an answer or
    error."""
    contents: dict[Any, list[Document]] = {}
    ends: dict[Any, str] = {}
    usage: Document = {}
    known = False
    for response in responses:
        if isinstance(error := response.get("error"), dict):
            known = True
            code, status = _one_line(error.get("code", "")), _one_line(error.get("status", ""))
            yield f"error {code} {status}: {_one_line(error.get('message'))}"
        for candidate in objects(response.get("candidates")):
            known = True
            index = candidate.get("index", 0)
            contents.setdefault(str(index), []).append(content_of(candidate))
            if (finish := get(candidate, "finishReason")) is not None:
                ends[str(index)] = _one_line(finish)
        if isinstance(found := get(response, "usageMetadata"), dict):
            known, usage = True, found
    if not known:
        raise ValueError("no answer of a model")
    for index, pieces in contents.items():
        yield from _turn("model" if len(contents) == 1 else f"model, candidate {_one_line(index)}", pieces)
        if index in ends:
            yield f"finish: {ends[index]}"
    if usage:
        yield f"usage: {amount(prompt_of(usage))} tokens in, {amount(output_of(usage))} out"


def _turn(side: str, contents: Sequence[Document]) -> Iterator[str]:
    """A turn's lines, with the texts of a stream joined."""
    yield _one_line(side)
    kind, texts = "", list[str]()

    def flush() -> Iterator[str]:
        if texts:
            text = printable("".join(texts), lines=True)
            yield from (f"{_INDENT}{kind}{line}" for line in text.splitlines())
            texts.clear()

    for part in (part for content in contents for part in parts_of(content)):
        text = part.get("text")
        if isinstance(text, str):
            if (prefix := "~ " if part.get("thought") else "") != kind:
                yield from flush()
                kind = prefix
            texts.append(text)
            continue
        yield from flush()
        yield f"{_INDENT}{_part(part)}"
    yield from flush()


def _part(part: Document) -> str:
    if isinstance(call := get(part, "functionCall"), dict):
        return f"→ {_one_line(call.get('name'))}({_compact(call.get('args') or {})}){_id(call)}"
    if isinstance(answer := get(part, "functionResponse"), dict):
        also = "".join(f", {_file(part) or 'a part'}" for part in objects(get(answer, "parts")))
        return f"← {_one_line(answer.get('name'))}{_id(answer)}: {_compact(answer.get('response'))}{also}"
    return _file(part) or _compact({name: value for name, value in part.items() if name != "thoughtSignature"})


def _file(part: Document) -> str | None:
    """A description of a part's image, sound or file; None if it has none."""
    if isinstance(data := get(part, "inlineData"), dict):
        coded = data["data"].rstrip("=") if isinstance(data.get("data"), str) else ""
        size = len(coded) * 3 // 4
        return f"[{_one_line(get(data, 'mimeType'))}, {_size(size)}]"
    if isinstance(file := get(part, "fileData"), dict):
        return f"[{_one_line(get(file, 'mimeType'))} at {_one_line(get(file, 'fileUri'))}]"
    return None


def _tools(request: Document) -> Iterator[str]:
    for tool in objects(get(request, "tools")):
        for declaration in objects(get(tool, "functionDeclarations")):
            schema = get(declaration, "parameters") or get(declaration, "parametersJsonSchema")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            names = ", ".join(map(_one_line, properties)) if isinstance(properties, dict) else ""
            yield f"{_one_line(declaration.get('name'))}({names}): {_one_line(declaration.get('description', ''))}"
        for kind in tool:
            if kind not in ("functionDeclarations", "function_declarations"):
                yield _one_line(kind)


def _id(call: Document) -> str:
    return f" [{_one_line(call['id'])}]" if call.get("id") else ""


def _one_line(value: object) -> str:
    text = value if isinstance(value, str) else _compact(value)
    return printable(text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…")


def _compact(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return printable(text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…")


def _size(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"
