"""A program on OpenAI's own package that asks Gemini: the proxy runs the session's tools, the program its own.

    ./run_proxy.sh --set graft_tools=examples/weather.py
    ./run_proxy.sh run --openai -- python examples/openai_client.py "What is the weather in Oslo, and what do I pack?"

It needs the package `openai`, and no change for Gemini but the model's name.
"""

import json
import sys

from openai import OpenAI
from openai.types.responses import FunctionToolParam, ResponseInputParam

MODEL = "gemini-3-flash"
PACK: FunctionToolParam = {
    "type": "function",
    "name": "pack",
    "description": "What to pack for a temperature.",
    "parameters": {
        "type": "object",
        "properties": {"celsius": {"type": "number"}},
        "required": ["celsius"],
        "additionalProperties": False,
    },
    "strict": True,
}


def pack(celsius: float) -> dict[str, str]:
    return {"wear": "a coat" if celsius < 10 else "a shirt"}


def main(question: str) -> None:
    client = OpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY are in the environment
    response = client.responses.create(model=MODEL, input=question, tools=[PACK])
    while calls := [item for item in response.output if item.type == "function_call"]:
        outputs: ResponseInputParam = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": json.dumps(pack(**json.loads(call.arguments))),
            }
            for call in calls
        ]
        response = client.responses.create(model=MODEL, input=outputs, previous_response_id=response.id)
    print(response.output_text)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is the weather in Oslo, and what do I pack?")
