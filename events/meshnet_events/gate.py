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

A good event is proved good in one pass: a regular expression states the canonical envelope around
`data`, and a typed decode whose typed encode gives the same bytes proves the rest. Whatever is not
plainly good goes to `diagnosis`, which finds the one right reason slowly. The two answer alike on
every input (tests/property/test_gate.py).

Checking the signature is left to the caller, who may do it in bulk: `Screened.verified`.
"""

import re
from sys import intern

import msgspec
from msgspec import Struct

from meshnet_events import subjects
from meshnet_events.diagnosis import diagnose
from meshnet_events.envelope import (
    MAX_BODY,
    SIGNATURE_PATTERN,
    TIME_PATTERN,
    UUID7_PATTERN,
    event_digest,
    signed_bytes,
    source,
)
from meshnet_events.facts import ShardRegistered
from meshnet_events.forms import DIGEST_PATTERN
from meshnet_events.keys import decode_public
from meshnet_events.reasons import Refusal
from meshnet_events.screened import Event, Screened
from meshnet_events.upcast import READABLE, STEPS, upcast

_OPENING = b'{"event":{"data":'
_EVENT_AT = len(b'{"event":')
_DATA_AT = len(_OPENING)
_AFTER_DATA_OPENS = b'},"id":"'
_CLOSING_LENGTH = 96
_MAX_ISSUERS = 65_536
_MAX_IDENTITY_BYTES = 64 * 2**20

_encode = msgspec.json.Encoder().encode
_DECODERS = {
    name.encode(): (name, msgspec.json.Decoder(fact).decode) for name, fact in READABLE.items()
}


def _after_data(realm: str) -> re.Pattern[bytes]:
    """What follows `data` in a canonical body of `realm`.

    `data` ends at the last `},"id":"`: no brace comes after. Whether the issuer is a key is left to
    the look-up of it: to match its alphabet here as well takes a sixth of the whole match.
    """
    return re.compile(
        (
            f',"id":"{UUID7_PATTERN}","issuer":"(.{{56}})","issuerseq":([1-9][0-9]{{0,14}})'
            f',"prev":"({DIGEST_PATTERN})","realm":"{realm}"'
            rf',"source":"{source(realm, "")}\1","specversion":"1\.0"'
            f',"time":"{TIME_PATTERN}","type":"([a-z0-9.]*)"}}'
            f',"sig":"({SIGNATURE_PATTERN})"}}'
        ).encode()
    )


def _least_after_data(realm: str) -> int:
    """The fewest bytes that `_after_data` matches: `data` does not end within them."""
    key = "U" * 56
    return len(
        f',"id":"{"0" * 36}","issuer":"{key}","issuerseq":1,"prev":"{"0" * 64}","realm":"{realm}"'
        f',"source":"{source(realm, key)}","specversion":"1.0","time":"2026-11-30T13:30:00Z"'
        f',"type":""}},"sig":"{"A" * 86}"}}'
    )


class _Issuer(Struct, frozen=True):
    text: str
    public: bytes
    subject: str


class Gate:
    """Steps 1 to 6 and 8 for one realm.

    It remembers issuers and identity blocks that it found sound before: the same bytes again cost a
    look-up. The memory is bounded and changes no answer.
    """

    def __init__(self, realm: str) -> None:
        """Raise ValueError when `realm` is no realm's name."""
        self.realm = subjects.check_realm(realm)
        self._after_data = _after_data(realm).fullmatch
        self._least_after_data = _least_after_data(realm) - len(_AFTER_DATA_OPENS)
        self._issuers: dict[bytes, _Issuer] = {}
        self._identities: dict[bytes, bytes] = {}
        self._identity_bytes = 0

    def screen(self, body: bytes, subject: str) -> Screened:
        """Take steps 1 to 6 and 8, save for checking the signature. Never raises."""
        screened = self._plainly_good(body, subject)
        if screened is None:
            screened = diagnose(body, subject, self.realm)
            self._remember(screened.result)
        return screened

    def _plainly_good(self, body: bytes, subject: str) -> Screened | None:
        """A body that is beyond doubt but for its signature, else None."""
        data_end = body.rfind(_AFTER_DATA_OPENS, 0, len(body) - self._least_after_data) + 1
        envelope = self._after_data(body, data_end)
        if envelope is None or not body.startswith(_OPENING) or len(body) > MAX_BODY:
            return None
        issuer_bytes, issuerseq, prev, type_bytes, signature = envelope.groups()
        issuer = self._issuers.get(issuer_bytes) or self._meet(issuer_bytes)
        known = _DECODERS.get(type_bytes)
        if issuer is None or known is None or subject != issuer.subject:
            return None
        type_, decode = known
        data = body[_DATA_AT:data_end]
        try:
            fact = decode(data)
        except (msgspec.MsgspecError, RecursionError):
            return None
        identity = b""
        if type(fact) is ShardRegistered:
            # it is kept as it came, so the encoding below proves nothing about it
            identity = self._identities.get(bytes(fact.identity), b"")
            if not identity:
                return None
        if _encode(fact) != data:
            return None
        signed = signed_bytes(body[_EVENT_AT:-_CLOSING_LENGTH])
        return Screened(
            Event(
                issuer.text,
                int(issuerseq),
                prev.decode(),
                event_digest(signed),
                type_,
                upcast(fact) if type(fact) in STEPS else fact,
                identity,
            ),
            issuer.public,
            signed,
            signature,
        )

    def _meet(self, issuer: bytes) -> _Issuer | None:
        """Work out what goes with a key that was not seen before, if it is one."""
        text = issuer.decode("latin-1")
        public = decode_public(text)
        if public is None:
            return None
        text = intern(text)  # looked up as a key, again and again
        if len(self._issuers) >= _MAX_ISSUERS:
            self._issuers.clear()
        known = _Issuer(text, public, subjects.event(self.realm, text))
        self._issuers[issuer] = known
        return known

    def _remember(self, event: Event | Refusal) -> None:
        """Keep the identity block of a sound registration: the next like it is plainly good."""
        if isinstance(event, Refusal) or not isinstance(event.data, ShardRegistered):
            return
        identity = event.identity
        if self._identity_bytes + len(identity) > _MAX_IDENTITY_BYTES:
            self._identities.clear()
            self._identity_bytes = 0
        if identity not in self._identities:
            self._identities[identity] = identity
            self._identity_bytes += len(identity)
