"""The pauses after refusals."""

from typing import Any

import pytest

from addon.core.framing.documents import encode
from addon.loop.upstream import MAX_PAUSE, backoff, pause_after

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


def refusal(*delays: object, kind: str = "type.googleapis.com/google.rpc.RetryInfo") -> Any:
    details = [{"@type": kind, "retryDelay": delay} for delay in delays]
    return {"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": details}}


@pytest.mark.parametrize(
    ("header", "body", "pause"),
    [
        (None, b"", None),
        ("2", b"", 2.0),
        (" 2.5 ", b"", 2.5),
        ("0", b"", 0.0),
        ("-1", b"", None),
        ("soon", b"", None),
        ("9" * 400, b"", None),
        ("Tue, 14 Nov 2023 22:13:27 GMT", b"", 7.0),
        ("Tue, 14 Nov 2023 22:13:00 GMT", b"", 0.0),
        (None, refusal("3s"), 3.0),
        (None, refusal("0.25s"), 0.25),
        (None, [refusal("3s")], 3.0),
        (None, refusal("3s", "5s"), 5.0),
        (None, refusal("3m"), None),
        (None, refusal(3), None),
        (None, refusal("3s", kind="type.googleapis.com/google.rpc.ErrorInfo"), None),
        (None, {"error": {"details": "google.rpc.RetryInfo"}}, None),
        (None, {"error": ["google.rpc.RetryInfo"]}, None),
        (None, b"google.rpc.RetryInfo {", None),
        ("2", refusal("3s"), 3.0),
        ("4", refusal("3s"), 4.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("status", [429, 503])
def test_the_pause_that_a_refusal_asks_for_is_observed(
    status: int, header: str | None, body: Any, pause: float | None
) -> None:
    headers = [(b"content-type", b"x")] + ([] if header is None else [(b"Retry-After", header.encode())])
    raw = body if isinstance(body, bytes) else encode(body)
    for attempt in (1, 2):
        expected = backoff(attempt) if pause is None else pause
        assert pause_after(status, headers, raw, attempt, now=NOW) == pytest.approx(expected)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 501])
def test_other_refusals_are_no_worth_another_try(status: int) -> None:
    assert pause_after(status, [(b"retry-after", b"1")], b"", 1, now=NOW) is None


def test_a_client_that_is_to_come_back_much_later_is_told_so() -> None:
    for seconds, waits in ((MAX_PAUSE, True), (MAX_PAUSE + 1, False)):
        header = [(b"retry-after", b"%d" % seconds)]
        assert (pause_after(429, header, b"", 1, now=NOW) is not None) is waits
        assert (pause_after(429, [], encode(refusal(f"{seconds:g}s")), 1, now=NOW) is not None) is waits
