"""Event keys: one spelling each, and nothing else is one."""

import base64
import binascii
import hashlib

import nkeys
import pytest

from meshnet_events import keys
from meshnet_events.keys import BadKey, EventKey, decode_public, encode_public, signature_is_valid

KEY = EventKey(bytes(range(32)))
SEED = KEY.seed_text()


def spelled(raw: bytes) -> str:
    """Bytes and their checksum as NKeys spell them."""
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode()


def test_a_raw_key_has_the_spelling_that_the_nats_library_gives_it():
    pair = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))
    assert KEY.public == pair.public_key.decode()
    assert pair.seed.decode() == SEED


def test_the_example_of_the_module_is_right():
    assert encode_public(bytes(range(32))).startswith("UAAAC")
    assert len(encode_public(bytes(range(32)))) == 56


@pytest.mark.parametrize("raw", [bytes(32), b"\xff" * 32, bytes(range(32))])
def test_a_key_comes_back_from_its_text(raw):
    assert decode_public(encode_public(raw)) == raw


def test_one_changed_character_is_no_key():
    for index, letter in enumerate(KEY.public):
        for other in "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567":
            if other != letter:
                assert decode_public(KEY.public[:index] + other + KEY.public[index + 1 :]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        KEY.public[:-1],
        KEY.public + "A",
        KEY.public.lower(),
        KEY.public[:-1] + "\n",
        " " + KEY.public[1:],
        KEY.public[:-1] + "=",
        KEY.public[:-1] + "é",
        "\ud800" * 56,
        SEED,
        SEED[:56],
        "0" * 56,
    ],
)
def test_another_text_is_no_key(text):
    assert decode_public(text) is None


@pytest.mark.parametrize("prefix", [0 << 3, 2 << 3, 13 << 3, 14 << 3, 18 << 3, (20 << 3) + 1])
def test_a_key_of_another_role_is_no_users_key(prefix):
    text = spelled(bytes([prefix]) + bytes(32))
    assert len(text) == 56
    assert decode_public(text) is None


@pytest.mark.parametrize("length", [28, 29, 30, 31])
def test_a_shorter_key_is_no_key_though_padding_makes_up_the_length(length):
    text = spelled(bytes([20 << 3]) + bytes(length))
    assert len(text) == 56
    assert decode_public(text) is None


def test_only_keys_are_remembered_and_not_for_ever(monkeypatch):
    monkeypatch.setattr(keys, "_known", {})
    monkeypatch.setattr(keys, "_MOST_KNOWN", 3)
    for index in range(10):
        assert decode_public("x" * (1_000 + index)) is None
        assert decode_public("U" * 55 + str(index)) is None
    assert not keys._known
    for index in range(10):
        raw = bytes([index]) * 32
        assert decode_public(encode_public(raw)) == decode_public(encode_public(raw)) == raw
        assert 1 <= len(keys._known) <= 3


def test_a_seed_comes_back_from_its_text_even_with_a_line_feed():
    assert len(SEED) == 58
    assert SEED.startswith("SU")
    assert EventKey.from_text(SEED).public == KEY.public
    assert EventKey.from_text(SEED + "\n").seed_text() == SEED


def test_one_changed_character_is_no_seed():
    for index, letter in enumerate(SEED):
        for other in "A7":
            if other != letter:
                with pytest.raises(BadKey):
                    EventKey.from_text(SEED[:index] + other + SEED[index + 1 :])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SU",
        SEED[:-1],
        SEED[:-8],
        SEED + "AAAAAAAA",
        SEED.lower(),
        SEED[:20] + "é" + SEED[21:],
        SEED[:20] + " " + SEED[21:],
        KEY.public,
        nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_ACCOUNT).decode(),
    ],
)
def test_another_text_is_no_seed_and_the_error_does_not_repeat_it(text):
    with pytest.raises(BadKey) as caught:
        EventKey.from_text(text)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert len(text) < 20 or text[10:] not in str(caught.value)


def test_a_key_does_not_show_its_seed():
    assert repr(KEY) == f"EventKey({KEY.public})"
    assert SEED not in repr(KEY)
    assert not hasattr(KEY, "__dict__")


def test_the_test_vectors_of_rfc_8032_hold():
    key = EventKey(
        bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    )
    public = decode_public(key.public)
    assert public == bytes.fromhex(
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    )
    signature = key.sign(b"\x72")
    assert signature == bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert signature_is_valid(public, b"\x72", signature)
    assert not signature_is_valid(public, b"\x73", signature)
    assert not signature_is_valid(public, b"\x72", hashlib.sha512(signature).digest())
