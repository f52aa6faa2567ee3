"""Does this distributed forward prove anything?

`DistributedForwardEvidence` accepts what could be evidence (types are checked when it is made) and
`rejection` says why it is none. One reason is given, the first that applies in a fixed order, so
that two readers of the same evidence report the same code.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import msgspec
from msgspec import Struct

from meshnet_node.recipe_identity._checks import (
    MAX_INTEGER,
    RecipeIdentityError,
    check_integer,
    check_moment,
    check_text,
    found,
    members,
)

MIN_CERTIFYING_NODES = 2

EVIDENCE_SYNTHETIC = "synthetic"
EVIDENCE_TOO_FEW_NODES = "too-few-nodes"
EVIDENCE_DUPLICATE_NODE = "duplicate-node"
EVIDENCE_NO_TOKENS = "no-tokens"
EVIDENCE_COVERAGE = "coverage"

_MAX_NAMED_FAULTS = 8
_EVIDENCE_MEMBERS = (
    "route_session_id",
    "route_epoch",
    "node_ids",
    "shard_ranges",
    "tokens_generated",
    "layer_count",
    "synthetic",
)


class EvidenceRejection(NamedTuple):
    """Why evidence proves nothing: an `EVIDENCE_…` code and a text for people."""

    code: str
    text: str


class DistributedForwardEvidence(Struct, frozen=True):
    """What was seen of one forward that crossed several nodes.

    `shard_ranges` are layers `[start, end)`. `certified_at` is given by whoever certifies (seconds
    since the epoch, or RFC 3339 text): it is carried, never interpreted, and no clock is read.
    """

    route_session_id: str
    route_epoch: int
    node_ids: tuple[str, ...]
    shard_ranges: tuple[tuple[int, int], ...]
    tokens_generated: int
    layer_count: int
    synthetic: bool = False
    certified_at: float | str | None = None

    def __post_init__(self) -> None:
        check_text(self.route_session_id, "evidence.route_session_id")
        check_integer(self.route_epoch, "evidence.route_epoch", least=0)
        check_integer(self.tokens_generated, "evidence.tokens_generated", least=-MAX_INTEGER)
        check_integer(self.layer_count, "evidence.layer_count", least=1)
        if not isinstance(self.synthetic, bool):
            raise RecipeIdentityError(
                f"evidence.synthetic: found {found(self.synthetic)}, expected true or false"
            )
        check_moment(self.certified_at, "evidence.certified_at")
        nodes = _sequence(self.node_ids, "evidence.node_ids")
        for index, node in enumerate(nodes):
            check_text(node, f"evidence.node_ids[{index}]")
        ranges = _sequence(self.shard_ranges, "evidence.shard_ranges")
        pairs = [_pair(item, f"evidence.shard_ranges[{i}]") for i, item in enumerate(ranges)]
        # JSON and callers bring lists; a frozen value holds tuples, or it is not frozen.
        msgspec.structs.force_setattr(self, "node_ids", nodes)
        msgspec.structs.force_setattr(self, "shard_ranges", tuple(pairs))

    def rejection(self) -> EvidenceRejection | None:
        """The first reason why this proves nothing, or None."""
        distinct = len(set(self.node_ids))
        if self.synthetic:
            return EvidenceRejection(
                EVIDENCE_SYNTHETIC, "the forward was synthetic: no model was computed"
            )
        if distinct < MIN_CERTIFYING_NODES:
            return EvidenceRejection(
                EVIDENCE_TOO_FEW_NODES,
                f"{distinct} distinct node(s) took part, at least {MIN_CERTIFYING_NODES} must",
            )
        if distinct < len(self.node_ids):
            return EvidenceRejection(
                EVIDENCE_DUPLICATE_NODE,
                f"{len(self.node_ids)} nodes are named and {distinct} are distinct; "
                "a node may be counted once",
            )
        if self.tokens_generated < 1:
            return EvidenceRejection(
                EVIDENCE_NO_TOKENS, f"{self.tokens_generated} tokens came out, at least 1 must"
            )
        fault = coverage_fault(self.shard_ranges, self.layer_count)
        if fault is not None:
            return EvidenceRejection(EVIDENCE_COVERAGE, fault)
        return None

    def to_dict(self) -> dict[str, Any]:
        """The members as JSON values; `certified_at` only once it is known."""
        block: dict[str, Any] = {name: getattr(self, name) for name in _EVIDENCE_MEMBERS}
        block["node_ids"] = list(self.node_ids)
        block["shard_ranges"] = [list(pair) for pair in self.shard_ranges]
        if self.certified_at is not None:
            block["certified_at"] = self.certified_at
        return block

    @classmethod
    def from_dict(cls, block: object) -> Self:
        """Parse what `to_dict` writes; raises RecipeIdentityError."""
        return cls(**members(block, "evidence", _EVIDENCE_MEMBERS, ("certified_at",)))


def coverage_fault(ranges: Iterable[tuple[int, int]], layer_count: int) -> str | None:
    """Say which of the layers `[0, layer_count)` the ranges leave out or exceed, or None.

    Ranges may overlap and come in any order.
    """
    faults: list[str] = []
    held = 0
    for start, end in sorted(ranges):
        if start < 0 or end <= start:
            faults.append(f"[{start}, {end}) is not a range of layers")
            continue
        if held < min(start, layer_count):
            faults.append(f"layers [{held}, {min(start, layer_count)}) are held by no shard")
        if end > layer_count:
            faults.append(f"[{start}, {end}) reaches beyond the last of {layer_count} layers")
        held = max(held, end)
    if held < layer_count:
        faults.append(f"layers [{held}, {layer_count}) are held by no shard")
    if len(faults) > _MAX_NAMED_FAULTS:
        more = len(faults) - _MAX_NAMED_FAULTS
        faults[_MAX_NAMED_FAULTS:] = [f"and {more} more"]
    return "; ".join(faults) or None


def _sequence(value: object, field: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise RecipeIdentityError(f"{field}: found {found(value)}, expected a list")
    return tuple(value)


def _pair(value: object, field: str) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise RecipeIdentityError(f"{field}: found {found(value)}, expected [start, end]")
    start, end = value
    for bound in (start, end):
        check_integer(bound, field, least=-MAX_INTEGER)
    return start, end
