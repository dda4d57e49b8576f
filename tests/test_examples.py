"""The examples: each is loaded as the proxy loads it, and its tools run."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.core.tools.tool_forms import normalise
from addon.tools import ToolError
from addon.tools.base import ToolSource
from addon.tools.combined import Combined, prefixed
from addon.tools.http_endpoint import HttpExecutor
from addon.tools.mcp_config import read_servers
from addon.tools.mcp_servers import McpSource
from addon.tools.python import PythonSource
from addon.tools.schema_checks import problems
from tests.plain_http import NO_TLS

EXAMPLES = Path(__file__).parents[1] / "examples"


async def run(source: ToolSource, name: str, **args: Any) -> Any:
    """A call, its arguments checked as the proxy checks them."""
    (tool,) = [tool for tool in await source.list_tools() if tool.name == name]
    assert problems(tool.schema, args, tool.name) == []
    return await source.call(name, args, call_id="call_1")


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGRAFT_PYTHON", sys.executable)
    monkeypatch.chdir(EXAMPLES.parent)


def test_each_of_them_is_in_their_readme() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert [
        path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".json", ".mjs") and path.name not in page
    ] == []


# --- a Python file ------------------------------------------------------------------------------------------------


@pytest.fixture
def without_pauses(tmp_path: Path) -> Path:
    text = (EXAMPLES / "weather.py").read_text()
    assert "PAUSE = 0.5" in text
    path = tmp_path / "weather.py"
    path.write_text(text.replace("PAUSE = 0.5", "PAUSE = 0"))
    return path


async def test_the_weather_of_a_place_comes_from_its_coordinates(without_pauses: Path) -> None:
    async with PythonSource(without_pauses) as weather:
        assert [tool.name for tool in await weather.list_tools()] == ["get_coordinates", "get_weather"]
        oslo = await run(weather, "get_coordinates", place="Oslo")
        assert await run(weather, "get_weather", **oslo) == {"sky": "snow", "celsius": -3}
        assert await run(weather, "get_weather", **oslo, unit="fahrenheit") == {"sky": "snow", "fahrenheit": 26.6}


async def test_a_place_that_is_not_known_is_told_to_the_model(without_pauses: Path) -> None:
    async with PythonSource(without_pauses) as weather:
        with pytest.raises(ToolError, match="Atlantis is unknown; known places: cairo, london"):
            await run(weather, "get_coordinates", place="Atlantis")
        with pytest.raises(ToolError, match="no weather station"):
            await run(weather, "get_weather", latitude=0, longitude=-150)


async def test_docstrings_describe_the_parameters_and_the_mark_says_how_a_tool_is_run() -> None:
    async with PythonSource(EXAMPLES / "weather.py") as weather:
        coordinates, forecast = await weather.list_tools()
    place = coordinates.declaration["parameters"]["properties"]["place"]
    assert place["description"] == "The name of a city, such as Oslo."
    assert (forecast.rules.idempotent, forecast.rules.cache_ttl, forecast.rules.timeout) == (True, 600, 5)


# --- an MCP server ------------------------------------------------------------------------------------------------


@pytest.mark.e2e
async def test_the_mcp_server_starts_and_its_tools_have_their_prefix() -> None:
    servers = read_servers(EXAMPLES / "mcp.json").items()
    async with Combined([prefixed(McpSource(name, one), one.prefix) for name, one in servers]) as travel:
        flights, sights = await travel.list_tools()
        assert (flights.name, sights.name) == ("travel_find_flights", "travel_get_sights")
        assert (flights.rules.idempotent, flights.rules.cache_ttl, flights.rules.timeout) == (True, 300, 10)
        found = await run(travel, "travel_find_flights", origin="Oslo", destination="Cairo")
        assert found["result"][0] == {"number": "OC101", "departs": "07:20", "price": 121}
        assert (await run(travel, "travel_get_sights", city="Oslo"))["result"][0] == "Oslo Museum"
        with pytest.raises(ToolError, match="the same city"):
            await run(travel, "travel_find_flights", origin="Oslo", destination="Oslo")


# --- a worker -----------------------------------------------------------------------------------------------------


async def test_the_worker_s_file_is_a_file_of_tools() -> None:
    async with PythonSource(EXAMPLES / "worker.py") as worker:
        assert (await run(worker, "get_machine"))["processors"]
        counted = await run(worker, "count_words", text="to be or not to be", most_common=1)
        assert counted == {"words": 6, "most_common": {"to": 2}}


# --- an HTTP endpoint ---------------------------------------------------------------------------------------------


@pytest.fixture
def endpoint() -> Iterator[str]:
    command = [sys.executable, str(EXAMPLES / "http_tool.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().removeprefix("listening on ").strip()
        finally:
            process.terminate()


def declared() -> dict[str, Any]:
    (tool,) = json.loads((EXAMPLES / "http_tool.json").read_text())["tools"]
    assert isinstance(tool, dict)
    return tool


def test_the_declaration_of_the_http_tool_is_one_that_gemini_takes() -> None:
    rules = ("executor", "timeout", "retries", "idempotent")
    bare = {key: value for key, value in declared().items() if key not in rules}
    (declaration,) = normalise({"tools": [bare]}).declarations
    assert declaration["parameters"]["required"] == ["amount", "source", "target"]


@pytest.mark.e2e
async def test_the_http_tool_answers_as_its_declaration_says(endpoint: str) -> None:
    executor = declared()["executor"]
    assert executor["url"].rpartition(":")[2] == "9321/run"
    async with httpx2.AsyncClient(verify=NO_TLS, trust_env=False) as client:
        tool = HttpExecutor(executor | {"url": endpoint}, client)
        args = {"amount": 100, "source": "EUR", "target": "NOK"}
        assert await tool.call("convert_currency", args, call_id="call_1") == {"amount": 1150.0, "currency": "NOK"}
        refused = await tool.call("convert_currency", args | {"target": "XXX"}, call_id="call_2")
        assert refused["error"].startswith("'XXX' is unknown; known currencies: ")


# --- those of the documentation -------------------------------------------------------------------------------------


def blocks(page: str, language: str) -> list[str]:
    text = (EXAMPLES.parent / "docs" / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


async def test_the_tools_file_of_the_documentation_is_one(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(blocks("tools.md", "python")[0])
    async with PythonSource(file) as source:
        assert await run(source, "get_weather", city="Oslo") == {"celsius": -3.0}


def test_the_mcp_file_of_the_documentation_is_one(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(blocks("tools.md", "json")[0])
    servers = read_servers(file, {"TICKETS_TOKEN": "t"})
    assert (servers["travel"].prefix, servers["tickets"].headers) == ("travel_", {"Authorization": "Bearer t"})


async def test_the_tool_source_of_the_documentation_is_one() -> None:
    (source,) = [block for block in blocks("extending.md", "python") if "ToolSource" in block]
    names: dict[str, Any] = {}
    exec(f"from collections.abc import *\nfrom typing import *\nfrom addon.tools.base import *\n{source}", names)
    async with names["Shelf"]("books") as shelf:
        assert await run(shelf, "find_book", title="Emma") == {"shelf": 3}
