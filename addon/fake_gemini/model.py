"""A deterministic "model": its text and calls depend only on the request. Pure; ``reply`` adds ids and signatures.

It understands these directives in the last ordinary user turn; other text is natural language.

- ``call f {"a": 1}`` calls f; several joined by ``and`` or line ends are parallel calls of one step;
- ``then call g {}`` calls g in the next step; ``forever`` at the end repeats the last step endlessly;
- ``say TEXT`` before a call puts text before it;
- ``finish REASON`` ends with that finishReason and nothing else;
- ``in N pieces`` spreads the answer over N requests: all but the last end with CONTINUATION and a token for the next
  request, or, with ``in N pieces to the limit``, with MAX_TOKENS. Streams contain such tokens in between too;
- ``repeat the results`` answers with all function results of the history.

In natural language, a declared function is called if the text contains a word of its name ("weather" of get_weather).
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from referencing import Registry
from referencing.jsonschema import DRAFT202012

from addon.fake_gemini import signatures
from addon.fake_gemini.history import HistoryTurn, last_words, turns

_NEXT = re.compile(r"\bthen\s+(?=(?:say|call)\b)")
_CALL = re.compile(
    r"(?:^|\b(?:and|then|please)\s+|[\n.:;,]\s*)call\s+([A-Za-z_][\w.:-]*)|\bcall\s+([A-Za-z_][\w.:-]*)(?=\s*\{)"
)
_SAY = re.compile(r"^\s*say\s+(.+?)(?=\s+(?:and\s+)?call\s|\n|$)", re.DOTALL)
_FINISH = re.compile(r"\bfinish\s+([A-Z][A-Z_]+)\b")
_PIECES = re.compile(r"\s*\bin (\d+) pieces( to the limit)?\b")
_SUM = re.compile(r"(-?\d+(?:\.\d+)?)\s*([-+*/x])\s*(-?\d+(?:\.\d+)?)")
_STOP_WORDS = frozenset(
    "get set find fetch do run the a an my of to in for by is it this that current list make tool function and or "
    "search lookup look up show read write add all new what how call default api".split()
)


@dataclass
class ModelCall:
    """A functionCall to make. ``declared``: False if the model invents the function."""

    name: str
    args: dict[str, Any]
    declared: bool = True


@dataclass
class ModelAnswer:
    """One candidate: text, then calls, then a finishReason. ``token``: for a request that continues the answer.
    ``checkpoint`` makes a token for the place after a number of words."""

    text: str = ""
    calls: list[ModelCall] = field(default_factory=list)
    finish: str = "STOP"
    token: str | None = None
    checkpoint: Callable[[int], str] | None = None


def answer(request: dict[str, Any]) -> ModelAnswer:
    """The model's answer to an accepted request in canonical form."""
    words = last_text(request)
    found = _answer(request)
    if match := _PIECES.search(words):
        found.text = _PIECES.sub("", found.text)
        return _piece(found, request, int(match[1]), "MAX_TOKENS" if match[2] else "CONTINUATION")
    if found.finish == "CONTINUATION":
        found.token = signatures.continuation_token(request, 0)
    return found


def last_text(request: dict[str, Any]) -> str:
    """The user's last words."""
    history = turns(request["contents"])
    return history[last_words(history)].text


def _piece(whole: ModelAnswer, request: dict[str, Any], count: int, finish: str) -> ModelAnswer:
    """The piece of an answer that this request gets."""
    units: list[str | ModelCall] = [*re.findall(r"\S+\s*|\s+", whole.text), *whole.calls]
    token = request.get("continuationToken")
    begin = (signatures.continued_from(token, request) or 0) if token else 0
    end = begin + max(1, -(-len(units) // count))
    due = units[begin:end]
    text = "".join(unit for unit in due if isinstance(unit, str))
    calls = [unit for unit in due if isinstance(unit, ModelCall)]
    if end >= len(units):
        return ModelAnswer(text, calls, whole.finish)
    token = signatures.continuation_token(request, end)
    return ModelAnswer(text, calls, finish, token, lambda given: signatures.continuation_token(request, begin + given))


def _answer(request: dict[str, Any]) -> ModelAnswer:
    history = turns(request["contents"])
    start = last_words(history)
    text = history[start].text
    functions = _functions(request)
    config = (request.get("toolConfig") or {}).get("functionCallingConfig") or {}
    mode = config.get("mode", "AUTO")
    if allowed := config.get("allowedFunctionNames"):
        functions = {name: functions[name] for name in allowed}
    if match := _FINISH.search(text):
        if request.get("continuationToken"):
            return ModelAnswer(f"... and so on, to the end of: {text}")
        return ModelAnswer(finish=match[1])
    if "repeat the results" in text:
        return ModelAnswer(_describe_results(_results(history)) or "There are no results yet.")
    if mode == "NONE":
        functions = {}
    return _step(history, start, functions, forced=mode == "ANY") or ModelAnswer(_text_answer(history, start, request))


def _step(history: list[HistoryTurn], start: int, functions: dict[str, Any], *, forced: bool) -> ModelAnswer | None:
    """The next step's calls, or None if the answer is text."""
    if not functions:
        return None
    text = history[start].text
    done = sum(1 for turn in history[start + 1 :] if turn.calls)
    steps = directives(text)
    if steps:
        forever = text.rstrip().endswith("forever")
        if done < len(steps) or forever:
            step = steps[min(done, len(steps) - 1)]
            calls = [ModelCall(call.name, call.args, call.name in functions) for call in step.calls]
            results = _describe_results(history[start].responses) if not done else ""
            return ModelAnswer("\n".join(filter(None, (results, step.text))), calls)
    elif not done and not history[start].responses:
        # responses followed by text are answered first; only a directive calls again
        if calls := natural_calls(text, functions):
            return ModelAnswer("", calls)
    if forced:
        name = next(iter(functions))
        return ModelAnswer("", [ModelCall(name, fill(functions[name], text)[0])])
    return None


def directives(text: str) -> list[ModelAnswer]:
    """The steps that the text's directives ask for, each with its calls and the text before them."""
    steps = []
    for piece in _NEXT.split(text):
        calls = []
        for match in _CALL.finditer(piece):
            rest = piece[match.end() :].lstrip()
            args: Any = {}
            if rest.startswith("{"):
                try:
                    args, _ = json.JSONDecoder().raw_decode(rest)
                except ValueError:
                    continue
            calls.append(ModelCall(match[1] or match[2], args))
        if calls:
            text_before = _SAY.match(piece)
            steps.append(ModelAnswer(text_before[1].strip() if text_before else "", calls))
    return steps


def natural_calls(text: str, functions: dict[str, Any]) -> list[ModelCall]:
    """The calls for natural language: of the first function with a word of its name in the text."""
    text_words = set(re.findall(r"[a-z]+", text.lower()))
    for name, parameters in functions.items():
        words = {w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)} - _STOP_WORDS
        if words & text_words:
            return [ModelCall(name, args) for args in fill(parameters, text)]
    return []


def _functions(request: dict[str, Any]) -> dict[str, Any]:
    """Declared names with their parameters, in either form of schema."""
    return {
        d["name"]: d.get("parameters") or d.get("parametersJsonSchema") or {}
        for tool in request.get("tools") or []
        for d in tool.get("functionDeclarations") or []
    }


def _results(history: list[HistoryTurn]) -> list[dict[str, Any]]:
    return [response for turn in history for response in turn.responses]


def _describe_results(responses: list[dict[str, Any]]) -> str:
    return " ".join(f"{r['name']} returned {json.dumps(r.get('response', {}), ensure_ascii=False)}." for r in responses)


def _text_answer(history: list[HistoryTurn], start: int, request: dict[str, Any]) -> str:
    """A text answer: the results if there are any, else a sum, else the user's own words."""
    results = _results(history[start:])
    config = request.get("generationConfig") or {}
    text = history[start].text.strip()
    if config.get("responseMimeType") == "application/json":
        schema = config.get("responseSchema") or config.get("responseJsonSchema") or {}
        return json.dumps(instance(schema, text) if schema else {"answer": _describe_results(results) or text})
    if results:
        return _describe_results(results)
    if match := _SUM.search(text):
        return _sum(match)
    if match := _SAY.match(text):
        return match[1].strip()
    return f'You said: "{text}". How can I help you with that?'


def _sum(match: re.Match[str]) -> str:
    left, operator, right = float(match[1]), match[2], float(match[3])
    if operator == "/" and right == 0:
        return "Nothing can be divided by 0."
    results = {"+": left + right, "-": left - right, "/": left / right if right else 0}
    result = results.get(operator, left * right)
    return f"{left:g} {operator} {right:g} = {result:g}."


_PLACE = r"[A-ZÀ-Þ][\w'-]*(?:\s+[A-ZÀ-Þ][\w'-]*)*"
_AFTER = re.compile(rf"\b(?:in|for|at|of|to|from|about)\s+({_PLACE}(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+){_PLACE})*)")
_QUOTED = re.compile(r"[\"“]([^\"”]+)[\"”]")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def fill(parameters: dict[str, Any], text: str) -> list[dict[str, Any]]:
    """One set of arguments per call: several names in a row ("Paris and Tokyo") make several calls."""
    names = named(text)
    values = _Values(parameters, text, names[0] if names else None)
    whole = values.resolved(parameters)
    required = whole.get("required") or []
    properties = {name: values.resolved(schema) for name, schema in (whole.get("properties") or {}).items()}
    base = {
        name: values.value_of(schema, ())
        for name, schema in properties.items()
        if name in required or _is_mentioned(schema, text, names)
    }
    spread = next((n for n in base if _kind(properties[n]) == "string" and "enum" not in properties[n]), None)
    if spread is None or len(names) < 2:
        return [base]
    return [{**base, spread: name} for name in names]


def named(text: str) -> list[str]:
    """The names after in, for, at …: "weather in Paris and Tokyo" → ["Paris", "Tokyo"]."""
    match = _AFTER.search(text)
    return re.split(r"\s*,\s*and\s+|\s*,\s*|\s+and\s+", match[1]) if match else []


def instance(schema: dict[str, Any], text: str, name: str | None = None) -> Any:
    """A value that fits the schema, taken from the text if possible."""
    return _Values(schema, text, name).value_of(schema, ())


class _CircularReference(Exception):
    """A value would have to contain itself."""


class _Values:
    """Makes values for the schema `whole` and its subschemas."""

    def __init__(self, whole: dict[str, Any], text: str, name: str | None) -> None:
        quoted = _QUOTED.search(text)
        self.words = name or (quoted[1] if quoted else text.strip())
        self.text = text
        self._lookup = Registry().resolver_with_root(DRAFT202012.create_resource(whole)).lookup

    def resolved(self, schema: Any) -> dict[str, Any]:
        """The schema, with a reference followed."""
        found, _ = self._resolve(schema, ())
        return found if isinstance(found, dict) else {}

    def value_of(self, schema: Any, refs: tuple[str, ...]) -> Any:
        """A value for the schema. `refs`: the references that led here. Raises _CircularReference."""
        schema, refs = self._resolve(schema, refs)
        if not isinstance(schema, dict):
            return self.words
        if "const" in schema:
            return schema["const"]
        if isinstance(options := schema.get("enum"), list) and options:
            return options[0]
        for key in ("anyOf", "any_of", "oneOf", "allOf"):
            if schema.get(key):
                return self._first(schema[key], refs)
        match _kind(schema):
            case "number" | "integer" as kind:
                return self._number(kind)
            case "boolean":
                return True
            case "null":
                return None
            case "array":
                try:
                    return [self.value_of(schema.get("items"), refs)]
                except _CircularReference:
                    return []
            case "object":
                return self._object(schema, refs)
        return self.words

    def _resolve(self, schema: Any, refs: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        while isinstance(schema, dict) and "$ref" in schema:
            if schema["$ref"] in refs:
                raise _CircularReference
            refs = (*refs, schema["$ref"])
            schema = self._lookup(schema["$ref"]).contents
        return schema, refs

    def _first(self, options: list[Any], refs: tuple[str, ...]) -> Any:
        """A value for the first option without a circular reference."""
        for option in options:
            try:
                return self.value_of(option, refs)
            except _CircularReference:
                continue
        raise _CircularReference

    def _number(self, kind: str) -> float:
        match = _NUMBER.search(self.text)
        value = float(match[0]) if match else 1
        return int(value) if kind == "integer" or float(value).is_integer() else value

    def _object(self, schema: dict[str, Any], refs: tuple[str, ...]) -> dict[str, Any]:
        """Contains required and nullable properties; without `required`, all properties without circular references."""
        required, made = schema.get("required"), {}
        for key, item in (schema.get("properties") or {}).items():
            if required is None or key in required or _may_be_null(item):
                try:
                    made[key] = self.value_of(item, refs)
                except _CircularReference:
                    if required is not None:
                        raise
        return made


def _may_be_null(schema: Any) -> bool:
    options = schema.get("anyOf") if isinstance(schema, dict) else None
    return any(isinstance(option, dict) and option.get("type") == "null" for option in options or ())


def _kind(schema: dict[str, Any]) -> str:
    kind = schema.get("type") or ("object" if "properties" in schema else "string")
    return str(kind[0] if isinstance(kind, list) else kind).lower()


def _is_mentioned(schema: dict[str, Any], text: str, names: list[str]) -> bool:
    """Whether the text contains a value for an optional parameter."""
    kind = _kind(schema)
    if kind in ("number", "integer"):
        return bool(_NUMBER.search(text))
    return kind == "string" and "enum" not in schema and bool(names)
