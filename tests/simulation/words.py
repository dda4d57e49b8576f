"""The words of users and models: short, realistic, or from templates that chats have in common.

`tied`: the model's calls and words depend on the question, so chats have whole turns in common.
"""

import random
from collections.abc import Sequence
from typing import Literal

Kind = Literal["few", "realistic", "template", "tied"]
KINDS: Sequence[Kind] = ("few", "realistic", "template")
TIED: Kind = "tied"
"""Chats of this kind have separate sessions."""

_ASKED = ("yes", "do it", "thanks", "ok", "go on", "please", "again", "no, the other one")
_SAID = ("Done.", "OK.", "Sure.", "Done.", "OK.", "It is done.", "All set.", "Done. All set.", "OK. Done.")

_WHO = ("Anna", "my sister", "the landlord", "Mr. Okafor", "the new intern", "our accountant", "Yuki", "the whole team")
_THING = (
    "the invoice for March",
    "a table by the window",
    "the blue notebook",
    "the report on water levels",
    "two tickets to Lisbon",
    "the garage key",
    "the draft of chapter three",
    "a reminder about the dentist",
    "the photos from the harbour",
    "the meeting on the budget",
    "the recipe for plum cake",
    "the backup of the old laptop",
)
_WHEN = (
    "tomorrow at nine",
    "on Friday afternoon",
    "before the end of the month",
    "right after lunch",
    "next Tuesday",
    "as soon as the train has left",
    "in about two hours",
    "while I am in Oslo",
)
_HOW = (
    "without telling anybody",
    "in a friendly tone",
    "as short as you can",
    "with the usual greeting",
    "but leave the rest as it is",
    "and keep a copy of it",
    "in English and in French",
    "if it still makes sense",
)
_ASKS = (
    "Please send {thing} to {who} {when}, {how}.",
    "Could you move {thing} to the list for {who}? It has to be there {when}.",
    "I promised {who} that {thing} would be ready {when}. Take care of it {how}.",
    "What about {thing}? {who_} asked for it and wants it {when}.",
    "{who_} needs {thing} {when}; arrange that {how}, please.",
    "Find {thing}, tell {who} where it is {when}, {how}.",
)
_SAYS = (
    "I have sent {thing} to {who}, to arrive {when}, {how}.",
    "{thing_} is on the list for {who} now, and will be there {when}.",
    "It is arranged: {who} gets {thing} {when}. I did it {how}.",
    "{who_} knows about {thing} now, and expects it {when}.",
    "I looked for {thing} and found it; {who} will hear of it {when}, {how}.",
    "Everything about {thing} is settled with {who}. You will see it {when}.",
)
_SHORT = ("Done, it is on its way.", "That is taken care of.", "I have done that.")

_TEMPLATE_ASKS = (
    "Summarise the open orders of today and mail the summary to the office.",
    "Please check the weather for my trip and tell me whether I need an umbrella.",
    "Create a ticket for this problem and assign it to the people on duty.",
    "Write down what we have decided and put it where the others can find it.",
)
_TEMPLATE_SAYS = (
    "I have mailed the summary of the open orders to the office. Is there anything else?",
    "I checked the weather for your trip: you had better take an umbrella with you.",
    "I have created the ticket and assigned it to the people on duty.",
    "What you have decided is written down where the others can find it.",
)
_ORDERS = ("yes", "do it")
_EDITS = ("Sorry, I meant something else here.", "Never mind the typing errors in this one.", "(Corrected.)")


def _filled(rng: random.Random, forms: Sequence[str]) -> str:
    who, thing = rng.choice(_WHO), rng.choice(_THING)
    text = rng.choice(forms).format(
        who=who,
        who_=who[0].upper() + who[1:],
        thing=thing,
        thing_=thing[0].upper() + thing[1:],
        when=rng.choice(_WHEN),
        how=rng.choice(_HOW),
    )
    return text[0].upper() + text[1:]


def asked(rng: random.Random, kind: Kind, *, first: bool = False) -> str:
    """A user's words. Even users who write much sometimes say `yes`, but not at `first`."""
    if kind == TIED and not first:
        return rng.choice(_TEMPLATE_ASKS if rng.random() < 0.5 else _ORDERS)
    if kind == "few" or (not first and rng.random() < 0.1):
        return rng.choice(_ASKED)
    if kind == "template":
        return rng.choice(_TEMPLATE_ASKS)
    text = _filled(rng, _ASKS)
    return text if rng.random() < 0.7 else f"{text} {_filled(rng, _ASKS)}"


def model_words(rng: random.Random, kind: Kind, *, busy: bool) -> str:
    """A model's words; `busy`: after it has called a tool."""
    if kind == "few":
        return rng.choice(_SAID)
    if kind == "template":
        return rng.choice(_TEMPLATE_SAYS)
    if busy and rng.random() < 0.1:
        return rng.choice(_SHORT)
    text = _filled(rng, _SAYS)
    return text if rng.random() < 0.6 else f"{text} {_filled(rng, _SAYS)}"


def topic(question: str) -> int | None:
    """The number of a template question, which has the same look-up in every chat."""
    return _TEMPLATE_ASKS.index(question) if question in _TEMPLATE_ASKS else None


def answer_to(question: str) -> str:
    """A model's words for a tied question."""
    number = topic(question)
    return "Done." if number is None else _TEMPLATE_SAYS[number]


def edited(rng: random.Random, kind: Kind) -> str:
    """A user's edit of earlier words: new words, or common ones. Tied chats get unique words, because with common ones
    they would read like another chat."""
    if kind == TIED:
        return _filled(rng, _ASKS)
    return rng.choice(_EDITS) if rng.random() < 0.5 else asked(rng, kind)
