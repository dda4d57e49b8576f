"""google-genai's own loop (automatic function calling) against the proxy's: same client, same upstream, same tools.

The upstream answers with two calls in one step, and their results with text: two rounds. Each tool takes 100 ms. The
client asks the upstream itself, and runs the tools one after the other; through the proxy it is the same client, whose
tools the proxy replaces by its own.
"""

import time

from google import genai
from google.genai import types

from bench.load import Result
from bench.measure import Effort, alternate
from bench.processes import Side
from bench.report import Row, at_most
from bench.tools import other_nap, short_nap

_TOOLS = [short_nap, other_nap]
_PARAMS = {"loop": ",".join(tool.__name__ for tool in _TOOLS)}


async def row(effort: Effort, port: int, other: Side) -> Row:
    """`port`: the upstream's. `other`: a proxy that has the tools."""
    loops = max(1, round(6 * effort.seconds))
    direct, through = _client(port), _client(other.port)

    async def own() -> Result:
        return await _ask(direct, loops)

    async def proxys() -> Result:
        return await _ask(through, loops)

    try:
        for warm in (own, proxys):
            await warm()
        pair = await alternate(effort, (other, other), (own, proxys))
    finally:
        for client in (direct, through):
            await client.aio.aclose()
    ratio = pair.median(lambda r: r.grafted.p50 / r.bare.p50)
    what = "the proxy's loop against google-genai's own, two tools of 100 ms in one step"
    return at_most(what, 0.6, ratio, "x", pair.latencies)


def _client(port: int) -> genai.Client:
    options = types.HttpOptions(base_url=f"http://127.0.0.1:{port}", async_client_args={"params": _PARAMS})
    return genai.Client(api_key="not-a-key", http_options=options)


async def _ask(client: genai.Client, loops: int) -> Result:
    result, begun = Result(0.0), time.perf_counter()
    config = types.GenerateContentConfig(tools=list(_TOOLS))
    for number in range(loops):
        before = time.perf_counter()
        chat = client.aio.chats.create(model="gemini-3-flash-preview", config=config)
        answer = await chat.send_message(f"What about {begun}, {number}?")
        result.latencies.append(time.perf_counter() - before)
        if not answer.text:
            raise RuntimeError(f"the loop ended with {answer!r}")
    result.seconds = time.perf_counter() - begun
    return result
