"""Who asks, and who sends: nothing that changes by itself."""

import pytest

from addon.core.history.keys import asker_of, sender_of

VERTEX = "/v1/projects/my%2Dproject/locations/global/publishers/google/models/m:generateContent"
VERTEX_OPENAI = "/v1/projects/my-project/locations/global/endpoints/openapi/openai/chat/completions"


@pytest.mark.parametrize(
    ("path", "headers", "asker"),
    [
        ("/v1beta/models/m:generateContent", {}, ""),
        ("/v1beta/models/m:generateContent", {"x-goog-api-key": "AIza1"}, "key:AIza1"),
        ("/v1beta/models/m:generateContent?alt=sse&key=AIza%2B1", {}, "key:AIza+1"),
        ("/v1beta/models/m:generateContent?$key=AIza1", {}, "key:AIza1"),
        ("/v1beta/models/m:generateContent?%6bey=AIza1", {}, "key:AIza1"),
        ("/v1beta/models/m:generateContent?%24k%65y=AIza1", {}, "key:AIza1"),
        ("/v1beta/models/m:generateContent?key=&key&key=AIza1&key=AIza2", {}, "key:AIza1"),
        ("/v1beta/models/m:generateContent?key=AIza1", {"x-goog-api-key": ""}, "key:AIza1"),
        ("/v1beta/models/m:generateContent?monkey=1", {}, ""),
        ("/v1beta/models/m:generateContent?x=%26key=1&Key=2", {}, ""),
        ("/v1beta/openai/chat/completions", {"authorization": "Bearer AIza1"}, "key:AIza1"),
        ("/v1beta/openai/chat/completions", {"authorization": "bearer  AIza1 "}, "key:AIza1"),
        ("/v1beta/openai/chat/completions", {"authorization": "AIza1"}, "key:AIza1"),
        ("/v1beta/openai/chat/completions", {"authorization": "Bearer"}, ""),
        ("/v1beta/openai/chat/completions", {"authorization": "ya29.a0Af"}, ""),
        ("/v1beta/openai/chat/completions", {"authorization": "Bearer ya29.a0Af"}, ""),
        ("/v1beta/openai/chat/completions", {"authorization": "bearer eyJhbGciOi"}, ""),
        ("/v1beta/openai/chat/completions", {"authorization": "Basic dXNlcg=="}, ""),
        ("/v1beta/models/m:x", {"authorization": "Bearer ya29.a", "x-goog-user-project": "p"}, "project:p"),
        (VERTEX, {"authorization": "Bearer ya29.hour1"}, "project:my-project"),
        (VERTEX, {"authorization": "Bearer of-another-kind"}, "project:my-project"),
        (VERTEX_OPENAI, {"authorization": "Bearer of-another-kind"}, "project:my-project"),
        ("/v1internal:generateContent", {"authorization": "Bearer of-another-kind"}, ""),
        ("/v1beta/models/m:x", {"authorization": "Bearer of-another-kind"}, ""),
        (VERTEX, {"authorization": "Bearer ya29.hour2"}, "project:my-project"),
        (VERTEX, {"x-goog-api-key": "AIza1"}, "key:AIza1"),
        ("/v1beta/projects/p/models/m:generateContent", {"authorization": "Bearer ya29.a"}, "project:p"),
        ("/v1internal:generateContent", {"authorization": "Bearer ya29.a"}, ""),
    ],
)
def test_who_asks(path: str, headers: dict[str, str], asker: str) -> None:
    assert asker_of(path, headers.get) == asker


FIRST = {"User-Agent": "openai/3", "X-User": "ann"}


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ({}, {}, True),
        (FIRST, {"x-user": "ann", "user-agent": "openai/3"}, True),
        (FIRST, FIRST | {"x-user": "bob", "X-User": "bob"}, False),
        (FIRST, {"User-Agent": "openai/3"}, False),
        (FIRST, FIRST | {"User-Agent": "curl/8"}, False),
        (FIRST, FIRST | {"X-Forwarded-Email": "bob@example.com"}, False),
        ({"X-OpenWebUI-User-Id": "1"}, {"X-OpenWebUI-User-Id": "2"}, False),
        ({"x-a": "x-user: ann"}, {"x-user": "ann"}, False),
        # values that each try changes, and addresses
        (FIRST | {"x-request-id": "1", "traceparent": "00-1"}, FIRST | {"x-request-id": "2", "date": "now"}, True),
        (FIRST | {"x-goog-api-client": "gccl-attempt-count/1"}, FIRST | {"x-goog-api-client": "y/2"}, True),
        (FIRST | {"authorization": "Bearer ya29.a"}, FIRST | {"authorization": "Bearer ya29.b"}, True),
        (FIRST | {"x-forwarded-for": "10.0.0.1"}, FIRST | {"x-forwarded-for": "10.0.0.2"}, True),
        # a retry count does not say whose retry it is
        (FIRST | {"x-stainless-retry-count": "0"}, FIRST | {"x-stainless-retry-count": "1"}, True),
        (FIRST, FIRST | {"X-User": "bob", "x-stainless-retry-count": "1"}, False),
        # a key of the request counts instead of the program, but not instead of the user
        (FIRST | {"Idempotency-Key": "k"}, {"idempotency-key": "k", "x-user": "ann", "user-agent": "curl/8"}, True),
        (FIRST | {"Idempotency-Key": "k"}, FIRST | {"Idempotency-Key": "l"}, False),
        (FIRST | {"Idempotency-Key": "k"}, FIRST, False),
        (FIRST | {"Idempotency-Key": "k"}, FIRST | {"Idempotency-Key": "k", "X-User": "bob"}, False),
        (FIRST | {"Idempotency-Key": ""}, FIRST | {"x-user-id": ""}, True),
    ],
)
def test_whose_retry_a_request_can_be(first: dict[str, str], second: dict[str, str], is_same: bool) -> None:
    senders = [sender_of([(name.encode(), value.encode()) for name, value in one.items()]) for one in (first, second)]
    assert (senders[0] == senders[1]) is is_same


def test_the_option_replaces_the_usual_headers_and_the_user_of_the_proxy_counts_too() -> None:
    ann, bob = ([(b"X-User", name), (b"X-Tenant", b"t-" + name)] for name in (b"ann", b"bob"))
    assert sender_of(ann, ["x-other"]) == sender_of(bob, ["x-other"])
    assert sender_of(ann, ["x-tenant"]) != sender_of(bob, ["x-tenant"])
    assert sender_of((), user="ann") != sender_of((), user="bob")
