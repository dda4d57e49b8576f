"""Each threat of SECURITY.md and each promise of docs/guarantees.md has tests (threats.toml, promises.toml)."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {"SECURITY.md": ("threats.toml", 8 * 1024), "docs/guarantees.md": ("promises.toml", 11 * 1024)}
"""Each page, the file that names its tests, and the most bytes of the page."""


@cache
def defined_in(path: Path) -> set[str]:
    """The tests of a file as pytest names them: those of a class with its name before them."""

    def found(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for one in body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_"):
                yield prefix + one.name
            elif isinstance(one, ast.ClassDef) and one.name.startswith("Test"):
                yield from found(one.body, f"{prefix}{one.name}::")

    return set(found(ast.parse(path.read_text()).body, ""))


def is_there(named: str) -> bool:
    path, _, test = named.partition("::")
    return (ROOT / path).is_file() and test in defined_in(ROOT / path)


def rows_of(text: str) -> list[tuple[str, str]]:
    """The heading and the first cell of each row of the page's tables."""
    found = []
    for part in re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]:
        for table in re.findall(r"(?:^\|.*\|\n)+", part, re.MULTILINE):
            found += [(part.partition("\n")[0], row[1:].split("|")[0].strip()) for row in table.splitlines()[2:]]
    return found


def mapping_of(page: str) -> dict[tuple[str, str], list[str]]:
    file, _ = PAGES[page]
    parts = tomllib.loads((Path(__file__).parent / file).read_text())
    return {(heading, row): tests for heading, rows in parts.items() for row, tests in rows.items()}


@pytest.mark.parametrize("page", PAGES)
def test_every_row_of_a_page_has_tests_and_no_other_has(page: str) -> None:
    rows = rows_of((ROOT / page).read_text())
    assert len(rows) > 30
    assert rows == list(mapping_of(page)), "in the order of the page"


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_is_named_is_there(page: str) -> None:
    mapping = mapping_of(page)
    assert [row for row, tests in mapping.items() if not tests or len(set(tests)) < len(tests)] == []
    assert [one for tests in mapping.values() for one in tests if not is_there(one)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_names_no_test(page: str) -> None:
    text = (ROOT / page).read_text()
    assert len(text.encode()) <= PAGES[page][1]
    assert "tests/" not in text


@pytest.mark.parametrize(
    ("named", "there"),
    [
        ("tests/security/test_pages_name_tests.py::test_every_test_that_is_named_is_there", True),
        ("tests/security/test_pages_name_tests.py::test_that_is_gone", False),
        ("tests/security/test_pages_name_tests.py::rows_of", False),
        ("tests/security/test_pages_name_tests.py", False),
        ("tests/security/test_gone.py::test_every_test_that_is_named_is_there", False),
    ],
)
def test_a_missing_test_is_noticed(named: str, there: bool) -> None:
    assert is_there(named) is there


def test_rows_are_found_by_heading() -> None:
    table = "| a | b |\n|---|---|\n"
    text = f"# Page\n\n## One\n\n{table}| x | y |\n\n### Two\n\n{table}| x | z |\n| w | |\n"
    assert rows_of(text) == [("One", "x"), ("Two", "x"), ("Two", "w")]
