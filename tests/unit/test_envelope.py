"""The signed bytes of an event: built as the specification says, to the byte."""

import base64
import hashlib
import json
import re
import uuid
from pathlib import Path

import pytest
from msgspec import Raw, structs

import golden
from crafted import REALM, registered, verdict
from meshnet_events import envelope
from meshnet_events.envelope import (
    ENROL_PAYLOAD_TYPE,
    EVENT_PAYLOAD_TYPE,
    GENESIS,
    MAX_BODY,
    SESSION_PAYLOAD_TYPE,
    TIME_PATTERN,
    UUID7_PATTERN,
    ChainHead,
    canonical,
    event_digest,
    pre_authentication,
    rfc3339,
    sign_event,
    signed_bytes,
    source,
    type_name,
    uuid7,
)
from meshnet_events.facts import ShardWithdrawn
from meshnet_events.keys import decode_public, signature_is_valid

DATA = Path(__file__).parents[1] / "data"
EXPECTED = json.loads((DATA / "history.expect.json").read_bytes())
HISTORY = [json.loads(line) for line in (DATA / "history.ndjson").read_bytes().splitlines()]
FACT = ShardWithdrawn(boot_id=golden.BOOT, reason="over", shard_id="main")


def signed(fact=FACT, after=ChainHead(), time_ms=golden.TIME_MS, chance=bytes(range(10))):  # noqa: B008
    return sign_event(
        fact, key=golden.ALPHA, realm=REALM, after=after, time_ms=time_ms, chance=chance
    )


def test_pre_authentication_is_that_of_the_dsse_specification():
    assert pre_authentication(b"http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_lengths_in_the_pre_authentication_count_bytes():
    assert pre_authentication("é".encode(), "😀".encode()) == "DSSEv1 2 é 4 😀".encode()
    assert pre_authentication(b"", b"") == b"DSSEv1 0  0 "


def test_an_event_is_signed_under_its_own_payload_type():
    event = "{é}".encode()
    assert signed_bytes(event) == pre_authentication(EVENT_PAYLOAD_TYPE, event)
    assert len({EVENT_PAYLOAD_TYPE, ENROL_PAYLOAD_TYPE, SESSION_PAYLOAD_TYPE}) == 3


@pytest.mark.parametrize("sequence", EXPECTED["digests"])
def test_event_digests_are_those_of_the_signed_history(sequence):
    body = base64.b64decode(HISTORY[int(sequence) - 1]["body"])
    event = body[len(b'{"event":') : body.rindex(b',"sig":"')]
    assert event_digest(signed_bytes(event)) == EXPECTED["digests"][sequence]


def test_a_signed_event_is_this_to_the_byte():
    result = signed(after=ChainHead(6, "a" * 64))
    issuer = golden.ALPHA.public
    event = (
        '{"data":{"boot_id":"3769e4f9-167b-4492-993b-0bd3a15e3b5a","reason":"over",'
        '"shard_id":"main"},"id":"01a22ca5-e83b-7001-8203-040506070809",'
        f'"issuer":"{issuer}","issuerseq":7,"prev":"{"a" * 64}","realm":"demo",'
        f'"source":"urn:meshnet:demo:{issuer}","specversion":"1.0",'
        '"time":"2026-11-30T13:30:00.123Z","type":"io.meshnet.shard.withdrawn.v1"}'
    ).encode()
    assert result.body.startswith(b'{"event":' + event + b',"sig":"')
    assert result.body.endswith(b'"}')
    signature = base64.urlsafe_b64decode(result.body[-88:-2] + b"==")
    message = b"DSSEv1 37 application/vnd.meshnet.event.v1+json %d %b" % (len(event), event)
    public = decode_public(issuer)
    assert public is not None
    assert signature_is_valid(public, message, signature)
    assert result.head == ChainHead(7, hashlib.sha256(message).hexdigest())


def test_the_worked_example_of_the_module_is_record_33_of_the_signed_history():
    body = base64.b64decode(HISTORY[32]["body"])
    event = body[len(b'{"event":') : body.rindex(b',"sig":"')]
    shown = signed_bytes(event)[:71].decode()
    assert envelope.__doc__ is not None
    assert f"    {shown}…" in envelope.__doc__
    told = json.loads(event)
    for member in ("id", "time", "type"):
        assert f'"{member}": "{told[member]}"' in envelope.__doc__


def test_a_chain_starts_with_one_and_64_zeros_and_each_event_names_the_one_before():
    first = signed()
    second = signed(after=first.head)
    one = json.loads(first.body)["event"]
    two = json.loads(second.body)["event"]
    assert (one["issuerseq"], one["prev"]) == (1, "0" * 64) == (1, GENESIS)
    assert (two["issuerseq"], two["prev"]) == (2, first.head.digest)


def test_the_same_arguments_sign_the_same_bytes():
    assert signed() == signed()
    assert signed(chance=bytes(10)) != signed()


def test_an_event_as_large_as_the_gate_allows_is_signed_and_one_byte_more_is_refused():
    fact = golden.FACTS["io.meshnet.shard.registered.v1"]

    def padded(length):
        return structs.replace(fact, identity=Raw(b'{"x":"%b"}' % (b"y" * length)))

    room = MAX_BODY - len(signed(padded(0)).body)
    largest = signed(padded(room)).body
    assert len(largest) == MAX_BODY
    assert verdict(largest) == "good"
    with pytest.raises(ValueError, match=r"61,441 bytes.*61,440"):
        signed(padded(room + 1))


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (999, "1970-01-01T00:00:00.999Z"),
        (1_796_045_400_123, "2026-11-30T13:30:00.123Z"),
        (951_782_399_999, "2000-02-28T23:59:59.999Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_milliseconds_become_rfc_3339_in_utc(time_ms, text):
    assert rfc3339(time_ms) == text
    assert re.fullmatch(TIME_PATTERN, text)


@pytest.mark.parametrize("chance", [bytes(10), b"\xff" * 10, bytes(range(10)), bytes(range(16))])
@pytest.mark.parametrize("time_ms", [0, 1, 1_796_045_400_123, 2**48 - 1])
def test_a_uuid7_holds_time_version_variant_and_chance(time_ms, chance):
    text = uuid7(time_ms, chance)
    value = uuid.UUID(text)
    assert str(value) == text
    assert re.fullmatch(UUID7_PATTERN, text)
    assert (value.version, value.variant) == (7, uuid.RFC_4122)
    assert value.int >> 80 == time_ms
    # 74 of the 80 bits of chance are left: version and variant take the other six
    drawn = int.from_bytes(chance[:10], "big")
    kept = ~(0xF << 76 | 0x3 << 62) & (2**80 - 1)
    assert value.int & kept == drawn & kept


def test_the_example_of_rfc_9562_comes_out():
    chance = (0xCC3 << 64 | 0x18C4DC0C0C07398F).to_bytes(10, "big")
    assert uuid7(0x017F22E279B0, chance) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        ({"b": 1, "a": 2, "A": 3, "aa": 4, "": 5}, b'{"":5,"A":3,"a":2,"aa":4,"b":1}'),
        ([True, False, None, -1, 2**53 - 1], b"[true,false,null,-1,9007199254740991]"),
        ("é😀\u2028\x7f/", '"é😀\u2028\x7f/"'.encode()),
        ('\x00\x1f\b\t\n\f\r"\\', rb'"\u0000\u001f\b\t\n\f\r\"\\"'),
        ({"z": {"y": {"x": 1, "w": 2}}}, b'{"z":{"y":{"w":2,"x":1}}}'),
    ],
)
def test_canonical_form_is_that_of_rfc_8785(value, spelled):
    assert canonical(value) == spelled


def test_names_are_spelled_as_specified():
    assert source("demo", "U1") == "urn:meshnet:demo:U1"
    assert type_name(FACT) == "io.meshnet.shard.withdrawn.v1"


def test_bytes_in_the_place_of_an_identity_are_signed_as_they_are():
    assert verdict(registered(b'{"a": 1}')) == "not-canonical"
