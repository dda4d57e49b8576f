"""The proxy's settings, as the control API lists them."""

import httpx2

from addon.control.app import ControlApp


async def test_the_settings_are_listed_as_the_proxy_gives_them(app: ControlApp, client: httpx2.AsyncClient) -> None:
    assert (await client.get("/v1/config")).json() == {"items": []}
    row = {"name": "graft_log", "value": "json", "source": "default"}
    app.api.setting_rows = lambda: [row]
    assert (await client.get("/v1/config")).json() == {"items": [row]}
