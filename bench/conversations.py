"""What the clients send: conversations that grow at their end, as real ones do.

A conversation has `STEPS` requests. The first carries the whole history so far (a chat taken up again, a document, an
image) and is new to the proxy; each of the others is the one before it, an answer and the next question. So one request
in `STEPS` is a cold start. Then the client begins another conversation. No two conversations have the same words in
any turn, but all begin alike, as those of one program do.
"""

import base64
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

STEPS = 20

_MARK = b"#######"
_encode = msgspec.json.Encoder().encode
_SENTENCES = (
    "The harbour of Göteborg was quiet that morning, and nobody had seen the ferry leave.",
    'She said: "put the second list under the first, and keep the order".',
    "def total(rows):\n    return sum(row['price'] * row['count'] for row in rows)\n",
    "Temperatures fell by 4 °C between Monday and Thursday; the forecast had said 2 °C.",
    "What remains is a table of three columns: the name, the unit, and what was measured.",
    "C:\\data\\export\\2024.csv holds 1,204 lines, of which 17 have no date.",
)
_PREAMBLE = (
    "You are talking to a program for travel planning. The user's folder, the date and the open files follow. "
    "Answer in the user's language, and name your sources.\n"
)
_CLIENT_TOOLS = ("open_file", "change_file", "run_checks")
_SIGNATURE = base64.b64encode(random.Random(2).randbytes(200)).decode()
_AFTER = (
    b'],"systemInstruction":{"parts":[{"text":"Be brief, and say what you do not know."}]},'
    b'"generationConfig":{"temperature":0.7,"topP":0.95,"maxOutputTokens":8192}}'
)
_DECLARED = b',"tools":' + _encode(
    [
        {
            "functionDeclarations": [
                {
                    "name": name,
                    "description": f"The program's own tool to {name.replace('_', ' ')}.",
                    "parameters": {"type": "OBJECT", "properties": {"text": {"type": "STRING"}}},
                }
                for name in _CLIENT_TOOLS
            ]
        }
    ]
)


def words(size: int, seed: int) -> str:
    """About `size` characters of text and code, with a place for the conversation's number in front."""
    rng = random.Random(seed)
    text = [_MARK.decode()]
    length = 0
    while length < size:
        text.append(rng.choice(_SENTENCES))
        length += len(text[-1]) + 1
    return " ".join(text)[: max(size, len(_MARK))]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of conversation. `template` is the JSON of its first Contents, `growth` the size of an answer and of a
    question, in characters. `is_agent`: the client has tools of its own, and runs their calls."""

    name: str
    template: bytes
    growth: int
    is_agent: bool = False

    @property
    def size(self) -> int:
        """Of the first request's body, in bytes."""
        return len(self.template) + len(self.after) + len(b'{"contents":[')

    @property
    def after(self) -> bytes:
        """What stands behind the last of the Contents."""
        return _AFTER[:-1] + _DECLARED + b"}" if self.is_agent else _AFTER


def _turn(role: str, *parts: object) -> bytes:
    return _encode({"role": role, "parts": list(parts)})


def text_kind(name: str, size: int, turns: int, placeholders: Sequence[str] = ()) -> Kind:
    """A history of `turns` turns and about `size` bytes in all. `placeholders`: texts of model turns that stand for
    calls, spread over it."""
    each = max(16, (size - len(_AFTER) - len(_PREAMBLE)) // turns - 60)
    at = {int((i + 0.5) * (turns // 2) / len(placeholders)): text for i, text in enumerate(placeholders)}
    contents = [_turn("user", {"text": _PREAMBLE + words(each, 0)})]
    for number in range(1, turns):
        if number % 2 and number // 2 in at:
            contents.append(_turn("model", {"text": at[number // 2]}))
        else:
            contents.append(_turn("model" if number % 2 else "user", {"text": words(each, number)}))
    if turns % 2 == 0:
        contents.append(_turn("user", {"text": words(each, turns)}))
    return Kind(name, b",".join(contents), min(400, max(24, size // 50)))


def image_kind(name: str, size: int) -> Kind:
    """A chat about one image, inline."""
    data = base64.b64encode(random.Random(size).randbytes(size * 3 // 4)).decode()
    contents = [
        _turn("user", {"text": _PREAMBLE + words(40, 0)}, {"inlineData": {"mimeType": "image/png", "data": data}}),
        _turn("model", {"text": words(300, 1)}),
        _turn("user", {"text": words(100, 2)}),
    ]
    return Kind(name, b",".join(contents), 300)


def new_image_kind(name: str, size: int) -> Kind:
    """A chat whose newest message has an image, inline, that no other conversation has."""
    data = _MARK.decode() + base64.b64encode(random.Random(size).randbytes(size * 3 // 4)).decode()
    contents = [
        _turn("user", {"text": _PREAMBLE + words(40, 0)}),
        _turn("model", {"text": words(300, 1)}),
        _turn("user", {"text": words(100, 2)}, {"inlineData": {"mimeType": "image/png", "data": data}}),
    ]
    return Kind(name, b",".join(contents), 300)


def agent_kind(name: str, size: int, turns: int) -> Kind:
    """A history of about `size` bytes in which three of four turns are the client's own calls and their responses: a
    question, three steps, an answer, and so on. `turns` is one more than a multiple of eight."""
    each = (size - len(_AFTER) - len(_DECLARED) - len(_PREAMBLE)) // turns - 110
    contents = [_turn("user", {"text": _PREAMBLE + words(each, 0)})]
    for number in range(1, turns, 2):
        contents += _exchange(each, f"{_MARK.decode()}-{number}", number, is_step=number % 8 != 7)
    return Kind(name, b",".join(contents), min(400, max(24, size // 50)), is_agent=True)


def _exchange(size: int, stamp: str, seed: int, *, is_step: bool) -> tuple[bytes, bytes]:
    """A turn of the model's and one of the client's, of about `size` characters each: an answer and the next question,
    or a call and its response, which is the larger of the two."""

    def text(size: int, seed: int) -> str:
        return stamp + words(size, seed)[len(_MARK) :]

    if not is_step:
        return _turn("model", {"text": text(size, seed)}), _turn("user", {"text": text(size, seed + STEPS)})
    call = {"id": stamp, "name": _CLIENT_TOOLS[seed % len(_CLIENT_TOOLS)]}
    asked = {"functionCall": {**call, "args": {"text": text(size // 4, seed)}}, "thoughtSignature": _SIGNATURE}
    output = {"output": text(max(16, 2 * size - size // 4 - len(_SIGNATURE)), seed + STEPS)}
    return _turn("model", asked), _turn("user", {"functionResponse": {**call, "response": output}})


def bodies(kind: Kind, client: int, *, cold: bool = False) -> Iterator[list[bytes]]:
    """One client's bodies, without end, each as the pieces to be written one after the other. `cold`: every request
    begins a new conversation."""
    number = client * 10_000
    step = 0 if cold else client % STEPS  # the clients' cold starts are spread
    while True:
        number += 1
        begun = [b'{"contents":[', kind.template.replace(_MARK, b"%07d" % number)]
        grown = b""
        for k in range(1 if cold else STEPS):
            if k:
                is_step = kind.is_agent and k % 4 != 0
                grown += b"".join(
                    b"," + turn for turn in _exchange(kind.growth, f"{number:07d}.{k}", k, is_step=is_step)
                )
            if k >= step:
                yield [*begun, grown, kind.after]
        step = 0
