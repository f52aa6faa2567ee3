"""The gate: bytes that arrived become an event, or a refusal with the first reason that applies.

    step 1     oversize
    step 2     not-json
    step 3     bad-envelope
    step 4     bad-signature
    step 5     not-canonical
    step 6     wrong-realm, wrong-subject
    step 7     replayed, broken-chain          needs the issuer's chain: `screened.follow`
    step 8     unknown-type, bad-shape         found here, reported after step 7

Steps 1 to 6 and 8 look at one message and nothing else, so `Gate.screen` may run anywhere and in
any order; step 7 is the only one with a memory, and the caller keeps it. No input raises.

A good event is proved good in one pass: a typed decode of the whole body whose typed encode gives
the same bytes is canonical and has the right shape, envelope and `data` alike. Whatever is not
plainly good goes to `diagnosis`, which finds the one right reason slowly. The two answer alike on
every input (tests/property/test_gate.py).

Checking the signature is left to the caller, who may do it in bulk: `Screened.verified`.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from sys import intern
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from meshnet_events import subjects
from meshnet_events.diagnosis import diagnose
from meshnet_events.envelope import (
    MAX_BODY,
    SIGNATURE_PATTERN,
    TIME_PATTERN,
    canonical,
    event_digest,
    signed_bytes,
    source,
)
from meshnet_events.facts import Fact, ShardRegistered
from meshnet_events.forms import DIGEST_SHAPE, MAX_INTEGER, UUID_SHAPE, Digest, Uuid, shape
from meshnet_events.keys import decode_public
from meshnet_events.screened import Event, Screened
from meshnet_events.upcast import READABLE, STEPS, upcast

_EVENT_AT = len(b'{"event":')
_SIG_OPENS = len(b',"sig":"') + 86 + len(b'"}')
_TYPE_ENDS = len(b'"}') + _SIG_OPENS
_MAX_ISSUERS = 65_536
_MAX_IDENTITY_BYTES = 64 * 2**20
_ENTRY_BYTES = 256  # about what an entry takes besides its block: small ones must not be free
_PLAIN_DEPTH = 8

_encode_into = msgspec.json.Encoder().encode_into
_ID_AND_PREV_SHAPE = UUID_SHAPE + DIGEST_SHAPE
# two members in one match, since each match has its price; neither holds a space
_are_time_and_signature = re.compile(f"{TIME_PATTERN} {SIGNATURE_PATTERN}").fullmatch

_Fact = TypeVar("_Fact")
_Realm = TypeVar("_Realm")
_Type = TypeVar("_Type")


class _Envelope(Struct, Generic[_Fact, _Realm, _Type], forbid_unknown_fields=True, gc=False):
    data: _Fact
    id: Uuid
    issuer: str
    issuerseq: Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
    prev: Digest
    realm: _Realm
    source: str
    specversion: Literal["1.0"]
    time: str
    type: _Type


class _Body(Struct, Generic[_Fact, _Realm, _Type], forbid_unknown_fields=True, gc=False):
    event: _Envelope[_Fact, _Realm, _Type]
    sig: str


@lru_cache(maxsize=64)
def _decoders(realm: str) -> dict[bytes, Callable[[bytes], _Body[Fact, str, str]]]:
    """What decodes a whole body of `realm`, by the type that the body states."""
    decoders: dict[bytes, Callable[[bytes], Any]] = {}
    for name, fact in READABLE.items():
        body: Any = _Body[fact, Literal[realm], Literal[name]]  # type: ignore[valid-type]
        decoders[name.encode()] = msgspec.json.Decoder(body).decode
    return decoders


class _Issuer(Struct):
    """What goes with a key, and the identity block that it registered last."""

    text: str
    public: bytes
    subject: str
    source: str
    identity: bytes = b""


class Gate:
    """Steps 1 to 6 and 8 for one realm.

    It remembers issuers and identity blocks that it found sound before: the same bytes again cost a
    look-up. The memory is bounded and changes no answer.
    """

    def __init__(self, realm: str) -> None:
        """Raise ValueError when `realm` is no realm's name."""
        self.realm = subjects.check_realm(realm)
        self._decoders = _decoders(realm)
        self._issuers: dict[str, _Issuer] = {}
        self._identities: dict[bytes, bytes] = {}
        self._identity_bytes = 0
        # one for all: a fresh one grows in steps. What another thread wrote there is equal to a body
        # only if that body is canonical, so sharing a gate costs time and no answer
        self._encoded = bytearray()

    def screen(self, body: bytes, subject: str) -> Screened:
        """Take steps 1 to 6 and 8, save for checking the signature. Never raises."""
        return self._plainly_good(body, subject) or diagnose(body, subject, self.realm)

    def _plainly_good(self, body: bytes, subject: str) -> Screened | None:
        """A body that is beyond doubt but for its signature, else None."""
        type_at = body.rfind(b'"', 0, -_TYPE_ENDS) + 1
        decode = self._decoders.get(body[type_at:-_TYPE_ENDS])
        if decode is None or len(body) > MAX_BODY:
            return None
        try:
            decoded = decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return None
        event = decoded.event
        issuer = self._issuers.get(event.issuer) or self._meet(event.issuer)
        if (
            issuer is None
            or subject != issuer.subject
            or event.source != issuer.source
            or shape(f"{event.id}{event.prev}") != _ID_AND_PREV_SHAPE
            or event.id[14] != "7"
            or event.id[19] not in "89ab"
            or not _are_time_and_signature(f"{event.time} {decoded.sig}")
        ):
            return None
        fact = event.data
        identity = b""
        if type(fact) is ShardRegistered:
            # it is kept as it came, so the encoding below proves nothing about it
            identity = bytes(fact.identity)
            if identity == issuer.identity:
                identity = issuer.identity
            elif known := self._identities.get(identity) or self._learn(identity):
                identity = issuer.identity = known
            else:
                return None
        _encode_into(decoded, self._encoded)
        if self._encoded != body:
            return None
        signed = signed_bytes(body[_EVENT_AT:-_SIG_OPENS])
        return Screened(
            Event(
                issuer.text,
                event.issuerseq,
                event.prev,
                event_digest(signed),
                event.type,
                upcast(fact) if type(fact) in STEPS else fact,
                identity,
            ),
            issuer.public,
            signed,
            decoded.sig,
        )

    def _meet(self, text: str) -> _Issuer | None:
        """Work out what goes with a key that was not seen before, if it is one."""
        public = decode_public(text)
        if public is None:
            return None
        text = intern(text)  # looked up as a key, again and again
        if len(self._issuers) >= _MAX_ISSUERS:
            self._issuers.clear()
        known = self._issuers[text] = _Issuer(
            text, public, subjects.event(self.realm, text), source(self.realm, text)
        )
        return known

    def _learn(self, identity: bytes) -> bytes | None:
        """Keep an identity block that was not seen before, if it is plainly canonical."""
        if not _is_plain(identity):
            return None
        size = len(identity) + _ENTRY_BYTES
        if self._identity_bytes + size > _MAX_IDENTITY_BYTES:
            self._identities.clear()
            self._issuers.clear()  # each holds one
            self._identity_bytes = 0
        self._identities[identity] = identity
        self._identity_bytes += size
        return identity


def _is_plain(block: bytes) -> bool:
    """Whether JSON is in canonical form and holds nothing that the contract forbids or bounds."""
    try:
        value = msgspec.json.decode(block)
        return canonical(value) == block and _is_plain_value(value, _PLAIN_DEPTH)
    except (msgspec.MsgspecError, RecursionError):
        return False


def _is_plain_value(value: object, depth: int) -> bool:
    match value:
        case str() | bool() | None:
            return True
        case int():
            return -MAX_INTEGER <= value <= MAX_INTEGER
        case dict():
            return (
                depth > 0
                and all(key.isascii() for key in value)
                and all(_is_plain_value(member, depth - 1) for member in value.values())
            )
        case list():
            return depth > 0 and all(_is_plain_value(member, depth - 1) for member in value)
        case _:
            return False
