"""The faster hooks of mitmproxy's addons do what mitmproxy's own do."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from mitmproxy import http
from mitmproxy.addons.tlsconfig import TlsConfig
from mitmproxy.addons.update_alt_svc import UpdateAltSvc
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons, tflow

from addon.hooks.addon_shortcuts import ADDON_SHORTCUTS
from addon.hooks.shortcuts import take_all


@contextmanager
def taken() -> Iterator[None]:
    took = take_all(ADDON_SHORTCUTS)
    try:
        assert len(took) == len(ADDON_SHORTCUTS)
        yield
    finally:
        for shortcut in took:
            shortcut.release()


@pytest.mark.parametrize("short", [False, True])
def test_the_list_of_revoked_certificates_is_served(short: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    config = TlsConfig()
    with taken() if short else nullcontext(), taddons.context(config) as context:
        context.configure(config, confdir=str(tmp_path_factory.mktemp("confdir")))
        own = config.crl_path()
        for path, is_served in ((own, True), (f"/below{own}", True), ("/other.crl", False), (f"{own}?x", False)):
            flow = tflow.tflow(req=http.Request.make("GET", f"http://a.test{path}"))
            config.request(flow)
            assert (flow.response is not None) is is_served


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("name", ["alt-svc", "Alt-Svc"])
def test_alternative_services_are_at_the_proxy(short: bool, name: str) -> None:
    addon = UpdateAltSvc()
    with taken() if short else nullcontext(), taddons.context(addon):
        flow = tflow.tflow(resp=http.Response.make(headers={name: 'h3=":443"'}))
        flow.client_conn.proxy_mode = ProxyMode.parse("reverse:https://a.test")
        addon.responseheaders(flow)
        assert flow.response is not None
        assert flow.response.headers["alt-svc"] == f'h3=":{flow.client_conn.sockname[1]}"'
        plain = tflow.tflow(resp=http.Response.make(headers={"x-other": ":443"}))
        addon.responseheaders(plain)
        assert plain.response is not None
        assert plain.response.headers["x-other"] == ":443"
