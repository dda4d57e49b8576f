"""A shared client keeps no cookies."""

import httpx2

from addon.loop.clients import no_cookies


async def test_a_cookie_that_a_server_sets_is_not_sent_again() -> None:
    sent: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers.get("cookie"))
        return httpx2.Response(200, headers={"set-cookie": "session=alpha; Path=/"})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), cookies=no_cookies()) as client:
        await client.get("http://tools.example/run")
        await client.get("http://tools.example/run")
        await client.get("http://tools.example/run", headers={"cookie": "own=1"})
    assert sent == [None, None, "own=1"]
