"""The front doors: what they add to a direct call of the same upstream, and how many they serve beside bare mitmdump.

Each request is a question of 2 KB in no conversation; its answer is stored, as it is by default. What the disk takes
to have it (`graft_durability=power`) is a row of its own: it is the disk's time, and not the proxy's.
"""

import itertools
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import httpx2

from bench.load import Clients, Result, head
from bench.measure import CLIENTS, PATH, Effort, Pair, alternate, main
from bench.processes import Side, bare, grafted, upstream
from bench.report import Row, at_least, at_most

_WORDS = "What is there to be seen in Paris on a rainy day? " * 40
_DIRECT = {"contents": [{"role": "user", "parts": [{"text": _WORDS}]}]}
_ASKED = {"model": "gemini-3-flash-preview", "input": _WORDS}
_CHAT = {"model": "gemini-3-flash-preview", "messages": [{"role": "user", "content": _WORDS}]}
_CHAT_PATH = "/v1beta/openai/chat/completions"
_REFERENCES = 200


@dataclass(frozen=True, slots=True)
class _Door:
    """`direct`: the path and the body of the request that goes upstream for a request at the door. `limit`: in
    milliseconds, for one client."""

    path: str
    body: bytes
    direct: tuple[str, bytes]
    limit: float


_GEMINI = PATH, json.dumps(_DIRECT).encode()
_DOORS = (
    _Door("/v1/responses", json.dumps(_ASKED).encode(), _GEMINI, 1.5),
    _Door("/v1/chat/completions", json.dumps(_CHAT).encode(), (_CHAT_PATH, json.dumps(_CHAT).encode()), 1.5),
    _Door("/v1/gemini", json.dumps(_ASKED).encode(), _GEMINI, 3),
)
_HEADERS = {"x-goog-api-key": "not-a-key", "content-type": "application/json"}


async def table(effort: Effort) -> list[Row]:
    with upstream() as port, bare(port) as one:
        goes_up = f"graft_upstream=http://127.0.0.1:{port}"
        with grafted(port, None, goes_up, "graft_durability=process") as other:
            rows = [await _added(effort, port, (one, other), door) for door in _DOORS]
            rows += [await _throughput(effort, (one, other), door) for door in _DOORS]
            rows.append(await _references(effort, (one, other)))
            if not other.counted("toolgraft_requests"):
                raise RuntimeError("nothing went through the doors")
        with grafted(port, None, goes_up) as other:
            rows.append(await _added(effort, port, (one, other), _DOORS[0], on_disk=True))
    return rows


async def _added(effort: Effort, port: int, sides: tuple[Side, Side], door: _Door, *, on_disk: bool = False) -> Row:
    """By the same pooled HTTP client, one request after the other."""
    async with httpx2.AsyncClient(headers=_HEADERS, trust_env=False) as client:

        async def direct() -> Result:
            path, body = door.direct
            return await _ask(effort, client, f"http://127.0.0.1:{port}{path}", body)

        async def through() -> Result:
            return await _ask(effort, client, f"http://127.0.0.1:{sides[1].control}{door.path}", door.body)

        for warm in (direct, through):  # connections, and what is made at the first request
            await warm()
        pair = await alternate(effort, sides, (direct, through))
    what = f"{door.path}: added to a direct call, one client"
    if on_disk:
        return at_most(f"{what}, the answer on disk", None, pair.added, "ms", pair.latencies)
    return at_most(what, door.limit, pair.added, "ms", pair.latencies)


async def _ask(effort: Effort, client: httpx2.AsyncClient, url: str, body: bytes) -> Result:
    begun, result = time.perf_counter(), Result(0.0)
    while not result.latencies or time.perf_counter() - begun < effort.seconds:
        before = time.perf_counter()
        answer = await client.post(url, content=body)
        result.latencies.append(time.perf_counter() - before)
        if answer.status_code != 200:
            raise RuntimeError(f"{url} answered {answer.status_code} {answer.text}")
    result.seconds = time.perf_counter() - begun
    return result


async def _references(effort: Effort, sides: tuple[Side, Side]) -> Row:
    """A request that refers to items of one conversation, against one that has them whole."""
    url = f"http://127.0.0.1:{sides[1].control}/v1/responses"
    model, items = "gemini-3-flash-preview", list[dict[str, Any]]()
    async with httpx2.AsyncClient(headers=_HEADERS, trust_env=False) as client:
        for number in range(_REFERENCES // 2):
            question = {"type": "message", "role": "user", "content": f"Question {number}?"}
            asked = {"model": model, "input": [question], "conversation": "references"}
            answer = (await client.post(url, json=asked)).raise_for_status().json()
            listed = (await client.get(f"{url}/{answer['id']}/input_items")).raise_for_status().json()["data"]
            items += [*listed, *answer["output"]]
        last = {"role": "user", "content": "And?"}
        references = [{"type": "item_reference", "id": item["id"]} for item in items]
        whole, referring = (
            json.dumps({"model": model, "store": False, "input": [*before, last]}).encode()
            for before in ([{key: item[key] for key in ("type", "role", "content")} for item in items], references)
        )
        pair = await alternate(
            effort, sides, (lambda: _ask(effort, client, url, whole), lambda: _ask(effort, client, url, referring))
        )
    return at_most(f"resolving {len(items)} item references", 3, pair.added, "ms", pair.latencies)


async def _throughput(effort: Effort, sides: tuple[Side, Side], door: _Door) -> Row:
    one, other = sides
    made = [
        await _clients(one.port, *door.direct),
        await _clients(other.control, door.path, door.body),
    ]
    try:
        for clients in made:
            await clients.run(requests=2 * CLIENTS)
        a, b = made
        pair: Pair = await alternate(
            effort, sides, (lambda: a.run(seconds=effort.seconds), lambda: b.run(seconds=effort.seconds))
        )
    finally:
        for clients in made:
            clients.close()
    return at_least(f"{door.path}: requests a second of {CLIENTS} clients", 0.9, pair.rate, pair.rates)


async def _clients(port: int, path: str, body: bytes) -> Clients:
    return await Clients.connect(port, head(port, path), [itertools.repeat([body]) for _ in range(CLIENTS)])


if __name__ == "__main__":
    sys.exit(main(__doc__, [("doors", table)]))
