"""The lines of keys and items: against documents that were written together with their lines."""

import json
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.located import KeyPath
from addon.core.toml_lines import TomlError, parse_toml

keys = st.text("ab", min_size=1, max_size=2) | st.sampled_from(["a.b", "ä b", "[x]", 'q"', "#", "", "="])
scalars = st.integers(-9, 9) | st.booleans() | st.text('a"\n#[]{},=\\', max_size=5) | st.sampled_from(["'''", '"""'])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
documents = st.dictionaries(keys, values, max_size=4)


class Writer:
    """Writes a document as TOML, in one of its many forms, and notes where each value is."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw
        self.text = ""
        self.lines: dict[KeyPath, int] = {}

    def _one_of(self, *texts: str) -> str:
        found: str = self._draw(st.sampled_from(texts))
        return found

    def _note(self, path: KeyPath) -> None:
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def _key(self, key: str) -> str:
        is_bare = key.isascii() and key.isalnum()
        literal = f"'{key}'" if "'" not in key else json.dumps(key)
        return self._one_of(json.dumps(key), literal, *([key] if is_bare else []))

    def _gap(self) -> None:
        self.text += self._one_of("", " ", "\t", "\n", "\n\n", " # a ] comment = [\n", "\r\n")

    def _value(self, path: KeyPath, value: Any) -> None:
        if isinstance(value, list):
            self.text += "["
            for index, item in enumerate(value):
                self._gap()
                self._note((*path, index))
                self._value((*path, index), item)
                self._gap()
                self.text += "," if index < len(value) - 1 else self._one_of("", ",")
            self._gap()
            self.text += "]"
        elif isinstance(value, dict):
            self.text += "{ "
            for index, (key, item) in enumerate(value.items()):
                self.text += ", " if index else ""
                self._pair(path, key, item)
            self.text += " }"
        elif isinstance(value, str):
            quoted = json.dumps(value)[1:-1]
            forms = [f'"{quoted}"', f'"""{quoted}"""', f'"""\n{quoted}"""']
            if "\\" not in value:
                forms.append(f'"""\n{quoted.replace("\\n", "\n")}"""')
            if "'" not in value:
                forms.append(f"'''\n{value}'''")
            self.text += self._one_of(*forms)
        else:
            self.text += json.dumps(value)

    def _pair(self, table: KeyPath, key: str, value: Any) -> None:
        """`key = value`, or the dotted form for a table with one value."""
        path: KeyPath = (*table, key)
        self._note(path)
        self.text += self._key(key)
        while isinstance(value, dict) and len(value) == 1 and self._draw(st.booleans()):
            ((key, value),) = value.items()
            path = (*path, key)
            self._note(path)
            self.text += self._one_of(".", " . ") + self._key(key)
        self.text += self._one_of("=", " = ")
        self._value(path, value)

    def _header(self, path: KeyPath, *, is_list: bool) -> None:
        names = self._one_of(".", " . ").join(self._key(part) for part in path if isinstance(part, str))
        self.text += f"[[{names}]]" if is_list else f"[{names}]"
        self._end()

    def _end(self) -> None:
        self.text += self._one_of("\n", " # [comment]\n", "\r\n", "\n\n")

    def table(self, path: KeyPath, table: Mapping[str, Any]) -> None:
        """The pairs of a table, then the tables in it, each inline or below a header of its own."""
        later = []
        for key, value in table.items():
            is_list = isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
            if (isinstance(value, dict) or is_list) and self._draw(st.booleans()):
                later.append((key, value))
            else:
                self._pair(path, key, value)
                self._end()
        for key, value in later:
            self._note((*path, key))
            if isinstance(value, dict):
                self._header((*path, key), is_list=False)
                self.table((*path, key), value)
                continue
            for index, item in enumerate(value):
                self._note((*path, key, index))
                self._header((*path, key), is_list=True)
                self.table((*path, key, index), item)


@given(document=documents, data=st.data())
def test_every_key_and_item_has_the_line_on_which_it_was_written(document: dict[str, Any], data: st.DataObject) -> None:
    writer = Writer(data.draw)
    writer.table((), document)
    found = parse_toml(writer.text)
    assert found.values == document
    assert found.lines == writer.lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a.b]\n[a]\nc = 1\n", {("a",): 2, ("a", "b"): 1, ("a", "c"): 3}),
        ("[[a]]\n[a.b]\n\n[[a]]\n[a.b]\nc = 1", {("a", 1, "b", "c"): 6, ("a", 0, "b"): 2, ("a",): 1}),
        ("a = 1979-05-27 07:32:00Z # x\nb = 07:32:00\nc = +inf\n", {("a",): 1, ("b",): 2, ("c",): 3}),
        ('a = \'\'\'\n\'\'\'\'\nb = """\n"""""\nc = 1', {("a",): 1, ("b",): 3, ("c",): 5}),
        ("\n# only a comment", {}),
    ],
)
def test_forms_that_are_rare(text: str, expected: dict[KeyPath, int]) -> None:
    lines = parse_toml(text).lines
    assert {path: lines.get(path) for path in expected} == expected


def test_the_line_of_a_value_that_the_text_does_not_have_is_that_of_the_innermost_one_around_it() -> None:
    found = parse_toml("\n[a]\n\nb = 1\n")
    assert (found.line_of(("a", "b", "c")), found.line_of(("a", "x")), found.line_of(("y",))) == (4, 2, 1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb =\n", 2),
        ("a = 1\n\na = 2\n", 3),
        ("a = 1\n[", 2),
        ('a = """\n\nb', 3),
        ("a = " + "[" * 50_000, 1),
        ("a." * 2000 + "a = 1", 1),
    ],
    ids=["no value", "twice", "open header", "open string", "deep", "long key"],
)
def test_what_is_not_toml_is_an_error_with_its_line(text: str, line: int) -> None:
    with pytest.raises(TomlError) as found:
        parse_toml(text)
    assert found.value.line == line


@given(st.text("ab.=[]{}\"'#,\n\r 1\\", max_size=40))
def test_any_text_is_a_document_or_an_error(text: str) -> None:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(TomlError):
            parse_toml(text)
    else:
        assert parse_toml(text).values == values
