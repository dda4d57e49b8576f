"""A repeated request continues the answer that broke off, and finished tools do not run again. By google-genai with its
own retries, and by programs that repeat their requests."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e import chats
from tests.e2e.processes import ROOT, until
from tests.e2e.proxies import MODEL_PATH, TOOLS, Proxy, Session, new_session, sse, text_of, user
from tests.e2e.test_loop_upstream import BUSY
from tests.e2e.upstreams import Flaky, Gemini, Relay

Json = dict[str, Any]

MODEL = MODEL_PATH.rpartition("/")[2]
KEY = "a-secret-key"
RETRIES = {"attempts": 3, "initial_delay": 0.01, "max_delay": 0.05, "jitter": 0}
METHODS = ["generateContent", "streamGenerateContent?alt=sse", "streamGenerateContent"]
FAILS = [None, BUSY, BUSY, BUSY]
"""The second round fails for good."""


@pytest.fixture(scope="module")
def unsure(strict: Gemini) -> Iterator[Flaky]:
    with Flaky(strict.url) as flaky:
        yield flaky


@pytest.fixture(scope="module")
def before_it(unsure: Flaky, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    proxy = Proxy(tmp_path_factory.mktemp("retries"), unsure.url, tools=str(TOOLS))
    yield proxy
    proxy.stop()


@pytest.fixture
def flaky(unsure: Flaky) -> Flaky:
    """Before the strict server."""
    unsure.forget()
    return unsure


@pytest.fixture
def looper(before_it: Proxy, flaky: Flaky) -> Proxy:
    """One whose upstream can fail."""
    return before_it


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where tools note that they ran."""
    return tmp_path / "marks"


def jots(marks: Path) -> str:
    """Two steps: the second round is reached with one result, the third with two."""
    first, second = (json.dumps({"file": str(marks), "word": word}) for word in ("first", "second"))
    return f"call jot {first} then call jot {second}"


def gate(marks: Path) -> str:
    return f"call gate {json.dumps({'file': str(marks)})}"


WENT = 'gate returned {"went": "through"}.'
ANSWER = 'jot returned {"wrote": "first"}. jot returned {"wrote": "second"}.'


def post(proxy: Proxy, session: str, method: str, text: str, *, key: str = KEY, **more: str) -> httpx2.Response:
    """`more`: further headers."""
    url = f"{proxy.url}/@{session}{MODEL_PATH}:{method}"
    headers = {"x-goog-api-key": key} | {name.replace("_", "-"): value for name, value in more.items()}
    return httpx2.post(url, json={"contents": [user(text)]}, headers=headers, timeout=30)


def until_a_tool_runs(session: Session, marks: Path) -> None:
    """Wait until the tool has begun, and for the end of the round that calls it: in a stream the tool begins before
    that, and a round without its end is asked again."""
    until(marks.exists, "the tool has begun")
    until(lambda: [one["state"] for one in session.rounds()] == ["done"], "the round has ended")


def text_in(answer: httpx2.Response, method: str) -> str:
    assert answer.status_code == 200, answer.text
    return text_of(sse(answer.text) if method.endswith("sse") else answer.json())


@pytest.mark.parametrize(("kind", "failing"), [("sync", 1), ("stream", 2), ("async", 2), ("async-stream", 1)])
def test_google_genai_retries_a_round_that_failed_for_good(
    failing: int, kind: str, looper: Proxy, flaky: Flaky, gemini: Gemini, marks: Path, tmp_path: Path
) -> None:
    """In the second round or the third. JSON is retried by the SDK itself; a stream that has begun is not, and its
    program asks again."""
    session = new_session(looper, tools=False)
    flaky.first = [None] * failing + [BUSY, BUSY, BUSY]
    base = f"{looper.url}/@{session.name}"
    with chats.python(tmp_path, kind, model=MODEL, key=KEY, base_url=base, retries=RETRIES) as chat:
        if "stream" in kind:
            assert "UNAVAILABLE" in chat.fail(jots(marks))
        assert chat.say(jots(marks)) == ANSWER
        assert marks.read_text().split() == ["first", "second"]
        assert chat.say("repeat the results") == ANSWER
    assert (gemini.errors, gemini.dummy_signatures) == ([], 0)
    assert len(gemini.requests) == 3 + 1, "the rounds that were answered are not asked again"
    assert [call["status"] for call in session.calls()] == ["done", "done"]


def test_google_genai_retries_when_its_time_is_out_while_a_tool_runs(
    looper: Proxy, gemini: Gemini, marks: Path, tmp_path: Path
) -> None:
    """The tool runs on, and the retry waits for it."""
    session = new_session(looper, tools=False)
    with Relay(looper.url) as relay, ThreadPoolExecutor(1) as pool:
        base = f"{relay.url}/@{session.name}"
        options: Json = {"base_url": base, "retries": RETRIES | {"attempts": 60}, "timeout": 1000}
        with chats.python(tmp_path, "sync", model=MODEL, key=KEY, **options) as chat:
            asked = pool.submit(chat.say, gate(marks))
            until(lambda: relay.connections > 1, "the SDK tries again")
            assert marks.read_text().split() == ["begun"]
            Path(f"{marks}.open").touch()
            assert asked.result(30) == WENT
            assert marks.read_text().split() == ["begun", "ended"]
            assert chat.say("repeat the results") == WENT
    assert gemini.errors == []


@pytest.mark.parametrize("kind", ["sync", "async-stream"])
def test_a_google_genai_chat_asks_again_after_its_connection_was_cut_while_a_tool_ran(
    kind: str, looper: Proxy, gemini: Gemini, marks: Path, tmp_path: Path
) -> None:
    session = new_session(looper, tools=False)
    with Relay(looper.url) as relay, ThreadPoolExecutor(1) as pool:
        base = f"{relay.url}/@{session.name}"
        with chats.python(tmp_path, kind, model=MODEL, key=KEY, base_url=base) as chat:
            asked = pool.submit(chat.fail, gate(marks))
            until_a_tool_runs(session, marks)
            relay.cut()
            assert asked.result(30)
            retry = pool.submit(chat.say, gate(marks))
            until(lambda: relay.connections > 1, "it asks again")
            Path(f"{marks}.open").touch()
            assert retry.result(30) == WENT
            assert marks.read_text().split() == ["begun", "ended"]
            assert chat.say("repeat the results") == WENT
    assert gemini.errors == []
    assert len(gemini.requests) == 3


@pytest.mark.parametrize("method", [*METHODS[:2], pytest.param(METHODS[2], marks=pytest.mark.smoke)])
def test_a_result_that_came_after_the_client_was_gone_is_used_by_its_retry(
    method: str, looper: Proxy, gemini: Gemini, marks: Path
) -> None:
    session = new_session(looper, tools=False)
    words = f"say Wait. {gate(marks)}"
    body = {"contents": [user(words)]}
    with Relay(looper.url) as relay, ThreadPoolExecutor(1) as pool:
        url = f"{relay.url}/@{session.name}{MODEL_PATH}:{method}"
        asked = pool.submit(httpx2.post, url, json=body, headers={"x-goog-api-key": KEY}, timeout=30)
        until_a_tool_runs(session, marks)
        relay.cut()
        assert isinstance(asked.exception(20), httpx2.TransportError)
    Path(f"{marks}.open").touch()
    until(lambda: session.calls(status="done"), "the tool has its result")
    assert text_in(post(looper, session.name, method, words), method) == f"Wait.{WENT}"
    assert marks.read_text().split() == ["begun", "ended"]
    assert gemini.errors == []
    assert len(gemini.requests) == 2


@pytest.fixture(scope="module")
def holder(strict: Gemini, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """One that holds answers back that are complete."""
    folder = tmp_path_factory.mktemp("holder")
    proxy = Proxy(folder, strict.url, tools=str(TOOLS), early=ROOT / "tests" / "e2e" / "scripts" / "holds.py")
    yield proxy
    proxy.stop()


@pytest.mark.parametrize("how", ["hold", "kill"])
def test_a_complete_answer_that_was_lost_on_its_way_is_given_to_the_retry(
    how: str, holder: Proxy, gemini: Gemini, marks: Path
) -> None:
    """The connection breaks, or the proxy dies, before the first byte of it has left."""
    session, unsent = new_session(holder, tools=False).name, Path(f"{marks}.held")
    url = f"{holder.url}/@{session}{MODEL_PATH}:{METHODS[0]}"
    body, headers = {"contents": [user(jots(marks))]}, {"x-goog-api-key": KEY, f"x-{how}": str(unsent)}
    with Relay(holder.url) as relay, ThreadPoolExecutor(1) as pool:
        lost = pool.submit(httpx2.post, url.replace(holder.url, relay.url), json=body, headers=headers, timeout=30)
        until(unsent.exists, "the answer is complete")
        if how == "hold":
            relay.cut()
            Path(f"{unsent}.open").touch()
        else:
            assert holder.process.wait() < 0
            holder.start()
        assert isinstance(lost.exception(20), httpx2.TransportError)
    for _ in range(2):
        assert text_of(httpx2.post(url, json=body, headers=headers, timeout=30).json()) == ANSWER
    assert marks.read_text().split() == ["first", "second"] * 2, "the third has nothing to go on with"
    assert gemini.errors == []
    assert len(gemini.requests) == 3 + 1 + 3


def test_a_whole_answer_is_never_taken_over(looper: Proxy, marks: Path) -> None:
    session = new_session(looper, tools=False)
    for _ in range(2):
        assert text_of(post(looper, session.name, METHODS[0], jots(marks)).json()) == ANSWER
    assert marks.read_text().split() == ["first", "second"] * 2


@pytest.mark.parametrize("what", ["key", "session", "words"])
def test_only_the_same_request_of_the_same_asker_continues(
    what: str, looper: Proxy, flaky: Flaky, gemini: Gemini, marks: Path
) -> None:
    session = new_session(looper, tools=False)
    flaky.first = list(FAILS)
    assert post(looper, session.name, METHODS[0], jots(marks)).status_code == 503
    name = new_session(looper, tools=False).name if what == "session" else session.name
    words = jots(marks) + (" " if what == "words" else "")
    answer = post(looper, name, METHODS[0], words, key="another-key" if what == "key" else KEY)
    assert text_of(answer.json()) == ANSWER
    assert marks.read_text().split() == ["first", "first", "second"]
    assert gemini.errors == []


ANN = {"x_user": "ann", "user_agent": "app/1"}


@pytest.mark.parametrize("method", METHODS[:2])
@pytest.mark.parametrize(
    ("first", "second", "is_retry"),
    [
        (ANN, ANN | {"x_request_id": "2", "x_goog_api_client": "gccl-attempt-count/2"}, True),
        (ANN, ANN | {"x_user": "bob"}, False),
        (ANN, ANN | {"user_agent": "app/2"}, False),
        (ANN | {"idempotency_key": "k"}, ANN | {"idempotency_key": "k", "user_agent": "app/2"}, True),
        (ANN | {"idempotency_key": "k"}, ANN | {"idempotency_key": "l"}, False),
    ],
    ids=["the same", "another user", "another program", "the same key", "another key"],
)
def test_a_user_who_asks_what_another_asked_who_hung_up_gets_a_call_of_their_own(
    first: dict[str, str], second: dict[str, str], is_retry: bool, method: str, looper: Proxy, marks: Path
) -> None:
    session = new_session(looper, tools=False)
    with Relay(looper.url) as relay, ThreadPoolExecutor(1) as pool:
        url = f"{relay.url}/@{session.name}{MODEL_PATH}:{method}"
        body = {"contents": [user(gate(marks))]}
        headers = {"x-goog-api-key": KEY} | {name.replace("_", "-"): value for name, value in first.items()}
        asked = pool.submit(httpx2.post, url, json=body, headers=headers, timeout=30)
        until_a_tool_runs(session, marks)
        relay.cut()
        assert isinstance(asked.exception(20), httpx2.TransportError)
    Path(f"{marks}.open").touch()
    until(lambda: session.calls(status="done"), "the tool has its result")
    assert text_in(post(looper, session.name, method, gate(marks), **second), method) == WENT
    assert marks.read_text().split() == ["begun", "ended"] * (1 if is_retry else 2)


@pytest.mark.parametrize("stream", [False, True])
def test_openai_s_client_retries_a_round_that_failed_for_good(
    stream: bool, looper: Proxy, flaky: Flaky, gemini: Gemini, marks: Path
) -> None:
    """Its tries differ in `x-stainless-retry-count`."""
    flaky.first = list(FAILS)
    base = f"{looper.url}/@{new_session(looper, tools=False).name}/v1beta/openai"
    with openai.OpenAI(api_key=KEY, base_url=base, max_retries=2) as client:
        ask = client.chat.completions.create
        asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": jots(marks)}]}
        if stream:
            with pytest.raises(openai.APIError):
                "".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True, **asked))
        assert ask(**asked | ({"stream": False} if stream else {})).choices[0].message.content == ANSWER
    assert gemini.errors == []
