"""What holds of every history that is rewritten."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.framing.documents import Document, decode, encode
from addon.core.history.request import Prefix, Request, assemble, parse
from addon.core.history.rewriting import rewrite
from addon.core.history.steps import TrueTurn
from addon.core.history.turns import HistoryTurn
from addon.core.history.visible import visible_digest
from addon.core.model_names import Generation
from tests.contents import call, model, response, user
from tests.core.history.rewritten import NAMES, TEMPLATE, answered, rules, true_turn, visible_turn, without_functions

Kind = Literal["text", "placeholder", "repeat", "joined", "mixed", "passthrough", "own"]


@dataclass
class Chat:
    """A chat as a client sends it, turn by turn, with the ledger's entries for it."""

    strip: bool
    model: Generation
    functions: bool = True
    turns: list[list[Document]] = field(default_factory=list)
    by_id: dict[str, TrueTurn] = field(default_factory=dict)
    by_digest: dict[bytes, TrueTurn] = field(default_factory=dict)

    def hits(self, history: Any) -> dict[int, list[TrueTurn]]:
        found = {}
        for index, turn in enumerate(history.turns):
            if turn.side == "model" and index:
                ids = [name for _, _, name in TEMPLATE.find(turn.text) if name in self.by_id]
                true = [self.by_id[name] for name in ids]
                if not ids and turn.digest in self.by_digest:
                    true = [self.by_digest[turn.digest]]
                if true:
                    found[index] = true
        return found

    def rewritten(self, body: bytes) -> bytes:
        return self.read(body)[0]

    def read(self, body: bytes, known: Prefix | None = None) -> tuple[bytes, Request]:
        """The body rewritten, and the request as it was read from a known beginning."""
        request = parse(body, (), known)
        request.history.identify(body)
        own = () if self.strip else ("own",)
        by = rules(self.model, strip=self.strip, own=own)
        if not self.functions:
            by = without_functions(strip=self.strip, own=own)
        return assemble(request, {}, rewrite(body, request.history, self.hits(request.history), by)), request


texts = st.sampled_from(["hi", "So?", "Well, well.", "Ünïcode\nlines", "  spaced  "])


@st.composite
def chats(draw: st.DrawFn) -> Chat:
    chat = Chat(draw(st.booleans()), draw(st.sampled_from([(2, 5), (3, 0), (3, 5)])), draw(st.booleans()))
    placeholders: list[TrueTurn] = []
    following: list[Document] = []
    for n in range(draw(st.integers(1, 6))):
        chat.turns.append(
            [user(*following, draw(texts))] if not following or draw(st.booleans()) else [user(*following)]
        )
        following = []
        kinds: list[Kind] = ["text", "placeholder", "passthrough", "own"]
        kinds += ["mixed"] if not chat.strip else []
        kinds += ["repeat", "joined"] if placeholders else []
        kind = draw(st.sampled_from(kinds))
        names = draw(st.lists(st.sampled_from(sorted(NAMES)), min_size=1, max_size=3))
        signature = draw(st.sampled_from([None, "c2ln"]))
        parts = [call(name, None if i else signature, args={"n": n, "i": i}) for i, name in enumerate(names)]
        answers = draw(st.lists(st.sampled_from([None, {"t": 1}]), min_size=len(names), max_size=len(names)))
        if kind == "text":
            chat.turns.append([model(text) for text in draw(st.lists(texts, min_size=1, max_size=3))])
        elif kind == "repeat":
            chat.turns.append([visible_turn(draw(st.sampled_from(placeholders)))])
        elif kind in ("placeholder", "joined"):
            lead = draw(st.sampled_from([[], ["Let me look."]]))
            true = true_turn(n, *lead, *parts, answers=answers)
            chat.by_id[true.turn_id] = true
            run = [visible_turn(true)]
            if kind == "joined":
                run = [model(draw(texts)), visible_turn(draw(st.sampled_from(placeholders))), *run, model(draw(texts))]
            placeholders.append(true)
            chat.turns.append(run)
        elif kind == "own":
            own = "gone" if chat.strip else "own"
            chat.turns.append([model(call(own, args={"n": n}))])
            if not chat.strip or draw(st.booleans()):
                following = [response(own)]
        else:
            known: list[Any] = list(answers)
            if kind == "mixed":
                parts.insert(draw(st.integers(0, len(parts))), call("own", args={"n": n}))
                known.insert(next(i for i, p in enumerate(parts) if p["functionCall"]["name"] == "own"), "own")
            true = true_turn(n, *parts, answers=known, passthrough=kind == "passthrough")
            visible = parts if kind == "passthrough" else [p for p in parts if p["functionCall"]["name"] == "own"]
            chat.by_digest[visible_digest(visible)] = true
            chat.turns.append([model(part) for part in visible] if draw(st.booleans()) else [model(*visible)])
            following = [response(p["functionCall"]["name"]) for p in visible if draw(st.booleans())]
    chat.turns.append([user(*following, draw(texts))])
    cut = draw(st.integers(0, len(chat.turns) - 1))
    if chat.strip or not any(kind in str(chat.turns[cut]) for kind in ("functionCall", "functionResponse")):
        chat.turns = chat.turns[cut:]
    return chat


def body_of(chat: Chat) -> bytes:
    contents = b" ,\n".join(b" " + encode(c).replace(b'{"role"', b'{ "role"') for run in chat.turns for c in run)
    return b'{"contents": [' + contents + b'], "x": 1}'


def check_order(contents: Sequence[Document]) -> None:
    """Checks Gemini's order rules, independently of the code under test."""
    runs: list[tuple[str, list[Document]]] = []
    for content in contents:
        parts = content["parts"]
        assert parts, "a Content without parts"
        answers = any("functionResponse" in part for part in parts)
        side = "model" if content["role"] == "model" and not answers else "user"
        if runs and runs[-1][0] == side:
            runs[-1][1].extend(parts)
        else:
            runs.append((side, list(parts)))
    assert runs[-1][0] == "user", "the request must end with a user turn"
    for at, (side, parts) in enumerate(runs):
        assert all(part and part.get("text") != "" for part in parts), "an empty part"
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        answers_here = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if side == "model":
            assert not calls or at > 0, "a call turn must follow a user turn"
            follow = [p["functionResponse"] for p in runs[at + 1][1] if "functionResponse" in p]
            assert [c["name"] for c in calls] == [r["name"] for r in follow], "as many responses, in call order"
        else:
            before = [p for p in runs[at - 1][1] if "functionCall" in p] if at else []
            assert len(before) == len(answers_here), "responses must follow their calls"
            first = parts[: len(answers_here)]
            assert all("functionResponse" in part for part in first), "text before a functionResponse"


@given(chats())
def test_the_result_keeps_geminis_order(chat: Chat) -> None:
    check_order(decode(chat.rewritten(body_of(chat)))["contents"])


@given(chats())
def test_rewriting_twice_is_the_same_as_once(chat: Chat) -> None:
    once = chat.rewritten(body_of(chat))
    assert decode(chat.rewritten(once)) == decode(once)


@given(chats())
def test_the_same_history_gives_the_same_bytes_every_time(chat: Chat) -> None:
    assert chat.rewritten(body_of(chat)) == chat.rewritten(body_of(chat))


@given(chats())
def test_turns_that_need_no_change_keep_their_bytes(chat: Chat) -> None:
    body = body_of(chat)
    out = chat.rewritten(body)
    request = parse(body)
    request.history.identify(body)
    hits = chat.hits(request.history)
    for index, turn in enumerate(request.history.turns):
        if index not in hits and not turn.holds:
            assert body[turn.spans[0][0] : turn.spans[-1][1]] in out


@given(chats())
def test_every_expanded_step_occurs_once_with_its_signature(chat: Chat) -> None:
    contents = decode(chat.rewritten(body_of(chat)))["contents"]
    calls = [part for content in contents for part in content["parts"] if "functionCall" in part]
    for true in [*chat.by_id.values(), *chat.by_digest.values()]:
        for part in true.steps[0].content["parts"]:
            same = [one for one in calls if one["functionCall"] == part.get("functionCall")]
            assert len(same) <= 1
            if same and "thoughtSignature" in part:
                assert same[0]["thoughtSignature"] == part["thoughtSignature"]


@given(chats(), st.data())
def test_a_history_that_grows_is_written_as_if_all_of_it_were_new(chat: Chat, data: st.DataObject) -> None:
    known: list[Prefix] = []
    for end in range(1, len(chat.turns) + 1):
        now = replace(chat, turns=chat.turns[:end])
        change = data.draw(st.sampled_from(["nothing", "nothing", "answers", "model", "functions", "question"]))
        if change == "answers":  # other records of the same turns
            chat.by_id |= {name: answered(true) for name, true in chat.by_id.items()}
        elif change == "model":
            now.model = (3, 0)
        elif change == "functions":
            now.functions = not now.functions
        elif change == "question":
            now.turns[-1] = [user("another question")]
        body = body_of(now)
        for prefix in known:
            if prefix.is_start_of(body):
                assert now.read(body, prefix)[0] == now.rewritten(body)
        found = now.read(body, next((one for one in reversed(known) if one.is_start_of(body)), None))[1].prefix()
        known += [found] if found is not None else []


def test_what_a_turn_became_does_not_last_if_later_turns_can_change_it() -> None:
    pending, unsigned = true_turn(1, call("search"), answers=[None]), true_turn(2, call("search"))
    by_id = {true.turn_id: true for true in (pending, unsigned)}
    own, answer = call("own", "c2ln"), user(response("own"))
    is_last_step = [visible_turn(pending), user("And?"), visible_turn(pending), user("So?")]
    is_in_current_turn = [model(unsigned.visible_text, own), answer, model(own), answer]
    for turns in (is_last_step, is_in_current_turn):
        chat = Chat(False, (3, 0), by_id=by_id, turns=[[user("Find it.")], *([turn] for turn in turns)])
        before, request = chat.read(body_of(chat))
        known = request.prefix()
        chat.turns += [[model("Done.")], [user("Thanks.")]]
        body = body_of(chat)
        assert known is not None
        assert known.is_start_of(body)
        after = chat.read(body, known)[0]
        assert after == chat.rewritten(body)
        assert decode(after)["contents"][1:3] != decode(before)["contents"][1:3], "it did depend on them"


def test_what_a_turn_became_is_not_worked_out_for_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Document] = []
    contents = HistoryTurn.contents

    def noted(turn: HistoryTurn, body: bytes) -> list[Document]:
        decoded.extend(contents(turn, body))
        return contents(turn, body)

    monkeypatch.setattr(HistoryTurn, "contents", noted)
    true = true_turn(1, call("search"))
    chat = Chat(True, (2, 5), by_id={true.turn_id: true}, turns=[[user("Find it.")], [visible_turn(true)]])
    known: Prefix | None = None
    for n in range(4):
        new = [user(f"{n}?"), model(call("own", args={"n": n})), user(response("own")), model(f"{n}."), user("So?")]
        chat.turns += [[content] for content in new]
        decoded.clear()
        rewritten_body, request = chat.read(body_of(chat), known)
        assert decoded
        assert all(content in new for content in decoded)
        assert rewritten_body == chat.rewritten(body_of(chat))
        known = request.prefix()
        chat.turns.pop()
