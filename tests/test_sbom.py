"""scripts/sbom.py lists the packages that the proxy needs, and a validator of CycloneDX accepts the list."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("sbom") / "sbom.json"
    subprocess.run([sys.executable, "-E", "-s", str(ROOT / "scripts/sbom.py"), str(file)], check=True, timeout=60)
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def components(text: str) -> dict[str, Any]:
    return {one["name"]: one for one in json.loads(text)["components"]}


def wanted(layer: str) -> set[str]:
    """Names of the requirements of pyproject.toml, and of all that they need without an extra."""
    command = [sys.executable, str(ROOT / "scripts/requirements.py"), layer]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found: set[str] = set()
    while lines:
        requirement = Requirement(lines.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            lines += metadata.requires(name) or []
    return found


def test_it_is_valid(text: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_all_that_is_needed_at_run_time_is_in_it_and_nothing_else(components: dict[str, Any]) -> None:
    assert wanted("runtime") <= components.keys()
    assert not {"pytest", "mypy", "ruff", "hypothesis", "openai", "cyclonedx-python-lib"} & components.keys()


def test_the_versions_are_those_that_are_installed_and_pinned(components: dict[str, Any]) -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pinned = {str(canonicalize_name(name)): version for name, version in pins.items()}
    for name, one in components.items():
        assert one["version"] == metadata.version(name) == pinned[name]
        assert one["purl"] == f"pkg:pypi/{name}@{one['version']}"


def test_the_dependencies_are_listed_and_all_belong_to_the_project(text: str, components: dict[str, Any]) -> None:
    document = json.loads(text)
    needs = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    project = document["metadata"]["component"]
    assert project["name"] == "toolgraft"
    reached, to_see = set[str](), [project["bom-ref"]]
    while to_see:
        for ref in needs[to_see.pop()]:
            if ref not in reached:
                reached.add(ref)
                to_see.append(ref)
    assert reached == {one["bom-ref"] for one in components.values()}


def test_most_licenses_are_known(components: dict[str, Any]) -> None:
    assert sum("licenses" in one for one in components.values()) > len(components) / 2


def test_nothing_of_this_machine_is_in_it(text: str) -> None:
    for place in (str(ROOT), sys.prefix, sys.base_prefix, str(Path.home()), "file:", "site-packages"):
        assert place not in text
