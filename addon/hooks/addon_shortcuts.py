"""Shortcuts for hooks of mitmproxy's own addons, which have nothing to do for nearly all flows."""

from typing import Any

from mitmproxy.http import HTTPFlow

from addon.hooks.shortcuts import Method, Shortcut

_ADDONS = "mitmproxy.addons."


def serves_revocations(request_any: Method) -> Method:
    """Does not name the list of revoked certificates for each request: computing its serial number takes long."""

    def request(self: Any, flow: HTTPFlow) -> None:
        if flow.request.data.path.endswith(b".crl"):
            request_any(self, flow)

    return request


def updates_services(responseheaders_any: Method) -> Method:
    """Looks for the header of alternative services first."""

    def responseheaders(self: Any, flow: HTTPFlow) -> None:
        if flow.response is None or any(name.lower() == b"alt-svc" for name, _ in flow.response.headers.fields):
            responseheaders_any(self, flow)

    return responseheaders


ADDON_SHORTCUTS = (
    Shortcut(
        serves_revocations,
        "6c28a1d79af5fcf2",
        *(f"{_ADDONS}tlsconfig:TlsConfig.{name}" for name in ("request", "crl_path")),
    ),
    Shortcut(updates_services, "25ce1b89275c1ea2", f"{_ADDONS}update_alt_svc:UpdateAltSvc.responseheaders"),
)
