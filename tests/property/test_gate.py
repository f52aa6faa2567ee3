"""Whatever arrives, the gate answers; and its fast path never says what its slow path would not.

Every input goes three ways: through a gate that has seen the golden events (its fast path is live),
through one that knows nothing, and through the diagnosis alone. `crafted.screen` compares them.
"""

import base64
import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import golden
from crafted import (
    KEY,
    REALM,
    REGISTERED,
    SUBJECT,
    WARMED,
    good,
    judge,
    members,
    registered,
    screen,
    seal,
    warmed_gate,
)
from meshnet_events import subjects
from meshnet_events.diagnosis import diagnose
from meshnet_events.envelope import MAX_BODY, ChainHead, canonical, sign_event
from meshnet_events.facts import Fact, ShardRegistered
from meshnet_events.keys import EventKey
from meshnet_events.reasons import Refusal
from meshnet_events.screened import Event, follow
from strategies import (
    BY_FACT,
    any_fact,
    chain_heads,
    identity_blocks,
    json_keys,
    json_objects,
    json_values,
    keys,
)

BODIES = {type_: (golden.FOLDER / f"{type_}.json").read_bytes() for type_ in golden.FACTS}
SUBJECTS = {
    type_: subjects.event(REALM, golden.issuer(fact).public) for type_, fact in golden.FACTS.items()
}
golden_types = st.sampled_from(sorted(BODIES))
# what a mutation puts in: the bytes that mean something to one of the parsers, and any others
snippets = st.binary(max_size=12) | st.sampled_from(
    [
        b"",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b" ",
        b"\n",
        b"\x00",
        b"\x7f",
        b"\xff",
        b"0",
        b"-",
        b"-0",
        b"1.0",
        b"1e2",
        b"9007199254740992",
        b"true",
        b"null",
        b"NaN",
        b'},"id":"',
        b'},"id":"x","issuer":"',
        b'{"event":{"data":',
        b'"}',
        b'","sig":"',
        b'"identity":{},',
        b"\\ud800",
        b"\\u0041",
        b"\xed\xa0\x80",
        b"\xc3\xa9",
        b'"a":1,"a":1',
        canonical(golden.IDENTITY),
    ]
)


def signed_part(body: bytes) -> bytes:
    """The bytes of `E`."""
    return body[len(b'{"event":') : -96]


def canonical_by_another(event: bytes) -> bytes:
    """Canonical form by Python's own JSON: no code of the gate takes part."""
    return json.dumps(
        json.loads(event), sort_keys=True, ensure_ascii=False, separators=(",", ":")
    ).encode()


@given(st.binary(max_size=300))
@example(b"")
@example(b'{"event":{},"sig":""}')
def test_arbitrary_bytes_are_refused_the_same_way_by_all(body):
    assert isinstance(judge(body), Refusal)


@given(st.text(max_size=200))
def test_arbitrary_text_is_refused_the_same_way_by_all(text):
    assert isinstance(judge(text.encode("utf-8", "surrogatepass")), Refusal)


@given(json_values | json_objects)
def test_arbitrary_json_is_refused_the_same_way_by_all(value):
    assert isinstance(judge(canonical(value)), Refusal)


@given(json_values, st.sampled_from(sorted(members())))
def test_arbitrary_json_in_any_member_is_judged_the_same_way_by_all(value, name):
    result = screen(good(**{name: value})).verified()
    if isinstance(result, Event):
        assert members()[name] == value or name in {"data", "issuerseq", "type"}


@given(json_values, json_keys, st.sampled_from(sorted(BODIES)))
def test_arbitrary_json_in_any_place_of_data_is_judged_the_same_way_by_all(value, key, type_):
    event = json.loads(signed_part(BODIES[type_]))
    event["data"][key] = value
    body = seal(canonical(event), golden.issuer(golden.FACTS[type_]))
    event = screen(body, SUBJECTS[type_]).verified()
    assert isinstance(event, Event)
    assert isinstance(event.data, Refusal)


@pytest.mark.parametrize("type_", sorted(BODIES))
def test_no_event_survives_the_change_of_any_byte(type_):
    body, subject = BODIES[type_], SUBJECTS[type_]
    assert isinstance(WARMED.screen(body, subject).verified(), Event)
    for position in range(len(body)):
        for other in {body[position] ^ 0x01, body[position] ^ 0x80, ord('"')} - {body[position]}:
            changed = body[:position] + bytes([other]) + body[position + 1 :]
            screened = WARMED.screen(changed, subject)
            assert screened == diagnose(changed, subject, REALM)
            assert isinstance(screened.verified(), Refusal)


@pytest.mark.parametrize("type_", sorted(BODIES))
def test_no_event_survives_the_loss_or_doubling_of_any_byte(type_):
    body, subject = BODIES[type_], SUBJECTS[type_]
    for position in range(len(body)):
        for changed in (
            body[:position] + body[position + 1 :],
            body[:position] + body[position : position + 1] + body[position:],
        ):
            screened = WARMED.screen(changed, subject)
            assert screened == diagnose(changed, subject, REALM)
            assert isinstance(screened.verified(), Refusal)


@given(golden_types, st.data())
@settings(max_examples=300)
def test_slices_put_in_taken_out_or_repeated_are_judged_the_same_way_by_all(type_, data):
    body = BODIES[type_]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(start, min(len(body), start + 40)))
        repeated = body[start:end] * data.draw(st.integers(0, 2))
        body = body[:start] + repeated + data.draw(snippets) + body[end:]
    result = screen(body, SUBJECTS[type_]).verified()
    assert isinstance(result, Refusal) or body == BODIES[type_]


@given(golden_types, st.data())
@settings(max_examples=400)
def test_what_is_rightly_signed_and_accepted_is_canonical_by_another_json_library(type_, data):
    key = golden.issuer(golden.FACTS[type_])
    event = signed_part(BODIES[type_])
    for _ in range(data.draw(st.integers(1, 3))):
        # mostly within a text or a number, where the result has a chance to be good
        places = [match.start() for match in re.finditer(rb'[a-z0-9"}]', event)]
        start = data.draw(st.sampled_from(places) | st.integers(0, len(event)))
        end = min(len(event), start + data.draw(st.integers(0, 2)))
        event = event[:start] + data.draw(snippets) + event[end:]
    result = screen(seal(event, key), SUBJECTS[type_]).verified()
    if isinstance(result, Event):
        assert canonical_by_another(event) == event
        told = json.loads(event)
        assert (result.issuerseq, result.prev, result.type) == (
            told["issuerseq"],
            told["prev"],
            told["type"],
        )
        if isinstance(result.data, Fact):
            assert canonical(result.data) == canonical_by_another(json.dumps(told["data"]).encode())


@given(identity_blocks() | json_objects, st.booleans())
def test_an_identity_is_good_only_in_its_canonical_spelling(block, spaced):
    spelled = json.dumps(block, separators=None if spaced else (",", ":"), ensure_ascii=False)
    gate = warmed_gate()
    for body in (registered(canonical(block)), registered(spelled.encode())) * 2:
        assert gate.screen(body, SUBJECT) == diagnose(body, SUBJECT, REALM)
    event = judge(registered(canonical(block)))
    assert isinstance(event, Event)
    assert isinstance(event.data, ShardRegistered)
    same = spelled.encode() == canonical(block)
    assert isinstance(judge(registered(spelled.encode())), Event) == same


@given(st.text(max_size=80))
def test_any_subject_but_the_right_one_is_refused(subject):
    body = BODIES[REGISTERED]
    assert isinstance(judge(body, subject), Refusal) == (subject != SUBJECT)


@given(st.binary(min_size=64, max_size=64))
def test_any_signature_but_the_right_one_is_refused(signature):
    body = BODIES[REGISTERED]
    text = base64.urlsafe_b64encode(signature).rstrip(b"=")
    assert isinstance(judge(body[:-88] + text + b'"}'), Refusal)


def round_trip(fact: Fact, key: EventKey, head: ChainHead, time_ms: int, chance: bytes) -> None:
    """Sign a fact, pass it through every gate, and find it unchanged as the chain's next event."""
    signed = sign_event(fact, key=key, realm=REALM, after=head, time_ms=time_ms, chance=chance)
    assert len(signed.body) <= MAX_BODY
    event = signed_part(signed.body)
    assert canonical_by_another(event) == event
    subject = subjects.event(REALM, key.public)
    result = screen(signed.body, subject).verified()
    assert isinstance(result, Event)
    assert result.data == fact
    assert (result.issuer, result.prev) == (key.public, head.digest)
    assert follow(head, result) == signed.head
    # the second time, issuer and identity are known: this is the fast path
    if result.issuerseq < 10**15:
        assert WARMED._plainly_good(signed.body, subject) is not None


@given(any_fact, keys, chain_heads, st.integers(0, 2**47), st.binary(min_size=10, max_size=10))
@settings(max_examples=300)
def test_a_signed_fact_passes_the_gate_unchanged(fact, key, head, time_ms, chance):
    round_trip(fact, key, head, time_ms % 253_402_300_800_000, chance)


@pytest.mark.parametrize("kind", BY_FACT, ids=lambda kind: kind.NAME)
@given(st.data())
@settings(max_examples=15)
def test_each_type_of_fact_passes_the_gate_unchanged(kind, data):
    round_trip(data.draw(BY_FACT[kind]), KEY, ChainHead(), golden.TIME_MS, bytes(10))
