"""A Gemini request or answer as text for people: who said what, with calls, results, tools and tokens.

All of it may come from a model, a tool or a client, so it is escaped; only texts keep their line breaks. Pure.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from addon.core.framing.documents import Document, content_of, get, objects, parts_of
from addon.core.security.escaping import printable
from addon.core.summaries import amount
from addon.core.usage import output_of, prompt_of

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
