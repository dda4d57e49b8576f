"""Chats with the model: looped, with placeholders, and through the front doors."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import httpx2

from tests.crash.actors import Asker, Broken, Question, listed
from tests.crash.rig import Rig
from tests.crash.runs import result
from tests.e2e.proxies import MODEL_PATH, model, parts_of, text_of, user

Json = dict[str, Any]

KEY = {"x-goog-api-key": "a-secret-key", "content-type": "application/json"}
TIMEOUT = 30
_METHODS = {
    "json": "generateContent",
    "sse": "streamGenerateContent?alt=sse",
    "array": "streamGenerateContent",
}


class Looped(Asker):
    """A chat with a client that keeps the history, in one of the three forms of an answer."""

    def __init__(self, rig: Rig, name: str, tools: Sequence[str], form: str, session: str | None = None) -> None:
        self.form = form
        self.history: list[Json] = []
        self.body = b""
        super().__init__(rig, name, tools, session)

    def begin_chat(self) -> None:
        super().begin_chat()
        words = f"Chat {self.chat} of {self.name}."
        self.history = [user(words), model("Yes.")]

    def send(self, question: Question, *, is_retry: bool = False) -> str:
        if not is_retry:
            self.body = json.dumps({"contents": [*self.history, user(question.text)]}).encode()
        url = f"{self.rig.proxy.url}/@{self.session}{MODEL_PATH}:{_METHODS[self.form]}"
        with httpx2.stream("POST", url, content=self.body, headers=KEY, timeout=TIMEOUT) as answer:
            if answer.status_code != 200:
                answer.read()
                raise Broken(f"{answer.status_code} {answer.text}")
            if self.form == "sse":
                return self._streamed(answer)
            answer.read()
        self.rig.trace.tick()
        found = answer.json()
        for document in found if isinstance(found, list) else [found]:
            if "error" in document:
                raise Broken(str(document["error"]))
        return text_of(found)

    def _streamed(self, answer: httpx2.Response) -> str:
        """Read the stream until the finishReason."""
        text = ""
        for line in answer.iter_lines():
            if not line:
                continue
            self.rig.trace.tick()
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise Broken(str(event["error"]))
            text += "".join(part.get("text", "") for part in parts_of(event) if not part.get("thought"))
            if event["candidates"][0].get("finishReason"):
                return text
        raise Broken("the stream ended without a finishReason")

    def keep(self, question: Question, answer: str) -> None:
        self.history += [user(question.text), model(answer)]


class ByHand(Looped):
    """A chat with placeholders: the calls are answered through the control API."""

    TOOL = "manual"
    acknowledged_on_disk = True

    def __init__(self, rig: Rig, name: str, form: str) -> None:
        self.asked: dict[str, str] = {}
        """Marks of placeholders that the client has, with the ids of their calls if known."""
        self.acknowledged: dict[str, str] = {}
        super().__init__(rig, name, [self.TOOL], form)
        properties = {"mark": {"type": "STRING"}, "seconds": {"type": "NUMBER"}}
        declaration = {"name": self.TOOL, "parameters": {"type": "OBJECT", "properties": properties}}
        rig.proxy.control.session(self.session).tools([declaration])

    def begin_chat(self) -> None:
        super().begin_chat()
        self.asked = {}

    def question(self) -> Question:
        marks = [self.rig.name("m") for _ in range(2)]
        text = " and ".join(f"call {self.TOOL} {json.dumps({'mark': mark})}" for mark in marks)
        return Question(text, dict.fromkeys(marks, self.TOOL))

    def take(self, question: Question, answer: str) -> None:
        self.keep(question, answer)
        self.open = None
        self.asked |= dict.fromkeys(question.calls, "")
        self.answer_calls()

    def answer_calls(self) -> None:
        """Answer each call for which the client has a placeholder."""
        by_mark = {call["args"]["mark"]: call for call in self.records()}
        for mark in [mark for mark in self.asked if mark not in self.call_responses]:
            if mark not in by_mark:
                if self.rig.cuts_power:  # only the result would have been acknowledged
                    self.note("placeholder lost")
                else:
                    self.broken("lost", f"the call {mark} of a placeholder that the client has")
                del self.asked[mark]
                continue
            path = f"/v1/calls/{by_mark[mark]['call_id']}/result"
            answer = self.control.http.post(path, json={"result": result(mark)})
            if answer.status_code != 200:
                self.broken("refused", f"a result: {answer.status_code} {answer.text}")
            self.rig.trace.tick()
            self.note("result acknowledged")
            self.call_responses[mark] = result(mark)
            self.acknowledged[by_mark[mark]["call_id"]] = mark

    def resume(self, question: Question) -> None:
        answer = self.send(question, is_retry=True)  # nothing was run: it is a separate step
        self.note("answered when retried")
        self.take(question, answer)

    def recover(self) -> None:
        kept = {call["call_id"]: call for call in listed(self.control, "/v1/calls", session=self.session)}
        for call_id, mark in self.acknowledged.items():
            if kept.get(call_id, {}).get("result") != result(mark):
                self.broken("lost", f"the result of {call_id}, acknowledged, is {kept.get(call_id)}")
        self.answer_calls()
        super().recover()


class Approver:
    """Approves the waiting calls of a session, and denies one in five."""

    def __init__(self, rig: Rig, session: str) -> None:
        self.rig = rig
        self.session = session
        self.random = type(rig.random)(rig.random.random())
        self.acknowledged: dict[str, str] = {}

    def play(self, stop: threading.Event) -> None:
        control = self.rig.proxy.control
        while not stop.is_set():
            try:
                query = {"session": self.session, "status": "pending", "wait": 0.2, "limit": 100}
                found = control.ask("GET", "/v1/calls", params=query)
                for call in found["items"]:
                    if call["approval"] == "waiting":
                        self._decide(call["call_id"])
            except httpx2.HTTPError:
                return
            stop.wait(0.02)

    def _decide(self, call_id: str) -> None:
        word = "deny" if self.random.random() < 0.2 else "approve"
        answer = self.rig.proxy.control.http.post(f"/v1/calls/{call_id}/{word}", json={})
        self.rig.trace.tick()
        if answer.status_code == 200:
            self.acknowledged[call_id] = {"deny": "denied", "approve": "approved"}[word]
            self.rig.note("approver", f"{word} acknowledged")
        elif answer.status_code != 409:  # the loop that waited for it is gone
            self.rig.broken("refused", "approver", f"{word}: {answer.status_code} {answer.text}")

    def recover(self) -> None:
        for call_id, decision in self.acknowledged.items():
            answer = self.rig.proxy.control.http.get(f"/v1/calls/{call_id}")
            if answer.status_code != 200 or answer.json()["approval"] != decision:
                self.rig.broken("lost", "approver", f"{call_id} was {decision}: {answer.text[:300]}")


class Door(Asker):
    """A conversation at a front door, which keeps the history."""

    acknowledged_on_disk = True

    def __init__(self, rig: Rig, name: str, tools: Sequence[str], path: str, *, stream: bool = False) -> None:
        self.path = path
        self.stream = stream
        self.conversation = ""
        self.body: Json = {}
        self.responses: dict[str, str] = {}
        self.last_id = ""
        super().__init__(rig, name, tools)

    def begin_chat(self) -> None:
        super().begin_chat()
        self.conversation = self.rig.name("conversation")

    def send(self, question: Question, *, is_retry: bool = False) -> str:
        if not is_retry:
            self.body = {"model": "gemini-3-flash", "input": question.text, "conversation": self.conversation}
            self.body["stream"] = self.stream
        headers = {"x-graft-session": self.session}
        with self.control.http.stream("POST", self.path, json=self.body, headers=headers, timeout=TIMEOUT) as answer:
            if answer.status_code != 200:
                answer.read()
                raise Broken(f"{answer.status_code} {answer.text}")
            found = self._streamed(answer) if self.stream else json.loads(answer.read())
        self.rig.trace.tick()
        if self.path == "/v1/gemini":
            return text_of(found)
        self.last_id = found["id"]
        return output_text(found)

    def _streamed(self, answer: httpx2.Response) -> Any:
        """Read the stream until its last event."""
        events: list[Json] = []
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            self.rig.trace.tick()
            events.append(json.loads(line.removeprefix("data: ")))
            event = events[-1]
            if "error" in event or event.get("type") == "response.failed":
                raise Broken(str(event))
            if event.get("type") == "response.completed":
                return event["response"]
            if "candidates" in event and event["candidates"][0].get("finishReason"):
                return events
        raise Broken("the stream ended before its answer did")

    def was_delivered(self, question: Question) -> bool:
        """Whether the conversation has the answer, which a retry then gets if the client did not."""
        return False

    def keep(self, question: Question, answer: str) -> None:
        if self.last_id:
            self.responses[self.last_id] = answer

    def recover(self) -> None:
        for response_id, text in self.responses.items():
            answer = self.control.http.get(f"/v1/responses/{response_id}", headers={"x-graft-session": self.session})
            if answer.status_code != 200 or output_text(answer.json()) != text:
                self.broken("lost", f"response {response_id}: {answer.status_code} {answer.text[:300]}")
        super().recover()


def output_text(document: Json) -> str:
    return "".join(part["text"] for item in document["output"] if item["type"] == "message" for part in item["content"])
