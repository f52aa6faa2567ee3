"""What a distributed forward leaves behind: digests of all that passed, and the evidence made of them.

Each hop digests what entered and what left it, as it passes (`Digests`). The driver, who sees only
tokens, gathers every hop's report and writes the evidence (`make_evidence`), which it refuses to do
where two hops disagree about the bytes between them. Then every hop compares that account with what
it saw itself (`disagreements`) and attests it, or does not and says why. Nobody attests what it did
not see: the layers of hops that are no neighbours are their neighbours' to confirm.

Digests are SHA-256. `input`, over every token id that entered the first hop, and `output`, over every
generated one, in order as u32 little-endian; a seam, over the activations that crossed it as they
were on the wire, nothing between.
"""

import hashlib
import struct
from collections.abc import Sequence
from itertools import pairwise

import msgspec
from msgspec import Struct

from meshnet_events.envelope import canonical
from meshnet_events.facts import Evidence, ForwardAttested, Hop
from meshnet_node.recipe_identity import DistributedForwardEvidence, RecipeIdentityError

MAX_EVIDENCE = 60_000
"""Bytes of evidence that still fit an event."""


class Digests:
    """Digests of what passed one hop, or the driver, kept as it passes."""

    __slots__ = ("_entered", "_generated", "_left", "tokens_generated")

    def __init__(self) -> None:
        self._entered = hashlib.sha256()
        self._left = hashlib.sha256()
        self._generated = hashlib.sha256()
        self.tokens_generated = 0

    def entered(self, data: bytes) -> None:
        """Activations, or the bytes of token ids, came in."""
        self._entered.update(data)

    def left(self, data: bytes) -> None:
        """Activations went out."""
        self._left.update(data)

    def generated(self, token: int) -> None:
        """A token came out of the last hop."""
        self._generated.update(token_bytes((token,)))
        self.tokens_generated += 1

    def seen(self, *, is_last: bool) -> "Seen":
        """What was seen so far; the last hop puts out tokens, every other one activations."""
        output = self._generated.hexdigest()
        return Seen(
            in_digest=self._entered.hexdigest(),
            out_digest=output if is_last else self._left.hexdigest(),
            output_digest=output,
            tokens_generated=self.tokens_generated,
        )


class Seen(Struct, frozen=True):
    """Digests of what entered and left a hop, and of the tokens that came back through it."""

    in_digest: str
    out_digest: str
    output_digest: str
    tokens_generated: int


class Report(Struct, frozen=True):
    """What one hop says that it saw."""

    in_digest: str
    out_digest: str
    tokens_generated: int
    synthetic: bool


class Part(Struct, frozen=True):
    """One hop's part in a forward: its place, its neighbours, what it computes, what it saw.

    `hops` are its own and those after it, `before` is (node, boot) of the hop that called it: None
    at the first hop, which was called by the driver.
    """

    route_session_id: str
    route_epoch: int
    model_artifact_digest: str
    runtime_recipe_digest: str
    layer_count: int
    synthetic: bool
    index: int
    before: tuple[str, str] | None
    hops: tuple[Hop, ...]
    seen: Seen


def token_bytes(ids: Sequence[int]) -> bytes:
    """Token ids as their digests take them: u32 little-endian."""
    return struct.pack(f"<{len(ids)}I", *ids)


def make_evidence(
    *,
    route_session_id: str,
    route_epoch: int,
    model_artifact_digest: str,
    runtime_recipe_digest: str,
    layer_count: int,
    hops: Sequence[Hop],
    reports: Sequence[Report],
    driver: Seen,
    completed_at_ms: int,
) -> Evidence:
    """Write the evidence of a forward. Raises ValueError where the reports do not fit together."""
    faults = tuple(_misfits(reports, len(hops), driver))
    if faults:
        raise ValueError("; ".join(faults))
    return Evidence(
        completed_at_ms=completed_at_ms,
        hops=tuple(hops),
        input_digest=driver.in_digest,
        layer_count=layer_count,
        model_artifact_digest=model_artifact_digest,
        output_digest=driver.output_digest,
        route_epoch=route_epoch,
        route_session_id=route_session_id,
        runtime_recipe_digest=runtime_recipe_digest,
        seams=tuple(report.out_digest for report in reports[:-1]),
        synthetic=any(report.synthetic for report in reports),
        tokens_generated=driver.tokens_generated,
    )


def _misfits(reports: Sequence[Report], hop_count: int, driver: Seen) -> list[str]:
    if len(reports) != hop_count:
        return [f"{len(reports)} hops reported, expected {hop_count}"]
    faults = []
    if reports[0].in_digest != driver.in_digest:
        faults.append("hop 0 reports other tokens than were sent to it")
    for index, (left, right) in enumerate(pairwise(reports)):
        if left.out_digest != right.in_digest:
            faults.append(
                f"hop {index + 1} reports other activations than hop {index} says it sent"
            )
    if reports[-1].out_digest != driver.output_digest:
        faults.append(f"hop {hop_count - 1} reports other tokens than came back")
    faults += [
        f"hop {index} reports {report.tokens_generated} tokens, {driver.tokens_generated} came back"
        for index, report in enumerate(reports)
        if report.tokens_generated != driver.tokens_generated
    ]
    return faults


def read_evidence(content: bytes) -> Evidence:
    """The evidence that a driver sent. Raises ValueError for bytes that cannot be attested."""
    if len(content) > MAX_EVIDENCE:
        raise ValueError(f"{len(content):,} bytes of evidence, expected at most {MAX_EVIDENCE:,}")
    try:
        evidence = msgspec.json.decode(content, type=Evidence)
        is_canonical = canonical(evidence) == content
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"no evidence: {error}") from error
    if not is_canonical:
        raise ValueError("evidence that is not in canonical form")
    return evidence


def disagreements(
    part: Part, evidence: Evidence, *, now_ms: int, max_skew_ms: int
) -> tuple[str, ...]:
    """Everything in `evidence` that is not what `part` saw itself; empty when it may be attested."""
    found = [
        f"{name}: {_shown(getattr(evidence, name))}, expected {_shown(expected)}"
        for name, expected in (
            ("route_session_id", part.route_session_id),
            ("route_epoch", part.route_epoch),
            ("model_artifact_digest", part.model_artifact_digest),
            ("runtime_recipe_digest", part.runtime_recipe_digest),
            ("layer_count", part.layer_count),
            ("tokens_generated", part.seen.tokens_generated),
            ("output_digest", part.seen.output_digest),
        )
        if getattr(evidence, name) != expected
    ]
    if part.synthetic and not evidence.synthetic:
        found.append("synthetic: false, and this hop's backend computes no model")
    if abs(evidence.completed_at_ms - now_ms) > max_skew_ms:
        found.append(
            f"completed_at_ms: {(evidence.completed_at_ms - now_ms) / 1000:+.1f} s from this host's "
            "clock; check both"
        )
    found += _wrong_hops(part, evidence)
    found += _wrong_digests(part, evidence)
    return (*found, *_rejections(evidence))


def _rejections(evidence: Evidence) -> list[str]:
    """Why it would prove nothing, whoever attests it."""
    try:
        rejection = DistributedForwardEvidence(
            route_session_id=evidence.route_session_id,
            route_epoch=evidence.route_epoch,
            node_ids=tuple(hop.node for hop in evidence.hops),
            shard_ranges=tuple((hop.start, hop.end) for hop in evidence.hops),
            tokens_generated=evidence.tokens_generated,
            layer_count=evidence.layer_count,
            synthetic=evidence.synthetic,
        ).rejection()
    except RecipeIdentityError as error:
        return [str(error)]
    return [] if rejection is None else [f"{rejection.code}: {rejection.text}"]


def _wrong_hops(part: Part, evidence: Evidence) -> list[str]:
    found = []
    if evidence.hops[part.index :] != part.hops:
        found.append(f"hops: from hop {part.index} on they are not those of this session")
    if part.before is not None:
        before = evidence.hops[part.index - 1 : part.index]
        if [(hop.node, hop.boot_id) for hop in before] != [part.before]:
            found.append(f"hops: hop {part.index - 1} is not who called this hop")
        elif before[0].end != part.hops[0].start:
            found.append(f"hops: hop {part.index - 1} does not end where this hop starts")
    return found


def _wrong_digests(part: Part, evidence: Evidence) -> list[str]:
    chain = (evidence.input_digest, *evidence.seams, evidence.output_digest)
    if len(chain) != len(evidence.hops) + 1:
        return [f"seams: {len(evidence.seams)} between {len(evidence.hops)} hops"]
    around = chain[part.index : part.index + 2]
    expected = (part.seen.in_digest, part.seen.out_digest)
    return [
        f"{name}: {_shown(stated)}, expected {_shown(seen)}"
        for name, stated, seen in zip(
            ("what entered this hop", "what left this hop"), around, expected, strict=False
        )
        if stated != seen
    ]


def attestation(part: Part, evidence: Evidence) -> ForwardAttested:
    """The word of the hop that `part` is about."""
    return ForwardAttested(
        evidence=evidence,
        hop=part.index,
        in_digest=part.seen.in_digest,
        out_digest=part.seen.out_digest,
    )


def _shown(value: object) -> str:
    """A member for a message: whatever a driver wrote, short."""
    text = str(value)
    return text if len(text) <= 24 else f"{text[:16]}…"
