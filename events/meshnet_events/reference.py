"""The contract's reference pages as Markdown, made from the code: for a stranger in any language.

`pages()` names every page and its text; the committed copies under `docs/reference` are that text,
and a test compares them. What the code knows (members, forms, bounds, patterns, codes, the worked
example) is read from it; only the sentences around are written here.

The example is signed under a seed that anyone may know, so every byte of it can be made again. It is
also the golden file of its type.
"""

import base64
import hashlib
import inspect
from types import ModuleType

import msgspec

from meshnet_events import enrolment, host, subjects
from meshnet_events.admission import CAPABILITY_REASONS
from meshnet_events.diagnosis import MAX_DEPTH
from meshnet_events.envelope import (
    ENROL_PAYLOAD_TYPE,
    EVENT_PAYLOAD_TYPE,
    MAX_BODY,
    SESSION_PAYLOAD_TYPE,
    SIGNATURE_PATTERN,
    TIME_PATTERN,
    UUID7_PATTERN,
    ChainHead,
    SignedEvent,
    sign_event,
    signed_bytes,
    type_name,
)
from meshnet_events.facts import NODE_FACTS, OPERATOR_FACTS, Fact, NodeSuspended
from meshnet_events.forms import KEY_PATTERN, MAX_INTEGER
from meshnet_events.keys import EventKey
from meshnet_events.markdown import FORMS, GENERATED, REFERENCE, doc, members, table
from meshnet_events.presence import MAX_PRESENCE, Presence
from meshnet_events.query_reference import queries_page
from meshnet_events.reasons import CAPABILITY, MEANING
from meshnet_events.upcast import READABLE

EXAMPLE_SEED = bytes(range(32))
EXAMPLE_REALM = "demo"


def example() -> SignedEvent:
    """The worked example: the first event of the key that `EXAMPLE_SEED` makes."""
    fact = NodeSuspended(node=EventKey(bytes([1]) * 32).public, reason="fan broken – repair")
    return sign_event(
        fact,
        key=EventKey(EXAMPLE_SEED),
        realm=EXAMPLE_REALM,
        after=ChainHead(),
        time_ms=1_796_045_400_123,
        chance=hashlib.sha256(type_name(fact).encode()).digest()[:10],
    )


def _facts() -> str:
    """One section per readable type, then one per struct that facts are made of."""
    _, components = msgspec.json.schema_components(
        [*READABLE.values(), Presence], ref_template=REFERENCE + "{name}"
    )
    sections = []
    ordered: list[type[Fact]] = [*OPERATOR_FACTS, *NODE_FACTS]
    ordered += [fact for fact in READABLE.values() if fact not in ordered]
    names = {fact: type_ for type_, fact in READABLE.items()}
    for fact in ordered:
        issuer = "an operator" if fact in OPERATOR_FACTS else "a node"
        schema = components.pop(fact.__name__)
        sections.append(
            f"### `{names[fact]}`\n\nStated by {issuer}. {doc(fact)}\n\n{members(schema)}"
        )
    presence = components.pop(Presence.__name__)
    sections.append("## Parts of facts\n")
    sections += [
        f"### {name}\n\n{schema['description']}\n\n{members(schema)}"
        for name, schema in sorted(components.items())
    ]
    sections.append(
        f"## Presence\n\nA JSON object of at most {MAX_PRESENCE:,} bytes on "
        f"`{subjects.presence('<realm>', '<issuer>')}`, unsigned and outside the log. "
        f"{doc(Presence)}\n\n{members(presence)}"
    )
    return "\n".join(sections)


def _gate() -> str:
    steps = (
        ("1", ("oversize",)),
        ("2", ("not-json",)),
        ("3", ("bad-envelope",)),
        ("4", ("bad-signature",)),
        ("5", ("not-canonical",)),
        ("6", ("wrong-realm", "wrong-subject")),
        ("7", ("replayed", "broken-chain")),
        ("8", ("unknown-type", "bad-shape")),
    )
    rows = ((step, f"`{code}`", MEANING[code]) for step, codes in steps for code in codes)
    return table(("step", "reason", "when"), *rows)


def _worked() -> str:
    signed = example()
    event = signed.body[len(b'{"event":') : signed.body.rindex(b',"sig":"')]
    message = signed_bytes(event)
    signature = signed.body[-88:-2]
    key = EventKey(EXAMPLE_SEED)
    rows = (
        ("what", "value"),
        ("seed, raw", f"`{EXAMPLE_SEED.hex()}`"),
        ("`issuer`", f"`{key.public}`"),
        ("signature, raw", f"`{base64.urlsafe_b64decode(signature + b'==').hex()}`"),
        ("event digest", f"`{signed.head.digest}`"),
    )
    return f"""`E` is {len(event)} bytes (the dash in `reason` is three of them):

```json
{event.decode()}
```

The {len(message)} signed bytes are these, with nothing after the last brace:

```text
{message.decode()}
```

{table(*rows)}
The body that is published, {len(signed.body)} bytes:

```json
{signed.body.decode()}
```
"""


def _format(module: ModuleType) -> str:
    """What a format's module says of it: its docstring is Markdown, its examples are indented."""
    return inspect.cleandoc(module.__doc__ or "")


def reference() -> str:
    """`docs/reference/events.md`: the whole contract on one page."""
    key = FORMS[f"^{KEY_PATTERN}$"]
    envelope = table(
        ("member", "form"),
        ("`data`", "object: the fact, as its type asks"),
        ("`id`", f"UUIDv7 in lower case, `{UUID7_PATTERN}`"),
        ("`issuer`", f"{key}, prefix and checksum valid"),
        ("`issuerseq`", f"integer from 1, at most {MAX_INTEGER}"),
        ("`prev`", "64 lower-case hex: the digest of the issuer's event before"),
        ("`realm`", f"text, `{subjects.REALM_PATTERN}`"),
        ("`source`", "text, `urn:meshnet:<realm>:<issuer>`"),
        ("`specversion`", "`1.0`, a text"),
        ("`time`", f"RFC 3339 in UTC, `{TIME_PATTERN}`: the issuer's claim, it decides nothing"),
        ("`type`", "text: one of the types below"),
    )
    payload_types = table(
        ("what an event key signs", "payload type"),
        ("events", f"`{EVENT_PAYLOAD_TYPE.decode()}`"),
        ("enrolment requests", f"`{ENROL_PAYLOAD_TYPE.decode()}`"),
        ("session proofs", f"`{SESSION_PAYLOAD_TYPE.decode()}`"),
    )
    return f"""{GENERATED}
# Events

What two programs must agree on to share one realm. With this page, [identity](identity.md) and
[outcomes](outcomes.md), a JSON library and Ed25519 you can write a node or an auditor in any
language. JSON Schemas and an AsyncAPI document are in [`schemas/`](schemas/); every code is on
[the page of reasons](reasons.md).

## Body

A message is at most {MAX_BODY:,} bytes and, byte for byte,

```text
{{"event":E,"sig":"S"}}
```

`E` is a CloudEvents 1.0 event in canonical form (RFC 8785): keys sorted, no white space, UTF-8
unescaped, every key ASCII and there once. There are no floats: a number with a point or an exponent
is none of ours, whatever its value. Integers lie within ±{MAX_INTEGER}. Nesting goes {MAX_DEPTH}
levels deep at most, the body itself being the first.

`S` is base64url without padding of the 64-byte signature, `{SIGNATURE_PATTERN}`: the last character
leaves no bit to choose.

A message is published without headers, and nothing in a header changes a verdict.

## The ten members of `E`

{envelope}
No member may be missing, and there is no other.

## Keys

An issuer is an Ed25519 public key spelled as an NKey: base32 without padding of one prefix byte
(`0xa0`), the 32 bytes of the key, and the CRC-16/XMODEM of those 33 bytes, little endian: 56
characters that begin with `U`. Verification is strict, as libsodium does it: keys and signatures in
another than their canonical encoding, and keys of small order, are refused.

## Signature and digest

What is signed is DSSE's pre-authentication encoding of `E` exactly as sent, lengths counting bytes:

```text
DSSEv1 {len(EVENT_PAYLOAD_TYPE)} {EVENT_PAYLOAD_TYPE.decode()} <bytes in E> E
```

The *event digest* is SHA-256 of that encoding: the event's identity everywhere. Everything else that
an event key signs has a payload type of its own:

{payload_types}
## Chain

`issuerseq` rises by exactly 1 per issuer, and `prev` is the digest of that issuer's event before. The
first event has 1 and 64 zeros. Together they expose a withheld, replayed or forked event.

## Subjects

{
        table(
            ("name", "what"),
            (
                f"`{subjects.event('<realm>', '<issuer>')}`",
                "events; the only subjects in the stream",
            ),
            (
                f"`{subjects.live('<realm>', '<issuer>')}`",
                "the stream's republish: a wake-up, never evidence",
            ),
            (f"`{subjects.presence('<realm>', '<issuer>')}`", "liveness, outside the log"),
            (
                f"`{subjects.query('<realm>', '<name>')}`",
                "what a tracker is asked: [queries](queries.md)",
            ),
            (f"`{subjects.stream('<realm>')}`", "the realm's one stream"),
        )
    }
## Gate

Every reader judges a message alike. In order, the first step that fails names the reason:

{_gate()}
Once step 6 is passed and the event is its issuer's next one, the chain advances, whatever step 8 or
the registry's rules decide: otherwise one refused registration would lock a node out for good.

## Hosts

{_format(host)}

## Enrolment requests

{_format(enrolment)}

## Worked example

{_worked()}
## Facts

`data` has exactly the members of its type. Unknown members are refused and nothing has a default.
Lengths of texts count Unicode code points.

{_facts()}"""


def reasons_page() -> str:
    """`docs/reference/reasons.md`: every code with its meaning."""
    rows = ((f"`{code}`", meaning) for code, meaning in MEANING.items())
    admission = ((f"`{CAPABILITY}{code}`", meaning) for code, meaning in CAPABILITY_REASONS.items())
    return f"""{GENERATED}
# Reasons

A code is for programs and never changes; the detail text beside it is for people and may.

{table(("code", "meaning"), *rows)}
## Capability

Why a registration's capability report does not cover what it offers, in the order of the checks.

{table(("code", "meaning"), *admission)}"""


def pages() -> dict[str, str]:
    """Every generated page of `docs/reference`: file name to Markdown."""
    return {"events.md": reference(), "queries.md": queries_page(), "reasons.md": reasons_page()}
