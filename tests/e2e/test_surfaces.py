"""Every surface and framing, in reverse mode and through CONNECT: a step is captured, answered, and told upstream."""

import ssl
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.e2e.proxies import Proxy, Session, model, parts_of, sse, text_of, user, weather
from tests.e2e.upstreams import Gemini

Json = dict[str, Any]

THREE = "gemini-3-flash-preview"
KEY = {"x-goog-api-key": "a-secret-key"}
BEARER = {"authorization": "Bearer a-secret-token"}
PROJECT = "projects/p/locations/us-central1/publishers/google/models"

SURFACES = [
    pytest.param("generativelanguage.googleapis.com", f"/v1beta/models/{THREE}:", "developer", id="developer"),
    pytest.param("us-central1-aiplatform.googleapis.com", f"/v1beta1/{PROJECT}/{THREE}:", "vertex", id="vertex"),
    pytest.param("aiplatform.googleapis.com", f"/v1/publishers/google/models/{THREE}:", "vertex", id="vertex-express"),
    pytest.param("firebasevertexai.googleapis.com", f"/v1beta/{PROJECT}/{THREE}:", "firebase", id="firebase"),
    pytest.param(
        "firebasevertexai.googleapis.com", f"/v1beta/projects/p/models/{THREE}:", "firebase", id="firebase-developer"
    ),
    pytest.param("cloudcode-pa.googleapis.com", "/v1internal:", "codeassist", id="codeassist"),
]
METHODS = ["generateContent", "streamGenerateContent?alt=sse", "streamGenerateContent"]


@pytest.fixture(params=["reverse", "connect", "connect-http2"])
def client(request: pytest.FixtureRequest, proxy: Proxy, session: Session) -> Iterator[httpx2.Client]:
    """A client of the session; `https://HOST/PATH` is asked for in both modes."""
    if request.param.startswith("connect"):
        trusts = ssl.create_default_context(cafile=str(proxy.ca))
        two = request.param.endswith("http2")
        client = httpx2.Client(proxy=proxy.user(session.name), verify=trusts, timeout=30, http1=not two, http2=two)
    else:
        client = httpx2.Client(mounts={"https://": Reverse(proxy.url, session.name)}, timeout=30)
    with client:
        yield client


class Reverse(httpx2.HTTPTransport):
    """Sends a request for whatever host to the reverse proxy, under the session's prefix."""

    def __init__(self, base: str, session: str) -> None:
        super().__init__()
        self._base = httpx2.URL(base)
        self._prefix = f"/@{session}".encode()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.url = self._base.copy_with(raw_path=self._prefix + request.url.raw_path)
        request.headers["host"] = self._base.netloc.decode()
        return super().handle_request(request)


def wrapped(host: str, body: Json) -> Json:
    """Code Assist's envelope, for Code Assist."""
    return {"model": THREE, "project": "p", "request": body} if host.startswith("cloudcode") else body


def ask(client: httpx2.Client, host: str, path: str, body: Json) -> httpx2.Response:
    headers = BEARER if host.startswith("cloudcode") else KEY
    return client.post(f"https://{host}{path}", json=wrapped(host, body), headers=headers)


def decoded(answer: httpx2.Response, method: str) -> Any:
    assert answer.status_code == 200, answer.text
    if method.endswith("alt=sse"):
        assert answer.headers["content-type"].startswith("text/event-stream")
        return sse(answer.text)
    return answer.json()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("host", "path", "surface"), SURFACES)
def test_a_step_is_captured_and_told_on_every_surface(
    host: str, path: str, surface: str, method: str, client: httpx2.Client, session: Session, gemini: Gemini
) -> None:
    own = [{"functionDeclarations": [{"name": "own_tool"}]}]
    asked = user("weather in Paris and Tokyo")
    first = decoded(ask(client, host, path + method, {"contents": [asked], "tools": own}), method)
    assert not any("functionCall" in part for part in parts_of(first))
    (turn,) = session.turns()
    assert text_of(first) == f"Tool call completed: get_weather, get_weather [{turn['turn_id']}]"
    assert turn["surface"] == surface

    calls = session.answer(get_weather=weather)
    assert [call["args"]["city"] for call in calls] == ["Paris", "Tokyo"]
    body = {"contents": [asked, model(text_of(first)), user("repeat the results")], "tools": own}
    second = decoded(ask(client, host, path + method, body), method)
    assert '{"city": "Paris", "celsius": 5}' in text_of(second)
    assert '{"city": "Tokyo", "celsius": 5}' in text_of(second)
    assert gemini.errors == []
    assert gemini.dummy_signatures == 0

    sent = gemini.last["body"]
    sent = sent["request"] if host.startswith("cloudcode") else sent
    takes_ids = not path.startswith("/v1/publishers")
    assert ["id" in part["functionCall"] for part in sent["contents"][1]["parts"]] == [takes_ids] * 2
    assert [name["name"] for name in sent["tools"][0]["functionDeclarations"]] == ["get_weather", "get_time"]
    assert gemini.last["path"] == path + method


COUNTS = [
    pytest.param("generativelanguage.googleapis.com", f"/v1beta/models/{THREE}:countTokens", id="developer"),
    pytest.param("us-central1-aiplatform.googleapis.com", f"/v1beta1/{PROJECT}/{THREE}:countTokens", id="vertex"),
    pytest.param("cloudcode-pa.googleapis.com", "/v1internal:countTokens", id="codeassist"),
]


@pytest.mark.parametrize(("host", "path"), COUNTS)
def test_tokens_are_counted_for_the_rewritten_history(
    host: str, path: str, client: httpx2.Client, session: Session, gemini: Gemini
) -> None:
    generate = path.replace("countTokens", "generateContent")
    asked = user("weather in Paris")
    first = decoded(ask(client, host, generate, {"contents": [asked]}), "generateContent")
    session.policy(on_pending="block")
    contents = [asked, model(text_of(first)), user("and now?")]
    for answered in (False, True):
        if answered:
            session.answer(get_weather=weather)
        if host.startswith("cloudcode"):
            body: Json = {"request": {"model": f"models/{THREE}", "contents": contents}}
            answer = client.post(f"https://{host}{path}", json=body, headers=BEARER)
        else:
            answer = client.post(f"https://{host}{path}", json={"contents": contents}, headers=KEY)
        assert answer.status_code == 200, answer.text
        assert answer.json()["totalTokens"] > 0
        received: Json = gemini.last["body"]
        inner = [received[name] for name in ("request", "generateContentRequest") if name in received]
        sent = inner[0] if inner else received
        assert ("tools" in sent) is not host.startswith("cloudcode")
        # a count of Code Assist names no project, so nothing shows whose turn it is
        is_known = answered and not host.startswith("cloudcode")
        assert any("functionResponse" in part for content in sent["contents"] for part in content["parts"]) is is_known
    assert gemini.errors == []


def test_the_inner_request_of_a_count_is_grafted(client: httpx2.Client, gemini: Gemini) -> None:
    inner = {
        "model": f"models/{THREE}",
        "contents": [user("hello")],
        "tools": [{"functionDeclarations": [{"name": "own_tool"}]}],
    }
    url = f"https://generativelanguage.googleapis.com/v1beta/models/{THREE}:countTokens"
    answer = client.post(url, json={"generateContentRequest": inner}, headers=KEY)
    assert answer.status_code == 200, answer.text
    (tool,) = gemini.last["body"]["generateContentRequest"]["tools"]
    assert [one["name"] for one in tool["functionDeclarations"]] == ["get_weather", "get_time"]


@pytest.mark.parametrize(
    ("host", "folder", "models"),
    [
        pytest.param("generativelanguage.googleapis.com", "/v1beta", "models", id="developer"),
        pytest.param(
            "us-central1-aiplatform.googleapis.com",
            "/v1beta1/projects/p/locations/us-central1",
            f"{PROJECT}",
            id="vertex",
        ),
    ],
)
def test_cached_content_holds_the_sessions_tools_and_remembers_them(
    host: str, folder: str, models: str, client: httpx2.Client, session: Session, gemini: Gemini
) -> None:
    own = [{"functionDeclarations": [{"name": "own_tool"}]}]
    body = {"model": f"{models}/{THREE}", "contents": [user("a long story")], "tools": own}
    made = client.post(f"https://{host}{folder}/cachedContents", json=body, headers=KEY)
    assert made.status_code == 200, made.text
    (tool,) = gemini.last["body"]["tools"]
    assert [one["name"] for one in tool["functionDeclarations"]] == ["get_weather", "get_time"]

    name = made.json()["name"]
    path = f"https://{host}{folder}/{'publishers/google/' if 'projects' in folder else ''}models/{THREE}"
    generate = {"cachedContent": name, "contents": [user("weather in Paris")]}
    answer = client.post(f"{path}:generateContent", json=generate, headers=KEY)
    assert answer.status_code == 200, answer.text
    assert gemini.last["body"] == generate
    (call,) = session.calls()
    assert call["args"] == {"city": "Paris"}
    assert text_of(answer.json()) == f"Tool call completed: get_weather [{call['turn_id']}]"


def test_a_request_to_no_surface_passes_unchanged(client: httpx2.Client, gemini: Gemini) -> None:
    host = "https://generativelanguage.googleapis.com"
    found = client.get(f"{host}/v1beta/models/{THREE}", headers=KEY)
    assert found.json()["name"] == f"models/{THREE}"
    batch: Json = {"batch": {"input_config": {}}}
    client.post(f"{host}/v1beta/models/{THREE}:batchGenerateContent", json=batch, headers=KEY)
    assert gemini.last["body"] in (batch, '{"batch":{"input_config":{}}}')
