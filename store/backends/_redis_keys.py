"""The keys of the Redis backend. In a cluster, all share a hash tag: a write touches the session's and shared ones."""

from typing import Final

SESSION: Final = (
    "session",  # hash: the session's record, its version, and the version it had when it was deleted
    "ledger",  # hash: the revision, the last dropped event, and the time of the oldest note
    "writes",  # zset: the last writes to the ledger, by the resulting revision
    "turn",  # hash by turn id: keys, ids of calls, record
    "turns",  # zset: turn ids by place
    "dated",  # zset: turn ids by age, if their places are not about the same
    "key",  # index: key, whether the turn was delivered → turn id
    "asked",  # index: user key → unbound turn id
    "request",  # index: request key → turn id of an undelivered turn
    "plain",  # hash: key of a turn without calls → time of the note, chain
    "call",  # hash by call id: record
    "parts",  # hash by call id: the parts of its result, as JSON
    "calls",  # zset: call ids by place
    "open",  # zset: ids of calls that are not final, by place
    "ready",  # index: name of a tool → call id, released to workers
    "lease",  # zset: ids of calls that workers run, by the end of the lease
    "waiting",  # hash: call id → id of the proxy that waits for the call
    "cached",  # hash by name of a cachedContent: record
    "cached_at",  # zset: names of cachedContents by age
    "response",  # hash by response id: record without tools and document
    "node",  # hash by response id: previous, thread, number of references, whether there is a document
    "document",  # hash by response id: tools and document
    "head",  # hash: name of a conversation → response id
    "given",  # hash by call id: response id, part
    "thread",  # zset: threads by last use
    "member",  # index: thread → response id
    "responses",  # zset: response ids by place
    "unsent",  # hash by response id: key, proxy, time it broke off, answer
    "unsent_at",  # zset: response ids by age of the undelivered answer
    "unsent_key",  # index: key of a request → response id
)

STAMPED: Final = frozenset({"turn", "call", "cached", "response", "node", "document", "given", "unsent"})
"""Hashes whose values begin with a stamp. Other values are compared as a whole."""


class Keys:
    def __init__(self, prefix: str, *, one_slot: bool = False) -> None:
        self.prefix = prefix
        self._begin = f"{{{prefix}}}:session:%s:" if one_slot else f"{prefix}:{{%s}}:"
        self.number = self.shared("number")
        """The counter of numbers: of events, versions, revisions and places."""
        self.notices = self.shared("notices")
        """Stream: which sessions have new events, and what waiters need to know."""
        self.meta = self.shared("meta")
        """Hash: the secret, the epoch, and the last dropped notice."""
        self.names = self.shared("sessions")
        """Zset: names of the sessions that have a record, in alphabetical order."""
        self.due = self.shared("due")
        """Zset: sessions with records, by the time when the first of them expires."""
        self.active = self.shared("active")
        """Zset: sessions with calls that somebody runs or waits for, by the time of the last such write."""
        self.proxies = self.shared("proxies")
        """Hash: proxy → end of its lease, and when it was last alive."""
        self.ping = self.shared("ping")

    def shared(self, name: str) -> bytes:
        return f"{{{self.prefix}}}:{name}".encode()

    def of_call(self, call_id: str) -> bytes:
        """String: the session of this call."""
        return self.shared(f"call:{call_id}")

    def of(self, session: str, name: str) -> bytes:
        return f"{self._begin % session}{name}".encode()

    def events(self, session: str) -> bytes:
        """Stream: the session's events."""
        return self.of(session, "events")
