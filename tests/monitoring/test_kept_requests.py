"""The bodies that are kept: their bounds, and that no secret leaves them."""

import json

import pytest

from addon.core.history.keys import asker_digest
from addon.core.security.secrets import Fields
from addon.core.summaries import Summary
from addon.monitoring import recent_requests
from addon.monitoring.own_secrets import own_secrets
from addon.monitoring.recent_requests import Bodies, KeptRequests, RecentRequests
from addon.surfaces.incoming import Incoming
from addon.surfaces.registry import match_path

KEY = "AIza-a-client-s-key-0123456789"
PROXY_KEY = "a-secret-of-the-proxy-77"


URL = "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent"


def bodies(
    client: bytes = b"{}", sent: bytes | None = None, *, url: str = URL, fields: Fields = (), asker: str = "who"
) -> Bodies:
    target = match_path("POST", url.removeprefix("https://generativelanguage.googleapis.com"))
    assert target is not None
    return Bodies(
        Incoming(target, "work", client, url=url, fields=fields, asker=asker), client if sent is None else sent
    )


def test_the_oldest_go_first_by_number_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptRequests(3)
    for number in range(5):
        kept.put(f"r{number}", bodies())
    assert [f"r{number}" in kept for number in range(5)] == [False, False, True, True, True]
    monkeypatch.setattr(recent_requests, "MOST_BYTES", 10_000)
    kept.put("large", bodies(b"x" * 4000, b"y" * 4000))
    assert (len(kept), "large" in kept) == (1, True)
    assert kept.size == bodies(b"x" * 4000, b"y" * 4000).size <= 10_000
    kept.put("shared", bodies(b"z" * 8000))
    assert (len(kept), "shared" in kept) == (1, True), "a body that is both is counted once"
    kept.put("too large", bodies(b"x" * 20_000))
    assert (len(kept), kept.size) == (0, 0)


def test_none_are_kept_if_none_may_be() -> None:
    recent = RecentRequests(most_bodies=0)
    recent.begin(Summary("work"), bodies())
    (record,) = recent.records()
    assert record["has_bodies"] is False
    assert recent.clean(record["request_id"], b"") is None
    assert recent.bodies.size == 0


def test_no_secret_leaves() -> None:
    own_secrets.learn([PROXY_KEY])
    client = json.dumps({"text": f"my key is {KEY}, yours {PROXY_KEY}"}).encode()
    headers = [
        *((b"Host", b"m.example"), (b"x-goog-api-key", KEY.encode()), (b"content-type", b"application/json")),
        *((b"Referer", f"https://a.example/?key={KEY}".encode()), (b"x-note", KEY.encode()), (b":authority", b"m")),
    ]
    url = f"{URL}?alt=sse&key={KEY}"
    recent, summary = RecentRequests(), Summary("work")
    recent.begin(summary, bodies(client, b"[" + client + b"]", url=url, fields=headers, asker=KEY))
    recent.end(summary)
    request_id = recent.records()[0]["request_id"]
    found = recent.clean(request_id, b"secret")
    assert found is not None
    assert found.asker == asker_digest(b"secret", KEY)
    assert json.loads(found.client) == {"text": "my key is ***, yours ***"}
    assert found.headers == [
        ("x-goog-api-key", "REMOVED"),
        ("content-type", "application/json"),
        ("Referer", "https://a.example/?key=REMOVED"),
        ("x-note", "***"),
    ]
    assert found.url == f"{URL}?alt=sse&key=REMOVED"
    for secret in (KEY, PROXY_KEY):
        assert secret not in repr(found)
