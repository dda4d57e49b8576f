"""The strict local Gemini's Interactions API: refusals, stored interactions, and answers. No I/O, no HTTP.

Steps become Contents, so that ``generateContent``'s rules and model apply.
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from addon.fake_gemini import routes, rules
from addon.fake_gemini.errors import Json, Refused
from addon.fake_gemini.interaction_steps import contents_of, contents_of_answer, last_calls, steps_of
from addon.fake_gemini.model import answer
from addon.fake_gemini.reply import Shape, new_id, split
from addon.fake_gemini.routes import Model
from addon.fake_gemini.service import tokens

PLACE = frozenset({"developer"})
KNOWN: dict[str, Any] = {
    "agent": str,
    "agent_config": dict,
    "background": bool,
    "cached_content": str,
    "continuation_token": str,
    "environment": dict | str,
    "generation_config": dict,
    "input": str | dict | list,
    "labels": dict,
    "model": str,
    "previous_interaction_id": str,
    "response_format": dict | list,
    "response_mime_type": str,
    "response_modalities": list,
    "safety_settings": list,
    "service_tier": str,
    "store": bool,
    "stream": bool,
    "system_instruction": str,
    "tools": list,
    "webhook_config": dict,
}
CONFIG: dict[str, Any] = {
    "image_config": dict,
    "max_output_tokens": int,
    "seed": int,
    "speech_config": dict | list,
    "stop_sequences": list,
    "temperature": int | float,
    "thinking_level": str,
    "thinking_summaries": str,
    "tool_choice": str | dict,
    "top_p": int | float,
    "transcription_config": dict,
    "video_config": dict,
}
BUILT_IN = frozenset(
    "code_execution computer_use file_search google_maps google_search mcp_server retrieval tool_search "
    "url_context".split()
)
FUNCTION = frozenset("type name description parameters defer_loading short_description".split())
JSON_TYPES = frozenset("string number integer boolean array object null".split())


@dataclass
class Stored:
    """An interaction that a later one can continue: the whole history up to its end, the history that it answers, and
    its answer document."""

    contents: list[Json]
    document: Json
    prompt_contents: list[Json] = field(default_factory=list)


@dataclass
class Interactions:
    """The service. ``options``: as in ``rules``, except that undeclared functions in the history are always accepted,
    because each interaction declares its own tools."""

    options: rules.Options = field(default_factory=rules.Options)
    stored: dict[str, Stored] = field(default_factory=dict)

    def create(self, given: Any) -> Json:
        """The answer to a request: an interaction. Raises ``Refused``."""
        _check_fields(given, KNOWN, "")
        if "agent" in given or given.get("background"):
            raise Refused("Agents and background interactions are not served here.")  # own words
        model = routes.find_model(given.get("model") or "")
        if model is None:
            raise Refused(f"Model '{given.get('model', '')}' not found.", code=404)
        prompt_contents, so_far = self._prompt_and_output(given)
        request = _request(given, prompt_contents, model)
        if "continuation_token" in given:
            request["continuationToken"] = given["continuation_token"]
        options = rules.Options(check_signatures=self.options.check_signatures, check_declared=False)
        rules.check(request, model, PLACE, options=options)
        found = answer(request)
        output = contents_of_answer(found, new_id, signed=model.is_gemini_3)
        document = _document(given, model, output, found.finish, tokens(request))
        if found.token is not None:
            document["continuation_token"] = found.token
        if given.get("store", True):
            self.stored[document["id"]] = Stored(prompt_contents + so_far + output, document, prompt_contents)
        else:
            del document["id"]
        return document

    def get(self, name: str) -> Json:
        """A stored interaction. Raises ``Refused``."""
        return self._find(name).document

    def delete(self, name: str) -> Json:
        """Forget a stored interaction. Raises ``Refused``."""
        self._find(name)
        del self.stored[name]
        return {}

    def _prompt_and_output(self, given: Json) -> tuple[list[Json], list[Json]]:
        """The history to answer, and the part of the answer given before. A request without input and with the previous
        interaction's token asks for the rest of that answer."""
        before = self._before(given)
        if "input" in given:
            prompt_contents = before + contents_of(given["input"], after=before)
            self._check_results(before, prompt_contents[len(before) :])
            return prompt_contents, []
        token, previous = given.get("continuation_token"), given.get("previous_interaction_id")
        if token is None or previous is None:
            raise Refused("Missing required parameter 'input'.")
        stored = self._find(previous)
        if stored.document.get("continuation_token") != token:
            raise Refused("The continuation token does not belong to the previous interaction.")  # own words
        return stored.prompt_contents, stored.contents[len(stored.prompt_contents) :]

    def _before(self, given: Json) -> list[Json]:
        previous = given.get("previous_interaction_id")
        return self._find(previous).contents if previous is not None else []

    def _find(self, name: str) -> Stored:
        found = self.stored.get(name)
        if found is None:
            raise Refused(f"Interaction '{name}' not found.", code=404)
        return found

    def _check_results(self, before: list[Json], new: list[Json]) -> None:
        """Check that all calls at the end of the history are answered."""
        calls = [call["id"] for call in last_calls(before)]
        parts = [part for content in new for part in content["parts"]]
        given = [part["functionResponse"]["id"] for part in parts if "functionResponse" in part]
        for call_id in calls:
            if call_id not in given:
                raise Refused(f"Missing function_result for function call '{call_id}' of the previous interaction.")


def _check_fields(given: Any, known: dict[str, Any], where: str) -> None:
    at = f" at '{where}'" if where else ""
    if not isinstance(given, dict):
        raise Refused(f"Invalid request{at}: it must be an object.")
    for name, value in given.items():
        if name not in known:
            raise Refused(f"Unknown parameter '{name}'{at}.")
        of = known[name]
        if not isinstance(value, of) or (isinstance(value, bool) and of is not bool):
            raise Refused(f"Invalid value for parameter '{name}'{at}.")


def _request(given: Json, contents: list[Json], model: Model) -> Json:
    """The request as one of ``generateContent``, in canonical form."""
    declared, builtins = _tools(given.get("tools") or [])
    config = given.get("generation_config") or {}
    _check_fields(config, CONFIG, "generation_config")
    request: Json = {"contents": contents, "generationConfig": {}}
    tools: list[Json] = [{name: {}} for name in builtins]
    if declared:
        tools.append({"functionDeclarations": declared})
    if tools:
        request["tools"] = tools
    tool_config: Json = {}
    if declared and builtins and model.is_gemini_3:
        tool_config["includeServerSideToolInvocations"] = True
    if "tool_choice" in config:
        tool_config["functionCallingConfig"] = _calling(config["tool_choice"])
    if tool_config:
        request["toolConfig"] = tool_config
    for form in _as_list(given.get("response_format")):
        if form.get("mime_type") == "application/json" or "schema" in form:
            request["generationConfig"]["responseMimeType"] = "application/json"
            request["generationConfig"]["responseJsonSchema"] = form.get("schema") or {"type": "object"}
    if instruction := given.get("system_instruction"):
        request["systemInstruction"] = {"parts": [{"text": instruction}]}
    return request


def _tools(tools: list[Any]) -> tuple[list[Json], list[str]]:
    """The declarations in Gemini's form, and the types of the built-in tools."""
    declared: list[Json] = []
    builtins: list[str] = []
    for n, tool in enumerate(tools):
        where = f"tools[{n}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind in BUILT_IN:
            builtins.append(str(kind))
        elif kind != "function":
            raise Refused(f"Invalid tool type '{kind}' at '{where}'.")
        else:
            if unknown := sorted(tool.keys() - FUNCTION):
                raise Refused(f"Unknown parameter '{unknown[0]}' at '{where}'.")
            _check_schema(tool.get("parameters", {}), f"{where}.parameters")
            declaration = {"name": tool.get("name") or "", "description": tool.get("description") or ""}
            if "parameters" in tool:
                declaration["parametersJsonSchema"] = tool["parameters"]
            declared.append(declaration)
    return declared, builtins


def _check_schema(schema: Any, where: str) -> None:
    """Check a JSON Schema, which has types in lower case."""
    if isinstance(schema, list):
        for n, item in enumerate(schema):
            _check_schema(item, f"{where}[{n}]")
    if not isinstance(schema, dict):
        return
    for kind in _as_list(schema.get("type")):
        if isinstance(kind, str) and kind not in JSON_TYPES:
            raise Refused(f"Invalid schema type '{kind}' at '{where}'.")
    for name in ("properties", "$defs", "definitions"):
        for key, item in (schema.get(name) or {}).items():
            _check_schema(item, f"{where}.{name}.{key}")
    for name in ("items", "anyOf", "oneOf", "allOf", "prefixItems", "additionalProperties", "not"):
        _check_schema(schema.get(name), f"{where}.{name}")


def _calling(choice: Any) -> Json:
    """``tool_choice`` as a functionCallingConfig."""
    allowed: Any = choice.get("allowed_tools") if isinstance(choice, dict) else {"mode": choice}
    mode = allowed.get("mode", "auto") if isinstance(allowed, dict) else None
    if mode not in ("auto", "any", "none", "validated") or (
        isinstance(choice, dict) and choice.keys() != {"allowed_tools"}
    ):
        raise Refused("Invalid value for parameter 'tool_choice' at 'generation_config'.")
    calling: Json = {"mode": mode.upper()}
    if names := allowed.get("tools"):
        calling["allowedFunctionNames"] = names
    return calling


def _document(given: Json, model: Model, output: list[Json], finish: str, prompt: int) -> Json:
    calls = bool(last_calls(output))
    ended = "requires_action" if calls else "completed"
    known = {"STOP": ended, "MAX_TOKENS": "incomplete", "CONTINUATION": "requires_continuation"}
    status = known.get(finish, "failed")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    steps = steps_of(output)
    output_tokens = sum(len(json.dumps(step)) for step in steps) // 4
    document: Json = {
        "id": f"v1_{secrets.token_urlsafe(48)}",
        "status": status,
        "usage": {
            "total_tokens": prompt + output_tokens,
            "total_input_tokens": prompt,
            "input_tokens_by_modality": [{"modality": "text", "tokens": prompt}],
            "total_cached_tokens": 0,
            "total_output_tokens": output_tokens,
            "total_tool_use_tokens": 0,
            "total_thought_tokens": 0,
        },
        "created": now,
        "updated": now,
        "service_tier": given.get("service_tier", "standard"),
        "steps": steps,
        "object": "interaction",
        "model": model.name,
    }
    if status == "failed":
        document["errors"] = [{"code": finish.lower(), "message": f"The model stopped: {finish}."}]
    return document


def events(interaction: Json, shape: Shape) -> Iterator[bytes]:
    """The frames of an answer's event stream."""
    name, head = interaction.get("id", ""), {"object": "interaction", "model": interaction["model"]}
    yield _frame({"interaction": {"id": name, "status": "in_progress", **head}}, "interaction.created")
    yield _frame({"interaction_id": name, "status": "in_progress"}, "interaction.status_update")
    for index, step in enumerate(interaction["steps"]):
        start, deltas = _pieces(step, shape)
        yield _frame({"index": index, "step": start}, "step.start")
        for delta in deltas:
            yield _frame({"index": index, "delta": delta}, "step.delta")
        yield _frame({"index": index}, "step.stop")
    last = {"id": name, **{key: value for key, value in interaction.items() if key not in ("id", "steps")}}
    yield _frame({"interaction": last}, "interaction.completed")
    yield b"event: done\ndata: [DONE]\n\n"


def _pieces(step: Json, shape: Shape) -> tuple[Json, list[Json]]:
    """The beginning of a step, and its deltas."""
    if step["type"] == "thought":
        return {"type": "thought"}, [{"signature": step["signature"], "type": "thought_signature"}]
    if step["type"] == "function_call":
        whole = json.dumps(step["arguments"], ensure_ascii=False, separators=(",", ":"))
        size = max(1, -(-len(whole) // max(1, shape.pieces))) if shape.each else len(whole)
        cut = [whole[n : n + size] for n in range(0, len(whole), size)]
        return {**step, "arguments": {}}, [{"arguments": piece, "type": "arguments_delta"} for piece in cut]
    texts = split(step["content"][0]["text"], shape.pieces)
    return {"type": "model_output"}, [{"text": text, "type": "text"} for text in texts]


def _frame(document: Json, kind: str) -> bytes:
    data = json.dumps({**document, "event_type": kind}, ensure_ascii=False, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
