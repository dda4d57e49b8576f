"""Pages' sessions: what opens one, and what ends it."""

import stat
from pathlib import Path

import pytest

from addon.web.access import OWNER, Access
from addon.web.page_sessions import LINK_TTL, SESSION_TTL, PageSession, PageSessions
from addon.web.tokens import Tokens
from tests.clock import Clock, clock

__all__ = ["clock"]


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


@pytest.fixture
def sessions(tmp_path: Path, tokens: Tokens, clock: Clock) -> PageSessions:
    return PageSessions(tmp_path, "the own token", tokens, clock)


def headers(session: PageSession, *, port: int = 8741, page_key: str | None = None) -> dict[bytes, bytes]:
    return {
        b"host": f"127.0.0.1:{port}".encode(),
        b"cookie": f"other=1; toolgraft-8741={session.cookie}; last=2".encode(),
        b"x-graft-page": (session.page_key if page_key is None else page_key).encode(),
    }


def test_a_session_has_the_rights_it_was_opened_with(sessions: PageSessions, tokens: Tokens) -> None:
    assert sessions.access(headers(sessions.open(OWNER))) == OWNER
    token, text = tokens.make(["approve"], "one", "phone")
    access = tokens.access(text)
    assert access == Access(token.id, frozenset({"approve"}), "one", "phone")
    assert sessions.access(headers(sessions.open(access))) == access


def test_cookie_and_page_key_open_nothing_without_each_other(sessions: PageSessions) -> None:
    one, other = sessions.open(OWNER), sessions.open(OWNER)
    assert sessions.access(headers(one, page_key="")) is None
    assert sessions.access(headers(one, page_key=other.page_key)) is None
    assert sessions.access({b"host": b"127.0.0.1:8741", b"x-graft-page": one.page_key.encode()}) is None
    assert sessions.access(headers(one, port=9999)) is None


@pytest.mark.parametrize("cookie", ["", ".", "own.9999999999.x.", "own.9999999999.x.00", "é", "own.x"])
def test_a_made_up_cookie_opens_nothing(sessions: PageSessions, cookie: str) -> None:
    assert sessions.access(headers(PageSession(cookie, sessions.open(OWNER).page_key))) is None


def test_a_cookie_with_another_end_or_other_rights_opens_nothing(sessions: PageSessions) -> None:
    session = sessions.open(OWNER)
    owner, until, rest = session.cookie.split(".", 2)
    for cookie in (f"{owner}.{int(until) + 1}.{rest}", f"abcd1234.{until}.{rest}"):
        assert sessions.access(headers(PageSession(cookie, session.page_key))) is None


def test_a_session_ends_by_itself(sessions: PageSessions, clock: Clock) -> None:
    session = sessions.open(OWNER)
    clock.now += SESSION_TTL - 1
    assert sessions.access(headers(session)) == OWNER
    clock.now += 2
    assert sessions.access(headers(session)) is None


def test_signing_out_ends_the_session_in_every_process(
    sessions: PageSessions, tokens: Tokens, tmp_path: Path, clock: Clock
) -> None:
    one, other = sessions.open(OWNER), sessions.open(OWNER)
    neighbour = PageSessions(tmp_path, "the own token", tokens, clock)
    assert neighbour.access(headers(one)) == OWNER
    sessions.end(headers(one))
    for process in (sessions, neighbour):
        assert process.access(headers(one)) is None
        assert process.access(headers(other)) == OWNER


def test_a_caller_without_a_page_s_session_ends_none(sessions: PageSessions, tmp_path: Path) -> None:
    sessions.end({b"host": b"127.0.0.1:8741", b"authorization": b"Bearer x"})
    assert not (tmp_path / "console.json").exists()


def test_a_revoked_token_ends_its_sessions(sessions: PageSessions, tokens: Tokens) -> None:
    token, text = tokens.make(["read"], None, "")
    access = tokens.access(text)
    assert access is not None
    session = sessions.open(access)
    tokens.revoke(token.id)
    assert sessions.access(headers(session)) is None


def test_another_own_token_ends_all_sessions(
    sessions: PageSessions, tokens: Tokens, tmp_path: Path, clock: Clock
) -> None:
    session = sessions.open(OWNER)
    assert PageSessions(tmp_path, "another token", tokens, clock).access(headers(session)) is None


def test_a_link_is_good_once_in_one_process_and_for_a_time(
    sessions: PageSessions, tokens: Tokens, tmp_path: Path, clock: Clock
) -> None:
    neighbour = PageSessions(tmp_path, "the own token", tokens, clock)
    first, second, old = (sessions.new_link() for _ in range(3))
    assert neighbour.use_link(first)
    assert not sessions.use_link(first)
    assert not neighbour.use_link(first)
    assert sessions.use_link(second)
    clock.now += LINK_TTL + 1
    assert not sessions.use_link(old)
    assert not sessions.use_link("made up")


def test_the_file_holds_digests_alone_and_is_its_owner_s(sessions: PageSessions, tmp_path: Path) -> None:
    code = sessions.new_link()
    session = sessions.open(OWNER)
    sessions.end(headers(session))
    path = tmp_path / "console.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert code not in text
    assert session.cookie.rpartition(".")[0] not in text


def test_what_is_over_leaves_the_file(sessions: PageSessions, tmp_path: Path, clock: Clock) -> None:
    sessions.new_link()
    clock.now += SESSION_TTL + LINK_TTL
    assert sessions.use_link(sessions.new_link())
    assert (tmp_path / "console.json").read_text() == '{"links":{},"ended":{}}\n'


def test_a_damaged_file_opens_nothing_and_is_named(sessions: PageSessions, tmp_path: Path) -> None:
    session = sessions.open(OWNER)
    (tmp_path / "console.json").write_text("{")
    with pytest.raises(OSError, match=r"console\.json: not a valid file of the console: delete it"):
        sessions.access(headers(session))
