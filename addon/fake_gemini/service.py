"""The service without HTTP: turns a parsed request into an answer or a refusal. No I/O."""

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from addon.fake_gemini import chat, history, routes, rules
from addon.fake_gemini.chat import ChatReply
from addon.fake_gemini.errors import Json, Refused, no_model
from addon.fake_gemini.fields import read
from addon.fake_gemini.model import ModelAnswer, answer
from addon.fake_gemini.reply import Reply
from addon.fake_gemini.routes import Model, Route


@dataclass
class Service:
    """One Gemini, with its options, stored cachedContents and counters."""

    options: rules.Options = field(default_factory=rules.Options)
    dummy_signatures: int = 0
    cached: dict[str, Json] = field(default_factory=dict)

    def generate(self, document: Any, route: Route, *, stream: bool) -> tuple[Reply, Json]:
        """The answer, and the request in canonical form. Raises ``Refused``."""
        request, model = self._read(document, route)
        request, answers = self._answers(request, model, route, stream=stream)
        config = request.get("generationConfig") or {}
        thoughts = bool((config.get("thinkingConfig") or {}).get("includeThoughts"))
        return Reply(model, route.place, answers, self._prompt_tokens(request), thoughts), request

    def complete(self, document: Any, route: Route) -> tuple[ChatReply, Json]:
        """``generate`` for the OpenAI-compatible endpoint."""
        request = chat.read(document)
        model = self._model(str(document.get("model", "")).removeprefix("google/"), route)
        request, answers = self._answers(request, model, route, stream=bool(document.get("stream")))
        return ChatReply(model, answers, self._prompt_tokens(request)), request

    def _answers(self, request: Json, model: Model, route: Route, *, stream: bool) -> tuple[Json, list[ModelAnswer]]:
        """The request including its cachedContent, and the candidates. Raises ``Refused``."""
        rules.check_cached(request)
        request = self._with_cache(request, model)
        self.dummy_signatures += rules.check(request, model, route.place, stream=stream, options=self.options)
        config = request.get("generationConfig") or {}
        return request, [answer(request)] * config.get("candidateCount", 1)

    def _prompt_tokens(self, request: Json) -> int:
        return tokens(request) if self.options.prompt_tokens is None else self.options.prompt_tokens

    def count_tokens(self, document: Any, route: Route) -> Json:
        """``{"totalTokens": …, "promptTokensDetails": […]}``. Raises ``Refused``."""
        if route.surface == "codeassist":
            request = read(document, "CodeAssistCountTokensRequest", route.place).get("request") or {}
            return {"totalTokens": tokens(request)}
        model = self._model(route.model, route)
        request = read(document, "CountTokensRequest", route.place)
        inner = request.get("generateContentRequest")
        if inner is not None and request.get("contents"):
            # own words
            raise Refused("Only one of contents and generate_content_request may be set.")
        if inner is not None and not inner.get("model"):
            raise Refused("* CountTokensRequest.generate_content_request.model: must be given.\n")  # own words
        request = inner or request
        history.check_contents(request.get("contents") or [], model, route.place)
        rules.check_tools(request, model, route.place)
        total = tokens(request)
        details = [{"modality": "TEXT", "tokenCount": total}]
        if "vertex" in route.place:
            return {"promptTokensDetails": details, "totalBillableCharacters": total * 4, "totalTokens": total}
        return {"totalTokens": total, "promptTokensDetails": details}

    def create_cached(self, document: Any, route: Route, prefix: str) -> Json:
        """Store a cachedContent whose name begins with ``prefix``. Raises ``Refused``."""
        content = read(document, "CachedContent", route.place)
        model = self._model(content.get("model", "").rpartition("/")[2], route)
        if content.get("contents"):
            history.check_contents(content["contents"], model, route.place)
        rules.check_tools(content, model, route.place)
        name = f"{prefix}cachedContents/{secrets.token_hex(16)}"
        now = datetime.now(UTC)
        self.cached[name] = content | {"name": name}
        stamp = "%Y-%m-%dT%H:%M:%S.%fZ"
        return {
            "createTime": now.strftime(stamp),
            "displayName": content.get("displayName", ""),
            "expireTime": (now + timedelta(hours=1)).strftime(stamp),
            "model": content["model"],
            "name": name,
            "updateTime": now.strftime(stamp),
            "usageMetadata": {"totalTokenCount": tokens(content)},
        }

    def get_cached(self, name: str) -> Json:
        """A stored cachedContent without its contents, as the service returns it. Raises ``Refused``."""
        found = self._cached(name)
        return {key: found[key] for key in ("model", "name", "displayName") if key in found} | {
            "usageMetadata": {"totalTokenCount": tokens(found)}
        }

    def delete_cached(self, name: str) -> Json:
        """Delete a stored cachedContent. Raises ``Refused``."""
        self._cached(name)
        del self.cached[name]
        return {}

    def describe(self, route: Route) -> Json:
        """``GET models/X``. Raises ``Refused``."""
        model = self._model(route.model, route)
        return {
            "name": f"models/{model.name}",
            "version": ".".join(map(str, model.version)),
            "displayName": model.name.replace("-", " ").title(),
            "inputTokenLimit": 1048576,
            "outputTokenLimit": 65536,
            "supportedGenerationMethods": ["generateContent", "countTokens", "createCachedContent"],
            "thinking": model.is_gemini_3,
        }

    def _read(self, document: Any, route: Route) -> tuple[Json, Model]:
        if route.surface != "codeassist":
            model = self._model(route.model, route)
            return read(document, "GenerateContentRequest", route.place), model
        envelope = read(document, "CodeAssistRequest", route.place)
        return envelope.get("request") or {}, self._model(envelope.get("model", ""), route)

    def _model(self, name: str, route: Route) -> Model:
        model = routes.find_model(name)
        if model is None:
            method = "createCachedContent" if route.method == "cachedContents" else route.method
            raise no_model(name.removeprefix("models/"), route.version, method)
        return model

    def _cached(self, name: str) -> Json:
        found = self.cached.get(name)
        if found is None:
            raise Refused("CachedContent not found (or permission denied)", code=403)
        return found

    def _with_cache(self, request: Json, model: Model) -> Json:
        name = request.get("cachedContent")
        if not name:
            return request
        found = self._cached(name)
        if found["model"].rpartition("/")[2] != model.name:
            raise Refused("Cached content model does not match the model in the request.")
        merged = {key: found[key] for key in ("systemInstruction", "tools", "toolConfig") if key in found}
        return request | merged | {"contents": (found.get("contents") or []) + (request.get("contents") or [])}


def tokens(request: Json) -> int:
    """A rough count: one token per four characters of text, and a flat rate for everything else."""
    count = 0
    for content in [*(request.get("contents") or []), request.get("systemInstruction") or {}]:
        for part in content.get("parts") or []:
            count += len(part["text"]) // 4 + 1 if "text" in part else 16
    for tool in request.get("tools") or []:
        count += 40 * len(tool.get("functionDeclarations") or [])
    return count
