"""The clients' requests: conversations that grow at their end, like real ones.

A conversation has `STEPS` requests. The first one is new to the proxy and contains a whole history (a resumed chat, a
document, an image); each later one is the previous one with an answer and the next question. So one request in `STEPS`
is a cold start. Then the client begins another conversation. Conversations share no turn but those with placeholders,
and have the same beginning, like those of one program.
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
_AFTER = (
    b'],"systemInstruction":{"parts":[{"text":"Be brief, and say what you do not know."}]},'
    b'"generationConfig":{"temperature":0.7,"topP":0.95,"maxOutputTokens":8192}}'
)


def words(size: int, seed: int) -> str:
    """About `size` characters of text and code, after a place for the conversation's number."""
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
    question, in characters."""

    name: str
    template: bytes
    growth: int

    @property
    def size(self) -> int:
        """The size of the first request's body, in bytes."""
        return len(self.template) + len(_AFTER) + len(b'{"contents":[')


def _turn(role: str, *parts: object) -> bytes:
    return _encode({"role": role, "parts": list(parts)})


def text_kind(name: str, size: int, turns: int, placeholders: Sequence[tuple[str, str]] = ()) -> Kind:
    """A history of `turns` turns and about `size` bytes. `placeholders`: questions, each with the text of a
    model turn that stands for calls, spread over the history. A placeholder counts only after its own question."""
    each = max(16, (size - len(_AFTER) - len(_PREAMBLE)) // turns - 60)
    at = {int((i + 0.5) * (turns // 2) / len(placeholders)): both for i, both in enumerate(placeholders)}
    contents = [_turn("user", {"text": _PREAMBLE + words(each, 0)})]
    for number in range(1, turns):
        text = at[number // 2][number % 2] if number // 2 in at else words(each, number)
        contents.append(_turn("model" if number % 2 else "user", {"text": text}))
    if turns % 2 == 0:
        contents.append(_turn("user", {"text": words(each, turns)}))
    return Kind(name, b",".join(contents), min(400, max(24, size // 50)))


def new_image_kind(name: str, size: int) -> Kind:
    """A chat whose newest message has an image that no other chat has, inline, in the alphabet that google-genai
    uses."""
    image = random.Random(size).randbytes(size * 3 // 4)
    data = f"{_MARK.decode()}A{base64.urlsafe_b64encode(image).decode()}"
    contents = [
        _turn("user", {"text": _PREAMBLE + words(40, 0)}),
        _turn("model", {"text": words(300, 1)}),
        _turn("user", {"text": words(100, 2)}, {"inlineData": {"mimeType": "image/png", "data": data}}),
    ]
    return Kind(name, b",".join(contents), 300)


def bodies(kind: Kind, client: int, *, cold: bool = False) -> Iterator[list[bytes]]:
    """One client's bodies, endlessly, each as pieces to be written one by one. `cold`: every request begins a new
    conversation."""
    number = client * 10_000
    step = 0 if cold else client % STEPS  # the clients' cold starts are spread
    while True:
        number += 1
        begun = [b'{"contents":[', kind.template.replace(_MARK, b"%07d" % number)]
        grown = b""
        for k in range(1 if cold else STEPS):
            if k:
                for role, seed in (("model", k), ("user", k + STEPS)):
                    text = f"{number:07d}.{k}" + words(kind.growth, seed)[len(_MARK) :]
                    grown += b"," + _turn(role, {"text": text})
            if k >= step:
                yield [*begun, grown, _AFTER]
        step = 0
