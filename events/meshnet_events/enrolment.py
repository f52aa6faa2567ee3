"""What a node hands to an operator, asking to be enrolled: proof that whoever sends it holds the key.

Byte for byte, and at most 4,096 of them,

    {"request":R,"sig":"S"}

with a newline after it or not. `R` is in canonical form like an event, with exactly these members:

    {"label":"rack-2","node":"UBXW…P4T2","time_ms":1790000000000}

`label` is what the node proposes to be called, `time_ms` when it asked. `S` is base64url without
padding of the node's signature over the DSSE encoding of `R` with the payload type
`application/vnd.meshnet.enrol.v1+json`, so that no request is ever an event.

What an operator makes of a request is the fact `node.enrolled`.
"""

import base64
import re

import msgspec
from msgspec import Raw, Struct

from meshnet_events import reasons as codes
from meshnet_events.envelope import (
    ENROL_PAYLOAD_TYPE,
    SIGNATURE_PATTERN,
    canonical,
    pre_authentication,
)
from meshnet_events.forms import Count, PublicKey, Text, explain, is_key
from meshnet_events.keys import EventKey, decode_public, signature_is_valid
from meshnet_events.reasons import Refusal

MAX_REQUEST = 4_096
_is_signature = re.compile(SIGNATURE_PATTERN).fullmatch


class EnrolmentRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a node asks: to be enrolled under its key. Members in alphabetical order."""

    label: Text
    node: PublicKey
    time_ms: Count

    def __post_init__(self) -> None:
        if not is_key(self.node):
            explain(self)


class _Signed(Struct, frozen=True, forbid_unknown_fields=True):
    request: Raw
    sig: str


def sign_request(key: EventKey, *, label: str, time_ms: int) -> bytes:
    """The request of the owner of `key`, made at `time_ms`.

    Raises ValueError for a label or time that `parse_request` would refuse.
    """
    request = canonical(EnrolmentRequest(label, key.public, time_ms))
    signature = key.sign(pre_authentication(ENROL_PAYLOAD_TYPE, request))
    text = base64.urlsafe_b64encode(signature).rstrip(b"=")
    content = _spelled(request, text) + b"\n"
    match parse_request(content):
        case Refusal() as refusal:
            raise ValueError(f"this is no enrolment request: {refusal.detail}")
    return content


def parse_request(content: bytes) -> EnrolmentRequest | Refusal:
    """The request in `content`, its signature checked. No bytes raise.

    Refused as `oversize`, `bad-envelope`, `bad-shape`, `bad-signature` or `not-canonical`.
    """
    if len(content) > MAX_REQUEST:
        return Refusal(
            codes.OVERSIZE, f"{len(content):,} bytes or more, expected at most {MAX_REQUEST:,}"
        )
    try:
        signed = msgspec.json.decode(content, type=_Signed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Refusal(codes.BAD_ENVELOPE, f'{error}; expected {{"request":R,"sig":"S"}}')
    stated = bytes(signed.request)
    try:
        request = msgspec.json.decode(stated, type=EnrolmentRequest)
        is_canonical = canonical(request) == stated
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return Refusal(codes.BAD_SHAPE, f"request: {error}")
    public = decode_public(request.node)
    if (
        public is None
        or not _is_signature(signed.sig)
        or not signature_is_valid(
            public,
            pre_authentication(ENROL_PAYLOAD_TYPE, stated),
            base64.urlsafe_b64decode(f"{signed.sig}=="),
        )
    ):
        return Refusal(codes.BAD_SIGNATURE, f"{request.node} did not sign this request")
    if not is_canonical or content.removesuffix(b"\n") != _spelled(stated, signed.sig.encode()):
        return Refusal(codes.NOT_CANONICAL, "expected sorted members, each once, no white space")
    return request


def _spelled(request: bytes, signature: bytes) -> bytes:
    return b'{"request":%b,"sig":"%b"}' % (request, signature)
