"""May these shards compute one model together? Every reason why not, not just the first.

Reasons come in a fixed order: shard by shard against the first one, then coverage of the layers,
then the recipe's status. An empty tuple is the only yes.
"""

from collections.abc import Iterable

from meshnet_node.recipe_identity._checks import brief, check_type
from meshnet_node.recipe_identity._evidence import coverage_fault
from meshnet_node.recipe_identity._identity import AXIS_REASONS, ShardIdentity
from meshnet_node.recipe_identity._mismatch import (
    MISMATCH_ARCHITECTURE,
    MISMATCH_ARTIFACT,
    MISMATCH_RANGE,
    MISMATCH_UNCERTIFIED,
    RouteIncompatible,
    RouteMismatch,
)
from meshnet_node.recipe_identity._registry import RecipeRegistry

_ARTIFACT_REASONS = {
    "source_digest": MISMATCH_ARTIFACT,
    "architecture": MISMATCH_ARCHITECTURE,
    "architecture_digest": MISMATCH_ARCHITECTURE,
    "layer_count": MISMATCH_ARTIFACT,
}


def explain_mismatch(
    left: ShardIdentity, right: ShardIdentity, *, shard_index: int | None = None
) -> tuple[RouteMismatch, ...]:
    """Every difference that changes a fingerprint, `left` being what is expected.

    The order is source digest, architecture, architecture digest, layer count, then the axes.
    """
    compared = [
        (name, reason, getattr(left.artifact, name), getattr(right.artifact, name))
        for name, reason in _ARTIFACT_REASONS.items()
    ] + [
        (name, reason, getattr(left.recipe, name), getattr(right.recipe, name))
        for name, reason in AXIS_REASONS.items()
    ]
    return tuple(
        RouteMismatch(reason, f"{name} is {brief(got)}, expected {brief(wanted)}", shard_index)
        for name, reason, wanted, got in compared
        if got != wanted
    )


def check_route(
    shards: Iterable[ShardIdentity],
    *,
    registry: RecipeRegistry | None = None,
    for_certification: bool = False,
) -> tuple[RouteMismatch, ...]:
    """Every reason against a route of these shards; empty means they may compute together.

    Without a registry the recipe's status is not asked. With one, an unknown recipe never passes
    and a dark one only for certification.
    """
    route = tuple(shards)
    if not route:
        return (RouteMismatch(MISMATCH_RANGE, "the route has no shards, so it holds no layer"),)
    for index, shard in enumerate(route):
        check_type(shard, ShardIdentity, f"shards[{index}]")
    first = route[0]
    reasons = [
        mismatch
        for index, shard in enumerate(route[1:], start=1)
        for mismatch in explain_mismatch(first, shard, shard_index=index)
    ]
    ranges = [(shard.shard_start, shard.shard_end) for shard in route]
    fault = coverage_fault(ranges, first.artifact.layer_count)
    if fault is not None:
        reasons.append(RouteMismatch(MISMATCH_RANGE, fault))
    if registry is not None:
        status = registry.status(first)
        if not (status.may_certify if for_certification else status.may_serve):
            purpose = "certify" if for_certification else "serve"
            reasons.append(
                RouteMismatch(
                    MISMATCH_UNCERTIFIED,
                    f"the recipe is {status.status} and may not {purpose}: {status.detail}",
                )
            )
    return tuple(reasons)


def require_route(
    shards: Iterable[ShardIdentity],
    *,
    registry: RecipeRegistry | None = None,
    for_certification: bool = False,
) -> None:
    """Raise RouteIncompatible with every reason that `check_route` gives, if any."""
    reasons = check_route(shards, registry=registry, for_certification=for_certification)
    if reasons:
        raise RouteIncompatible(reasons)
