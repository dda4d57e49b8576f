"""Items of a Responses API `input`, checked and ready to become Gemini parts.

Items and fields without meaning for the model (summaries of its thoughts, empty texts, ids, states) are accepted and
left out, because clients send them back in their histories. Items that Gemini does not support are refused with their
position. Pure: the input is never changed.
"""

import hashlib
import re
import string as characters
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from addon.core.dialects.responses.errors import array, bad, boolean, fields, one_of, quoted, required, string
from addon.core.framing.documents import Document, Malformed, camel, decode, encode, get
from addon.core.history.outcomes import response_of

Part = Document

_OF_CALLS = ("name", "args")


class Carried(NamedTuple):
    """The content of Gemini's parts that items for clients lack: signatures, ids of calls, and parts without an item.

    A client that keeps its own history carries it, sealed, as the `encrypted_content` of a reasoning item at the end of
    each response. The item's position in a later input does not matter: calls are found by their ids, texts by their
    hashes.

    `calls`: call id → additions to the functionCall and to its Part. `steps`: call id → a number shared by the calls
    of one answer. `texts`: hash of a text → its Parts, with lengths instead of the visible texts."""

    calls: dict[str, tuple[Document, Document]]
    steps: dict[str, int]
    texts: dict[str, list[Document]]

    def call(self, call_id: str, name: str, args: Document) -> Part | None:
        """The model's Part of a call; None if it is not carried."""
        if (found := self.calls.get(call_id)) is None:
            return None
        inner, outer = found
        return {"functionCall": {**inner, "name": name, "args": args}, **outer}

    def behind(self, earlier: "Carried") -> "Carried":
        """Both combined. This one wins."""
        first = 1 + max(earlier.steps.values(), default=-1)
        steps = {call_id: first + number for call_id, number in self.steps.items()}
        return Carried(earlier.calls | self.calls, earlier.steps | steps, earlier.texts | self.texts)

    def text(self, text: str) -> list[Part] | None:
        """The model's Parts of a text; None if they are not carried."""
        if (pieces := self.texts.get(_text_hash(text))) is None:
            return None
        parts, at = [], 0
        for piece in pieces:
            if isinstance(length := piece.get("text"), int):
                parts.append({**piece, "text": text[at : at + length]})
                at += length
            else:
                parts.append(piece)
        return parts


NOTHING_CARRIED = Carried({}, {}, {})


def to_carry(parts: Sequence[Part], call_ids: Iterable[str]) -> str | None:
    """The content that a client must carry for the model's Parts, or None. `call_ids`: of their calls, in order."""
    ids = iter(call_ids)
    calls: dict[str, list[Document]] = {}
    texts: dict[str, list[Document]] = {}
    run: list[Part] = []
    for part in (*parts, None):
        call = get(part, "functionCall") if part is not None else None
        if part is not None and not isinstance(call, dict):
            run.append(part)
            continue
        texts |= _carried_text(run)
        run = []
        if part is not None and isinstance(call, dict):
            inner = {key: value for key, value in call.items() if key not in _OF_CALLS}
            outer = {key: value for key, value in part.items() if camel(key) != "functionCall"}
            calls[next(ids)] = [inner, outer]
    if not texts and not any(inner or outer for inner, outer in calls.values()):
        return None
    return encode({"calls": calls, "texts": texts}).decode()


def read_carried(carried: Sequence[str]) -> Carried:
    """Reads results of `to_carry` for several answers. A client cannot change them."""
    found = Carried({}, {}, {})
    for number, text in enumerate(carried):
        document: Mapping[str, Document] = decode(text.encode("utf-8", "surrogatepass"))
        found.calls.update((call_id, (inner, outer)) for call_id, (inner, outer) in document.get("calls", {}).items())
        found.steps.update(dict.fromkeys(document.get("calls", {}), number))
        found.texts.update(document.get("texts", {}))
    return found


def _carried_text(run: Sequence[Part]) -> dict[str, list[Document]]:
    """Parts between calls, by the hash of their visible text. None if they are plain text only."""
    text = "".join(part["text"] for part in run if _is_visible_text(part))
    if not text or all(len(part) == 1 and _is_visible_text(part) for part in run):
        return {}
    return {_text_hash(text): [{**part, "text": len(part["text"])} if _is_visible_text(part) else part for part in run]}


def _is_visible_text(part: Part) -> bool:
    return isinstance(part.get("text"), str) and not part.get("thought")


def _text_hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_ROLES = ("user", "assistant", "system", "developer")
_TYPES = ("message", "function_call", "function_call_output", "reasoning", "compaction", "web_search_call")
_SUMMARY = "A summary of the conversation so far, which stands for its messages:\n\n"
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[^;,]*)*;base64", re.IGNORECASE)
_GOOGLE_S = re.compile(
    r"https://(?:(?:www\.|m\.)?youtube\.com/watch\?|youtu\.be/|generativelanguage\.googleapis\.com/v1\w*/files/)"
)
_THOUGHTS = re.compile(r"\s*<think>(?:(?!</think>).)*</think>\s*", re.DOTALL)
"""A message with a summary of thoughts, returned by a client that has no items for thoughts. The model never
wrote it."""
PARSED_ARGUMENTS, _PARSED = "parsed_arguments", "parsed"
"""Fields that OpenAI's JavaScript package adds to the items of an answer. Programs send them back."""
DETAILS = ("auto", "low", "high", "original")
_BASE64 = f"{characters.ascii_letters}{characters.digits}+/".encode()
_OUTPUT_PARTS = ("input_text", "input_image", "input_file")


class Message(NamedTuple):
    """A message of one side. `at`: its position in the request."""

    side: Literal["user", "model"]
    parts: list[Part]
    at: str


class FunctionCall(NamedTuple):
    call_id: str
    name: str
    args: Document
    at: str


class CallOutput(NamedTuple):
    """The result of a call: a functionResponse's `response`, and its `parts`, if any."""

    call_id: str
    response: Document
    parts: list[Part]
    at: str


type Item = Message | FunctionCall | CallOutput
type Purpose = Literal["summary", "signatures"]
"""The content type of an `encrypted_content`: in a compaction item, or in a reasoning item."""
type Unseal = Callable[[str, Purpose], str | None]
"""The text in an item's `encrypted_content`; None if the content is not the proxy's."""


def nothing_sealed(sealed: str, purpose: Purpose) -> None:
    """An `Unseal` for input without sealed items."""


class Input(NamedTuple):
    """`system`: texts of system and developer messages, for Gemini's system instruction. `carried`: from reasoning
    items."""

    items: list[Item]
    system: list[Part]
    carried: Carried

    def behind(self, earlier: "Input") -> "Input":
        """This input after another one."""
        return Input(
            [*earlier.items, *self.items], [*earlier.system, *self.system], self.carried.behind(earlier.carried)
        )


def read_input(value: object, unseal: Unseal = nothing_sealed) -> Input:
    """A text, or a list of items. Raises Invalid."""
    if isinstance(value, str):
        if not value:
            raise bad("input", "is empty; it must be a text or a list of items")
        return Input([Message("user", [{"text": value}], "input")], [], NOTHING_CARRIED)
    if not isinstance(value, list):
        raise bad("input", f"must be a string or a list of items, not {quoted(value)}", "invalid_type")
    return read_items(value, "input", unseal)


def read_items(items: Sequence[object], where: str, unseal: Unseal = nothing_sealed) -> Input:
    """`where`: the position of the list. Raises Invalid."""
    read = Input([], [], NOTHING_CARRIED)
    carried: list[str] = []
    places: dict[tuple[type, str], str] = {}
    for index, item in enumerate(items):
        at = f"{where}[{index}]"
        if isinstance(item, dict) and item.get("type") == "web_search_call":
            fields(item, ("type", "id", "action", "status"), at)  # Gemini has no place for it
            continue
        if isinstance(item, dict) and item.get("type") == "reasoning":
            carried += _reasoning(item, at, unseal)
            continue
        one = _item(item, at, read.system, unseal)
        if one is None:
            continue
        if not isinstance(one, Message):
            before = places.setdefault((type(one), one.call_id), at)
            if before != at:
                raise bad(f"{at}.call_id", f"is also that of {before}; each call and each output may occur only once")
        read.items.append(one)
    if not carried:
        return read
    found = read_carried(carried)
    return Input(_with_own_parts(read.items, found), read.system, found)


def _reasoning(value: Document, at: str, unseal: Unseal) -> list[str]:
    """The content that the item carries. Another service's item yields none."""
    item = fields(value, ("type", "id", "summary", "content", "encrypted_content", "status"), at)
    for name in ("summary", "content"):  # checked only: they are listed, but not sent to the model
        for index, part in enumerate(array(item.get(name, []), f"{at}.{name}")):
            if not isinstance(part, dict):
                raise bad(f"{at}.{name}[{index}]", "must be an object (a text)", "invalid_type")
    sealed = string(item.get("encrypted_content", ""), f"{at}.encrypted_content")
    text = unseal(sealed, "signatures") if sealed else None
    return [] if text is None else [text]


def _with_own_parts(items: Sequence[Item], carried: Carried) -> list[Item]:
    """The items with the model's own parts in its messages, as far as they are carried. Messages without other items
    between them are one text to the model."""
    result: list[Item] = []
    run: list[Message] = []
    for item in (*items, None):
        if isinstance(item, Message) and item.side == "model":
            run.append(item)
            continue
        if run:
            parts = carried.text("".join(part["text"] for one in run for part in one.parts))
            result += run if parts is None else [run[-1]._replace(parts=parts)]
            run = []
        if item is not None:
            result.append(item)
    return result


def is_reference(item: Document) -> bool:
    """Whether an item refers to another item by its id. Its type may be missing."""
    kind = item.get("type")
    if kind is None:
        return item.get("role") is None and item.get("id") is not None
    return bool(kind == "item_reference")


def _item(value: object, at: str, system: list[Part], unseal: Unseal) -> Item | None:
    if not isinstance(value, dict):
        raise bad(at, "must be an object (an item)", "invalid_type")
    kind = value.get("type")
    if kind is None and value.get("role") is not None:
        kind = "message"
    if kind == "message":
        return _message(value, at, system)
    if kind == "function_call":
        return _call(value, at)
    if kind == "function_call_output":
        return _output(value, at)
    if kind == "compaction":
        return _compaction(value, at, unseal)
    raise bad(f"{at}.type", f"is {quoted(kind)}; it must be one of {', '.join(_TYPES)}")


def _compaction(value: Document, at: str, unseal: Unseal) -> Message:
    """The summary, as a user's message, because Gemini has no other place for it."""
    item = fields(value, ("type", "id", "encrypted_content", "created_by", "status"), at)
    place = f"{at}.encrypted_content"
    summary = unseal(string(required(item, "encrypted_content", at), place), "summary")
    if summary is None:
        raise bad(place, "is not what /v1/responses/compact has returned to this session, at a proxy with this store")
    return Message("user", [{"text": _SUMMARY + summary}], at)


def _message(value: Document, at: str, system: list[Part]) -> Message | None:
    message = fields(value, ("type", "role", "content", "id", "status", "phase"), at)
    role = one_of(required(message, "role", at), _ROLES, f"{at}.role")
    content = required(message, "content", at)
    if isinstance(content, str):
        parts: list[Part] = [{"text": content}] if content else []
    else:
        kinds = _PARTS_OF[role]
        parts = _parts(array(content, f"{at}.content"), kinds, f"{at}.content")
    if role in ("system", "developer"):
        system += parts
        return None
    if role == "user" and not parts:
        raise bad(f"{at}.content", "is empty; a user's message must have content")
    if role == "assistant" and _THOUGHTS.fullmatch("".join(part["text"] for part in parts)):
        return None
    return Message("user" if role == "user" else "model", parts, at) if parts else None


def _parts(content: list[Any], kinds: Mapping[str, Any], at: str) -> list[Part]:
    found: list[Part] = []
    for index, part in enumerate(content):
        place = f"{at}[{index}]"
        if not isinstance(part, dict):
            raise bad(place, "must be an object (a content part)", "invalid_type")
        kind = one_of(part.get("type"), kinds, f"{place}.type")
        if (read := kinds[kind](part, place)) is not None:
            found.append(read)
    return found


def _text(value: Document, at: str) -> Part | None:
    part = fields(value, ("type", "text", "annotations", "logprobs", _PARSED), at)
    text = string(required(part, "text", at), f"{at}.text")
    return {"text": text} if text else None


def _refusal(value: Document, at: str) -> Part | None:
    text = string(required(fields(value, ("type", "refusal"), at), "refusal", at), f"{at}.refusal")
    return {"text": text} if text else None


def _image(value: Document, at: str) -> Part:
    image = fields(value, ("type", "image_url", "detail", "file_id"), at)
    _no_stored_file(image, at, "image_url")
    one_of(image.get("detail", "auto"), DETAILS, f"{at}.detail")
    blob = _data(required(image, "image_url", at), f"{at}.image_url", "data:image/png;base64,…")
    if not blob["mimeType"].startswith("image/"):
        raise bad(f"{at}.image_url", f"holds {blob['mimeType']}, which is no image", "invalid_image_format")
    return {"inlineData": blob}


def _file(value: Document, at: str) -> Part:
    """A file as inline data. `filename` is ignored, because inline data has no name in Gemini."""
    known = ("type", "file_data", "filename", "file_url", "file_id", "detail")
    file = fields(value, known, at)
    _no_stored_file(file, at, "file_data")
    one_of(file.get("detail", "auto"), DETAILS, f"{at}.detail")
    if "file_url" in file:
        url = string(file["file_url"], f"{at}.file_url")
        if "file_data" in file:
            raise bad(f"{at}.file_url", "is given together with file_data; use only one of them")
        if not is_google_s_file(url):
            message = 'must be an http or https URL; or send the file as file_data: "data:application/pdf;base64,…"'
            raise bad(f"{at}.file_url", message, "invalid_file_url")
        return {"fileData": {"fileUri": url}}
    return {"inlineData": _data(required(file, "file_data", at), f"{at}.file_data", "data:application/pdf;base64,…")}


def is_google_s_file(url: str) -> bool:
    """Whether Gemini itself can read this URL: of a video, or of a file that was uploaded to it."""
    return _GOOGLE_S.match(url) is not None


def media_resolution(items: object) -> str | None:
    """Gemini's resolution for all images and files: high if any asks for high, low if all ask for low, else None."""
    details = [
        part.get("detail") or "auto"
        for item in (items if isinstance(items, list) else ())
        for holder in ("content", "output")
        for part in (item[holder] if isinstance(item.get(holder), list) else ())
        if part.get("type") in ("input_image", "input_file")
    ]
    if "high" in details or "original" in details:
        return "MEDIA_RESOLUTION_HIGH"
    return "MEDIA_RESOLUTION_LOW" if details and set(details) == {"low"} else None


def _no_stored_file(part: Document, at: str, instead: str) -> None:
    if "file_id" in part:
        message = f"names a file that is not stored here; send its content as {instead}, a data URL"
        raise bad(f"{at}.file_id", message, "unsupported_value")


def _data(value: object, at: str, example: str) -> Document:
    """A data URL as inline data."""
    head, comma, data = string(value, at).partition(",")
    found = _DATA_URL.fullmatch(head)
    if not comma or found is None:
        raise bad(at, f'is no base64 data URL; it must be an http or https URL, or a data URL such as "{example}"')
    if not data:
        raise bad(at, "holds no data")
    if not _is_base64(data):
        raise bad(at, "holds data that is not base64, padded and without white space", "invalid_base64_image")
    return {"mimeType": found[1].lower(), "data": data}


def _is_base64(data: str) -> bool:
    """Whether text is padded base64. Checks without decoding, which is twice as fast: data may be large."""
    padding = data.encode("utf-8", "surrogatepass").translate(None, _BASE64)
    return len(data) % 4 == 0 and padding in (b"", b"=", b"==") and data.endswith(padding.decode())


def _call(value: Document, at: str) -> FunctionCall:
    known = ("type", "call_id", "name", "arguments", "id", "status", "async", PARSED_ARGUMENTS)
    call = fields(value, known, at)
    if boolean(call.get("async", False), f"{at}.async"):
        raise bad(f"{at}.async", "is true, which is not supported: each call waits for its output", "unsupported_value")
    name = string(required(call, "name", at), f"{at}.name")
    if not name:
        raise bad(f"{at}.name", "is empty")
    return FunctionCall(_call_id(call, at), name, _args(required(call, "arguments", at), f"{at}.arguments"), at)


def _call_id(item: Document, at: str) -> str:
    call_id = string(required(item, "call_id", at), f"{at}.call_id")
    if not call_id:
        raise bad(f"{at}.call_id", "is empty; it must be the call_id of a function_call")
    return call_id


def _args(value: object, at: str) -> Document:
    text = string(value, at)
    try:
        args = decode(text.encode("utf-8", "surrogatepass")) if text.strip() else {}
    except Malformed:
        args = None
    if not isinstance(args, dict):
        raise bad(at, f"must be a JSON object as a string, not {quoted(text)}")
    return args


def _output(value: Document, at: str) -> CallOutput:
    output = fields(value, ("type", "call_id", "output", "id", "status", "name"), at)
    call_id, result = _call_id(output, at), required(output, "output", at)
    if isinstance(result, str):
        return CallOutput(call_id, response_of(result, None), [], at)
    if not isinstance(result, list):
        message = f"must be a string (a JSON object is parsed), or a list of {', '.join(_OUTPUT_PARTS)} parts"
        raise bad(f"{at}.output", message, "invalid_type")
    parts = _parts(result, {kind: _INPUT_PARTS[kind] for kind in _OUTPUT_PARTS}, f"{at}.output")
    texts = [part["text"] for part in parts if "text" in part]
    blobs = [part for part in parts if "text" not in part]
    response = response_of("\n".join(texts), None) if texts or not blobs else {}
    return CallOutput(call_id, response, blobs, at)


_INPUT_PARTS = {"input_text": _text, "output_text": _text, "input_image": _image, "input_file": _file}
_TEXTS = {"input_text": _text, "output_text": _text}
_PARTS_OF: dict[str, Mapping[str, Any]] = {
    "user": _INPUT_PARTS,
    "assistant": {**_TEXTS, "refusal": _refusal},
    "system": _TEXTS,
    "developer": _TEXTS,
}
