"""The gate, step by step: given these bytes, when they are screened, then this is the reason."""

import base64
import hashlib
import itertools
import json
import time

import msgspec
import pytest
from nacl.bindings import crypto_scalarmult_ed25519_base_noclamp

import golden
from crafted import (
    KEY,
    REALM,
    SUBJECT,
    WARMED,
    WITHDRAWN,
    good,
    judge,
    members,
    registered,
    screen,
    seal,
    verdict,
    wrap,
)
from meshnet_events import gate as gate_module
from meshnet_events import subjects
from meshnet_events.diagnosis import diagnose
from meshnet_events.envelope import (
    GENESIS,
    MAX_BODY,
    ChainHead,
    canonical,
    event_digest,
    sign_event,
    signed_bytes,
    source,
)
from meshnet_events.facts import ShardRegistered, ShardWithdrawn
from meshnet_events.forms import MAX_INTEGER
from meshnet_events.gate import Gate
from meshnet_events.keys import EventKey, encode_public
from meshnet_events.reasons import BROKEN_CHAIN, REPLAYED, Refusal
from meshnet_events.screened import Event, follow

GOOD = good()
EVENT = GOOD[len(b'{"event":') : -96]
SIGNATURE = base64.urlsafe_b64decode(GOOD[-88:-2] + b"==")
ORDER = 2**252 + 27742317777372353535851937790883648493


def data_with(spelled: bytes) -> bytes:
    """A rightly signed body whose `data` holds one more member, spelled as it is."""
    return seal(EVENT.replace(b',"shard_id"', b"," + spelled + b',"shard_id"'))


def with_reason(spelled: bytes) -> bytes:
    """A rightly signed body whose `data.reason` is spelled like this."""
    return seal(EVENT.replace(b'"over"', spelled))


# -- good ----------------------------------------------------------------------------------------


def test_a_good_event_becomes_its_fact_and_its_place_in_the_chain():
    event = judge(GOOD)
    assert event == Event(
        issuer=KEY.public,
        issuerseq=1,
        prev=GENESIS,
        digest=event_digest(signed_bytes(EVENT)),
        type=WITHDRAWN,
        data=ShardWithdrawn(boot_id=golden.BOOT, reason="over", shard_id="main"),
    )


@pytest.mark.parametrize("type_", golden.FACTS)
def test_the_fast_path_takes_a_good_event_of_an_issuer_it_knows(type_):
    body = (golden.FOLDER / f"{type_}.json").read_bytes()
    subject = subjects.event(REALM, golden.issuer(golden.FACTS[type_]).public)
    assert WARMED._plainly_good(body, subject) == diagnose(body, subject, REALM)


def test_a_body_of_exactly_the_largest_size_is_good():
    room = MAX_BODY - len(registered(b'{"x":""}'))
    assert verdict(registered(b'{"x":"%b"}' % (b"y" * room))) == "good"


def test_unicode_and_control_characters_in_their_canonical_spelling_are_good():
    spelled = r'"é 😀 \u0001\n\t\b\f\r\"\\ /' + '\x7f\u2028"'
    assert verdict(with_reason(spelled.encode())) == "good"


# -- step 1 --------------------------------------------------------------------------------------


def test_one_byte_more_than_the_largest_size_is_oversize_whatever_it_holds():
    assert verdict(b"\xff" * (MAX_BODY + 1)) == "oversize"
    assert verdict(GOOD + b" " * (MAX_BODY + 1 - len(GOOD))) == "oversize"
    room = MAX_BODY - len(registered(b'{"x":""}'))
    assert verdict(registered(b'{"x":"%b"}' % (b"y" * (room + 1)))) == "oversize"


def test_a_fact_too_large_for_an_event_is_oversize_even_where_all_else_is_good():
    type_ = "io.meshnet.handshake.completed.v1"
    event = json.loads(golden.signed(type_, golden.FACTS[type_]))["event"]
    many = [{"detail": "x" * 1024, "reason": "artifact", "shard_index": None}] * 50
    event["data"]["mismatches"] = many
    assert verdict(seal(canonical(event))) == "good"
    event["data"]["mismatches"] = many * 2
    assert verdict(seal(canonical(event))) == "oversize"


# -- step 2 --------------------------------------------------------------------------------------


def test_a_body_cut_anywhere_is_not_json():
    assert {verdict(GOOD[:end]) for end in range(len(GOOD))} == {"not-json"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b" ", id="blank"),
        pytest.param(b"\xef\xbb\xbf" + GOOD, id="UTF-8 byte order mark"),
        pytest.param(GOOD.decode().encode("utf-16"), id="UTF-16"),
        pytest.param(GOOD.decode().encode("utf-16-le"), id="UTF-16 without a mark"),
        pytest.param(GOOD.decode().encode("utf-32"), id="UTF-32"),
        pytest.param(GOOD + b"{}", id="two values"),
        pytest.param(GOOD + b"\x00", id="a zero byte after"),
        pytest.param(b"\x00" + GOOD, id="a zero byte before"),
        pytest.param(GOOD.replace(b'"', b"'"), id="single quotes"),
        pytest.param(GOOD.replace(b'},"sig"', b',},"sig"'), id="a comma too many"),
        pytest.param(b"NaN", id="nothing but NaN"),
    ],
)
def test_a_body_that_is_no_json_text_is_not_json(body):
    assert verdict(body) == "not-json"


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1.0",
        "0.0",
        "-0.0",
        "1e2",
        "1E2",
        "1e-2",
        "1e400",
        "1.5",
        "9007199254740992",
        "-9007199254740992",
        "18446744073709551616",
        "9" * 5_000,
        "-" + "9" * 5_000,
        "1" + "0" * 5_000 + ".0",
        "01",
        "-01",
        "+1",
        "-",
        ".5",
        "5.",
        "0x10",
        "١",
        "True",
        "nul",
        r'"\ud800"',
        r'"\udc00"',
        r'"\ud83dx"',
        r'"\ude00\ud83d"',
        r'"\uD800\u0041"',
        r'"\x41"',
        r'"\u00"',
        '"\x01"',
        '"\n"',
        '"\x1f"',
        '"a',
        r'{"\ud800":1}',
        r'{"a":{"b":["\udfff"]}}',
    ],
)
def test_a_value_that_the_contract_does_not_know_is_not_json(value):
    assert verdict(data_with(b'"more":' + value.encode())) == "not-json"
    assert verdict(registered(b'{"a":' + value.encode() + b"}")) == "not-json"
    assert verdict(registered(b'{"a":[1,{"b":' + value.encode() + b"}]}")) == "not-json"


@pytest.mark.parametrize(
    "raw", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3"]
)
def test_a_text_that_is_not_utf8_is_not_json(raw):
    assert verdict(with_reason(b'"' + raw + b'"')) == "not-json"


@pytest.mark.parametrize("value", [r'"\ud800"', "1.5", "9" * 40, r'[{"a":"\ud800"}]'])
def test_what_a_repeated_key_shadows_is_read_as_well(value):
    twice = f'"more":{{"a":{value},"a":1}}'.encode()
    assert verdict(data_with(twice)) == "not-json"
    assert verdict(seal(EVENT.replace(b'{"data"', f'{{"id":{value},"data"'.encode()))) == "not-json"


def test_nesting_counts_from_the_outer_object_to_32():
    # body, event, data and identity are four levels
    inner = 28
    assert verdict(registered(b'{"x":' + b"[" * inner + b"]" * inner + b"}")) == "good"
    inner = 29
    assert verdict(registered(b'{"x":' + b"[" * inner + b"]" * inner + b"}")) == "not-json"
    assert verdict(registered(b'{"x":' + b'{"y":' * inner + b"1" + b"}" * inner + b"}")) == (
        "not-json"
    )


def test_brackets_within_texts_do_not_nest():
    assert verdict(with_reason(b'"' + b"[{" * 500 + b'"')) == "good"
    assert verdict(with_reason(rb'"\"' + b"[" * 500 + rb"\\" + b'"')) == "good"


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"":'])
def test_bottomless_nesting_is_not_json_and_does_not_overflow(opening):
    assert verdict((opening * MAX_BODY)[:MAX_BODY]) == "not-json"


@pytest.mark.parametrize(
    "unit", [rb"\"", b'"', b"\\", b'"[', rb'"\\"', b"[]", b"-", b"1", b'{"a":1,', b"\\u0041"]
)
def test_the_largest_body_of_anything_repeated_is_judged_quickly(unit):
    started = time.perf_counter()
    screen(b'"' + unit * ((MAX_BODY - 1) // len(unit)))
    assert time.perf_counter() - started < 1


# -- step 3 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{}", id="no members"),
        pytest.param(b"[]", id="an array"),
        pytest.param(b"null", id="null"),
        pytest.param(b'"text"', id="a text"),
        pytest.param(EVENT, id="the event alone"),
        pytest.param(b'{"event":' + EVENT + b"}", id="no signature"),
        pytest.param(GOOD[: len(GOOD) - 96] + b',"sig":null}', id="null for a signature"),
        pytest.param(b"{" + GOOD[-95:-1] + b',"event":' + EVENT + b"}", id="sig before event"),
        pytest.param(GOOD[:-1] + b',"more":1}', id="a third member"),
        pytest.param(b'{"more":1,' + GOOD[1:], id="a third member first"),
        pytest.param(GOOD[:-1] + b"," + GOOD[-95:], id="two signatures"),
        pytest.param(b'{"event":1,' + GOOD[1:], id="two events"),
        pytest.param(GOOD.replace(b',"sig"', b',"event":{},"sig"'), id="a second event"),
        pytest.param(b" " + GOOD, id="a blank before"),
        pytest.param(GOOD + b"\n", id="a line feed after"),
        pytest.param(GOOD[:-1] + b" }", id="a blank before the end"),
        pytest.param(b'{ "event"' + GOOD[8:], id="a blank before event"),
        pytest.param(GOOD.replace(b',"sig":', b',"sig": '), id="a blank before the signature"),
        pytest.param(b'{"Event"' + GOOD[8:], id="another name for event"),
        pytest.param(GOOD.replace(b'"data"', b'"Data"'), id="another name for data"),
        pytest.param(rb'{"\u0065vent"' + GOOD[8:], id="an escape in a member's name"),
        pytest.param(seal(b"[]"), id="an array for an event"),
        pytest.param(seal(b"null"), id="null for an event"),
        pytest.param(seal(b'"text"'), id="a text for an event"),
        pytest.param(seal(b"{}"), id="an empty event"),
        pytest.param(seal(b"[" + EVENT + b"]"), id="an event in an array"),
        pytest.param(seal(EVENT + b',"more":{}'), id="a member hidden behind the event"),
    ],
)
def test_a_body_of_another_shape_is_a_bad_envelope(body):
    assert verdict(body) == "bad-envelope"


@pytest.mark.parametrize("blank", [b" ", b"\n", b"\t", b"\r", b"  "])
def test_white_space_around_the_event_is_a_bad_envelope(blank):
    # signed with or without it: the body is not {"event":E,"sig":"S"}, byte for byte
    for signature in (SIGNATURE, None):
        for event in (blank + EVENT, EVENT + blank):
            body = seal(event) if signature is None else wrap(event, signature)
            assert verdict(body) == "bad-envelope"


def other_spellings(signature: bytes) -> list[bytes]:
    """Texts that a lenient decoder reads as the same 64 bytes, or as none."""
    text = base64.urlsafe_b64encode(signature).rstrip(b"=")
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet.index(text[-1])
    return [
        *(text[:-1] + alphabet[last + spare : last + spare + 1] for spare in range(1, 16)),
        text + b"==",
        text + b"=",
        text[:-1],
        text[:-2],
        text + b"A",
        text + b"AA",
        b"",
        text[:40] + b"+" + text[41:],
        text[:40] + b"/" + text[41:],
        text[:40] + b"=" + text[41:],
        text[:40] + b" " + text[41:],
        text[:40] + rb"\u0041" + text[41:],
        text[:40] + "é".encode() + text[41:],
        base64.b64encode(signature[:63]).rstrip(b"="),
        base64.urlsafe_b64encode(signature + b"x").rstrip(b"="),
        signature.hex().encode(),
    ]


@pytest.mark.parametrize("text", other_spellings(SIGNATURE))
def test_a_signature_spelled_in_any_other_way_is_a_bad_envelope(text):
    assert verdict(b'{"event":' + EVENT + b',"sig":"' + text + b'"}') == "bad-envelope"


@pytest.mark.parametrize("name", members())
def test_an_event_that_lacks_a_member_is_a_bad_envelope(name):
    kept = {key: value for key, value in members().items() if key != name}
    assert verdict(seal(canonical(kept))) == "bad-envelope"
    assert name in judge(seal(canonical(kept))).detail


@pytest.mark.parametrize("name", ["", "more", "traceparent", "subject", "datacontenttype", "Data"])
def test_an_event_with_an_eleventh_member_is_a_bad_envelope(name):
    assert verdict(good(**{name: "x"})) == "bad-envelope"


MISTYPED = {
    "data": [[], "text", None, 1, True],
    "id": [
        "0192f8a0-0000-4000-8000-8ec5d99d25ca",
        "0192f8a0-0000-7000-c000-8ec5d99d25ca",
        "0192F8A0-0000-7000-8000-8EC5D99D25CA",
        "0192f8a0000070008000ec5d99d25ca0",
        "{0192f8a0-0000-7000-8000-8ec5d99d25ca}",
        "0192f8a0-0000-7000-8000-8ec5d99d25ca\n",
        "",
        7,
    ],
    "issuer": [
        "",
        "U" * 56,
        KEY.public.lower(),
        KEY.public[:-1],
        KEY.public + "\n",
        KEY.public[:-1] + ("A" if KEY.public[-1] != "A" else "B"),
        "A" + KEY.public[1:],
        KEY.seed_text()[:56],
        None,
    ],
    "issuerseq": [0, -1, True, False, "1", None, [1]],
    "prev": ["", "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n", "g" * 64, None],
    "realm": ["", "Demo", "demo.x", "demo*", ">", "1demo", "d" * 33, "demo\n", "dé", None],
    "source": [None, 1, {}],
    "specversion": ["1", "1.0.0", "1x0", "1.0\n", 1],
    "time": [
        "2026-11-30T13:30:00.123",
        "2026-11-30T13:30:00+00:00",
        "2026-11-30T13:30:00z",
        "2026-11-30t13:30:00Z",
        "2026-11-30 13:30:00Z",
        "2026-13-30T13:30:00Z",
        "2026-00-30T13:30:00Z",
        "2026-11-32T13:30:00Z",
        "2026-11-30T24:30:00Z",
        "2026-11-30T13:60:00Z",
        "2026-11-30T13:30:60Z",
        "2026-11-30T13:30:00.Z",
        "2026-11-30T13:30:00.1234567890Z",
        "2026-11-30T13:30:00Z\n",
        "２026-11-30T13:30:00Z",
        1_796_045_400_123,
    ],
    "type": [None, 1, []],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in MISTYPED.items() for value in values]
)
def test_a_member_of_another_form_is_a_bad_envelope_that_names_it(name, value):
    refusal = judge(good(**{name: value}))
    assert refusal.code == "bad-envelope"
    assert f"event.{name}" in refusal.detail


@pytest.mark.parametrize(
    "moment",
    ["2026-11-30T13:30:00Z", "2026-11-30T13:30:00.1Z", "2026-11-30T13:30:00.123456789Z"],
)
def test_a_time_in_utc_with_up_to_nine_decimals_is_good(moment):
    assert verdict(good(time=moment)) == "good"


@pytest.mark.parametrize("padding", [1, 3, 4, 6])
def test_a_shorter_key_padded_to_56_characters_is_a_bad_envelope(padding):
    # it has a prefix and a right checksum, and fewer bytes than libsodium reads
    raw = {1: 31, 3: 30, 4: 29, 6: 28}[padding]
    text = encode_public(bytes(raw))
    assert len(text) == 56
    assert text.endswith("=" * padding)
    body = good(issuer=text, source=source(REALM, text))
    assert verdict(body, subjects.event(REALM, text)) == "bad-envelope"


# -- step 4 --------------------------------------------------------------------------------------


def test_a_signature_of_another_key_or_of_other_bytes_is_a_bad_signature():
    assert verdict(seal(EVENT, golden.BETA)) == "bad-signature"
    assert verdict(wrap(EVENT.replace(b"over", b"ovar"), SIGNATURE)) == "bad-signature"
    assert verdict(wrap(EVENT, bytes(64))) == "bad-signature"
    assert verdict(wrap(EVENT, KEY.sign(EVENT))) == "bad-signature"


def test_each_flipped_bit_of_a_signature_is_a_bad_signature():
    for index in range(64 * 8):
        flipped = bytearray(SIGNATURE)
        flipped[index // 8] ^= 1 << index % 8
        assert verdict(wrap(EVENT, bytes(flipped))) == "bad-signature"


def test_a_signature_with_the_group_order_added_is_a_bad_signature():
    scalar = int.from_bytes(SIGNATURE[32:], "little") + ORDER
    other = SIGNATURE[:32] + scalar.to_bytes(32, "little")
    assert verdict(wrap(EVENT, other)) == "bad-signature"


SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
NOT_CANONICAL_KEYS = [
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "f0ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]


@pytest.mark.parametrize("raw", SMALL_ORDER + NOT_CANONICAL_KEYS)
def test_a_forged_signature_under_a_weak_key_is_a_bad_signature(raw):
    public = bytes.fromhex(raw)
    issuer = encode_public(public)
    event = canonical(members(issuer=issuer, source=source(REALM, issuer)))
    for scalar in itertools.count(1):  # about one in eight makes a lenient verifier say yes
        spelled = scalar.to_bytes(32, "little")
        point = crypto_scalarmult_ed25519_base_noclamp(spelled)
        hashed = hashlib.sha512(point + public + signed_bytes(event)).digest()
        if int.from_bytes(hashed, "little") % ORDER % 8 == 0:
            break
    subject = subjects.event(REALM, issuer)
    assert verdict(wrap(event, point + spelled), subject) == "bad-signature"
    assert verdict(wrap(event, public + bytes(32)), subject) == "bad-signature"


# -- step 5 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(EVENT.replace(b'"data":', b'"data": '), id="a blank"),
        pytest.param(EVENT.replace(b'},"id"', b'}\n,"id"'), id="a line feed"),
        pytest.param(json.dumps(members()).encode(), id="blanks everywhere"),
        pytest.param(
            json.dumps(dict(reversed(members().items())), separators=(",", ":")).encode(),
            id="members in another order",
        ),
        pytest.param(
            EVENT.replace(
                b'"reason":"over","shard_id":"main"', b'"shard_id":"main","reason":"over"'
            ),
            id="data in another order",
        ),
        pytest.param(EVENT.replace(b'"over"', rb'"\u006fver"'), id="an escape of ASCII"),
        pytest.param(EVENT.replace(b'"over"', rb'"\/"'), id="an escaped solidus"),
        pytest.param(EVENT.replace(b'"over"', rb'"\u00e9"'), id="an escape of Unicode"),
        pytest.param(EVENT.replace(b'"over"', rb'"\ud83d\ude00"'), id="an escaped pair"),
        pytest.param(EVENT.replace(b'"over"', rb'"\u000A"'), id="a long escape"),
        pytest.param(EVENT.replace(b'"over"', rb'"\u001F"'), id="an upper-case escape"),
        pytest.param(EVENT.replace(b'"over"', rb'"\u007f"'), id="an escaped delete"),
        pytest.param(EVENT.replace(b'"over"', rb'"\u2028"'), id="an escaped line separator"),
        pytest.param(EVENT.replace(b'"reason"', rb'"\u0072eason"'), id="an escape in a key"),
        pytest.param(EVENT.replace(b'"data"', rb'"d\u0061ta"'), id="an escape in a member's name"),
        pytest.param(EVENT.replace(b'"over"', b"-0"), id="minus zero"),
        pytest.param(EVENT.replace(b'"over"', '{"é":1}'.encode()), id="a key that is not ASCII"),
        pytest.param(EVENT.replace(b'"over"', rb'{"\u0000\u00e9":1}'), id="an escaped such key"),
        pytest.param(
            EVENT.replace(b'"reason":', b'"reason":1,"reason":'), id="a key of data twice"
        ),
        pytest.param(
            EVENT.replace(b'"reason":', b'"reason":"over","reason":'), id="the same value twice"
        ),
        pytest.param(EVENT.replace(b'{"data"', b'{"data":{},"data"'), id="data twice"),
        pytest.param(EVENT.replace(b'"id":"', b'"id":"x","id":"'), id="a member twice"),
        pytest.param(EVENT[:-1] + b',"type":"' + WITHDRAWN.encode() + b'"}', id="type twice"),
        pytest.param(EVENT.replace(b'"over"', b'{"a":1,"a":1}'), id="a key twice deeper"),
    ],
)
def test_an_event_in_another_spelling_is_not_canonical_though_rightly_signed(event):
    assert event != EVENT
    assert verdict(seal(event)) == "not-canonical"


@pytest.mark.parametrize(
    "identity",
    [
        b'{"a": 1}',
        b'{"b":1,"a":1}',
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b'{"a":-0}',
        rb'{"a":"\u0041"}',
        rb'{"\u0061":1}',
        '{"é":1}'.encode(),
        b' {"a":1}',
        b'{"a":1} ',
    ],
)
def test_an_identity_in_another_spelling_is_not_canonical(identity):
    assert verdict(registered(identity)) == "not-canonical"


# -- step 6 --------------------------------------------------------------------------------------


def test_an_event_of_another_realm_is_wrong_realm_even_if_all_else_speaks_of_this_one():
    elsewhere = good(realm="other", source=source("other", KEY.public))
    assert verdict(elsewhere) == "wrong-realm"
    assert verdict(good(realm="other")) == "wrong-realm"
    assert verdict(GOOD, realm="other") == "wrong-realm"


@pytest.mark.parametrize(
    "claimed",
    [
        "",
        "x",
        source("other", KEY.public),
        source(REALM, golden.BETA.public),
        source(REALM, KEY.public) + "\n",
        source(REALM, KEY.public).upper(),
        '"',
        "é",
    ],
)
def test_a_source_that_does_not_name_realm_and_issuer_is_wrong_subject(claimed):
    assert verdict(good(source=claimed)) == "wrong-subject"


@pytest.mark.parametrize(
    "subject",
    [
        "",
        subjects.event(REALM, golden.BETA.public),
        subjects.event("other", KEY.public),
        subjects.live(REALM, KEY.public),
        SUBJECT + ".x",
        SUBJECT + "\n",
        SUBJECT.upper(),
        "\ud800",
        "x" * 100_000,
    ],
)
def test_an_event_stored_under_another_subject_is_wrong_subject(subject):
    assert verdict(GOOD, subject) == "wrong-subject"


# -- step 7 --------------------------------------------------------------------------------------


def event_at(issuerseq: int, prev: str) -> Event:
    event = screen(good(issuerseq=issuerseq, prev=prev)).verified()
    assert isinstance(event, Event)
    return event


def test_the_next_event_moves_the_chain_to_itself():
    event = event_at(8, "a" * 64)
    assert follow(ChainHead(7, "a" * 64), event) == ChainHead(8, event.digest)


@pytest.mark.parametrize(
    ("issuerseq", "prev", "reason"),
    [
        (1, GENESIS, REPLAYED),
        (7, "a" * 64, REPLAYED),
        (9, "a" * 64, BROKEN_CHAIN),
        (MAX_INTEGER, "a" * 64, BROKEN_CHAIN),
        (8, "b" * 64, BROKEN_CHAIN),
        (8, GENESIS, BROKEN_CHAIN),
        (9, "b" * 64, BROKEN_CHAIN),
        (6, "b" * 64, REPLAYED),
    ],
)
def test_an_event_that_is_not_the_next_says_whether_it_is_old_or_elsewhere(issuerseq, prev, reason):
    refusal = follow(ChainHead(7, "a" * 64), event_at(issuerseq, prev))
    assert isinstance(refusal, Refusal)
    assert refusal.code == reason


def test_the_first_event_has_number_one_and_64_zeros_before_it():
    first = event_at(1, GENESIS)
    assert follow(ChainHead(), first) == ChainHead(1, first.digest)
    assert follow(ChainHead(), event_at(1, "a" * 64)).code == BROKEN_CHAIN


@pytest.mark.parametrize("issuerseq", [10**15 - 1, 10**15, MAX_INTEGER])
def test_a_chain_may_be_as_long_as_an_integer_can_say(issuerseq):
    event = event_at(issuerseq, "a" * 64)
    assert follow(ChainHead(issuerseq - 1, "a" * 64), event) == ChainHead(issuerseq, event.digest)


@pytest.mark.parametrize("changes", [{"type": "x"}, {"data": {}}])
def test_an_event_whose_fact_is_refused_still_moves_its_chain(changes):
    event = screen(good(**changes)).verified()
    assert isinstance(event, Event)
    assert isinstance(event.data, Refusal)
    assert follow(ChainHead(), event) == ChainHead(1, event.digest)


# -- step 8 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "type_",
    [
        "",
        "x",
        "io.meshnet.shard.withdrawn.v2",
        "io.meshnet.shard.withdrawn.v01",
        "io.meshnet.shard.withdrawn",
        "IO.meshnet.shard.withdrawn.v1",
        "io.meshnet.shard.withdrawn.v1\n",
        "io.meshnet.shard-withdrawn.v1",
        "é",
        "t" * 10_000,
    ],
)
def test_a_type_that_no_fact_has_is_unknown(type_):
    assert verdict(good(type=type_)) == "unknown-type"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"colour": "red"}, "colour"),
        ({"reason": None}, "$.reason"),
        ({"reason": 1}, "$.reason"),
        ({"reason": "x" * 1025}, "$.reason"),
        ({"boot_id": golden.BOOT.upper()}, "boot_id"),
        ({"boot_id": golden.BOOT + "\n"}, "$.boot_id"),
        ({"boot_id": "x" * 36}, "boot_id"),
        ({"shard_id": ""}, "$.shard_id"),
        ({"shard_id": "Main"}, "shard_id"),
        ({"shard_id": "main\n"}, "shard_id"),
        ({"shard_id": "x" * 33}, "$.shard_id"),
    ],
)
def test_data_of_another_shape_is_bad_shape_and_names_the_path(change, path):
    refusal = judge(good(data={**members()["data"], **change}))
    assert refusal.code == "bad-shape"
    assert path in refusal.detail


@pytest.mark.parametrize("name", ["boot_id", "reason", "shard_id"])
def test_data_that_lacks_a_member_is_bad_shape(name):
    kept = {key: value for key, value in members()["data"].items() if key != name}
    assert verdict(good(data=kept)) == "bad-shape"


@pytest.mark.parametrize("identity", [b"[]", b"null", b'"{}"', b"1", b"true"])
def test_an_identity_that_is_no_object_is_bad_shape(identity):
    assert verdict(registered(identity)) == "bad-shape"


@pytest.mark.parametrize("identity", [b"{}", b'{"artifact":null}', b'{"":{"":[]}}'])
def test_an_identity_with_faults_inside_passes_the_gate(identity):
    event = judge(registered(identity))
    assert isinstance(event, Event)
    assert isinstance(event.data, ShardRegistered)
    assert bytes(event.data.identity) == identity


def test_a_key_inside_a_fact_must_be_a_key():
    data = {"node": "U" * 56, "reason": "over"}
    refusal = judge(good(data=data, type="io.meshnet.node.suspended.v1"))
    assert refusal.code == "bad-shape"
    assert "node" in refusal.detail


# -- order ---------------------------------------------------------------------------------------

STEPS = [
    "oversize",
    "not-json",
    "bad-envelope",
    "bad-signature",
    "not-canonical",
    "wrong-realm",
    "wrong-subject",
    "unknown-type",
]


def faulty(*faults: str) -> bytes:
    """A body with exactly these faults."""
    told = members()
    if "bad-shape" in faults:
        told["data"]["colour"] = "red"
    if "unknown-type" in faults:
        told["type"] = "io.meshnet.shard.painted.v1"
    if "wrong-subject" in faults:
        told["source"] = "urn:x"
    if "wrong-realm" in faults:
        told["realm"] = "other"
    if "bad-envelope" in faults:
        del told["prev"]
    event = canonical(told)
    if "not-canonical" in faults:
        event = event.replace(b'"data":', b'"data": ')
    if "not-json" in faults:
        event = event.replace(b'"over"', b"1.5")
    body = seal(event, golden.BETA if "bad-signature" in faults else KEY)
    return body + b" " * (MAX_BODY + 1 - len(body)) if "oversize" in faults else body


@pytest.mark.parametrize("fault", [*STEPS, "bad-shape"])
def test_each_fault_alone_has_its_reason(fault):
    assert verdict(faulty(fault)) == fault


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(STEPS, 2)))
def test_of_two_faults_the_earlier_step_names_the_reason(first, second):
    assert verdict(faulty(first, second)) == first


@pytest.mark.parametrize("first", STEPS)
def test_bad_shape_comes_after_every_other_step(first):
    assert verdict(faulty(first, "bad-shape")) == first


def test_with_every_fault_at_once_the_size_is_named():
    assert verdict(faulty(*STEPS, "bad-shape")) == "oversize"
    assert verdict(faulty(*STEPS[1:], "bad-shape")) == "not-json"


# -- what the gate remembers ---------------------------------------------------------------------


def test_an_identity_that_was_sound_once_opens_nothing_around_it():
    sound = canonical(golden.IDENTITY)
    assert sound in WARMED._identities
    body = registered(sound)
    assert verdict(body) == "good"
    # the same bytes in the place of an identity, and something else not canonical
    event = body[len(b'{"event":') : -96]
    for old, new in (
        (b'"identity":', b'"identity": '),
        (sound, sound + b" "),
        (sound, sound + b"," + b'"identity":' + sound),
        (b'"endpoint":"grpc', rb'"endpoint":"\u0067rpc'),
        (b'"duration_ms":900', b'"duration_ms":0900'),
        (b'"duration_ms":900', b'"duration_ms":9e2'),
        (b'"synthetic":false', b'"synthetic":0'),
    ):
        assert event.count(old) == 1
        assert verdict(seal(event.replace(old, new))) in {"not-canonical", "not-json", "bad-shape"}


def test_an_identity_that_looks_like_the_end_of_data_splits_nothing():
    identity = canonical({"a": {}, "id": "x", "issuer": KEY.public, "z": {"q": {}, "sig": "x"}})
    gate = Gate(REALM)
    for _ in range(2):
        assert gate.screen(registered(identity), SUBJECT) == screen(registered(identity))
    assert gate._plainly_good(registered(identity), SUBJECT) is not None


def test_forgetting_changes_no_answer_and_bounds_what_is_kept(monkeypatch):
    monkeypatch.setattr(gate_module, "_MAX_IDENTITY_BYTES", 2_000)
    gate = Gate(REALM)
    for index in range(20):
        body = registered(b'{"x":"%b","y":%d}' % (b"z" * 900, index))
        for _ in range(2):
            assert gate.screen(body, SUBJECT) == diagnose(body, SUBJECT, REALM)
        assert sum(map(len, gate._identities)) < 3_000
        assert gate._identity_bytes > sum(map(len, gate._identities))
    for index in range(20):
        gate.screen(registered(b'{"x":%d}' % index), SUBJECT)
        assert len(gate._identities) <= 2_000 // 256, "small ones are not free"


def test_what_issuers_hold_is_forgotten_with_the_rest(monkeypatch):
    monkeypatch.setattr(gate_module, "_MAX_IDENTITY_BYTES", 5_000)
    gate = Gate(REALM)
    fact = golden.FACTS["io.meshnet.shard.registered.v1"]
    for index in range(20):
        key = EventKey(bytes([index]) * 32)
        block = msgspec.Raw(b'{"x":"%b","y":%d}' % (b"z" * 900, index))
        body = sign_event(
            msgspec.structs.replace(fact, identity=block),
            key=key, realm=REALM, after=ChainHead(), time_ms=0, chance=bytes(10),
        ).body  # fmt: skip
        assert isinstance(gate.screen(body, subjects.event(REALM, key.public)).result, Event)
        held = {id(one.identity): one.identity for one in gate._issuers.values()}
        assert sum(map(len, held.values())) <= 5_000


def test_forgetting_issuers_changes_no_answer(monkeypatch):
    monkeypatch.setattr(gate_module, "_MAX_ISSUERS", 2)
    gate = Gate(REALM)
    fact = ShardWithdrawn(boot_id=golden.BOOT, reason="over", shard_id="main")
    for key in (golden.ALPHA, golden.BETA, golden.OPERATOR) * 2:
        body = sign_event(
            fact, key=key, realm=REALM, after=ChainHead(), time_ms=0, chance=bytes(10)
        ).body
        subject = subjects.event(REALM, key.public)
        assert gate.screen(body, subject) == diagnose(body, subject, REALM)
        assert len(gate._issuers) <= 2


def test_a_gate_of_no_realm_is_refused():
    with pytest.raises(ValueError, match="not a realm name"):
        Gate("Not.A.Realm")
