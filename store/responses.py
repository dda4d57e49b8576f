"""The store's contract about responses and conversations.

`store.base` states what applies to the whole contract.
"""

import abc
from collections.abc import Collection

from store.models import Document, GivenCall, Response, UndeliveredAnswer


class Responses(abc.ABC):
    # Each response follows another one or none, so responses form trees: the threads. A conversation names a response,
    # its head. These methods leave no events: the documents are large, and their owner gets them anyway.

    @abc.abstractmethod
    async def add_response(
        self, response: Response, *, head: str | None = None, undelivered: UndeliveredAnswer | None = None
    ) -> None:
        """Add the response and, if it has a conversation, move the conversation's head to it.

        `head`: the current head of the conversation, which must be this response's `previous`; None: this response
        creates the conversation, and may follow any response. Of two concurrent moves of a head, one succeeds. A call
        id that was used before then refers to the call of this response.

        `undelivered`: the answer is kept with the response until it is handed over, in case the request is sent again.

        Raises ConversationMoved: the head of the conversation is not `head`; UnknownResponse: the session has no
        response `previous`; ValueError: the response exists already, or `head` is not its `previous`.

        To store only the calls of a response (for a client that keeps its own history), add it without contents,
        document, conversation and `previous`.
        """

    @abc.abstractmethod
    async def take_back(self, session: str, response_id: str, *, head: str | None = None) -> None:
        """Undo `add_response` with this `head`: delete the response with its calls and its undelivered answer, and move
        its conversation, if still at the response, back to `head`. Later responses keep their history. Raises
        UnknownResponse."""

    @abc.abstractmethod
    async def response(self, session: str, response_id: str) -> Response:
        """The response; `document` is None if it was deleted, and the response is kept for others. Raises
        UnknownResponse."""

    @abc.abstractmethod
    async def responses(self, session: str, response_ids: Collection[str]) -> dict[str, Response]:
        """As `response`: the existing ones, by id."""

    @abc.abstractmethod
    async def conversation(self, session: str, name: str) -> str | None:
        """The id of the conversation's head; None: no such conversation."""

    @abc.abstractmethod
    async def history(self, session: str, response_id: str) -> list[Response]:
        """The responses from the beginning of the thread to this one, oldest first.

        Only the last one has its `tools` and `document`: these can be large, and are None in the others. Raises
        UnknownResponse.
        """

    @abc.abstractmethod
    async def given_calls(self, session: str, call_ids: Collection[str]) -> dict[str, GivenCall]:
        """The calls among these ids that a client of the session received, by id."""

    @abc.abstractmethod
    async def delete_response(self, session: str, response_id: str) -> None:
        """Delete the response's document. The response and its calls are deleted once no other response follows it and
        no conversation has it as head; then also earlier responses without a document that were only kept for it.
        Raises UnknownResponse, also if the response has no document."""

    # --- undelivered answers: as answers of loops that broke off, see `store.calls` ---------------------------

    @abc.abstractmethod
    async def mark_handed_over(self, session: str, response_id: str) -> None:
        """Note that the client has the answer, so that the same request counts as a new one. The note may be written a
        little later, and is lost if the process ends before that. Idempotent."""

    @abc.abstractmethod
    async def mark_not_handed_over(self, session: str, response_id: str) -> None:
        """Note that handing over the answer failed now. Does nothing if the answer does not exist, or has this note."""

    @abc.abstractmethod
    async def take_answer(
        self, session: str, key: bytes, *, window: float, proxy_id: str
    ) -> tuple[str, Document | None] | None:
        """Take the newest undelivered answer to the request with this key that broke off at most `window` seconds ago,
        with its response's id; None: no such answer. If the answer's proxy has lost its lease, the answer broke off
        when the proxy was last alive.

        The answer then belongs to the proxy `proxy_id`. Of two concurrent callers, one gets it; it can be taken again
        after it breaks off again. Answers are kept for an hour.
        """
