"""Keys differ by kind and by who asks, and cannot be computed without the secret."""

from addon.core.dialects.interaction_requests import mark_part
from addon.core.history.keys import Keys, asker_digest, marks_of

SECRET, CHAIN, OWN = b"s" * 32, b"c" * 16, b"o" * 16
ONE = asker_digest(SECRET, "key:one")


def all_of(keys: Keys) -> list[bytes]:
    own = keys.own(CHAIN)
    return [own, keys.history(own, CHAIN), keys.whole(own, CHAIN), keys.window(own, CHAIN), keys.bare(CHAIN)]


def test_kinds_of_keys_differ() -> None:
    keys = all_of(Keys(SECRET, ONE)) + [Keys(SECRET, ONE).mark(kind, CHAIN) for kind in ("call", "signature")]
    assert len(set(keys)) == len(keys)


def test_without_the_secret_nothing_is_the_same() -> None:
    other = b"t" * 32
    assert asker_digest(other, "key:one") != ONE
    assert not set(all_of(Keys(SECRET, ONE))) & set(all_of(Keys(other, ONE)))
    assert Keys(SECRET).mask_chain(b"turn", CHAIN) != Keys(other).mask_chain(b"turn", CHAIN)


def test_different_askers_share_no_key() -> None:
    one, other = Keys(SECRET, ONE), Keys(SECRET, asker_digest(SECRET, "key:other"))
    assert not set(all_of(one)) & set(all_of(other)) & set(all_of(Keys(SECRET)))
    assert one.mark("call", b"x") != other.mark("call", b"x")
    assert all_of(Keys(SECRET)) == all_of(Keys(SECRET, asker_digest(SECRET, "")))


def test_the_name_and_the_instruction_are_in_the_keys_of_whole_histories() -> None:
    plain = all_of(Keys(SECRET, ONE))
    named, instructed = all_of(Keys(SECRET, ONE, "chat")), all_of(Keys(SECRET, ONE, "", b"Be brief."))
    assert [one == other for one, other in zip(plain, named, strict=True)] == [True, False, False, True, False]
    assert [one == other for one, other in zip(plain, instructed, strict=True)] == [True, False, True, True, False]


def test_a_chain_is_encrypted_and_decrypted() -> None:
    keys = Keys(SECRET)
    hidden = keys.mask_chain(b"turn", CHAIN)
    assert hidden not in (CHAIN, keys.mask_chain(b"other", CHAIN))
    assert keys.mask_chain(b"turn", hidden) == CHAIN


def test_marks_are_ids_of_calls_signatures_by_value_and_interactions() -> None:
    parts = [
        {"functionCall": {"name": "f", "id": "x1"}, "thoughtSignature": "-_8="},
        {"functionCall": {"name": "f"}, "thought_signature": "+/8"},
        {"text": "a", "thoughtSignature": "skip_thought_signature_validator"},
        {"text": "", "thoughtSignature": "c2ln"},
        mark_part("v1_a"),
        mark_part("v1_b"),
    ]
    assert marks_of([{"parts": parts}]) == [
        ("call", b"x1"),
        ("signature", b"\xfb\xff"),
        ("signature", b"sig"),
        ("interaction", b"v1_a"),
        ("interaction", b"v1_b"),
    ]
