"""Bodies made by hand: any bytes in the place of `E`, rightly signed, and the gate's word on them.

`verdict` asks three times (a gate that knows nothing, one that has seen a good event of every type,
so that its fast path is live, and the slow path alone) and insists on one answer.
"""

import base64
from typing import Any

import golden
from meshnet_events import subjects
from meshnet_events.diagnosis import diagnose
from meshnet_events.envelope import (
    GENESIS,
    MAX_BODY,
    canonical,
    rfc3339,
    signed_bytes,
    source,
    uuid7,
)
from meshnet_events.gate import Gate
from meshnet_events.keys import EventKey
from meshnet_events.reasons import Refusal
from meshnet_events.screened import Event, Screened

REALM = golden.REALM
KEY = golden.ALPHA
SUBJECT = subjects.event(REALM, KEY.public)
WITHDRAWN = "io.meshnet.shard.withdrawn.v1"
REGISTERED = "io.meshnet.shard.registered.v1"


def members(**changes: Any) -> dict[str, Any]:
    """The ten members of a good `shard.withdrawn`, with changes."""
    return {
        "data": {"boot_id": golden.BOOT, "reason": "over", "shard_id": "main"},
        "id": uuid7(golden.TIME_MS, bytes(10)),
        "issuer": KEY.public,
        "issuerseq": 1,
        "prev": GENESIS,
        "realm": REALM,
        "source": source(REALM, KEY.public),
        "specversion": "1.0",
        "time": rfc3339(golden.TIME_MS),
        "type": WITHDRAWN,
        **changes,
    }


def wrap(event: bytes, signature: bytes) -> bytes:
    """A body of these event bytes and this raw signature."""
    text = base64.urlsafe_b64encode(signature).rstrip(b"=")
    return b'{"event":%b,"sig":"%b"}' % (event, text)


def seal(event: bytes, key: EventKey = KEY) -> bytes:
    """A body of any event bytes, rightly signed."""
    return wrap(event, key.sign(signed_bytes(event)))


def good(**changes: Any) -> bytes:
    """A canonical, rightly signed body with changed members."""
    return seal(canonical(members(**changes)))


def registered(identity: bytes) -> bytes:
    """A rightly signed `shard.registered` with any bytes in the place of `identity`."""
    body = (golden.FOLDER / f"{REGISTERED}.json").read_bytes()
    event = body[len(b'{"event":') : body.rindex(b',"sig":"')]
    whole = canonical(golden.IDENTITY)
    assert event.count(whole) == 1
    return seal(event.replace(whole, identity))


def warmed_gate() -> Gate:
    """A gate whose fast path is live for the keys and the identity block of the golden files."""
    gate = Gate(REALM)
    for type_, fact in golden.FACTS.items():
        body = (golden.FOLDER / f"{type_}.json").read_bytes()
        gate.screen(body, subjects.event(REALM, golden.issuer(fact).public))
    return gate


WARMED = warmed_gate()


def screen(body: bytes, subject: str = SUBJECT, realm: str = REALM) -> Screened:
    """What the slow path says, having checked that every other way says the same."""
    slow = diagnose(body, subject, realm)
    assert Gate(realm).screen(body, subject) == slow
    if realm == REALM:
        assert WARMED.screen(body, subject) == slow
        fast = WARMED._plainly_good(body, subject)
        assert fast is None or fast == slow
    assert len(body) <= MAX_BODY or isinstance(slow.result, Refusal)
    return slow


def judge(body: bytes, subject: str = SUBJECT, realm: str = REALM) -> Event | Refusal:
    """The event, or the refusal with its detail: of the gate, or of the fact in the event."""
    result = screen(body, subject, realm).verified()
    if isinstance(result, Event) and isinstance(result.data, Refusal):
        return result.data
    return result


def verdict(body: bytes, subject: str = SUBJECT, realm: str = REALM) -> str:
    """The code that the gate refuses with, or `good`."""
    result = judge(body, subject, realm)
    return result.code if isinstance(result, Refusal) else "good"
