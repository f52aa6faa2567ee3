"""The signed bytes of an event.

The body of a message is, byte for byte,

    {"event":E,"sig":"S"}

`E` is a CloudEvents 1.0 event in canonical form (RFC 8785: keys sorted, no white space, UTF-8
unescaped) with exactly ten members, and `S` is base64url without padding of the 64-byte signature.
For example (white space added, texts shortened):

    {"event": {"data": {"boot_id": "3769e4f9-…", "reason": "over", "shard_id": "main"},
               "id": "0192f8a0-0000-7000-8000-bd505aa24c36",
               "issuer": "UBXW…P4T2", "issuerseq": 8, "prev": "385dfa00…",
               "realm": "lab", "source": "urn:meshnet:lab:UBXW…P4T2", "specversion": "1.0",
               "time": "2026-09-21T14:13:20.000Z", "type": "io.meshnet.shard.withdrawn.v1"},
     "sig": "FlJ60pb5…"}

Signed is DSSE's pre-authentication encoding of `E` exactly as sent:

    DSSEv1 37 application/vnd.meshnet.event.v1+json 484 {"data":{"boot_id":…

The *event digest* is SHA-256 of that encoding: the event's identity everywhere. `issuerseq` rises
by one per issuer and `prev` is the digest of that issuer's event before (64 zeros for the first),
which exposes a withheld, replayed or forked event.

`time` follows RFC 3339's grammar in UTC. It is the issuer's claim and decides nothing: the broker's
timestamp on the record does.
"""

import base64
import datetime
import hashlib

import msgspec
from msgspec import Raw, Struct

from meshnet_events.facts import TYPE_PREFIX, Fact
from meshnet_events.keys import EventKey

MAX_BODY = 61_440
GENESIS = "0" * 64
EVENT_PAYLOAD_TYPE = b"application/vnd.meshnet.event.v1+json"
ENROL_PAYLOAD_TYPE = b"application/vnd.meshnet.enrol.v1+json"
SESSION_PAYLOAD_TYPE = b"application/vnd.meshnet.session.v1+json"

UUID7_PATTERN = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
TIME_PATTERN = (
    "[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
    r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?Z"
)
# 64 bytes are 86 base64url characters, and the last one holds four zero bits
SIGNATURE_PATTERN = "[A-Za-z0-9_-]{85}[AQgw]"

_PREFIX = b"DSSEv1 %d %b " % (len(EVENT_PAYLOAD_TYPE), EVENT_PAYLOAD_TYPE)
_encode = msgspec.json.Encoder(order="sorted").encode


class ChainHead(Struct, frozen=True, gc=False):
    """The last event of one issuer: its number and digest. The next one must follow it."""

    issuerseq: int = 0
    digest: str = GENESIS


class SignedEvent(Struct, frozen=True, gc=False):
    """An event ready to publish, and the head its chain has after it."""

    body: bytes
    head: ChainHead


def canonical(value: object) -> bytes:
    """RFC 8785 bytes of a value made of ASCII-keyed objects, texts, integers, booleans and null."""
    return _encode(value)


def pre_authentication(payload_type: bytes, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: what is signed instead of `payload` alone."""
    return b"DSSEv1 %d %b %d %b" % (len(payload_type), payload_type, len(payload), payload)


def signed_bytes(event: bytes) -> bytes:
    """What an issuer signs for the event bytes `E`."""
    return b"%b%d %b" % (_PREFIX, len(event), event)


def event_digest(signed: bytes) -> str:
    """The event's identity: 64 hex, SHA-256 of its `signed_bytes`."""
    return hashlib.sha256(signed).hexdigest()


def type_name(fact: Fact) -> str:
    """The CloudEvents type of the version this release writes."""
    return f"{TYPE_PREFIX}{fact.NAME}.v1"


def source(realm: str, issuer: str) -> str:
    """The CloudEvents source: realm and issuer as a URN."""
    return f"urn:meshnet:{realm}:{issuer}"


def rfc3339(time_ms: int) -> str:
    """`2026-11-30T13:30:00.123Z` for milliseconds since the epoch."""
    moment = datetime.datetime.fromtimestamp(time_ms // 1000, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def uuid7(time_ms: int, chance: bytes) -> str:
    """A UUIDv7 of a time in ms and ten random bytes, which the caller draws."""
    value = (time_ms & (2**48 - 1)) << 80 | int.from_bytes(chance[:10], "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def sign_event(
    fact: Fact, *, key: EventKey, realm: str, after: ChainHead, time_ms: int, chance: bytes
) -> SignedEvent:
    """Sign `fact` as the event that follows `after` in the chain of `key`.

    `time_ms` is the issuer's clock, `chance` ten random bytes for the event id. Raises ValueError
    when the gate would not let the event through: its chain would break at an event that nobody
    accepts.
    """
    event = canonical(
        {
            "data": _checked(fact),
            "id": uuid7(time_ms, chance),
            "issuer": key.public,
            "issuerseq": after.issuerseq + 1,
            "prev": after.digest,
            "realm": realm,
            "source": source(realm, key.public),
            "specversion": "1.0",
            "time": rfc3339(time_ms),
            "type": type_name(fact),
        }
    )
    signed = signed_bytes(event)
    signature = base64.urlsafe_b64encode(key.sign(signed)).rstrip(b"=")
    body = b'{"event":%b,"sig":"%b"}' % (event, signature)
    if len(body) > MAX_BODY:
        raise ValueError(
            f"this {fact.NAME} is {len(body):,} bytes as an event; at most {MAX_BODY:,} pass the "
            "gate: shorten its texts"
        )
    return SignedEvent(body, ChainHead(after.issuerseq + 1, event_digest(signed)))


def _checked(fact: Fact) -> Raw:
    """The canonical bytes of `fact`. Constructing one does not check lengths and bounds."""
    try:
        data = canonical(fact)
        msgspec.json.decode(data, type=type(fact))
        is_canonical = canonical(msgspec.json.decode(data)) == data
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"this {fact.NAME} is no fact of its type: {error}") from error
    if not is_canonical:
        raise ValueError(f"this {fact.NAME} holds JSON that is not in canonical form")
    return Raw(data)
