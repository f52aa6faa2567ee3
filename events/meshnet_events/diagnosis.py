"""The gate's slow path: which reason, exactly, has a message that is not plainly good?

It takes the steps of spec 3 one by one and stops at the first that fails. It is also what the fast
path is tested against, so it leans on nothing the fast path uses: Python's own JSON parser reads,
and members are looked at one by one. Where the specification leaves room, this is what holds:

- a number is a float when it is written with a point or an exponent, whatever its value;
- members of `E` that are not of the form the specification shows (a realm's name, a UUIDv7, RFC
  3339 in UTC, "1.0") are `bad-envelope`;
- white space around `E` is `bad-envelope`: what `E` is, and what was signed, stays beyond doubt;
- a member name that is not ASCII is `not-canonical`: orders of sorting disagree on the others.
"""

import json
import re
from typing import Any, NoReturn

import msgspec

from meshnet_events import subjects
from meshnet_events.envelope import (
    MAX_BODY,
    SIGNATURE_PATTERN,
    TIME_PATTERN,
    UUID7_PATTERN,
    canonical,
    event_digest,
    signed_bytes,
    source,
)
from meshnet_events.facts import ShardRegistered
from meshnet_events.forms import DIGEST_PATTERN, MAX_INTEGER
from meshnet_events.keys import decode_public
from meshnet_events.reasons import (
    BAD_ENVELOPE,
    BAD_SHAPE,
    NOT_CANONICAL,
    NOT_JSON,
    OVERSIZE,
    UNKNOWN_TYPE,
    WRONG_REALM,
    WRONG_SUBJECT,
    Refusal,
)
from meshnet_events.screened import Event, Screened
from meshnet_events.upcast import READABLE, upcast

MAX_DEPTH = 32

_OPENING = b'{"event":'
_CLOSING = re.compile(rb',"sig":"(' + SIGNATURE_PATTERN.encode() + rb')"\}')
_CLOSING_LENGTH = 96
# the closing quote may be missing, or many unclosed strings would be searched to the end each
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_MEMBERS = {
    "data", "id", "issuer", "issuerseq", "prev", "realm", "source", "specversion", "time", "type",
}  # fmt: skip


class _NotJson(ValueError):
    """Why bytes are not the JSON that the contract allows."""


class _Parser:
    """Strict JSON. Keeps what a repeated key shadowed, so that nothing escapes the checks."""

    def __init__(self) -> None:
        self._shadowed: list[Any] = []
        self.ascii_keys = True
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_float=self._float,
            parse_int=self._int,
            parse_constant=self._float,
        )

    def parse(self, data: bytes) -> Any:
        """The value of `data`; raises `_NotJson` that says what is wrong."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _NotJson(f"not UTF-8 at byte {error.start}") from None
        if _depth(data) > MAX_DEPTH:
            raise _NotJson(f"nested deeper than {MAX_DEPTH}")
        try:
            value = self._decoder.decode(text)
            canonical([value, self._shadowed])
        except json.JSONDecodeError as error:
            raise _NotJson(f"not JSON at character {error.pos}: {error.msg}") from None
        except UnicodeEncodeError:
            raise _NotJson("a lone surrogate") from None
        except RecursionError:
            raise _NotJson(f"nested deeper than {MAX_DEPTH}") from None
        return value

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                self._shadowed.append(result[key])
            self.ascii_keys = self.ascii_keys and key.isascii()
            result[key] = value
        return result

    def _int(self, digits: str) -> int:
        if len(digits) > 17 or abs(int(digits)) > MAX_INTEGER:
            raise _NotJson("an integer beyond ±(2^53-1)")
        return int(digits)

    def _float(self, _: str) -> NoReturn:
        raise _NotJson("a number that is no integer")


def _depth(data: bytes) -> int:
    """How deep brackets nest outside of strings."""
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _fault_of_member(name: str, value: Any) -> str | None:
    """What is expected of a member of `E` that is not so, or None."""
    forms = {
        "id": (UUID7_PATTERN, "a UUIDv7"),
        "prev": (DIGEST_PATTERN, "64 lower-case hex"),
        "realm": (subjects.REALM_PATTERN, "a realm's name"),
        "time": (TIME_PATTERN, "RFC 3339 in UTC with Z"),
        "specversion": (r"1\.0", '"1.0"'),
        "source": (r"(?s:.*)", "text"),
        "type": (r"(?s:.*)", "text"),
    }
    if name == "data":
        return None if isinstance(value, dict) else "an object"
    if name == "issuerseq":
        ok = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        return None if ok else "an integer from 1"
    if name == "issuer":
        ok = isinstance(value, str) and decode_public(value) is not None
        return None if ok else "an NKey user public key (U…)"
    pattern, expected = forms[name]
    ok = isinstance(value, str) and re.fullmatch(pattern, value) is not None
    return None if ok else expected


def _envelope(body: bytes) -> tuple[bytes, dict[str, Any], str, bool] | Refusal:
    """Step 3: the bytes of `E`, its members, the signature, and whether all keys are ASCII."""
    at = len(body) - _CLOSING_LENGTH
    closing = _CLOSING.fullmatch(body, at) if at > 0 else None
    if closing is None or not body.startswith(_OPENING):
        return Refusal(BAD_ENVELOPE, 'expected {"event":E,"sig":"S"}, byte for byte')
    event = body[len(_OPENING) : at]
    parser = _Parser()
    try:
        members = parser.parse(event)
    except _NotJson:
        return Refusal(BAD_ENVELOPE, "there is more than one value at event")
    if not isinstance(members, dict) or event[:1] != b"{" or event[-1:] != b"}":
        return Refusal(BAD_ENVELOPE, "event: expected an object with no white space around it")
    if missing := sorted(_MEMBERS - set(members)):
        return Refusal(BAD_ENVELOPE, f"event lacks {', '.join(missing)}")
    if len(members) > len(_MEMBERS):
        return Refusal(BAD_ENVELOPE, f"event has {len(members)} members; expected the ten")
    for name in sorted(_MEMBERS):
        if expected := _fault_of_member(name, members[name]):
            return Refusal(BAD_ENVELOPE, f"event.{name}: expected {expected}")
    return event, members, closing[1].decode(), parser.ascii_keys


def _fact(type_: str, data: dict[str, Any]) -> Any:
    """Step 8: the fact of this type that `data` holds, or the refusal."""
    known = READABLE.get(type_)
    if known is None:
        return Refusal(UNKNOWN_TYPE, f"no fact has the type {type_[:64]!r}")
    try:
        return upcast(msgspec.json.decode(canonical(data), type=known))
    except msgspec.ValidationError as error:
        return Refusal(BAD_SHAPE, str(error)[:512])


def diagnose(body: bytes, subject: str, realm: str) -> Screened:
    """Take steps 1 to 6 and 8, one by one, save for checking the signature. Never raises."""
    if len(body) > MAX_BODY:
        return Screened(Refusal(OVERSIZE, f"{len(body):,} bytes; at most {MAX_BODY:,}"))
    try:
        _Parser().parse(body)
    except _NotJson as error:
        return Screened(Refusal(NOT_JSON, str(error)))
    envelope = _envelope(body)
    if isinstance(envelope, Refusal):
        return Screened(envelope)
    event, members, signature, ascii_keys = envelope
    signed = signed_bytes(event)
    result: Event | Refusal | None = _after_signature(
        event, members, subject, realm, ascii_keys=ascii_keys
    )
    if result is None:
        fact = _fact(members["type"], members["data"])
        result = Event(
            members["issuer"],
            members["issuerseq"],
            members["prev"],
            event_digest(signed),
            members["type"],
            fact,
            bytes(fact.identity) if isinstance(fact, ShardRegistered) else b"",
        )
    return Screened(result, decode_public(members["issuer"]), signed, signature)


def _after_signature(
    event: bytes, members: dict[str, Any], subject: str, realm: str, *, ascii_keys: bool
) -> Refusal | None:
    """Steps 5 and 6."""
    if not ascii_keys or canonical(members) != event:
        return Refusal(NOT_CANONICAL, "event: not the one spelling that its content has")
    if members["realm"] != realm:
        return Refusal(WRONG_REALM, f"event.realm is {members['realm']}; this is {realm}")
    issuer = members["issuer"]
    if members["source"] != source(realm, issuer):
        return Refusal(WRONG_SUBJECT, "event.source does not name realm and issuer")
    if subject != subjects.event(realm, issuer):
        return Refusal(WRONG_SUBJECT, f"stored under {subject[:128]!r}, signed by {issuer}")
    return None
