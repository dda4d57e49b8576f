"""One session of a proxy with many chats, and a judge that knows the true turns."""

import dataclasses
import itertools
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from addon.core.framing.documents import decode, encode
from addon.core.history.keys import asker_of
from addon.graft.exchange import Forward
from addon.graft.grafter import Grafter
from addon.graft.session_config import SessionConfig
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.surfaces.incoming import Framing, Incoming, Operation, Target
from store.base import Store
from store.models import Call as Recorded
from store.models import Status, Toolset
from tests.simulation import words
from tests.simulation.chat import Chat, Did, Document, Habits, State, Turn
from tests.simulation.driver import HangUp, Loop, captured, given

SESSION = "default"
_ID = re.compile(r" \[turn_[0-9a-f]{16}\]")
TOOLS: list[Document] = [{"name": "act", "description": "d"}, {"name": "look", "description": "d"}]
OWN: Document = {"functionDeclarations": [{"name": "own", "description": "d"}]}
_CITIES = ("Oslo", "Rome", "Lima")
SUMMARY = "A summary of what we have talked about so far: there were questions, and all of them were answered."

Call = tuple[Did, Document, Any]
"""A model's call: in the judge's form, its arguments, its result."""

_OWN_CALL: Call = (("own", "{}", '{"ok":1}'), {}, {"ok": 1})

Kind = tuple[str, str, State]
"""The words, the chat's other marks (signatures that are echoed, or its name), and the state of the history."""


@dataclasses.dataclass(slots=True)
class Tally:
    """Counts of the hidden calls that requests should have contained: found, missed, and wrong ones."""

    hits: int = 0
    missed: int = 0
    wrong: int = 0

    def __iadd__(self, other: Self) -> Self:
        self.hits += other.hits
        self.missed += other.missed
        self.wrong += other.wrong
        return self

    @property
    def rate(self) -> float:
        return self.missed / max(1, self.hits + self.missed)


class World:
    """`others`: the stores of other processes on the same server; each request goes to any of them. `tallies`: by kind
    of chat. `wrong`: a description of each wrong hit; `missed`: the missed turns. `twins`: how often a history was word
    for word another one, and got its call."""

    def __init__(self, store: Store, seed: int, others: Sequence[Store] = ()) -> None:
        self.store = store
        self.rng = random.Random(seed)
        self.metrics = Metrics()
        self.grafter = Grafter(store, Settings(), self.metrics)
        self._grafters = [self.grafter, *(Grafter(other, Settings(), self.metrics) for other in others)]
        self._process = random.Random(seed)
        self.tallies: defaultdict[Kind, Tally] = defaultdict(Tally)
        self.wrong: list[str] = []
        self.missed: list[tuple[Chat, Turn]] = []
        self.twins = 0
        self.chats: list[Chat] = []
        self.requests = 0
        self.odd: Counter[str] = Counter()  # what the odd clients did
        self.broken_off = 0  # answers that the client has kept in part
        self._jobs = itertools.count(1)
        self._marks = itertools.count(1)
        self._record: list[tuple[str, tuple[int, int], tuple[tuple[str, ...], ...], tuple[Did, ...]]] = []

    async def run(self, habits: Sequence[Habits], steps: int) -> None:
        """Each chat takes about `steps` steps, in any order."""
        await self.store.put_toolset(SESSION, Toolset(declarations=TOOLS))
        self.chats = chats = [Chat(number, one) for number, one in enumerate(habits)]
        turns = [chat for chat in chats for _ in range(steps)]
        self.rng.shuffle(turns)
        for chat in turns:
            await self._step(chat)

    # --- clients --------------------------------------------------------------------------------------------------

    async def _step(self, chat: Chat) -> None:
        """One action of the user, and all requests that follow from it."""
        rng, kind = self.rng, chat.habits.words
        if chat.habits.odd and rng.random() < chat.habits.odd and await self._odd_step(chat):
            return
        if rng.random() < chat.habits.restless:
            deed = rng.choice(("regenerate", "otherwise", "edit", "cut", "compact"))
            if deed == "edit":
                chat.edit(rng, words.edited(rng, kind))
            elif deed in ("cut", "compact"):
                chat.cut(rng, SUMMARY if deed == "compact" else "")
            repeats = (deed == "regenerate" and chat.regenerate()) or (
                deed == "otherwise" and chat.ask_otherwise(words.asked(rng, kind, first=len(chat.turns) < 3))
            )
            if repeats:
                await self._answered(chat)
                return
        chat.ask(words.asked(rng, kind, first=not chat.turns))
        await self._answered(chat)

    async def _odd_step(self, chat: Chat) -> bool:
        """The client quotes a line of another chat, or forges a turn of it, or forks it, or its model imitates a line.
        Returns whether there was one."""
        rng = self.rng
        others = [
            (other, at)
            for other in self.chats
            for at, turn in enumerate(other.turns)
            if turn.hidden and other is not chat
        ]
        if not others:
            return False
        other, at = rng.choice(others)
        turn = other.turns[at]
        text = next((part["text"] for part in turn.parts if "text" in part), "")
        deed = rng.choice(("quote", "imitate", "forge", "fork"))
        is_foreign = other.habits.account != chat.habits.account
        if deed == "quote" and "turn_" in text:
            chat.ask(f"What does this mean? {text}")
            await self._answered_with(chat, rng.choice((text, f"You wrote: {text}", f"Here:\n{text}\nThat is all.")))
        elif deed == "imitate":
            chat.ask(rng.choice((words.asked(rng, chat.habits.words, first=not chat.turns), other.question)))
            await self._answered_with(chat, "Tool call completed: act")
        elif deed == "forge" and ("turn_" in text or is_foreign):
            chat.ask("And what did you say before that?")
            chat.turns.append(Turn("model", turn.parts))
            chat.ask(words.asked(rng, chat.habits.words, first=False))
            await self._answered(chat)
        elif deed == "fork" and not other.habits.name and turn.side == "model":
            copy = Chat(len(self.chats), other.habits, other.turns[: at + 1], other.state, other.edited_at, other.cuts)
            if other.habits.delivery in ("passthrough", "mixed"):
                return False  # the calls of its last turn have no answer
            self.chats.append(copy)
            copy.ask(words.asked(rng, other.habits.words, first=False))
            await self._answered(copy)
        else:
            return False
        self.odd[deed] += 1
        return True

    async def _answered_with(self, chat: Chat, text: str) -> None:
        """The model answers with this text, without calls."""
        sent = await self._sent(chat)
        self._keep(chat, await captured(self.grafter, sent, self._answer(chat.habits, text)), (), 0)

    async def _answered(self, chat: Chat) -> None:
        """Send the chat, and keep the answer."""
        habits, rng = chat.habits, self.rng
        if habits.canned and rng.random() < habits.canned:
            await self._answered_by_script(chat)
            return
        sent = await self._sent(chat)
        calls, begun, text = self._reply(chat)
        did = tuple(call[0] for call in calls)
        if rng.random() < habits.hasty:
            await self._broken_off(chat, sent, text, begun, calls)
            return
        if habits.delivery == "loop":
            rounds = (
                [self._answer(habits, begun, calls), self._answer(habits, text)]
                if calls
                else [self._answer(habits, text)]
            )
            parts = await Loop(self.grafter, sent, rounds, [call[2] for call in calls]).parts()
            self._keep(chat, parts, did, len(calls))
            return
        own = [_OWN_CALL] if calls and habits.delivery == "mixed" else []
        parts = await captured(self.grafter, sent, self._answer(habits, begun if calls else text, [*calls, *own]))
        if not calls:
            self._keep(chat, parts, (), 0)
            return
        if habits.delivery != "passthrough":
            await self._answer_by_hand(calls)
        hidden = 0 if habits.delivery == "passthrough" else len(calls)
        self._keep(chat, parts, (*did, *(call[0] for call in own)), hidden)
        if habits.delivery in ("passthrough", "mixed"):
            await self._respond(chat, [*calls, *own])

    async def _answered_by_script(self, chat: Chat) -> None:
        """The request does not reach the model. The script says what another chat has heard here, if one has, but
        repeats no turn's id: that would mean the turn."""
        visible = tuple(turn.visible for turn in chat.turns)
        heard = [known[-1] for _, _, known, did in self._record if did and known[:-1] == visible]
        texts = [last[1] for last in heard if len(last) == 2 and "turn_" not in last[1]]
        text = self.rng.choice(texts or [words.model_words(self.rng, chat.habits.words, busy=True)])
        incoming, config = await self._incoming(chat)
        exchange = self.grafter.ungrafted(incoming, config)
        assert exchange is not None
        self.odd["canned"] += bool(texts)
        self._keep(chat, await given(self.grafter, exchange, self._answer(chat.habits, text)), (), 0)

    async def _broken_off(self, chat: Chat, sent: Forward, text: str, begun: str, calls: Sequence[Call]) -> None:
        """The client hangs up, and keeps the text that it has, or asks again. It ignores the calls that it received."""
        habits, rng = chat.habits, self.rng
        did = tuple(call[0] for call in calls)
        if habits.delivery == "loop":
            rounds = [*([self._answer(habits, begun, calls)] if calls else []), self._answer(habits, text)]
            hangup = self._hangup(sum(map(len, rounds)))
            parts = await Loop(self.grafter, sent, rounds, [call[2] for call in calls]).parts(hangup)
        else:
            documents = self._answer(habits, begun if calls else text, calls)
            hangup = self._hangup(len(documents))
            before = await self._open_calls()
            parts = await captured(self.grafter, sent, documents, hangup)
            if habits.delivery != "passthrough" and len(await self._open_calls()) - len(before) == len(calls):
                await self._answer_by_hand(calls)
        kept = [part for part in parts if "functionCall" not in part and not part.get("thought")]
        if rng.random() < 0.2 or not any(part.get("text", "").strip() for part in kept):
            chat.regenerate()
            await self._answered(chat)
        else:
            self.broken_off += 1
            self._keep(chat, kept, did, 0)

    def _hangup(self, events: int) -> HangUp:
        return HangUp(self.rng.randint(1, events), self.rng.choice((0.5, 1.0, 1.0)))

    async def _respond(self, chat: Chat, calls: Sequence[Call]) -> None:
        """The client answers its calls, and the model reports the results."""
        results = {(name, args): json.loads(result) for (name, args, result), _, _ in calls}
        calls_shown = [part["functionCall"] for part in chat.turns[-1].parts if "functionCall" in part]
        answers = []
        for call in calls_shown:
            answer = {"name": call["name"], "response": results[call["name"], _json(call.get("args") or {})]}
            answers.append({"functionResponse": {**({"id": call["id"]} if "id" in call else {}), **answer}})
        chat.turns.append(Turn("user", tuple(answers), is_ordinary=False))
        sent = await self._sent(chat)
        tied = chat.habits.words == words.TIED
        text = words.answer_to(chat.question) if tied else words.model_words(self.rng, chat.habits.words, busy=True)
        self._keep(chat, await captured(self.grafter, sent, self._answer(chat.habits, text)), (), 0)

    def _keep(self, chat: Chat, parts: Sequence[Document], did: tuple[Did, ...], hidden: int) -> None:
        """Add an answer to the client's history."""
        kept = [dict(part) for part in parts if part.get("text") != "" or "thoughtSignature" in part]
        if chat.habits.drops_ids:
            kept = [
                part | ({"text": _ID.sub("", part["text"])} if not part.get("thought") else {})
                if "text" in part
                else part
                for part in kept
            ]
        if not chat.habits.echoes:
            kept = [{k: v for k, v in part.items() if k != "thoughtSignature"} for part in kept]
            for part in kept:
                if "functionCall" in part:
                    part["functionCall"] = {k: v for k, v in part["functionCall"].items() if k != "id"}
            kept = [part for part in kept if part.get("text") != "" and not part.get("thought")]
        chat.turns.append(Turn("model", tuple(kept), did, hidden))
        self.remember(chat, chat.turns[-1])

    def remember(self, chat: Chat, turn: Turn) -> None:
        """Record a chat's turn."""
        self._record.append((chat.habits.account, chat.beginning, chat.visible_to(turn), turn.did))

    # --- the model ------------------------------------------------------------------------------------------------

    def _reply(self, chat: Chat) -> tuple[Sequence[Call], str, str]:
        """The model's calls, and its words before and after them."""
        rng, kind = self.rng, chat.habits.words
        if kind == words.TIED:
            topic = words.topic(chat.question)
            return [self._order() if topic is None else _look_up(str(topic))], "", words.answer_to(chat.question)
        calls = self._calls() if rng.random() < 0.5 else []
        text = words.model_words(rng, kind, busy=bool(calls))
        begun = words.model_words(rng, kind, busy=True) if calls and rng.random() < 0.3 else ""
        return calls, begun, text

    def _calls(self) -> list[Call]:
        """Calls with their results, some of which are common to all chats."""
        rng = self.rng
        return [
            _look_up(rng.choice(_CITIES)) if rng.random() < 0.15 else self._order()
            for _ in range(rng.choice((1, 1, 2)))
        ]

    def _order(self) -> Call:
        """A call that no other chat makes."""
        job = next(self._jobs)
        return _call("act", {"job": str(job)}, {"receipt": f"r{job}"})

    def _answer(self, habits: Habits, text: str, calls: Sequence[Call] = ()) -> list[Document]:
        """The documents of an answer: one, or those of a stream."""
        parts: list[Document] = [{"text": text}] if text else []
        for number, ((name, _, _), args, _) in enumerate(calls):
            call: Document = {"name": name, "args": args}
            if habits.newest:
                call["id"] = f"call_{number}" if habits.counts else f"function-call-{next(self._marks):08d}"
            parts.append({"functionCall": call} | (self._signed(habits) if number == 0 else {}))
        if not calls:
            parts[-1] |= self._signed(habits) if not habits.streams else {}
        if not habits.streams:
            return [_response(parts, "STOP")]
        pieces: list[Document] = []
        for part in parts:
            first, space, rest = part.get("text", "").partition(" ")
            half = len(rest) // 2
            texts = [first + space, rest[:half], rest[half:]] if half > 3 else [first + space, rest]
            pieces += [{"text": text} for text in texts] if rest else [part]
        last = {"text": ""} | self._signed(habits) if habits.newest and not calls else {"text": ""}
        return [*(_response([piece]) for piece in pieces), _response([last], "STOP")]

    def _signed(self, habits: Habits) -> Document:
        if not habits.newest:
            return {}
        return {"thoughtSignature": f"c2lnbmF0dXJlc2lnbmF0dXJl{next(self._marks):08d}"}

    async def _answer_by_hand(self, calls: Sequence[Call]) -> None:
        """Answer the calls that were captured last."""
        waiting = await self._open_calls()
        for call, (_, _, result) in zip(waiting[len(waiting) - len(calls) :], calls, strict=True):
            await self.store.answer(SESSION, call.call_id, result=result)

    async def _open_calls(self) -> Sequence[Recorded]:
        return (await self.store.calls(session=SESSION, status=Status.PENDING, limit=10**6)).items

    # --- the proxy ------------------------------------------------------------------------------------------------

    async def _sent(self, chat: Chat) -> Forward:
        """Send the chat in its present state, and judge the upstream request."""
        incoming, config = await self._incoming(chat)
        outcome = await self.grafter.request(incoming, config)
        assert isinstance(outcome, Forward)
        assert outcome.exchange is not None
        sent = decode(outcome.body)
        self._judge(chat, (sent["request"] if incoming.target.request_path else sent)["contents"])
        return outcome

    async def _incoming(self, chat: Chat) -> tuple[Incoming, SessionConfig]:
        self.requests += 1
        await self._change_processes()
        target, body = self._request(chat)
        config = await self._session_config(chat.habits)
        return Incoming(target, config.session, encode(body), asker=self._asker(chat.habits)), config

    async def _change_processes(self) -> None:
        if len(self._grafters) > 1:
            await self.grafter.store.ping()  # notes that were written without waiting are stored then
            self.grafter = self._process.choice(self._grafters)

    async def _session_config(self, habits: Habits) -> SessionConfig:
        config = await self.grafter.session_config(SESSION)
        assert config is not None
        delivery = "placeholder" if habits.delivery == "mixed" else habits.delivery
        tools: Literal["keep", "strip"] = "keep" if habits.delivery in ("mixed", "passthrough") else "strip"
        askers: Literal["each", "one"] = "one" if habits.rotates else "each"
        return dataclasses.replace(config, delivery=delivery, client_tools=tools, askers=askers)

    def _request(self, chat: Chat) -> tuple[Target, Document]:
        habits = chat.habits
        clock = f" It is {self.requests // 60 % 24:02d}:{self.requests % 60:02d}." if habits.clock else ""
        request: Document = {
            "contents": [turn.content for turn in chat.turns],
            "systemInstruction": {"parts": [{"text": f"Be brief.{clock}"}]},
        }
        if habits.delivery == "mixed":
            request["tools"] = [OWN]
        operation, framing = (Operation.STREAM, Framing.SSE) if habits.streams else (Operation.GENERATE, Framing.JSON)
        if habits.surface != "codeassist":
            return Target(habits.surface, operation, framing, habits.model, (), ()), request
        if habits.name:
            request["session_id"] = habits.name
        target = Target("codeassist", operation, framing, "", ("request",), ("response",))
        return target, {"model": habits.model, "project": habits.account, "request": request}

    def _asker(self, habits: Habits) -> str:
        hour = self.requests // 40
        if habits.rotates:
            return asker_of("/v1beta/models/m:generateContent", {"x-goog-api-key": f"{habits.account}-{hour}"}.get)
        if habits.surface == "developer":
            return asker_of("/v1beta/models/m:generateContent", {"x-goog-api-key": habits.account}.get)
        path = "/v1internal:generateContent"
        if habits.surface == "vertex":
            path = f"/v1/projects/{habits.account}/locations/l/publishers/google/models/m:generateContent"
        return asker_of(path, {"authorization": f"Bearer ya29.{hour}"}.get)

    # --- the judge ------------------------------------------------------------------------------------------------

    def _judge(self, chat: Chat, sent: Sequence[Document]) -> None:
        habits = chat.habits
        upstream = list(_upstream_calls(sent))
        tally = self.tallies[habits.words, habits.tells, chat.state]
        for number, (expected, found) in enumerate(itertools.zip_longest(_true(chat.turns), upstream, fillvalue=None)):
            assert expected is not None, "the client's user turns stay what they are"
            left = list(found or ())
            for turn in expected:
                there = [did for did in turn.did if did in left]
                for did in there:
                    left.remove(did)
                if turn.hidden:
                    hit = Counter(there) == Counter(turn.did)
                    tally.hits += hit
                    tally.missed += not hit
                    if not hit:
                        self.missed.append((chat, turn))
            if left and any(self.is_twin(chat, turn, left) for turn in expected):
                self.twins += 1
            elif left and not self._reads_as_another(chat, expected, left):
                tally.wrong += 1
                self.wrong.append(f"chat {chat.number} {habits} {chat.state}, exchange {number}: {left}")

    def is_twin(self, chat: Chat, turn: Turn, found: Sequence[Did]) -> bool:
        """Whether a history that begins with the summary is word for word another one that did, up to a turn with these
        calls: everything before a turn proves what it is."""
        if chat.turns[0].parts[0].get("text") != SUMMARY:
            return False
        visible = chat.visible_to(turn)
        return any(
            account == chat.habits.account
            and beginning != chat.beginning
            and visible_turns == visible
            and set(found) <= set(did)
            for account, beginning, visible_turns, did in self._record
        )

    def _reads_as_another(self, chat: Chat, turns: Sequence[Turn], found: Sequence[Did]) -> bool:
        """Whether the user's edits have made a history word for word what another chat said: then it is that one, to
        everyone who reads it."""
        for turn in turns:
            visible = chat.visible_to(turn)
            if chat.edited_at is None or len(visible) <= chat.edited_at:
                continue
            for account, _, visible_turns, did in self._record:
                if (
                    account == chat.habits.account
                    and visible_turns[-len(visible) :] == visible
                    and set(found) <= set(did)
                ):
                    return True
        return False


def _look_up(city: str) -> Call:
    return _call("look", {"city": city}, {"city": city, "degrees": len(city)})


def _call(name: str, args: Document, result: Document) -> Call:
    return (name, _json(args), _json(result)), args, result


def _true(turns: Sequence[Turn]) -> Iterator[list[Turn]]:
    """The model's turns after each ordinary turn of the user."""
    here: list[Turn] | None = None
    for turn in turns:
        if turn.side == "user" and turn.is_ordinary:
            if here is not None:
                yield here
            here = []
        elif turn.side == "model" and here is not None:
            here.append(turn)
    if here is not None:
        yield here


def _upstream_calls(contents: Sequence[Document]) -> Iterator[list[Did]]:
    """In an upstream request: the calls with their results after each ordinary turn of the user."""
    here: list[Did] | None = None
    waiting: list[Document] = []
    for content in contents:
        parts = content["parts"]
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if responses and here is not None:
            here += [
                (call["name"], _json(call.get("args") or {}), _json(answer["response"]))
                for call, answer in zip(waiting, responses, strict=True)
            ]
            waiting = []
        elif content["role"] == "user":
            if here is not None:
                yield here
            here = []
        waiting = calls or waiting
    if here is not None:
        yield here


def _response(parts: Sequence[Document], finish: str = "") -> Document:
    candidate: Document = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {"candidates": [candidate | ({"finishReason": finish} if finish else {})]}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
