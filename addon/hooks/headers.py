"""Headers and bodies of mitmproxy's messages, as cheaply as they can be had.

mitmproxy's own accessors decode and compare every header anew for each look-up, and an absent one costs as much as one
that is there; on a proxy's hot path that is most of what a hook costs. Here a message's headers are gone through once.
"""

from mitmproxy import http


def names(headers: http.Headers) -> set[bytes]:
    """The names that there are, in lower case: what is not among them need not be looked up."""
    return {name.lower() for name, _ in headers.fields}


def value(headers: http.Headers, name: bytes) -> str | None:
    """A header's value (`name` in lower case); of one that is given several times, all of them, with commas."""
    found = [field[1] for field in headers.fields if field[0].lower() == name]
    return b", ".join(found).decode("utf-8", "surrogateescape") if found else None


def put(headers: http.Headers, name: bytes, value: bytes) -> str | None:
    """Set a header (`name` in lower case) in its place, or at the end; the spelling that it came in stays. Gives the
    value that it had."""
    fields: list[tuple[bytes, bytes]] = []
    found: list[bytes] = []
    for field in headers.fields:
        if field[0].lower() != name:
            fields.append(field)
            continue
        if not found:
            fields.append((field[0], value))
        found.append(field[1])
    if not found:
        fields.append((name, value))
    headers.fields = tuple(fields)
    return b", ".join(found).decode("utf-8", "surrogateescape") if found else None


def body_of(message: http.Message) -> bytes | None:
    """The body without its compression; None where there is none, or its compression is not what the headers say."""
    if message.data.content is not None and b"content-encoding" in names(message.headers):
        try:
            return message.content
        except ValueError:
            return None
    return message.data.content


def set_body(message: http.Message, body: bytes) -> None:
    """Replace the body, and its length; compressed as the one before it."""
    present = names(message.headers)
    if b"content-encoding" in present:
        message.content = body
        return
    message.data.content = body
    if b"transfer-encoding" not in present:
        put(message.headers, b"content-length", b"%d" % len(body))
