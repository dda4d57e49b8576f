"""Makes the recorded flows beside it: `python -m tests.flows.make`.

The unmodified google-genai client chats through a real mitmdump with the addon (CONNECT, the true host redirected to
the strict local Gemini). `graft_record` writes the upstream requests and answers, with the client's requests in the
flows' metadata and without secrets; data of this machine and time (addresses, certificates, times) is replaced here.
Run it again if the form of recordings changes, but not if the rewriting does: the tests check that the rewritten
requests stay the same.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from mitmproxy import connection, http, io

from tests.e2e import chats
from tests.e2e.chats import Chat
from tests.e2e.proxies import Proxy, Session, weather
from tests.e2e.upstreams import Gemini

FOLDER = Path(__file__).parent
MODEL = "gemini-3-flash-preview"
KEY = "a-key-that-must-not-be-kept"


def placeholder(chat: Chat, session: Session) -> None:
    """Two steps, the second with text before its call; then the results."""
    chat.say("What is the weather in Paris?")
    session.answer(get_weather=weather)
    chat.say('say One moment. call get_time {"zone": "CET"}')
    session.answer(get_time={"hour": 12})
    chat.say("repeat the results")


def parallel(chat: Chat, session: Session) -> None:
    """Two calls of one step, each in a separate chunk."""
    chat.say("What is the weather in Paris and Tokyo? [demo: each]")
    session.answer(get_weather=weather)
    chat.say("repeat the results")


def passthrough(chat: Chat, session: Session) -> None:
    """The client receives the calls, and answers them itself."""
    chat.say("What is the weather in Paris and Tokyo?")
    chat.say("repeat the results")


KINDS: dict[str, tuple[Callable[[Chat, Session], None], str, list[str]]] = {
    "placeholder": (placeholder, "sync", ["delete_everything"]),
    "parallel": (parallel, "stream", []),
    "passthrough": (passthrough, "stream", ["get_weather"]),
}


def record(name: str, folder: Path, gemini: Gemini) -> Path:
    """Run the chat. Returns the file with its flows."""
    converse, kind, tools = KINDS[name]
    path = folder / f"{name}.mitm"
    proxy = Proxy(folder, gemini.url, record=str(path))
    try:
        session = proxy.control.session(name)
        session.tools()
        if name == "passthrough":
            session.policy(delivery="passthrough")
        env = {"HTTPS_PROXY": proxy.user(name), "SSL_CERT_FILE": str(proxy.ca)}
        with chats.python(folder, kind, env, model=MODEL, key=KEY, tools=tools) as chat:
            converse(chat, session)
    finally:
        proxy.stop()
    if gemini.errors:
        raise SystemExit(f"{name}: refused: {gemini.errors}")
    return path


def neutral(flows: list[http.HTTPFlow]) -> Iterator[http.HTTPFlow]:
    """The flows without the machine's and the time's data."""
    for number, flow in enumerate(flows, 1):
        flow.id = f"00000000-0000-4000-8000-{number:012}"
        flow.timestamp_created = number
        flow.client_conn = connection.Client(
            peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), timestamp_start=number
        )
        flow.client_conn.id = f"c{number}"
        flow.server_conn = connection.Server(address=(flow.request.host, flow.request.port))
        flow.server_conn.id = f"s{number}"
        for message in (flow.request, flow.response):
            assert message is not None
            message.timestamp_start = message.timestamp_end = number
        yield flow


def main() -> None:
    for name in KINDS:
        with tempfile.TemporaryDirectory() as folder, Gemini() as gemini:
            with record(name, Path(folder), gemini).open("rb") as file:
                flows = [flow for flow in io.FlowReader(file).stream() if isinstance(flow, http.HTTPFlow)]
        target = FOLDER / f"{name}.mitm"
        with target.open("wb") as file:
            writer = io.FlowWriter(file)
            for flow in neutral(flows):
                writer.add(flow)
        data = target.read_bytes()
        if KEY.encode() in data or folder.encode() in data:
            raise SystemExit(f"{target}: holds what it must not")
        print(f"{target.name}: {len(flows)} flows, {len(data)} bytes")


if __name__ == "__main__":
    main()
