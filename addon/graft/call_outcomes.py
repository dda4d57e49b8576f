"""The outcome of a stored call, as the model gets it."""

from addon.core.framing.documents import Document
from addon.core.history.media import sized
from addon.core.history.outcomes import outcome_of, with_omitted
from store.models import Call


def outcome_of_call(call: Call) -> Document:
    """The outcome of a final call, or an error if the store has lost parts of the result."""
    outcome = outcome_of(call.result, call.error, call.parts)
    if len(call.parts) == len(call.media):
        return outcome
    left = [sized(one.mime_type, one.size) for one in call.media]
    return {"response": with_omitted(outcome["response"], left, "it is not stored any more")}
