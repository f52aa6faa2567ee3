"""Enrolment requests: what a node signs, and everything that is none."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_events import enrolment
from meshnet_events.enrolment import MAX_REQUEST, EnrolmentRequest, parse_request, sign_request
from meshnet_events.envelope import EVENT_PAYLOAD_TYPE, pre_authentication
from meshnet_events.keys import EventKey
from meshnet_events.reasons import MEANING, Refusal

KEY = EventKey(bytes(range(32)))
ASKED = EnrolmentRequest("rack-2", KEY.public, 1_790_000_000_000)
REQUEST = sign_request(KEY, label=ASKED.label, time_ms=ASKED.time_ms)


def code_of(content):
    found = parse_request(content)
    assert isinstance(found, Refusal)
    assert found.code in MEANING
    return found.code


def signed(request: bytes, payload_type=enrolment.ENROL_PAYLOAD_TYPE, key=KEY):
    signature = base64.urlsafe_b64encode(key.sign(pre_authentication(payload_type, request)))
    return b'{"request":%b,"sig":"%b"}' % (request, signature.rstrip(b"="))


def stated(**changes):
    members = {"label": "rack-2", "node": KEY.public, "time_ms": 1_790_000_000_000, **changes}
    return json.dumps(members, separators=(",", ":"), sort_keys=True).encode()


def test_a_request_comes_back_from_its_bytes():
    assert parse_request(REQUEST) == ASKED
    assert parse_request(REQUEST.rstrip(b"\n")) == ASKED


def test_the_bytes_are_those_that_the_page_of_the_format_says():
    assert signed(stated()) + b"\n" == REQUEST
    assert REQUEST.startswith(b'{"request":{"label":"rack-2","node":"UAB2')


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (REQUEST + b" " * MAX_REQUEST, "oversize"),
        (b"", "bad-envelope"),
        (b"\xff", "bad-envelope"),
        (b"[" * 4096, "bad-envelope"),
        (b'{"request":{},"sig":1}', "bad-envelope"),
        (REQUEST.replace(b'"sig"', b'"extra":1,"sig"'), "bad-envelope"),
        (signed(b"[]"), "bad-shape"),
        (signed(stated(node="U" * 56)), "bad-shape"),
        (signed(stated(label="x" * 1025)), "bad-shape"),
        (signed(stated(time_ms=2**53)), "bad-shape"),
        (signed(stated(time_ms=1.5)), "bad-shape"),
        (signed(stated(more=1)), "bad-shape"),
        (REQUEST.replace(b"rack-2", b"rack-3"), "bad-signature"),
        (signed(stated(), key=EventKey(bytes(32))), "bad-signature"),
        (signed(stated(), EVENT_PAYLOAD_TYPE), "bad-signature"),
        (REQUEST.replace(b'"sig":"', b'"sig":"!'), "bad-signature"),
        (b'{"request":%b,"sig":""}' % stated(), "bad-signature"),
        (signed(stated().replace(b",", b", ")), "not-canonical"),
        (signed(stated().replace(b"rack", rb"\u0072ack")), "not-canonical"),
        (signed(b'{"label":"a",' + stated()[1:]), "not-canonical"),
        (b" " + REQUEST, "not-canonical"),
        (REQUEST + b"\n", "not-canonical"),
    ],
)
def test_what_is_no_request_is_refused_with_its_reason(content, code):
    assert code_of(content) == code


@given(st.binary(max_size=200))
def test_no_bytes_raise(content):
    assert isinstance(parse_request(content), Refusal)


@given(st.integers(0, len(REQUEST) - 2), st.integers(1, 255))
def test_no_byte_of_a_request_can_be_changed(at, flip):
    changed = bytearray(REQUEST)
    changed[at] ^= flip
    assert isinstance(parse_request(bytes(changed)), Refusal)


@pytest.mark.parametrize("label", ["x" * 1025, "\ud800", "💡" * 1024])
def test_what_nobody_would_accept_is_not_signed(label):
    with pytest.raises(ValueError, match=r"."):
        sign_request(KEY, label=label, time_ms=0)
