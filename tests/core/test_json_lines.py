"""The lines of keys and items of JSON: against documents that were written together with their lines."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from addon.core.json_lines import json_lines
from addon.core.located import KeyPath

keys = st.text('ab"\\{}[],:\n', max_size=3)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('a"\\]},\n', max_size=4)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
gaps = st.sampled_from(["", " ", "\n", "\r\n", "\n\n\t"])


class Writer:
    """Writes a document as JSON, with odd white space, and notes where each value is."""

    def __init__(self, gap: Callable[[], str]) -> None:
        self._gap = gap
        self.text = ""
        self.lines: dict[KeyPath, int] = {}

    def _note(self, path: KeyPath) -> None:
        self.lines[path] = self.text.count("\n") + 1

    def value(self, path: KeyPath, value: Any) -> None:
        if not isinstance(value, dict | list):
            self.text += json.dumps(value)
            return
        is_list = isinstance(value, list)
        self.text += "[" if is_list else "{"
        items: Any = enumerate(value) if isinstance(value, list) else value.items()
        for number, (key, item) in enumerate(items):
            self.text += (self._gap() + "," if number else "") + self._gap()
            self._note((*path, key))
            if not is_list:
                self.text += json.dumps(key) + self._gap() + ":" + self._gap()
            self.value((*path, key), item)
        self.text += self._gap() + ("]" if is_list else "}")


@given(value=values, data=st.data())
def test_every_key_and_item_has_the_line_on_which_it_was_written(value: Any, data: st.DataObject) -> None:
    writer = Writer(lambda: data.draw(gaps))
    writer.text = data.draw(gaps)
    writer.value((), value)
    assert json.loads(writer.text) == value
    assert json_lines(writer.text + data.draw(gaps)) == writer.lines
