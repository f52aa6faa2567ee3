"""`bench fold`: gate, verification and fold, in memory, on one thread.

Records are made slice by slice, each about as large as what a reader hands out. Beside it, over the
same slice: checking the same signatures with PyNaCl and nothing else. Without the signature step: one
typed decode, one typed encode and one SHA-256 of the same bodies, which no way of proving them
canonical and naming them can do without.
"""

import gc
import hashlib
import itertools
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import msgspec
from nacl.signing import VerifyKey

from meshnet_cli.bench.mix import REALM, Mix
from meshnet_cli.bench.result import Result, seconds
from meshnet_events.facts import FACTS
from meshnet_events.gate import Gate
from meshnet_events.record import Record
from meshnet_events.screened import Event, Screened
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.state import State

SLICE = 4_096
Of = Literal["mix", "registrations"]
_DECODERS: dict[type, Callable[[bytes], object]] = {
    fact: msgspec.json.Decoder(fact).decode for fact in FACTS.values()
}


def bench_fold(
    *, records: int, nodes: int, verify: bool, of: Of, progress: Callable[[int, int], None]
) -> Result:
    """Fold `records` events of `nodes` nodes after a warm-up that enrols and registers them."""
    arriving = _records(of, nodes, 1 + 2 * nodes + records, progress)
    fold = Fold(State(REALM))
    for record in itertools.islice(arriving, 1 + 2 * nodes):
        fold.apply(record, verify=False)
    fold.state.take_changes()
    gate = Gate(REALM)
    limit_of = _verify_alone if verify else _decode_encode_hash
    measured_s = limit_s = 0.0
    count = size = 0
    gc.collect()
    gc.freeze()
    while part := list(itertools.islice(arriving, SLICE)):
        measured_s += seconds(partial(_fold, fold, part, verify=verify))
        limit_s += seconds(limit_of([gate.screen(one.body, one.subject) for one in part]))
        count += len(part)
        size += sum(len(record.body) for record in part)
    applied = fold.state.counts.get("applied", 0)
    return Result(
        bench="fold",
        measured=count / measured_s,
        limit=count / limit_s,
        ratio=limit_s / measured_s,
        unit="records/s",
        limit_is="PyNaCl checking the same signatures and nothing else"
        if verify
        else "typed decode, typed encode and SHA-256 of the same bodies and nothing else",
        config={
            "of": of,
            "records": count,
            "nodes": nodes,
            "mean_body_bytes": round(size / count),
            "verify": verify,
            "threads": 1,
            "applied_share": round(applied / fold.state.sequence, 4),
        },
    )


def _records(
    of: Of, nodes: int, count: int, progress: Callable[[int, int], None]
) -> Iterator[Record]:
    mix = Mix(nodes=nodes)
    events = mix.events(count) if of == "mix" else mix.registrations(count - 1 - nodes)
    for sequence, (subject, body) in enumerate(events, start=1):
        if sequence % SLICE == 0:
            progress(sequence, count)
        yield Record(sequence, mix.time_ms * 1_000_000, subject, body)


def _fold(fold: Fold, records: list[Record], *, verify: bool) -> None:
    fold.apply_all(records, verify=verify)
    fold.state.take_changes()


def _verify_alone(screened: list[Screened]) -> Callable[[], None]:
    checks = [_check(one) for one in screened]

    def run() -> None:
        for key, signed, signature in checks:
            key.verify(signed, signature)

    return run


def _check(one: Screened) -> tuple[VerifyKey, bytes, bytes]:
    if one.public is None:
        raise ValueError(f"the mix made a record without a signature to check: {one.result}")
    return VerifyKey(one.public), one.signed, urlsafe_b64decode(f"{one.signature}==")


def _decode_encode_hash(screened: list[Screened]) -> Callable[[], None]:
    encode = msgspec.json.Encoder().encode
    bodies = [
        (_DECODERS[type(one.result.data)], encode(one.result.data), one.signed)
        for one in screened
        if isinstance(one.result, Event)
    ]

    def run() -> None:
        for decode, data, signed in bodies:
            encode(decode(data))
            hashlib.sha256(signed).hexdigest()

    return run
