"""The users of a proxy that is killed: an actor plays until the proxy is gone, and recovers when it is back.

An actor takes the answers that it received for promises, and checks them afterwards.
"""

import abc
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.crash.rig import Rig
from tests.crash.runs import result

Json = dict[str, Any]

TRIES = 4
"""How often a client repeats a request."""
_PAGE = 200
"""Records on a page: all sessions together make fewer between two kills."""


class Broken(Exception):
    """No complete answer arrived."""


@dataclass
class Question:
    """`calls`: the tool of each mark, in the order of the model's calls."""

    text: str
    calls: dict[str, str] = field(default_factory=dict)


class Actor(abc.ABC):
    def __init__(self, rig: Rig, name: str) -> None:
        self.rig = rig
        self.name = name
        self.random = type(rig.random)(rig.random.random())

    @abc.abstractmethod
    def play(self, stop: threading.Event) -> None:
        """Use the proxy until `stop` is set, or the proxy is gone."""

    @abc.abstractmethod
    def recover(self) -> None:
        """Compare the proxy's records with its answers, and repeat unanswered requests."""

    @property
    def control(self) -> Any:
        return self.rig.proxy.control

    def note(self, what: str) -> None:
        self.rig.note(self.name, what)

    def broken(self, kind: str, words: str) -> None:
        self.rig.broken(kind, self.name, words)


class Asker(Actor):
    """Asks questions to which the model calls `tools`. Subclasses define how a question is sent, and which part of an
    answer the client keeps."""

    acknowledged_on_disk = False
    """Whether received answers survive a power failure."""

    def __init__(self, rig: Rig, name: str, tools: Sequence[str], session: str | None = None) -> None:
        super().__init__(rig, name)
        self.tools = tools
        self.session = session or rig.name("s")
        self.call_responses: dict[str, Json] = {}
        """The responses, by mark, in the current chat's answers."""
        self.open: Question | None = None
        self.left: set[str] = set()
        """The marks of questions that were given up."""
        self.denied: set[str] = set()
        self._cursors: dict[str, list[str]] = {}
        self.chat = 0
        self.begin_chat()

    def begin_chat(self) -> None:
        self.chat += 1
        self.call_responses = {}

    @abc.abstractmethod
    def send(self, question: Question, *, is_retry: bool = False) -> str:
        """Send the question, or the same bytes again. Returns the answer's text. Raises Broken."""

    @abc.abstractmethod
    def keep(self, question: Question, answer: str) -> None:
        """Keep an answer that the client has received."""

    # --- playing ----------------------------------------------------------------------------------------------

    def play(self, stop: threading.Event) -> None:
        if self.chat_is_long():
            self.begin_chat()
        while not stop.is_set():
            try:
                self.ask(self.question())
            except (Broken, httpx2.HTTPError):
                return

    def chat_is_long(self) -> bool:
        return len(self.call_responses) > 12

    def question(self) -> Question:
        """Two steps, the first of two calls."""
        calls: dict[str, str] = {}
        steps = []
        for count in (2, 1):
            step = []
            for _ in range(count):
                mark, tool = self.rig.name("m"), self.random.choice(self.tools)
                calls[mark] = tool
                step.append(f"call {tool} {json.dumps({'mark': mark, 'seconds': self.pause()})}")
            steps.append(" and ".join(step))
        return Question(f"say One moment. {' then '.join(steps)}", calls)

    def pause(self) -> float:
        """The seconds that a tool takes."""
        return round(self.random.choice((0.0, 0.01, 0.03, 0.1)), 3)

    def ask(self, question: Question) -> None:
        self.open = question
        answer = self.send(question)
        self.note("answered")
        self.take(question, answer)

    def take(self, question: Question, answer: str) -> None:
        self.keep(question, answer)
        self.open = None
        self.call_responses |= self.check_told(question, answer)

    def check_told(self, question: Question, answer: str, finished: Mapping[str, Json] = {}) -> dict[str, Json]:
        """The response for each call in the answer, by mark. `finished`: calls with results that must be in it."""
        call_responses = (
            [response for _, response in responses_in(answer)][-len(question.calls) :] if question.calls else []
        )
        if len(call_responses) != len(question.calls):
            self.broken("words", f"{len(call_responses)} of {len(question.calls)} calls are told in {answer!r}")
            return {}
        by_mark = dict(zip(question.calls, call_responses, strict=True))
        for mark, response in by_mark.items():
            if response == result(mark):
                continue
            if mark in finished:
                self.broken("kept", f"{question.calls[mark]} {mark} is told as {response}, and had finished")
            elif "error" not in response:
                self.broken("words", f"{question.calls[mark]} {mark} is told as {response}")
            else:
                self.told_error(question.calls[mark], mark, response["error"])
        return by_mark

    def told_error(self, tool: str, mark: str, words: str) -> None:
        if "denied" in words:
            self.denied.add(mark)
            self.note("denied")
        elif "may have run" in words:
            self.note("told: may have run")
        else:
            self.broken("words", f"{tool} {mark} is told as {words!r}")

    # --- after the kill ---------------------------------------------------------------------------------------

    def insist(self) -> None:
        """Repeat the unanswered question once; the proxy may be killed meanwhile."""
        if self.open is None:
            return
        try:
            self.resume(self.open)
        except (Broken, httpx2.HTTPError):
            self.note("interrupted when retried")

    def recover(self) -> None:
        if self.rig.cuts_power and not self.acknowledged_on_disk:
            self.open = None
            self.begin_chat()
        if self.open is not None:
            self.note("interrupted")
            if self.random.random() < 0.2:
                self.give_up(self.open)
            else:
                self.repeat(self.open)
        self.check_next()

    def give_up(self, question: Question) -> None:
        self.note("given up")
        self.left |= set(question.calls)
        self.open = None

    def repeat(self, question: Question) -> None:
        why = ""
        for _ in range(TRIES):
            try:
                self.resume(question)
                return
            except (Broken, httpx2.HTTPError) as error:
                self.note("retried in vain")
                why = str(error) or type(error).__name__
        self.broken("refused", f"the retried request: {why}")
        self.open = None

    def resume(self, question: Question) -> None:
        """Send the same bytes again. Raises Broken."""
        finished = self.finished(question)
        if question.calls and self.was_delivered(question):
            self.broken("lost", f"the answer to {question.text!r}: it counts as delivered")
            finished = {}
        answer = self.send(question, is_retry=True)
        self.note("answered when retried, with finished calls" if finished else "answered when retried")
        self.keep(question, answer)
        self.open = None
        self.call_responses |= self.check_told(question, answer, finished)

    def check_next(self) -> None:
        """Check that the chat's next request is accepted, and has the same response for each call as the answers."""
        tag = self.rig.name("#")
        question = Question(f"repeat the results {tag}")
        try:
            answer = self.send(question)
        except (Broken, httpx2.HTTPError) as error:
            self.broken("refused", f"the next request: {error}")
            return
        self.keep(question, answer)
        self.note("next request")
        sent = self.sent_on(tag, answer)
        if sent is None:
            self.broken("turn", "the next request did not come to the upstream")
            return
        for mark, response in self.call_responses.items():
            if sent.get(mark) != response:
                self.broken("turn", f"{mark} was told as {response}, and the next request has {sent.get(mark)}")

    def sent_on(self, tag: str, answer: str) -> dict[str, Json] | None:
        """The responses, by mark, that went upstream with the words with this tag; None: the words did not."""
        return told_upstream(self.rig.gemini.requests, tag)

    def records(self) -> list[Json]:
        """The latest calls of the session, newest last."""
        return self._latest("/v1/calls")

    def _latest(self, path: str) -> list[Json]:
        """The latest items, at least a page if possible: listing all would take longer after each kill. After a power
        failure, earlier cursors are not valid, so all are listed."""
        cursors = [""] if self.rig.cuts_power else self._cursors.setdefault(path, [""])
        found: list[Json] = []
        for page in pages(self.control, path, _PAGE, cursors[-2:][0], session=self.session):
            found += page["items"]
            if page["next_cursor"] and page["next_cursor"] not in cursors:
                cursors.append(page["next_cursor"])
        return found

    def finished(self, question: Question) -> dict[str, Json]:
        """The results in the store of the question's calls, by mark."""
        return {
            call["args"]["mark"]: call["result"]
            for call in self.records()
            if call["status"] == "done" and call["args"].get("mark") in question.calls
        }

    def was_delivered(self, question: Question) -> bool:
        """Whether the proxy had sent the whole answer when it was killed."""
        return any(turn["delivered"] for turn in self.turns(question))

    def turns(self, question: Question) -> list[Json]:
        """The ledger's turns of the question's answers."""
        ids = {call["call_id"] for call in self.records() if call["args"].get("mark") in question.calls}
        found = self._latest("/v1/turns")
        return [turn for turn in found if ids & {call["call_id"] for step in turn["true"] for call in step["calls"]}]


def listed(control: Any, path: str, **query: str) -> Iterator[Json]:
    for page in pages(control, path, 1000, **query):
        yield from page["items"]


def pages(control: Any, path: str, limit: int, cursor: str | None = "", **query: str) -> Iterator[Json]:
    while cursor is not None:
        page = control.ask("GET", path, params={"limit": limit, **query} | ({"cursor": cursor} if cursor else {}))
        cursor = page["next_cursor"] or None
        yield page


def responses_in(answer: str) -> list[tuple[str, Json]]:
    """The results in the text of the strict server's model: `NAME returned {…}.`, one after the other."""
    found = []
    decoder = json.JSONDecoder()
    place = 0
    while (place := answer.find(" returned {", place)) >= 0:
        name = answer[:place].rpartition(" ")[2].rpartition(".")[2]
        response, place = decoder.raw_decode(answer, place + len(" returned "))
        found.append((name, response))
    return found


def told_upstream(requests: Sequence[Json], tag: str) -> dict[str, Json] | None:
    """The responses, by mark, in the request that has this tag in its last words."""
    for request in reversed(requests):
        body = request["body"] if isinstance(request["body"], dict) else {}
        responses = _told_in_contents(body, tag) if "contents" in body else _told_in_messages(body, tag)
        if responses is not None:
            return responses
    return None


def _told_in_contents(body: Json, tag: str) -> dict[str, Json] | None:
    if not any(tag in part.get("text", "").split() for part in body["contents"][-1]["parts"]):
        return None
    parts = [part for content in body["contents"] for part in content["parts"]]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    marks = {call["id"]: call["args"].get("mark") for call in calls}
    responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
    return {marks[response["id"]]: response["response"] for response in responses}


def _told_in_messages(body: Json, tag: str) -> dict[str, Json] | None:
    """The same in a request for a chat completion."""
    messages = body.get("messages", [])
    if not messages or tag not in str(messages[-1].get("content", "")).split():
        return None
    calls = [call for message in messages for call in message.get("tool_calls") or []]
    marks = {call["id"]: json.loads(call["function"]["arguments"]).get("mark") for call in calls}
    tools = [message for message in messages if message["role"] == "tool"]
    return {marks[message["tool_call_id"]]: json.loads(message["content"]) for message in tools}
