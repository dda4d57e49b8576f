"""The messages of the Gemini API and their fields, as data for ``fields``.

A field is ``name:type``. A type is ``string``, ``bytes``, ``blob`` (bytes that are not checked), ``int``, ``number``,
``bool``, ``enum``, ``value`` (any JSON, user data), ``struct`` (a JSON object, user data) or a message; ``[T]`` is a
list, ``{T}`` a map with the user's keys. After ``@`` come the only services that know the field (``developer``,
``vertex``, ``codeassist``, ``vertex-v1``), or, with ``!``, the one that does not. Vertex v1 and Firebase count as
``vertex`` too.
"""

from __future__ import annotations

from dataclasses import dataclass

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
