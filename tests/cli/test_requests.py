"""`toolgraft requests`."""

import json

import pytest

from addon.core.summaries import CallSummary, Summary
from store.models import Toolset
from tests.cli.conftest import Cli, Proxy
from tests.cli.test_calls import watching
from tests.monitoring.test_kept_requests import URL, bodies


@pytest.fixture
def request_id(proxy: Proxy) -> str:
    summary = Summary("work", model="a\x1b[2Jb", calls=[CallSummary("lookup", {}, "done", 0.1)], prompt=1200, output=30)
    recent = proxy.app.api.recent
    recent.begin(summary, bodies(b'{"contents": []}', b'{"contents": [], "tools": []}'))
    summary.status, summary.seconds = 200, 1.9
    recent.end(summary)
    return str(recent.records()[0]["request_id"])


def test_requests_have_a_line_each(cli: Cli, request_id: str) -> None:
    _, line = cli("requests").stdout.splitlines()
    cells = line.split()
    assert cells[0] == request_id
    assert cells[2:] == ["work", "a\\x1b[2Jb", "done", "200", "1", "1.2k→30", "1.9", "s", "lookup"]
    assert cli("requests", "--session", "other").stdout.splitlines()[1:] == []
    assert [one["request_id"] for one in json.loads(cli("requests", "--json").stdout)] == [request_id]


def test_one_request_with_what_was_put_in(cli: Cli, proxy: Proxy, request_id: str) -> None:
    assert '+  "tools": []' in cli("requests", request_id).stdout
    assert json.loads(cli("requests", request_id, "--body", "client").stdout) == {"contents": []}
    assert cli("requests", request_id, "--curl", "sent").stdout.startswith(f"curl -X POST {URL}")
    proxy.run(proxy.store.put_toolset("work", Toolset(declarations=[{"name": "lookup", "description": "Look."}])))
    assert '+          "name": "lookup"' in cli("requests", request_id, "--replay").stdout


@pytest.mark.e2e
@pytest.mark.parametrize("as_json", [True, False])
def test_watch_has_a_line_for_each_beginning_and_each_end(proxy: Proxy, request_id: str, as_json: bool) -> None:
    async def begin(summary: Summary) -> None:
        proxy.app.api.recent.begin(summary)

    async def end(summary: Summary) -> None:
        summary.status = 200
        proxy.app.api.recent.end(summary)

    with watching("requests", *["--json"] * as_json) as (stdout, _):
        lines = [stdout.readline()]
        running, other = Summary("work"), Summary("other")
        for change in (begin(running), begin(other)):
            proxy.run(change)
            lines.append(stdout.readline())
        proxy.run(end(running))
        lines.append(stdout.readline())
    if as_json:
        found = [(record["session"], record["state"]) for record in map(json.loads, lines)]
    else:
        found = [(line.split()[2], "running" if " running " in line else "done") for line in lines]
    assert found == [("work", "done"), ("work", "running"), ("other", "running"), ("work", "done")]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--replay",), 2, "needs the id of a request"),
        (("req_1", "--replay", "--body", "sent"), 2, "cannot be combined"),
        (("req_1", "--watch"), 2, "cannot be combined"),
        (("req_1",), 1, "there is no such request"),
        (("req_1", "--body", "both"), 2, "both"),
    ],
)
def test_mistakes_are_named(cli: Cli, proxy: Proxy, arguments: tuple[str, ...], status: int, message: str) -> None:
    done = cli("requests", *arguments, status=status)
    assert message in done.stderr
