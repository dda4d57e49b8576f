"""What is remembered of requests' beginnings, and what is forgotten first."""

from addon.core.framing.documents import Document, encode
from addon.core.history.placeholder import Placeholder
from addon.core.history.request import Request, parse
from addon.core.history.rewriting import RewriteRules, rewrite
from addon.core.tools.tool_plan import ToolPlan
from addon.graft.ledger import SMALLEST, Prefixes
from store.budget import Budget
from tests.contents import call, model, response, user


def body(*texts: str, tail: str = "?") -> bytes:
    """A chat whose texts alternate between the user and the model; the user speaks last."""
    contents: list[Document] = [
        {"role": "model" if at % 2 else "user", "parts": [{"text": text}]} for at, text in enumerate([*texts, tail])
    ]
    return encode({"contents": contents, "tools": []})


def asked(prefixes: Prefixes, data: bytes, session: str = "s", path: tuple[str, ...] = ()) -> Request:
    request = parse(data, path, prefixes.find(session, path, data))
    prefixes.keep(session, path, request)
    return request


LONG = "x" * SMALLEST
RULES = RewriteRules(ToolPlan.without_tools(), True, None, Placeholder("{names} [{turn_id}]"))
REST = [model("Done."), user("Thanks.")]


def test_a_chat_that_grows_is_read_on_from_where_it_was() -> None:
    prefixes = Prefixes(Budget())
    first = asked(prefixes, body(LONG, "a"))
    assert first.known_prefix is None
    second = asked(prefixes, body(LONG, "a", "?", "b"))
    assert second.known_prefix is not None
    assert second.history.turns[0] is first.history.turns[0]
    third = asked(prefixes, body(LONG, "a", "?", "b", "?", "c"))
    assert third.known_prefix is not None
    assert third.known_prefix.end > second.known_prefix.end


def test_the_longest_beginning_is_found() -> None:
    prefixes = Prefixes(Budget())
    asked(prefixes, body(LONG, "a"))
    asked(prefixes, body(LONG, "a", "?", "b"))
    asked(prefixes, body(LONG, "c"))
    found = prefixes.find("s", (), body(LONG, "a", "?", "b", tail="!"))
    assert found is not None
    assert len(found.history.turns) == 4


def test_side_questions_do_not_displace_the_chat() -> None:
    prefixes = Prefixes(Budget())
    first = asked(prefixes, body(LONG, "a"))
    for n in range(100):
        aside = asked(prefixes, body(LONG, "a", tail=f"aside {n}"))
        assert aside.history.turns[0] is first.history.turns[0]


def test_another_session_or_path_shares_nothing() -> None:
    prefixes = Prefixes(Budget())
    data = body(LONG, "a")
    asked(prefixes, data)
    assert prefixes.find("s", (), data) is not None
    assert prefixes.find("other", (), data) is None
    assert prefixes.find("s", ("request",), data) is None


def test_a_body_that_differs_anywhere_in_the_beginning_is_another() -> None:
    prefixes = Prefixes(Budget())
    data = body(LONG, "a")
    known = asked(prefixes, data).prefix()
    assert known is not None
    for at in range(0, known.end, 97):
        changed = data[:at] + (b"!" if data[at : at + 1] != b"!" else b"?") + data[at + 1 :]
        assert prefixes.find("s", (), changed) is None


def test_short_ones_and_those_too_large_are_not_kept() -> None:
    prefixes = Prefixes(budget := Budget(120_000))
    for texts in (("short", "a"), ("y" * 2000, "a") * 20):
        asked(prefixes, body(*texts))
        assert prefixes.find("s", (), body(*texts)) is None
    assert budget.sizes()["prefixes"] == 0


def test_the_least_recently_used_go_first_and_the_size_stays_within_its_bound() -> None:
    prefixes = Prefixes(budget := Budget(80_000))
    chats = [body(f"{n}" + "y" * 8000, "a") for n in range(20)]
    asked(prefixes, chats[0])
    for chat in chats[1:]:
        asked(prefixes, chat)
        assert asked(prefixes, chats[0]).known_prefix is not None
        assert 0 < budget.sizes()["prefixes"] <= 10_000
    kept = [chat for chat in chats if prefixes.find("s", (), chat) is not None]
    assert 1 < len(kept) < len(chats)
    assert kept[0] is chats[0]
    assert kept[1:] == chats[len(chats) - len(kept) + 1 :]


def test_the_least_recently_used_of_many_equal_beginnings_are_dropped() -> None:
    prefixes = Prefixes(Budget())
    first = body(LONG, "a")
    asked(prefixes, first)
    for n in range(200):
        asked(prefixes, body(LONG, f"b{n}"))
        assert prefixes.find("s", (), first) is not None
    assert prefixes.find("s", (), body(LONG, "b0")) is None
    assert prefixes.find("s", (), body(LONG, "b199")) is not None


def test_a_very_long_chat_is_found_turn_after_turn() -> None:
    prefixes = Prefixes(budget := Budget())
    texts = [LONG, "a"]
    asked(prefixes, body(*texts))
    for n in range(150):
        texts += ["?", f"answer {n}"]
        request = asked(prefixes, body(*texts))
        assert request.known_prefix is not None
        assert len(request.history.turns) == len(texts) + 1
    assert budget.sizes()["prefixes"] < 1000 * len(texts)


def test_little_is_kept_of_an_image() -> None:
    prefixes = Prefixes(budget := Budget(400_000))
    data = body("y" * 1_000_000, "a")
    asked(prefixes, data)
    assert asked(prefixes, data).known_prefix is not None
    assert budget.sizes()["prefixes"] < 10_000


def test_texts_that_may_hold_a_placeholder_are_kept_and_count() -> None:
    prefixes = Prefixes(budget := Budget())
    request = parse(body("y turn_" * 10_000, "z" * 20_000, "?", "turn_" + "z" * 30_000))
    request.history.identify(request.body)
    prefixes.keep("s", (), request)
    assert 30_000 < budget.sizes()["prefixes"] < 40_000  # the user's are not needed again
    assert [len(turn.text) for turn in request.history.turns] == [0, 0, 0, 30_005, 0]
    assert request.history.turns[1].full_text(request.body) == "z" * 20_000
    grown = asked(prefixes, body("y turn_" * 10_000, "z" * 20_000, "?", "turn_" + "z" * 30_000, "?", "b"))
    assert grown.known_prefix is not None
    assert 30_000 < budget.sizes()["prefixes"] < 40_000


def flattened(prefixes: Prefixes, data: bytes) -> int:
    """Rewrite a chat with the client's own calls. Returns how many turns its beginning had, as it was written before"""
    request = parse(data, (), prefixes.find("s", (), data))
    known = request.history.beginning
    rewrite(request.body, request.history, {}, RULES)
    prefixes.keep("s", (), request)
    return known.end if known is not None else 0


def test_what_was_rewritten_has_a_bound_of_its_own() -> None:
    prefixes = Prefixes(budget := Budget(1_000_000))
    chats = [
        encode({"contents": [user(LONG, str(n)), model(call("f")), user(response("f", {"r": "z" * 60_000})), *REST]})
        for n in range(20)
    ]
    for chat in chats:
        assert flattened(prefixes, chat) == 0
        assert 60_000 < budget.sizes()["rewritten"] <= 700_000
    assert [prefixes.find("s", (), chat) is not None for chat in chats] == [True] * 20
    assert flattened(prefixes, chats[-1]) == 3
