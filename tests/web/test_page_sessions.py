"""Pages' sessions: what opens one, and what ends it."""

import stat
import time
from pathlib import Path

import pytest

from addon.web.access import OWNER, Access
from addon.web.page_sessions import LINK_TTL, SESSION_TTL, PageSession, PageSessions
from addon.web.tokens import Tokens
from tests.clock import Clock, clock

__all__ = ["clock"]

SECRET = b"s" * 32


@pytest.fixture(autouse=True)
def at(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", clock)


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


@pytest.fixture
def sessions(tmp_path: Path, tokens: Tokens) -> PageSessions:
    return PageSessions(tmp_path, "the own token", tokens, lambda: SECRET)


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
    assert sessions.access(headers(one, page_key="é")) is None
    assert sessions.access(headers(one, page_key=other.page_key)) is None
    assert sessions.access({b"host": b"127.0.0.1:8741", b"x-graft-page": one.page_key.encode()}) is None
    assert sessions.access(headers(one, port=9999)) is None


@pytest.mark.parametrize("cookie", ["", ".", "own.9999999999.x.", "own.9999999999.x.00", "é", "own.x", "WyJ4Il0"])
def test_a_made_up_cookie_opens_nothing(sessions: PageSessions, cookie: str) -> None:
    assert sessions.access(headers(PageSession(cookie, sessions.open(OWNER).page_key))) is None


def test_no_character_of_a_cookie_or_a_page_key_can_be_another(sessions: PageSessions) -> None:
    session = sessions.open(OWNER)
    for part in ("cookie", "page_key"):
        text = getattr(session, part)
        for index in range(len(text) - (part == "page_key")):  # base64: the last character holds unused bits
            other = f"{text[:index]}{'A' if text[index] != 'A' else 'B'}{text[index + 1 :]}"
            changed = {"cookie": session.cookie, "page_key": session.page_key} | {part: other}
            assert sessions.access(headers(PageSession(**changed))) is None


def test_a_session_ends_by_itself(sessions: PageSessions, clock: Clock) -> None:
    session = sessions.open(OWNER)
    clock.now += SESSION_TTL - 1
    assert sessions.access(headers(session)) == OWNER
    clock.now += 2
    assert sessions.access(headers(session)) is None


def test_each_proxy_of_a_store_accepts_a_session(sessions: PageSessions, tmp_path: Path) -> None:
    session = sessions.open(OWNER)
    other = tmp_path / "other"
    same = PageSessions(other, "the own token", Tokens(other), lambda: SECRET)
    assert same.access(headers(session)) == OWNER
    another = PageSessions(other, "the own token", Tokens(other), lambda: b"t" * 32)
    assert another.access(headers(session)) is None


def test_signing_out_ends_the_session_also_after_a_restart(
    sessions: PageSessions, tokens: Tokens, tmp_path: Path
) -> None:
    one, other = sessions.open(OWNER), sessions.open(OWNER)
    assert sessions.access(headers(one)) == OWNER
    sessions.end(headers(one))
    for process in (sessions, PageSessions(tmp_path, "the own token", tokens, lambda: SECRET)):
        assert process.access(headers(one)) is None
        assert process.access(headers(other)) == OWNER
    assert stat.S_IMODE((tmp_path / "console.json").stat().st_mode) == 0o600


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


def test_another_own_token_ends_the_sessions_that_it_opened(
    sessions: PageSessions, tokens: Tokens, tmp_path: Path
) -> None:
    session = sessions.open(OWNER)
    assert PageSessions(tmp_path, "another token", tokens, lambda: SECRET).access(headers(session)) is None


def test_a_link_is_good_once_and_for_a_time(sessions: PageSessions, clock: Clock) -> None:
    first, old = sessions.new_link(), sessions.new_link()
    assert sessions.use_link(first)
    assert not sessions.use_link(first)
    clock.now += LINK_TTL + 1
    assert not sessions.use_link(old)
    assert not sessions.use_link("made up")


def test_what_is_over_leaves_the_file(sessions: PageSessions, tmp_path: Path, clock: Clock) -> None:
    sessions.end(headers(sessions.open(OWNER)))
    before = (tmp_path / "console.json").read_text()
    clock.now += SESSION_TTL + 2
    sessions.end(headers(sessions.open(OWNER)))
    after = (tmp_path / "console.json").read_text()
    assert before != after
    assert len(before) == len(after)


def test_a_damaged_file_opens_nothing_and_is_named(sessions: PageSessions, tmp_path: Path) -> None:
    session = sessions.open(OWNER)
    (tmp_path / "console.json").write_text("{")
    with pytest.raises(OSError, match=r"console\.json: not a valid file of the console: delete it"):
        sessions.access(headers(session))
