"""Each line of SECURITY.md and docs/guarantees.md names tests, and these are there."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["SECURITY.md", "docs/guarantees.md"]


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
    return (ROOT / path).exists() and (not test or test in defined_in(ROOT / path))


def named_in(text: str) -> list[str]:
    return re.findall(r"`(tests/[^`]*)`", text)


def rows_of(page: str) -> list[list[str]]:
    """The rows of the tables whose last column is `test`."""
    tables = re.findall(r"(?:^\|.*\|\n)+", (ROOT / page).read_text(), re.MULTILINE)
    found = [[[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()] for table in tables]
    return [row for head, _, *rows in found if head[-1] == "test" for row in rows]


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = named_in(text)
    assert named
    assert [one for one in named if not is_there(one)] == []
    assert len(named) == text.count("`tests/"), "each is between backticks"


@pytest.mark.parametrize("page", PAGES)
def test_every_line_of_a_table_names_a_test(page: str) -> None:
    rows = rows_of(page)
    assert len(rows) > 20
    assert [row for row in rows if len(row) != 3 or not any("::" in one for one in named_in(row[-1]))] == []


def test_every_attacker_has_a_table() -> None:
    model = (ROOT / "SECURITY.md").read_text().partition("\n## Threat model\n")[2].partition("\n## ")[0]
    parts = model.split("\n### ")[1:]
    assert len(parts) >= 6
    assert [part.partition("\n")[0] for part in parts if "| threat | what toolgraft does | test |" not in part] == []


@pytest.mark.parametrize(
    ("named", "there"),
    [
        ("tests/security/test_pages_name_tests.py", True),
        ("tests/security/test_pages_name_tests.py::test_every_attacker_has_a_table", True),
        ("tests/security/test_pages_name_tests.py::test_that_is_gone", False),
        ("tests/security/test_pages_name_tests.py::named_in", False),
        ("tests/security/test_gone.py::test_every_attacker_has_a_table", False),
    ],
)
def test_a_missing_test_is_noticed(named: str, there: bool) -> None:
    assert is_there(named) is there
