"""Reads Proto JSON as the service does: refuses unknown names, wrong types and fields set twice by two spellings.

``read`` returns the request in canonical form (camelCase, lists for repeated fields, no nulls). User data (args,
responses, JSON Schemas, keys under properties) stays as it is. Pure; the input is not changed.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from addon.fake_gemini.errors import bad_fields

# --- the messages -----------------------------------------------------------------------------------------------
#
# A field is ``name:type``. A type is ``string``, ``bytes``, ``blob`` (bytes that are not checked), ``int``, ``number``,
# ``bool``, ``enum``, ``value`` (any JSON, user data), ``struct`` (a JSON object, user data) or a message; ``[T]`` is a
# list, ``{T}`` a map with the user's keys. After ``@`` come the only services that know the field (``developer``,
# ``vertex``, ``codeassist``, ``vertex-v1``), or, with ``!``, the one that does not. Vertex v1 and Firebase count as
# ``vertex`` too.

SOURCE = {
    "GenerateContentRequest": """model:string contents:[Content] systemInstruction:Content tools:[Tool]
        toolConfig:ToolConfig safetySettings:[SafetySetting] generationConfig:GenerationConfig
        cachedContent:string labels:{string}@!developer modelArmorConfig:value@vertex
        serviceTier:enum store:bool@developer continuationToken:string
        sessionId:string@codeassist""",
    "CountTokensRequest": """model:string contents:[Content] generateContentRequest:GenerateContentRequest@developer
        tools:[Tool]@vertex systemInstruction:Content@vertex generationConfig:GenerationConfig@vertex
        instances:[value]@vertex""",
    "CachedContent": """model:string contents:[Content] systemInstruction:Content tools:[Tool] toolConfig:ToolConfig
        displayName:string ttl:string expireTime:string name:string kmsKeyName:string@vertex
        encryptionSpec:value@vertex""",
    "CodeAssistRequest": """model:string project:string user_prompt_id:string request:GenerateContentRequest
        userAgent:string requestId:string requestType:string enabled_credit_types:[string]""",
    "CodeAssistCountTokensRequest": "request:CountTokensRequest",
    "LiveClientMessage": """setup:LiveSetup clientContent:LiveClientContent realtimeInput:LiveRealtimeInput
        toolResponse:LiveToolResponse contextUpdate:LiveContextUpdate""",
    "LiveSetup": """model:string generationConfig:GenerationConfig systemInstruction:Content tools:[Tool]
        realtimeInputConfig:value sessionResumption:LiveSessionResumption contextWindowCompression:value
        inputAudioTranscription:value outputAudioTranscription:value proactivity:value explicitVadSignal:bool@vertex
        historyConfig:value avatarConfig:value safetySettings:[SafetySetting] labels:{string}@vertex""",
    "LiveSessionResumption": "handle:string transparent:bool@vertex",
    "LiveClientContent": "turns:[Content] turnComplete:bool",
    "LiveRealtimeInput": """mediaChunks:[Blob] audio:Blob audioStreamEnd:bool video:Blob text:string
        activityStart:Empty activityEnd:Empty""",
    "LiveToolResponse": "functionResponses:[FunctionResponse]",
    "LiveContextUpdate": "systemInstruction:Content tools:LiveTools",
    "LiveTools": "tools:[Tool]",
    "Content": "role:string parts:[Part]",
    "Part": """text:string thought:bool thoughtSignature:bytes inlineData:Blob fileData:FileData
        functionCall:FunctionCall functionResponse:FunctionResponse executableCode:ExecutableCode
        codeExecutionResult:CodeExecutionResult toolCall:ToolCall@developer,codeassist
        toolResponse:ToolResponse@developer,codeassist
        videoMetadata:VideoMetadata mediaResolution:MediaResolution partMetadata:struct
        audioTranscription:value mediaProcessing:value speechMetadata:value documentMetadata:value
        spreadsheetMetadata:value audioMetadata:value""",
    "Blob": "mimeType:string data:blob displayName:string@vertex",
    "FileData": "mimeType:string fileUri:string displayName:string@vertex",
    "VideoMetadata": "startOffset:value endOffset:value fps:number contentLayers:value",
    "MediaResolution": "level:enum numTokens:int",
    "FunctionCall": """id:string@!vertex-v1 name:string args:struct partialArgs:[PartialArg]@vertex
        willContinue:bool@vertex""",
    "PartialArg": """jsonPath:string stringValue:string numberValue:number boolValue:bool nullValue:enum
        willContinue:bool""",
    "FunctionResponse": """id:string@!vertex-v1 name:string response:struct parts:[FunctionResponsePart]
        willContinue:bool scheduling:enum""",
    "FunctionResponsePart": """inlineData:FunctionResponseBlob fileData:FileData mediaProcessing:value
        mediaResolution:MediaResolution videoMetadata:VideoMetadata documentMetadata:value
        spreadsheetMetadata:value audioMetadata:value""",
    "FunctionResponseBlob": "mimeType:string data:blob displayName:string",
    "ExecutableCode": "id:string language:enum code:string",
    "CodeExecutionResult": "id:string outcome:enum output:string",
    "ToolCall": "id:string toolType:enum args:struct",
    "ToolResponse": "id:string toolType:enum response:struct",
    "Tool": """functionDeclarations:[FunctionDeclaration] googleSearch:GoogleSearch
        googleSearchRetrieval:GoogleSearchRetrieval codeExecution:Empty urlContext:Empty googleMaps:GoogleMaps
        fileSearch:FileSearch@developer computerUse:ComputerUse mcpServers:[McpServer]@developer
        retrieval:value@vertex enterpriseWebSearch:EnterpriseWebSearch@vertex parallelAiSearch:value@vertex
        exaAiSearch:value@vertex""",
    "Empty": "",
    "GoogleSearch": """timeRangeFilter:Interval searchTypes:value blockingConfidence:enum@vertex
        excludeDomains:[string]@vertex""",
    "Interval": "startTime:string endTime:string",
    "GoogleSearchRetrieval": "dynamicRetrievalConfig:DynamicRetrievalConfig",
    "DynamicRetrievalConfig": "mode:enum dynamicThreshold:number",
    "GoogleMaps": "enableWidget:bool authConfig:value@vertex groundingTypes:value",
    "FileSearch": "fileSearchStoreNames:[string] topK:int metadataFilter:string",
    "ComputerUse": """environment:enum excludedPredefinedFunctions:[string] enablePromptInjectionDetection:bool
        disabledSafetyPolicies:[enum]""",
    "McpServer": "name:string streamableHttpTransport:StreamableHttpTransport",
    "StreamableHttpTransport": """url:string headers:{string} timeout:string sseReadTimeout:string
        terminateOnClose:bool""",
    "EnterpriseWebSearch": "blockingConfidence:enum excludeDomains:[string]",
    "FunctionDeclaration": """name:string description:string parameters:Schema parametersJsonSchema:value
        response:Schema responseJsonSchema:value behavior:enum""",
    "Schema": """type:Type format:string title:string description:string nullable:bool enum:[string] items:Schema
        minItems:int maxItems:int properties:{Schema} required:[string] minProperties:int maxProperties:int
        minimum:number maximum:number minLength:int maxLength:int pattern:string example:value anyOf:[Schema]
        propertyOrdering:[string] default:value""",
    "ToolConfig": """functionCallingConfig:FunctionCallingConfig retrievalConfig:RetrievalConfig
        includeServerSideToolInvocations:bool@developer,codeassist""",
    "FunctionCallingConfig": """mode:Mode allowedFunctionNames:[string] streamFunctionCallArguments:bool@vertex""",
    "RetrievalConfig": "latLng:LatLng languageCode:string",
    "LatLng": "latitude:number longitude:number",
    "SafetySetting": "category:enum threshold:enum method:enum@vertex",
    "GenerationConfig": """temperature:number topP:number topK:number candidateCount:int maxOutputTokens:int
        stopSequences:[string] presencePenalty:number frequencyPenalty:number seed:int responseMimeType:string
        responseSchema:Schema responseJsonSchema:value responseLogprobs:bool logprobs:int
        responseModalities:[enum] mediaResolution:enum thinkingConfig:ThinkingConfig speechConfig:value
        imageConfig:value audioTimestamp:bool@vertex routingConfig:value@vertex modelSelectionConfig:value@vertex
        modelConfig:value@vertex enableEnhancedCivicAnswers:bool@developer enableAffectiveDialog:bool
        responseFormat:[value] translationConfig:value audioTranscriptionConfig:value""",
    "ThinkingConfig": "includeThoughts:bool thinkingBudget:int thinkingLevel:enum",
}

ENUMS = {
    "Type": ("TYPE_UNSPECIFIED", "STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"),
    "Mode": ("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"),
}
ENUM_TYPES = {"Type": "Type", "Mode": "FunctionCallingConfig.Mode"}

ONEOFS = {
    "Part": frozenset(
        "text inlineData fileData functionCall functionResponse executableCode codeExecutionResult toolCall "
        "toolResponse".split()
    ),
    "LiveClientMessage": frozenset("setup clientContent realtimeInput toolResponse contextUpdate".split()),
}


def snake(name: str) -> str:
    """``functionCall`` → ``function_call``"""
    return "".join("_" + c.lower() if c.isupper() else c for c in name)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message. ``shape`` is ``""``, ``"[]"`` or ``"{}"``."""

    camel: str
    snake: str
    type: str
    shape: str
    only: str  # the services that know the field; with "!" the one that does not; empty: all

    def known(self, place: frozenset[str]) -> bool:
        """Whether this service has the field."""
        if self.only.startswith("!"):
            return self.only[1:] not in place
        return not self.only or not place.isdisjoint(self.only.split(","))


def _parse(source: str) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for item in source.split():
        name, _, rest = item.partition(":")
        kind, _, only = rest.partition("@")
        shape = {"[": "[]", "{": "{}"}.get(kind[0], "")
        field = Field(name, snake(name), kind.strip("[]{}"), shape, only)
        fields[field.camel] = fields[field.snake] = field
    return fields


MESSAGES: dict[str, dict[str, Field]] = {name: _parse(source) for name, source in SOURCE.items()}


# --- reading them ---------------------------------------------------------------------------------------------------

_INVALID = "Invalid JSON payload received."
_SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "bytes": (str,),
    "blob": (str,),
    "int": (int, float, str),
    "number": (int, float, str),
    "bool": (bool,),
    "enum": (str, int),
}
_PROTO = {
    "string": "TYPE_STRING",
    "bytes": "TYPE_BYTES",
    "blob": "TYPE_BYTES",
    "int": "TYPE_INT32",
    "number": "TYPE_DOUBLE",
    "bool": "TYPE_BOOL",
    "enum": "TYPE_ENUM",
}


def decode_bytes(text: str) -> bytes | None:
    """Decode a proto bytes field: base64 in either alphabet, padding optional. None if invalid."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def read(document: Any, message: str, place: frozenset[str]) -> dict[str, Any]:
    """Check ``document`` as a ``message`` and return it in canonical form.

    ``place``: the names of the service, such as ``{"vertex", "vertex-v1"}``. Raises ``Refused`` with all
    violations.
    """
    reader = _Reader(place)
    if not isinstance(document, dict):
        raise bad_fields([("", f"{_INVALID} Root element must be a message.")])
    result = reader.message(document, message, "")
    if reader.violations:
        raise bad_fields(reader.violations)
    return result


class _Reader:
    def __init__(self, place: frozenset[str]) -> None:
        self.place = place
        self.violations: list[tuple[str, str]] = []

    def refuse(self, path: str, description: str) -> None:
        self.violations.append((path, description))

    def message(self, given: dict[str, Any], message: str, path: str) -> dict[str, Any]:
        known = MESSAGES[message]
        oneof = ONEOFS.get(message, frozenset())
        chosen = ""
        result: dict[str, Any] = {}
        at = f" at '{path}'" if path else ""
        for key, value in given.items():
            field = known.get(key)
            if field is None or not field.known(self.place):
                self.refuse(path, f'{_INVALID} Unknown name "{key}"{at}: Cannot find field.')
                continue
            if value is None:
                continue
            if field.camel in result:
                # the service's wording is not public, only the status 400
                self.refuse(
                    path, f'{_INVALID} Proto field "{field.snake}"{at} has already been set by another spelling.'
                )
                continue
            if field.camel in oneof:
                if chosen:
                    self.refuse(
                        path,
                        f"Invalid value{at} (oneof), oneof field 'data' is already set. Cannot set '{field.camel}'",
                    )
                    continue
                chosen = field.camel
            result[field.camel] = self.field(field, value, path)
        return result

    def field(self, field: Field, value: Any, parent: str) -> Any:
        path = f"{parent}.{field.snake}" if parent else field.snake
        if field.shape == "{}":
            if not isinstance(value, dict):
                return self.wrong(field, value, path, parent)
            return {
                key: self.element(field, item, f"{path}[{n}].value", path)
                for n, (key, item) in enumerate(value.items())
            }
        if field.shape == "[]":
            if not isinstance(value, list):
                return [self.element(field, value, path, parent)]  # a single object stands for a list of one
            return [self.element(field, item, f"{path}[{n}]", path) for n, item in enumerate(value)]
        if isinstance(value, list) and field.type != "value":
            at = f" at '{parent}'" if parent else ""
            self.refuse(
                parent,
                f'{_INVALID} Unknown name "{field.camel}"{at}: Proto field is not repeating, cannot start list.',
            )
            return None
        return self.element(field, value, path, parent)

    def element(self, field: Field, value: Any, path: str, parent: str) -> Any:
        kind = field.type
        if kind == "value":
            return value
        if kind == "struct":
            return value if isinstance(value, dict) else self.wrong(field, value, path, parent)
        if kind in MESSAGES:
            if isinstance(value, dict):
                return self.message(value, kind, path)
            return self.wrong(field, value, path, parent)
        if kind in ENUMS:
            return self.enum(field, value, path, parent)
        if not isinstance(value, _SCALARS[kind]) or (kind != "bool" and isinstance(value, bool)):
            return self.wrong(field, value, path, parent)
        return self.scalar(field, value, path, parent)

    def scalar(self, field: Field, value: Any, path: str, parent: str) -> Any:
        kind = field.type
        if kind == "bytes":
            if decode_bytes(value) is None:
                self.refuse(path, f"Invalid value at '{path}' (TYPE_BYTES), Base64 decoding failed for \"{value}\"")
        elif kind in ("int", "number") and not isinstance(value, int | float):
            try:
                return float(value) if kind == "number" else int(value)
            except ValueError:
                return self.wrong(field, value, path, parent)
        elif kind == "int" and isinstance(value, float):
            return int(value) if value.is_integer() else self.wrong(field, value, path, parent)
        return value

    def enum(self, field: Field, value: Any, path: str, parent: str) -> Any:
        names = ENUMS[field.type]
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
            return names[value]
        if isinstance(value, str) and value.upper() in names:
            return value.upper()
        return self.wrong(field, value, path, parent)

    def wrong(self, field: Field, value: Any, path: str, parent: str) -> None:
        """Refuse a value whose type does not fit the field."""
        if isinstance(value, dict):
            at = f" at '{parent}'" if parent else ""
            self.refuse(parent, f"Invalid value{at} ({field.snake}), Starting an object on a scalar field")
            return
        if field.type == "struct":
            kind = "type.googleapis.com/google.protobuf.Struct"
        elif field.type in ENUMS:
            kind = f"type.googleapis.com/google.ai.generativelanguage.v1beta.{ENUM_TYPES[field.type]}"
        elif field.type in MESSAGES:
            kind = f"type.googleapis.com/google.ai.generativelanguage.v1beta.{field.type}"
        else:
            kind = _PROTO[field.type]
        self.refuse(path, f"Invalid value at '{path}' ({kind}), {json.dumps(value, ensure_ascii=False)}")
