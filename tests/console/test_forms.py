"""The fields of a schema, and the value of what is entered in them."""

import contextlib
from typing import Any

import httpx2
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from addon.console.forms import BadFields, Field, form_of, value_of
from addon.core.tools.schema import schema_of
from addon.tools.schema_checks import problems
from store.base import Store
from store.models import Toolset
from tests.console.conftest import SignIn
from tests.control.conftest import Capture

CITY = {"type": "string"}
HOSTILE = '<script>alert(1)</script>\u202e\x1b/" *'


def form(schema: Any) -> Field:
    found = form_of(schema)
    assert found is not None
    return found


def entered(schema: Any, **fields: str) -> Any:
    return value_of(form(schema), {f"value{name}": text for name, text in fields.items()})


def of(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (CITY, " Oslo\n", " Oslo\n"),
        (CITY, "3", "3"),
        (of("integer"), "12345678901234567891", 12345678901234567891),
        (of("integer"), " -3 ", -3),
        (of("number"), "3", 3),
        (of("number"), "-0.5e1", -5.0),
        (of("boolean"), "false", False),
        ({"enum": ["a", 1, None]}, '"a"', "a"),
        ({"enum": ["a", 1, None]}, "1", 1),
        ({"enum": ["a", 1, None]}, "", None),
        ({"const": True}, "true", True),
        ({"type": ["integer", "null"]}, "", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": of("integer")}}, "3", 3),
    ],
)
def test_one_field_stands_for_a_plain_value(schema: Any, text: str, value: Any) -> None:
    found = value_of(form(schema), {"value": text})
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("schema", "text", "words"),
    [
        (CITY, "", "missing; an empty text can be given as JSON"),
        (of("integer"), "", "missing"),
        (of("integer"), "3.0", "whole number"),
        (of("integer"), "٣", "whole number"),
        (of("integer"), "9" * 5000, "whole number"),
        (of("number"), "NaN", "must be a number"),
        (of("number"), "1e999", "not as large"),
        (of("number"), "1_000", "must be a number"),
        (of("boolean"), "yes", "true or false"),
        ({"enum": ["a"]}, "a", "one of the choices"),
    ],
)
def test_what_does_not_fit_is_named(schema: Any, text: str, words: str) -> None:
    with pytest.raises(BadFields, match=words) as refused:
        value_of(form(schema), {"value": text})
    assert list(refused.value.problems) == ["value"]
    assert str(refused.value).startswith("the value: ")


@pytest.mark.parametrize(
    "schema",
    [
        {},
        of("object"),
        of("array"),
        {"type": ["string", "integer"]},
        {"anyOf": [CITY, of("integer")]},
        {"allOf": [CITY]},
        {"type": "string", "not": {"const": "x"}},
        {"$ref": "#/$defs/none"},
        {"$ref": "https://elsewhere.example/schema"},
        {"$ref": "#"},
        {"enum": list(range(1000))},
        of("object", properties={f"p{number}": CITY for number in range(1000)}),
        of("banana"),
        {"type": 3, "enum": 3},
    ],
)
def test_what_no_field_can_stand_for_is_left_to_json(schema: Any) -> None:
    assert form_of(schema) is None


async def test_texts_that_no_json_can_hold_break_no_page(page: httpx2.AsyncClient, app: Any) -> None:
    """A tools file or a server may have them."""
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    half = of("string", default="\ud800", description="\ud800", enum=["\ud800"])
    members = {"\ud800": half, "deep": of("string", default=deep)}
    parameters = of("object", properties=members)
    app.api.shared = lambda: [{"name": "f", "description": "\ud800", "parametersJsonSchema": parameters}]
    answer = await page.get("/console/parts/try", params={"name": "f"})
    assert answer.status_code == 200, answer.text
    assert "\\ud800" in answer.text


def test_a_schema_that_refers_to_itself_ends_as_json() -> None:
    tree = of("object", properties={"name": CITY, "child": {"$ref": "#"}})
    field = form(tree)
    for _ in range(3):
        field = field.fields[1]
        assert field.kind == "object"
    assert field.fields[1].kind == "json"


TRIP = of(
    "object",
    properties={
        "city": CITY,
        "days": of("array", items=of("integer")),
        "hotel": of("object", properties={"name": CITY, "stars": of("integer")}, required=["name"]),
        "rows": of("array", items=of("array", items=CITY)),
        "more": of("object"),
    },
    required=["city", "rows"],
)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"/city": "Oslo"}, {"city": "Oslo", "rows": []}),
        (
            {"/city": "Oslo", "/hotel/name": "", "/hotel/stars": " ", "/days/7": "1", "/days/10": "2", "/more": ""},
            {"city": "Oslo", "days": [1, 2], "rows": []},
        ),
        (
            {"/city": "Oslo", "/hotel/name": "Inn", "/more": '{"a": 12345678901234567891}'},
            {"city": "Oslo", "hotel": {"name": "Inn"}, "rows": [], "more": {"a": 12345678901234567891}},
        ),
        (
            {"/city": "Oslo", "/rows/0/0": "a", "/rows/0/1": "b", "/rows/1": "", "/rows/1/0": "c", "/rows/2": ""},
            {"city": "Oslo", "rows": [["a", "b"], ["c"], []]},
        ),
    ],
)
def test_what_is_left_empty_is_left_out(fields: dict[str, str], value: Any) -> None:
    assert entered(TRIP, **fields) == value


def test_each_wrong_field_is_named_with_its_place() -> None:
    fields = {"/days/0": "1", "/days/1": "x", "/hotel/stars": "5", "/more": "{", "/rows/0/0": ""}
    with pytest.raises(BadFields) as refused:
        entered(TRIP, **fields)
    assert set(refused.value.problems) == {
        "value/city",
        "value/days/1",
        "value/hotel/name",
        "value/more",
        "value/rows/0/0",
    }
    for words in ("city: missing", "days[1]: must be a whole number", "hotel.name: missing", "rows[0][0]: missing"):
        assert words in str(refused.value)


def test_a_field_that_the_schema_no_longer_has_is_refused() -> None:
    with pytest.raises(BadFields, match="town: the form no longer has this field"):
        entered(TRIP, **{"/city": "Oslo", "/town": "x"})


def test_any_key_has_a_name_of_its_own() -> None:
    keys = ["a/b", "a b", "", "*0", "0", "\u202e", "a%2Fb", "\x00"]
    schema = of("object", properties=dict.fromkeys(keys, CITY))
    fields = form(schema).fields
    names = [f"value/{one.segment}" for one in fields]
    assert len(set(names)) == len(keys)
    assert all(name.isascii() and name.isprintable() and " " not in name and "*" not in name for name in names)
    value = value_of(form(schema), {name: str(at) for at, name in enumerate(names)})
    assert value == {key: str(at) for at, key in enumerate(keys)}


def test_a_declaration_has_a_form_for_arguments_and_for_results() -> None:
    declaration = {
        "name": "f",
        "parameters": {"type": "OBJECT", "properties": {"a": {"type": "INTEGER", "nullable": True}}, "required": ["a"]},
        "responseJsonSchema": of("boolean"),
    }
    arguments, result = schema_of(declaration), schema_of(declaration, "response")
    assert value_of(form(arguments), {"value/a": ""}) == {"a": None}
    assert form(result).kind == "boolean"
    assert schema_of({"name": "f"}, "response") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one, max_size=3),
    max_leaves=8,
)
WORDS = st.sampled_from("type properties items enum const required anyOf oneOf allOf default $ref $defs".split())
KINDS = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
LIKE_SCHEMAS = st.recursive(
    JSON | st.builds(lambda kind: {"type": kind}, KINDS | st.lists(KINDS, max_size=2)),
    lambda one: st.dictionaries(WORDS | st.text(max_size=2), one | st.lists(one, max_size=2) | KINDS, max_size=4),
    max_leaves=12,
)
NAMES = st.lists(st.sampled_from(["value", "a", "0", "1", "/", "*0", "%2F"]), max_size=5).map("/".join)


@given(LIKE_SCHEMAS, st.dictionaries(NAMES, st.text(max_size=5), max_size=4))
def test_nothing_that_somebody_wrote_or_entered_breaks_a_form(schema: Any, fields: dict[str, str]) -> None:
    found = form_of(schema)
    if found is not None:
        with contextlib.suppress(BadFields):
            value_of(found, fields)


def plain_schemas() -> st.SearchStrategy[Any]:
    leaves = st.sampled_from([of("string"), of("integer"), of("number"), of("boolean"), {"enum": ["a", 1, "é"]}])

    def objects(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        members = st.dictionaries(st.text(max_size=3), one, min_size=1, max_size=3)
        return members.flatmap(
            lambda made: st.lists(st.sampled_from(list(made)), unique=True).map(
                lambda required: of("object", properties=made, required=required)
            )
        )

    return st.recursive(leaves, lambda one: one.map(lambda item: of("array", items=item)) | objects(one), max_leaves=5)


TEXTS = {"text": ["Oslo", " "], "integer": ["3", "-7"], "number": ["0.5", "1e3", "4"], "boolean": ["true", "false"]}


def fill(data: st.DataObject, field: Field, name: str, fields: dict[str, str]) -> None:
    """Enter something that fits in each field, or nothing in what may be left out."""
    if field.kind == "object":
        for member in field.fields:
            fill(data, member, f"{name}/{member.segment}", fields)
    elif field.kind == "list":
        assert field.item is not None
        for at in data.draw(st.lists(st.integers(0, 9), max_size=2, unique=True)):
            fields[f"{name}/{at}"] = ""
            fill(data, field.item, f"{name}/{at}", fields)
    elif field.kind == "json":
        fields[name] = ""
    else:
        fields[name] = data.draw(st.sampled_from([one for one, _ in field.choices] or TEXTS[field.kind]))


@given(plain_schemas(), st.data())
def test_what_is_entered_in_every_field_fits_the_schema(schema: Any, data: st.DataObject) -> None:
    found, fields = form_of(schema), dict[str, str]()
    assume(found is not None)
    assert found is not None
    fill(data, found, "value", fields)
    with contextlib.suppress(BadFields):  # what is nested too deeply is entered as JSON, which is left empty here
        assert problems(schema, value_of(found, fields), "a_tool") == []


# --- answering a call ------------------------------------------------------------------------------------------------

RESPONSE = {
    "type": "OBJECT",
    "properties": {
        "celsius": {"type": "NUMBER", "description": "How warm it is."},
        "sky": {"type": "STRING", "enum": ["clear", "grey"]},
        "hours": {"type": "ARRAY", "items": {"type": "INTEGER"}},
    },
    "required": ["celsius"],
}


async def tool(store: Store, response: Any = RESPONSE, session: str = "default") -> None:
    declarations = [{"name": "get_weather", "response": response}]
    await store.put_toolset(session, Toolset(declarations=declarations))


async def test_a_call_is_answered_with_a_form_of_its_response(
    page: httpx2.AsyncClient, store: Store, capture: Capture
) -> None:
    await tool(store)
    await capture("call_1", owner="hand", released=False)
    html = (await page.get("/console/parts/call", params={"call_id": "call_1"})).text
    for text in ('name="value/celsius"', "How warm it is.", ">grey</option>", 'name="value/hours/*0"'):
        assert text in html
    assert "Or the result, as JSON" in html
    path = "/console/calls/call_1/result"
    refused = await page.post(path, json={"fields": {"value/celsius": "warm", "value/hours/0": ""}})
    assert refused.status_code == 422
    assert refused.json()["fields"] == {
        "value/celsius": "must be a number, such as 3 or 0.5",
        "value/hours/0": "missing",
    }
    assert (await store.find_call("call_1")).status == "pending"
    fields = {"value/celsius": "-3.5", "value/sky": '"grey"', "value/hours/0": "7"}
    answer = await page.post(path, json={"fields": fields})
    assert answer.status_code == 200, answer.text
    assert (await store.find_call("call_1")).result == {"celsius": -3.5, "sky": "grey", "hours": [7]}


async def test_without_a_form_there_is_json_alone(page: httpx2.AsyncClient, store: Store, capture: Capture) -> None:
    await capture("call_1", owner="hand", released=False)
    html = (await page.get("/console/parts/call", params={"call_id": "call_1"})).text
    assert "data-fields" not in html
    assert "Result, as JSON" in html
    answer = await page.post("/console/calls/call_1/result", json={"fields": {}})
    assert (answer.status_code, "reload" in answer.json()["detail"]) == (409, True)


async def test_who_may_not_answer_may_not_by_form(sign_in: SignIn, store: Store, capture: Capture, app: Any) -> None:
    await tool(store)
    await tool(store, session="theirs")
    await capture("call_1", owner="hand", released=False)
    await capture("call_2", owner="loop", released=False)
    await capture("call_3", owner="hand", released=False, session="theirs")
    body = {"fields": {"value/celsius": "1"}}
    reader, worker = await sign_in("read", "approve"), await sign_in("read", "worker")
    for call_id in ("call_1", "call_2"):
        assert (await reader.post(f"/console/calls/{call_id}/result", json=body)).status_code == 403
    assert (await worker.post("/console/calls/call_2/result", json=body)).status_code == 403
    assert (await worker.post("/console/calls/call_1/result", json=body)).status_code == 200
    _, token = app.api.tokens.make(["worker"], "default", "")
    headers = {"authorization": f"Bearer {token}"}
    del reader.headers["x-graft-page"]
    assert (await reader.post("/console/calls/call_3/result", json=body, headers=headers)).status_code == 404
    assert (await store.find_call("call_3")).status == "pending"


async def test_the_texts_of_a_schema_are_text(page: httpx2.AsyncClient, store: Store, capture: Capture) -> None:
    member = {"type": "STRING", "description": HOSTILE, "default": HOSTILE, "enum": [HOSTILE]}
    await tool(store, {"type": "OBJECT", "properties": {HOSTILE: member}, "description": HOSTILE})
    await capture("call_1", owner="hand", released=False)
    html = (await page.get("/console/parts/call", params={"call_id": "call_1"})).text
    assert html.count("alert(1)") >= 4
    for text in ("<script", "\u202e", "\x1b"):
        assert text not in html
