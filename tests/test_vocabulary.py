"""Names that did not say what they are do not come back."""

import ast
import keyword
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("addon", "store", "toolgraft", "bench", "scripts", "tests", "examples")

INSTEAD = {
    "Living": "LiveHooks",
    "Watching": "ShadowFlows",
    "Doorways": "MitmUpstreamFactory",
    "Outward": "UpstreamFactory",
    "Way": "FlowState",
    "Kept": "FlowState, or what is kept",
    "PerFlow": "FlowState",
    "_True": "TrueUrl",
    "is_worker_s": "is_worker_tool",
    "Here": "ApiDep",
    "Mounted": "ExtraRoutes",
    "Audience": "while_connected",
    "Wanted": "ResponsesRequest",
    "CallStands": "CallStateError",
    "free_at": "claimable_at",
    "held": "approval_required, or what waits for what",
    "Scope": "SessionConfig",
    "Answer": "AnswerRewriter, or whose answer",
    "again": "next_request, or what is done again",
    "inside": "unwrap",
    "as_came": "passthrough_event",
    "came": "raw, or what arrived",
    "seen": "visible, or what was read",
    "said": "true, or the answer, text, message …",
    "shown": "visible, or the output",
    "told": "true, or the answer, writes, responses …",
}
"""Old names, with or without underscores around them, and what to write instead."""

EXCEPTIONS = {
    ("Scope", "starlette.types"): "ASGI's own name: allowed if it is imported from there",
    ("Answer", "addon/control/routes/calls.py"): "the name of a schema in the control API's OpenAPI document",
    ("Answer", "addon.control.routes.calls"): "the same name, imported from there",
    ("seen", "store/backends/_clocks.py"): "a field of the stored note of the clocks",
    ("seen", "store/backends/_sqlite_base.py"): "the same field",
    ("seen", "store/backends/sqlite.py"): "the same field",
}

MODULES = {
    "addon/hooks/clients.py": "upstream_flows.py",
    "addon/cli/serving.py": "worker_client.py",
    "addon/cli/clients.py": "env.py",
    "addon/gateway/serving.py": "streaming.py",
    "addon/gateway/threads.py": "conversations.py",
    "addon/tools/threads.py": "daemon_pool.py",
    "addon/tools/rules.py": "base.py",
    "addon/graft/births.py": "initial_states.py",
    "addon/graft/splice.py": "rounds.py",
    "addon/hooks/dispatch.py": "hook_cache.py",
    "addon/hooks/onward.py": "destinations.py",
    "addon/loop/outside.py": "call_results.py",
    "addon/tools/connections.py": "http_connections.py",
    "addon/tools/endpoint.py": "http_endpoint.py",
    "addon/web/connections.py": "server.py",
    "addon/core/tools/tools.py": "tool_plan.py",
    "addon/core/tools/toolset.py": "tool_forms.py",
    "addon/core/tools/execution.py": "tool_rules.py",
}

_CANDIDATE = re.compile(
    rf"(?:^|[^\w\s]|\b(?:{'|'.join(keyword.kwlist)}))\s*_*(?:{'|'.join(INSTEAD)})_*\b", re.MULTILINE
)
"""An identifier follows punctuation or a keyword; most words of prose do not, and their modules need no parsing."""


def _names(node: ast.AST) -> Iterator[str | None]:
    match node:
        case ast.Name():
            yield node.id
        case ast.Attribute():
            yield node.attr
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.arg() | ast.keyword():
            yield node.arg
        case ast.alias():
            yield from (node.asname, node.name.rpartition(".")[2])
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() | ast.TypeVar():
            yield node.name
        case ast.MatchMapping():
            yield node.rest


def test_no_identifier_has_an_old_name() -> None:
    found, excepted = [], set()
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        text, place = path.read_text("utf-8"), path.relative_to(ROOT).as_posix()
        if not _CANDIDATE.search(text):
            continue
        tree = ast.parse(text)
        origins = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
        for node in ast.walk(tree):
            for name in _names(node):
                if name is None or (old := name if name == "_True" else name.strip("_")) not in INSTEAD:
                    continue
                reasons = {(old, where) for where in (place, *origins)} & EXCEPTIONS.keys()
                excepted |= reasons
                if not reasons:
                    found.append(f"{place}:{getattr(node, 'lineno', '')}: {name}: {INSTEAD[old]}")
    assert not found, "\n".join(found)
    assert excepted == EXCEPTIONS.keys(), "an exception that is no longer needed"


def test_no_module_has_an_old_name() -> None:
    assert [f"{path}: {instead}" for path, instead in MODULES.items() if (ROOT / path).exists()] == []
