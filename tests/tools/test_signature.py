"""Functions as tools: declarations from signatures and docstrings, and converted arguments."""

import dataclasses
import datetime
import enum
import inspect
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, Field

from addon.tools.base import RunRules, SourceError, ToolError, mark_of, tool
from addon.tools.python import Function, read
from addon.tools.schema_checks import problems


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@dataclasses.dataclass
class Point:
    lat: float
    lon: float = 0.0


class Place(BaseModel):
    name: str = Field(description="Its name.")
    at: Point | None = None


class Options(TypedDict):
    verbose: bool
    level: NotRequired[int]


class Tree(BaseModel):
    children: list["Tree"] = []


def read_tool(function: Callable[..., Any]) -> Function:
    return read(function, mark_of(function), "tools.py")


def google(city: str, days: int = 1) -> None:
    """Get the weather.

    It is mostly right.

    Args:
        city: Where, as in
            Rome.
        days (int): How many.

    Returns:
        dict: What it is like.
    """


def numpy(city: str, days: int = 1) -> None:
    """Get the weather.

    It is mostly right.

    Parameters
    ----------
    city : str
        Where, as in
        Rome.
    days : int, optional
        How many.

    Returns
    -------
    dict
        What it is like.
    """


def rest(city: str, days: int = 1) -> None:
    """Get the weather.

    It is mostly right.

    :param city: Where, as in
        Rome.
    :param int days: How many.
    :returns: What it is like.
    """


@pytest.mark.parametrize("function", [google, numpy, rest], ids=["Google", "NumPy", "reST"])
def test_descriptions_come_from_the_docstring_in_any_style(function: Callable[..., Any]) -> None:
    assert read_tool(function).tool.declaration == {
        "name": function.__name__,
        "description": "Get the weather.\n\nIt is mostly right.\n\nReturns: What it is like.",
        "parameters": {
            "type": "OBJECT",
            "properties": {
                "city": {"type": "STRING", "description": "Where, as in Rome."},
                "days": {"type": "INTEGER", "description": "How many.", "default": 1},
            },
            "required": ["city"],
        },
    }


def test_a_field_s_own_description_is_kept() -> None:
    def function(a: Annotated[int, Field(ge=1, description="own")], b: int = Field(3, le=9)) -> None:
        """Do.

        Args:
            a: other
            b: documented
        """

    assert read_tool(function).tool.schema["properties"] == {
        "a": {"type": "integer", "minimum": 1, "description": "own"},
        "b": {"type": "integer", "maximum": 9, "default": 3, "description": "documented"},
    }


PLACE = {
    "type": "object",
    "title": "Place",
    "properties": {
        "name": {"type": "string", "description": "Its name."},
        "at": {
            "anyOf": [
                {
                    "type": "object",
                    "title": "Point",
                    "properties": {"lat": {"type": "number"}, "lon": {"type": "number", "default": 0.0}},
                    "required": ["lat"],
                },
                {"type": "null"},
            ],
            "default": None,
        },
    },
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("hint", "schema", "given", "value"),
    [
        (str, {"type": "string"}, "x", "x"),
        (int, {"type": "integer"}, 5.0, 5),
        (float, {"type": "number"}, 5, 5.0),
        (bool, {"type": "boolean"}, True, True),
        (list[int], {"type": "array", "items": {"type": "integer"}}, [1, 2.0], [1, 2]),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": 1}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, "b", "b"),
        (Literal["a"], {"type": "string", "enum": ["a"]}, "a", "a"),
        (Unit, {"type": "string", "enum": ["c", "f"], "title": "Unit"}, "f", Unit.FAHRENHEIT),
        (datetime.date, {"type": "string", "format": "date"}, "2026-01-31", datetime.date(2026, 1, 31)),
        (
            datetime.datetime,
            {"type": "string", "format": "date-time"},
            "2026-01-31T12:00:00Z",
            datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC),
        ),
        (Place, PLACE, {"name": "Rome", "at": {"lat": 42}}, Place(name="Rome", at=Point(42.0))),
        (
            Options,
            {
                "type": "object",
                "title": "Options",
                "properties": {"verbose": {"type": "boolean"}, "level": {"type": "integer"}},
                "required": ["verbose"],
            },
            {"verbose": True},
            {"verbose": True},
        ),
        (Any, {}, [1], [1]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_type_is_a_schema_and_what_fits_it_becomes_that_type(
    hint: Any, schema: dict[str, Any], given: Any, value: Any
) -> None:
    def function(x) -> None:  # type: ignore[no-untyped-def]
        """Do."""

    function.__annotations__["x"] = hint
    found = read_tool(function)
    assert found.tool.schema == {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    assert problems(found.tool.schema, {"x": given}, "f") == []
    assert found.arguments({"x": given}) == {"x": value}


def test_a_schema_that_holds_itself_keeps_its_references() -> None:
    def function(tree: Tree) -> None:
        """Do."""

    schema = read_tool(function).tool.declaration["parametersJsonSchema"]
    assert schema["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert read_tool(function).arguments({"tree": {"children": [{}]}}) == {"tree": Tree(children=[Tree()])}


def test_a_function_without_parameters_declares_none() -> None:
    def function() -> None:
        """Do."""

    assert read_tool(function).tool.declaration == {"name": "function", "description": "Do."}
    assert read_tool(function).arguments({}) == {}


def test_defaults_are_filled_in_and_names_that_pydantic_uses_are_fine() -> None:
    def function(schema: int, copy: int = 2, *, model_config: int | None = None) -> None:
        """Do."""

    assert read_tool(function).arguments({"schema": 1}) == {"schema": 1, "copy": 2, "model_config": None}


def test_hints_in_quotes_are_read() -> None:
    def function(unit: "Unit") -> None:
        """Do."""

    assert read_tool(function).arguments({"unit": "c"}) == {"unit": Unit.CELSIUS}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "`city`: is missing"),
        ({"city": 5}, "`city`: Input should be a valid string"),
        ({"city": "x", "town": 1}, "`town`: is unknown"),
        ({"city": "x", "days": "many"}, "`days`: Input should be a valid integer"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_told_to_the_model(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolError, match=r"^the arguments do not fit: ") as raised:
        read_tool(google).arguments(args)
    assert words in str(raised.value)


def test_the_decorator_renames_describes_and_rules() -> None:
    @tool(name="other", description="Otherwise.", timeout=5, after=["login"])
    def function() -> None: ...

    found = read_tool(function).tool
    assert found.declaration == {"name": "other", "description": "Otherwise."}
    assert found.rules == RunRules(timeout=5, after=("login",))


def no_hint(a: int, city) -> None:  # type: ignore[no-untyped-def]
    """Do."""


def any_number(*cities: str) -> None:
    """Do."""


def any_names(**cities: str) -> None:
    """Do."""


def positional(city: str, /) -> None:
    """Do."""


def callback(then: Callable[[], None]) -> None:
    """Do."""


def unknown(it: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Do."""


def foreign(it: inspect.Signature) -> None:
    """Do."""


def yields() -> Any:
    """Do."""
    yield 1


@tool
def bare(a: int) -> None: ...


@tool(name="no spaces")
def renamed() -> None:
    """Do."""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_hint, "parameter `city` has no type hint; add one, such as `city: str`"),
        (any_number, "parameter `cities` takes any number of arguments"),
        (any_names, "parameter `cities` takes any number of arguments"),
        (positional, "parameter `city` is positional-only"),
        (callback, "parameter `then` has a type that JSON cannot carry"),
        (foreign, "parameter `it` has a type that JSON cannot carry"),
        (unknown, "its type hints cannot be read: NameError: name 'Missing'"),
        (yields, "is a generator; a tool must return its result"),
        (bare, "has no docstring"),
        (renamed, "name is 'no spaces'; a name is a letter"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_function_that_cannot_be_a_tool_is_named_with_file_line_and_parameter(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(SourceError) as raised:
        read_tool(function)
    line = function.__code__.co_firstlineno
    assert str(raised.value).startswith(f"tools.py:{line}: {function.__name__}()")
    assert words in str(raised.value)


def test_a_decimal_may_be_given_as_either_kind() -> None:
    def function(amount: Decimal) -> None:
        """Pay."""

    assert read_tool(function).arguments({"amount": "1.10"}) == {"amount": Decimal("1.10")}
