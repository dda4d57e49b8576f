"""Chats in other formats than Gemini's: chat completions, and Interactions, where the service keeps the history."""

import json
from collections.abc import Sequence
from typing import Any

import httpx2

from tests.crash.actors import Asker, Broken, Question, responses_in
from tests.crash.chats import KEY, TIMEOUT
from tests.crash.rig import Rig

Json = dict[str, Any]

_MODEL = "gemini-3-flash-preview"


class Completions(Asker):
    """Streamed chat completions."""

    def __init__(self, rig: Rig, name: str, tools: Sequence[str]) -> None:
        self.messages: list[Json] = []
        self.body = b""
        super().__init__(rig, name, tools)

    def begin_chat(self) -> None:
        super().begin_chat()
        words = f"Chat {self.chat} of {self.name}."
        self.messages = [{"role": "user", "content": words}, {"role": "assistant", "content": "Yes."}]

    def send(self, question: Question, *, is_retry: bool = False) -> str:
        if not is_retry:
            messages = [*self.messages, {"role": "user", "content": question.text}]
            self.body = json.dumps({"model": _MODEL, "messages": messages, "stream": True}).encode()
        url = f"{self.rig.proxy.url}/@{self.session}/v1beta/openai/chat/completions"
        headers = {"authorization": "Bearer a-secret-key", "content-type": "application/json"}
        with httpx2.stream("POST", url, content=self.body, headers=headers, timeout=TIMEOUT) as answer:
            if answer.status_code != 200:
                answer.read()
                raise Broken(f"{answer.status_code} {answer.text}")
            return self._streamed(answer)

    def _streamed(self, answer: httpx2.Response) -> str:
        text = ""
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                return text
            if not line:
                continue
            self.rig.trace.tick()
            event = json.loads(line.removeprefix("data: "))
            if "choices" not in event:
                raise Broken(line)
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        raise Broken("the stream ended without [DONE]")

    def keep(self, question: Question, answer: str) -> None:
        self.messages += [{"role": "user", "content": question.text}, {"role": "assistant", "content": answer}]


class Interactions(Asker):
    """The client keeps only the name of the last interaction."""

    def __init__(self, rig: Rig, name: str, tools: Sequence[str]) -> None:
        self.id: str | None = None
        self.last_id: str | None = None
        self.body: Json = {}
        super().__init__(rig, name, tools)

    def begin_chat(self) -> None:
        super().begin_chat()
        self.id = None

    def send(self, question: Question, *, is_retry: bool = False) -> str:
        if not is_retry:
            words = question.text if self.id else f"{question.text} in {self.chat} of {self.name}"
            self.body = {"model": _MODEL, "input": words}
            if self.id is not None:
                self.body["previous_interaction_id"] = self.id
        url = f"{self.rig.proxy.url}/@{self.session}/v1beta/interactions"
        answer = httpx2.post(url, json=self.body, headers=KEY, timeout=TIMEOUT)
        if answer.status_code != 200:
            raise Broken(f"{answer.status_code} {answer.text}")
        self.rig.trace.tick()
        document = answer.json()
        self.last_id = document["id"]
        return "".join(
            part.get("text", "")
            for step in document["steps"]
            if step["type"] == "model_output"
            for part in step["content"]
        )

    def keep(self, question: Question, answer: str) -> None:
        self.id = self.last_id

    def sent_on(self, tag: str, answer: str) -> dict[str, Json] | None:
        """The responses in the model's text, which repeats the history's results; errors in it name no call."""
        call_responses = [response for _, response in responses_in(answer)]
        return {mark: response for mark, response in self.call_responses.items() if response in call_responses}
