"""The session's toolset in every measurement: ten typical tools, and a toolConfig."""

from typing import Any


def _tool(name: str, description: str, required: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {"type": "OBJECT", "properties": properties, "required": required}
    return {"name": name, "description": description, "parameters": parameters}


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "STRING", "description": description, **more}


def _number(description: str, kind: str = "INTEGER") -> dict[str, Any]:
    return {"type": kind, "description": description}


def _list(description: str, items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "ARRAY", "description": description, "items": items}


TOOLS: list[dict[str, Any]] = [
    _tool(
        "get_weather",
        "The weather at a place, now or at a day within the next ten.",
        ["city"],
        city=_text("The city, with the country where the name is not unique, such as Paris, Texas."),
        day=_text("An ISO 8601 date. Today if it is left out."),
        unit=_text("The unit of temperatures.", enum=["celsius", "fahrenheit"]),
    ),
    _tool(
        "search_web",
        "Search the public web. Returns titles, addresses and excerpts, best first.",
        ["query"],
        query=_text("What to search for, as one would type it into a search box."),
        limit=_number("How many results, 1 to 20."),
        site=_text("Only results of this host name."),
    ),
    _tool("read_page", "The text of a web page, without its navigation.", ["url"], url=_text("An http or https URL.")),
    _tool(
        "read_file",
        "The text of a file in the user's folder.",
        ["path"],
        path=_text("A path relative to the folder."),
        start=_number("The first line, from 1."),
        lines=_number("How many lines; all if it is left out."),
    ),
    _tool(
        "write_file",
        "Write a file in the user's folder, making folders as needed. An existing file is replaced.",
        ["path", "text"],
        path=_text("A path relative to the folder."),
        text=_text("The whole new text."),
    ),
    _tool(
        "run_command",
        "Run a command in the user's folder and return what it printed and its exit status.",
        ["command"],
        command=_list("The program and its arguments.", {"type": "STRING"}),
        timeout=_number("Seconds until it is ended.", "NUMBER"),
    ),
    _tool(
        "query_database",
        "Run one read-only SQL statement against the sales database (PostgreSQL 16).",
        ["sql"],
        sql=_text("A single SELECT. Tables: customers, orders, order_lines, products."),
        parameters=_list("Values for $1, $2, …, as text.", {"type": "STRING"}),
    ),
    _tool(
        "send_mail",
        "Send a mail from the user's account. Ask before you use it.",
        ["to", "subject", "text"],
        to=_list("Addresses.", {"type": "STRING"}),
        subject=_text("One line."),
        text=_text("Plain text."),
        attachments=_list(
            "Files to attach.",
            {"type": "OBJECT", "properties": {"path": _text("A path."), "name": _text("A name.")}},
        ),
    ),
    _tool(
        "find_trains",
        "Train connections between two stations.",
        ["origin", "destination"],
        origin=_text("The station to leave from."),
        destination=_text("The station to reach."),
        departure=_text("ISO 8601 date and time; now if it is left out."),
        travel_class=_text("The class.", enum=["first", "second"]),
    ),
    _tool(
        "add_event",
        "Add an event to the user's calendar.",
        ["title", "start"],
        title=_text("One line."),
        start=_text("ISO 8601 date and time with offset."),
        minutes=_number("How long it takes."),
        guests=_list("Addresses of those to invite.", {"type": "STRING"}),
    ),
]
TOOL_CONFIG: dict[str, Any] = {"functionCallingConfig": {"mode": "AUTO"}}
