"""Turns of LangChain's OpenAI model by each of its methods, with the client's function beside the session's tools.
Prints a line of JSON for each."""

import json
import os
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

QUESTION = 'call note {"n": 1} and call note {"n": 2} then call weather {"city": "Oslo"} and call note {"n": 3}'
NOTE = {
    "type": "function",
    "function": {
        "name": "note",
        "description": "Notes.",
        "parameters": {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]},
    },
}
TURNS = 3
KINDS: dict[str, dict[str, Any]] = {
    "history": {"use_responses_api": True},
    "content blocks": {"use_responses_api": True, "output_version": "v1"},
    "stateless": {"use_responses_api": True, "store": False, "include": ["reasoning.encrypted_content"]},
    "previous": {"use_responses_api": True, "use_previous_response_id": True},
    "chat": {"use_responses_api": False},
}


class City(BaseModel):
    name: str
    people: int


def model_of(**more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="gemini-3-flash",
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=SecretStr(os.environ["OPENAI_API_KEY"]),
        default_headers={"x-graft-session": os.environ["SESSION"]},
        max_retries=0,
        **more,
    )


def ask(model: Any, messages: list[Any], *, stream: bool) -> Any:
    if not stream:
        return model.invoke(messages)
    whole = None
    for chunk in model.stream(messages):
        whole = chunk if whole is None else whole + chunk
    return whole


def texts_of(kind: dict[str, Any], *, stream: bool) -> list[str]:
    model, messages, texts = model_of(**kind).bind_tools([NOTE]), list[Any](), list[str]()
    for _ in range(TURNS):
        messages.append(HumanMessage(QUESTION))
        while True:
            answer = ask(model, messages, stream=stream)
            messages.append(answer)
            if not answer.tool_calls:
                break
            messages += [
                ToolMessage(json.dumps({"noted": call["args"]["n"]}), tool_call_id=call["id"])
                for call in answer.tool_calls
            ]
        texts.append(str(answer.text))
    return texts


for name, kind in KINDS.items():
    for stream in (False, True):
        print(json.dumps({"kind": name, "stream": stream, "texts": texts_of(kind, stream=stream)}), flush=True)
for responses in (True, False):
    city = model_of(use_responses_api=responses).with_structured_output(City, method="json_schema").invoke("A city.")
    assert isinstance(city, City)
    print(json.dumps({"kind": "structured", "city": city.model_dump()}), flush=True)
