"""The rules in a declaration, and refusals with their position."""

import copy
from typing import Any

import pytest

from addon.core.tools.tool_rules import BadRule, cycle_in_order, rules_of, unknown_in_order

URL = "https://tools.example/run"


@pytest.mark.parametrize(
    ("tool", "rules"),
    [
        ({"name": "f", "description": "d"}, {}),
        (dict.fromkeys(("executor", "approval", "after", "idempotent", "cache_ttl", "timeout", "retries")), {}),
        ({"approval": False, "idempotent": False, "after": []}, {}),
        ({"approval": True, "idempotent": True}, {"approval": True, "idempotent": True}),
        ({"redeliver": True, "idempotent": False}, {"redeliver": True}),
        ({"executor": {"type": "worker"}}, {"executor": {"type": "worker"}}),
        ({"executor": {"type": "http", "url": URL}}, {"executor": {"type": "http", "url": URL}}),
        ({"executor": {"type": "http", "url": URL, "headers": {}}}, {"executor": {"type": "http", "url": URL}}),
        (
            {"executor": {"type": "http", "url": "http://[::1]:80", "headers": {"X-A": "", "b": "c d"}}},
            {"executor": {"type": "http", "url": "http://[::1]:80", "headers": {"X-A": "", "b": "c d"}}},
        ),
        ({"after": ["b", "a", "b"]}, {"after": ["b", "a"]}),
        ({"cache_ttl": 0, "retries": 0}, {"cache_ttl": 0, "retries": 0}),
        (
            {"behavior": "non_blocking", "scheduling": "when_idle"},
            {"behavior": "NON_BLOCKING", "scheduling": "WHEN_IDLE"},
        ),
        ({"behavior": "BLOCKING", "scheduling": None}, {"behavior": "BLOCKING"}),
        ({"cache_ttl": 1e9, "timeout": 3600, "retries": 10}, {"cache_ttl": 1e9, "timeout": 3600, "retries": 10}),
        ({"timeout": 0.001}, {"timeout": 0.001}),
    ],
    ids=str,
)
def test_rules_are_those_that_the_declaration_sets(tool: dict[str, Any], rules: dict[str, Any]) -> None:
    before = copy.deepcopy(tool)
    assert rules_of(tool) == rules
    assert tool == before


@pytest.mark.parametrize(
    ("tool", "field", "word"),
    [
        ({"executor": "worker"}, "executor", "must be an object"),
        ({"executor": {}}, "executor.type", "missing"),
        ({"executor": {"type": "mcp"}}, "executor.type", '"http" or "worker"'),
        ({"executor": {"type": ["http"]}}, "executor.type", '"http" or "worker"'),
        ({"executor": {"type": "worker", "url": URL}}, "executor.url", "known fields are type"),
        ({"executor": {"type": "http"}}, "executor.url", "missing"),
        ({"executor": {"type": "http", "url": 1}}, "executor.url", "string"),
        ({"executor": {"type": "http", "url": ""}}, "executor.url", "https://"),
        ({"executor": {"type": "http", "url": "tools.example"}}, "executor.url", "https://"),
        ({"executor": {"type": "http", "url": "ftp://tools.example"}}, "executor.url", "https://"),
        ({"executor": {"type": "http", "url": "http://"}}, "executor.url", "https://"),
        ({"executor": {"type": "http", "url": "http://[::1"}}, "executor.url", "https://"),
        ({"executor": {"type": "http", "url": "http://a:99999"}}, "executor.url", "https://"),
        ({"executor": {"type": "http", "url": "http://a/b c"}}, "executor.url", "https://"),
        ({"executor": {"type": "http", "url": "http://a/\n"}}, "executor.url", "https://"),
        ({"executor": {"type": "http", "url": "http://me:s3cret@a"}}, "executor.url", "user name"),
        ({"executor": {"type": "http", "url": URL, "header": {}}}, "executor.header", "headers"),
        ({"executor": {"type": "http", "url": URL, "headers": ["s3cret"]}}, "executor.headers", "object"),
        ({"executor": {"type": "http", "url": URL, "headers": {"a b": "s3cret"}}}, "executor.headers", "'a b'"),
        ({"executor": {"type": "http", "url": URL, "headers": {"": "s3cret"}}}, "executor.headers", "''"),
        ({"executor": {"type": "http", "url": URL, "headers": {"A": "s3cret\r\n"}}}, "executor.headers.A", "one line"),
        ({"executor": {"type": "http", "url": URL, "headers": {"A": "s3crét"}}}, "executor.headers.A", "ASCII"),
        ({"executor": {"type": "http", "url": URL, "headers": {"A": 3}}}, "executor.headers.A", "text"),
        ({"approval": "yes"}, "approval", "true or false"),
        ({"idempotent": 1}, "idempotent", "true or false"),
        ({"after": "a"}, "after", "list"),
        ({"after": [1]}, "after", "list"),
        ({"cache_ttl": -1}, "cache_ttl", "0 or more"),
        ({"cache_ttl": float("nan")}, "cache_ttl", "0 or more"),
        ({"cache_ttl": float("inf")}, "cache_ttl", "0 or more"),
        ({"cache_ttl": True}, "cache_ttl", "number"),
        ({"timeout": 0}, "timeout", "above 0"),
        ({"timeout": 3600.1}, "timeout", "3600"),
        ({"timeout": "5"}, "timeout", "number"),
        ({"retries": -1}, "retries", "0 to 10"),
        ({"behavior": 2}, "behavior", "BLOCKING, NON_BLOCKING"),
        ({"behavior": "NON_BLOCKING", "scheduling": "NOW"}, "scheduling", "SILENT, WHEN_IDLE, INTERRUPT"),
        ({"behavior": "BLOCKING", "scheduling": "SILENT"}, "scheduling", "NON_BLOCKING"),
        ({"retries": 11}, "retries", "0 to 10"),
        ({"retries": 1.0}, "retries", "whole"),
        ({"retries": True}, "retries", "whole"),
    ],
    ids=str,
)
def test_a_bad_rule_is_refused_with_its_position_and_without_its_secrets(tool: Any, field: str, word: str) -> None:
    with pytest.raises(BadRule) as caught:
        rules_of(tool)
    assert caught.value.field == field
    assert word in caught.value.message
    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize(
    ("after", "unknown", "cycle"),
    [
        ({}, None, None),
        ({"a": ["b"], "b": ["c"]}, None, None),
        ({"a": ["b", "d"]}, ("a", "d"), None),
        ({"a": ["a"]}, None, {"a"}),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, None, {"a", "b", "c"}),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, None, {"b", "c"}),
    ],
)
def test_an_impossible_order_is_found(
    after: dict[str, list[str]], unknown: tuple[str, str] | None, cycle: set[str] | None
) -> None:
    rules = {name: {"after": names} for name, names in after.items()}
    assert unknown_in_order(rules, ["a", "b", "c"]) == unknown
    found = cycle_in_order(rules)
    assert (found and set(found)) == cycle
    if found:
        assert found[0] == found[-1]
