"""The clients of a simulated session."""

import dataclasses
import random
from collections.abc import Sequence

from tests.simulation.chat import Delivery, Habits
from tests.simulation.words import Kind

DELIVERIES: Sequence[Delivery] = ("placeholder", "loop", "loop", "passthrough", "mixed")


def habits(rng: random.Random, chats: int, kinds: Sequence[Kind]) -> list[Habits]:
    """Clients of every kind, at random."""
    return [_habits(rng, number, rng.choice(kinds)) for number in range(chats)]


def hasty(rng: random.Random, chats: int, kinds: Sequence[Kind]) -> list[Habits]:
    """Clients of one program and account, which often hang up: their chats differ only in their words."""
    return [
        dataclasses.replace(one, streams=True, hasty=rng.choice((0.0, 0.3, 0.6)))
        for one in of_one_account(rng, chats, kinds)
    ]


def of_one_account(rng: random.Random, chats: int, kinds: Sequence[Kind]) -> list[Habits]:
    """Clients of one program and account: their chats differ only in their words and the signatures that they echo."""
    return [
        dataclasses.replace(one, surface="developer", account="one", clock=False, name="", hasty=0.0, restless=0.4)
        for one in habits(rng, chats, kinds)
    ]


def odd(rng: random.Random, chats: int, kinds: Sequence[Kind]) -> list[Habits]:
    """Clients that paste lines of other chats, write turns of the model themselves and copy chats, and whose models
    imitate what they see."""
    return [
        dataclasses.replace(
            one,
            odd=rng.choice((0.3, 0.6)),
            delivery=rng.choice((one.delivery, "placeholder")),
            clock=False,  # nothing but the whole history shows what a placeholder without an id is
            drops_ids=rng.random() < 0.4,
            counts=rng.random() < 0.5,
        )
        for one in habits(rng, chats, kinds)
    ]


def canned(rng: random.Random, chats: int, kinds: Sequence[Kind]) -> list[Habits]:
    """Clients of one account that a script often answers, in words that another chat has after the same history."""
    return [dataclasses.replace(one, canned=0.4) for one in of_one_account(rng, chats, kinds)]


def rotating(rng: random.Random, chats: int, kinds: Sequence[Kind]) -> list[Habits]:
    """Clients of one user whose keys change."""
    return [dataclasses.replace(one, rotates=True) for one in of_one_account(rng, chats, kinds)]


def _habits(rng: random.Random, number: int, kind: Kind) -> Habits:
    newest = rng.random() < 0.5
    surface = rng.choice(("developer", "developer", "vertex", "codeassist"))
    named = surface == "codeassist" and rng.random() < 0.5
    streams = rng.random() < 0.5
    return Habits(
        words=kind,
        delivery=rng.choice(DELIVERIES),
        newest=newest,
        echoes=newest and rng.random() < 0.5,
        streams=streams,
        surface=surface,  # type: ignore[arg-type]
        account=f"account-{rng.randrange(2)}",
        clock=rng.random() < 0.3,
        name=f"chat-{number}" if named else "",
        restless=rng.choice((0.0, 0.2, 0.4)),
        hasty=rng.choice((0.0, 0.1, 0.3)) if streams else 0.0,
    )
