"""The part of the store's contract that is about responses and conversations.

What holds for all of the contract is said in `store.base`.
"""

import abc
from collections.abc import Collection

from store.models import Asked, Document, GivenCall, Response


class Responses(abc.ABC):
    # Each response follows one other or none, so they form trees: the threads. A conversation is a name for a place in
    # one, its head. These methods leave no events: what they keep is large, and its owner is told of it anyway.

    @abc.abstractmethod
    async def add_response(self, response: Response, *, head: str | None = None, asked: Asked | None = None) -> None:
        """Add the response and, where it has a conversation, move that conversation's head to it.

        `head`: the response at which the conversation is, which must be the `previous` of this one; None: the
        conversation is made by this response, which may follow any other. Of two that move the same head at once, one
        does. A call id that was given before means the call of this response from now on.

        `asked`: the answer is kept beside the response until it is handed over, for the request to be sent again.

        Raises ConversationMoved: the conversation is not at `head` (any more); UnknownResponse: there is no response
        `previous` in the session; ValueError: a response of this id is there already, or `head` is not as said above.

        To keep only the calls of a response (for a client that keeps its own history), add it with no contents, no
        document, no conversation and no `previous`.
        """

    @abc.abstractmethod
    async def take_back(self, session: str, response_id: str, *, head: str | None = None) -> None:
        """Undo `add_response`, which had this `head`: the response is deleted, with its calls and the answer beside it,
        and its conversation, if it is still there, is where it was. What follows it by now keeps its history. Raises
        UnknownResponse."""

    @abc.abstractmethod
    async def response(self, session: str, response_id: str) -> Response:
        """The response; its `document` is None where it was deleted, and is only kept for others. Raises
        UnknownResponse."""

    @abc.abstractmethod
    async def conversation(self, session: str, name: str) -> str | None:
        """The id of the conversation's head; None: there is no such conversation."""

    @abc.abstractmethod
    async def history(self, session: str, response_id: str) -> list[Response]:
        """The responses from the beginning of the thread to this one, the oldest first.

        Only the last has its `tools` and its `document`: the others' can be large, and are None here. Raises
        UnknownResponse.
        """

    @abc.abstractmethod
    async def given_calls(self, session: str, call_ids: Collection[str]) -> dict[str, GivenCall]:
        """Those of these calls that a client of the session was given, by their ids."""

    @abc.abstractmethod
    async def delete_response(self, session: str, response_id: str) -> None:
        """Delete the response's document. The response goes with its calls as soon as nothing needs it, which is at
        once where no other follows it and no conversation is at it; and with it those before it that have no document
        and were only kept for it. Raises UnknownResponse, also where it has no document (any more)."""

    # --- answers that are not handed over yet: as answers of loops that broke off, see `store.calls` ----------

    @abc.abstractmethod
    async def handed_over(self, session: str, response_id: str) -> None:
        """The client has the answer: the same request is a new one. Where that is known already nothing is done."""

    @abc.abstractmethod
    async def not_handed_over(self, session: str, response_id: str) -> None:
        """Note that the client will not get the answer, at the time of the store. Where there is no such answer, or
        this was noted before, nothing is done."""

    @abc.abstractmethod
    async def take_answer(
        self, session: str, key: bytes, *, window: float, proxy_id: str
    ) -> tuple[str, Document] | None:
        """The newest answer to the request with this key that was not handed over, and broke off at most `window`
        seconds ago, with its response's id; None: there is none. An answer whose proxy has no lease any more broke off
        when the proxy was last alive.

        It is the proxy's `proxy_id` from now on. Of two that ask at once, one gets it; it can be taken again once it
        has broken off again. Answers are kept for an hour.
        """
