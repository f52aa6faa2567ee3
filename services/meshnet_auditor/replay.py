"""A history folded to a point, and the report of what held there.

    replay(records, realm, to=19) -> Replayed(state, …)      report(state) -> Report

The report is `audit replay`'s JSON: how many records had which outcome, every recipe that an
admitted claim made known, the newest registration of each node and shard id (ended and refused ones
included), and every node that is enrolled, marked or has a claim. Presence is no history: it is left
out.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

from meshnet_events.envelope import rfc3339
from meshnet_events.record import Record
from meshnet_tracker.registry.eligibility import judge
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.rows import Claim, Node, Recipe
from meshnet_tracker.registry.state import State

PROGRESS_EVERY = 1_024
"""Records between two calls of `progress`."""


class OutcomeCounts(Struct, frozen=True):
    """How many records had which outcome; `rejected` by code."""

    applied: int
    noop: int
    rejected: dict[str, int]


class RecipeReport(Struct, frozen=True):
    """A recipe then. `certified_at` is the broker's time of the record that certified it."""

    recipe_key: str
    status: str
    certified_at: str | None
    certified_sequence: int | None
    model_artifact_digest: str
    runtime_recipe_digest: str
    layer_count: int
    proven_seams: tuple[int, ...]
    since_sequence: int


class ClaimReport(Struct, frozen=True):
    """The newest registration of a node's shard id. Range and key are null when unsound."""

    node: str
    shard_id: str
    boot_id: str
    endpoint: str
    start: int | None
    end: int | None
    recipe_key: str | None
    eligible_to_serve: bool
    eligible_to_certify: bool
    reasons: tuple[str, ...]
    status: str
    refusal: str | None
    refusal_detail: str
    sequence: int


class NodeReport(Struct, frozen=True):
    """A node then."""

    node: str
    status: str
    label: str
    group: str
    enrolled: bool
    equivocated: bool
    boot_id: str | None


class Report(Struct, frozen=True):
    """What held after `sequence`."""

    realm: str
    sequence: int
    time: str | None
    outcomes: OutcomeCounts
    recipes: tuple[RecipeReport, ...]
    claims: tuple[ClaimReport, ...]
    nodes: tuple[NodeReport, ...]


def replay(
    records: Iterable[Record],
    realm: str,
    *,
    to: int | None = None,
    operator: str | None = None,
    verify: bool = True,
    progress: Callable[[int], None] | None = None,
) -> State:
    """Fold `records` from sequence 1, up to sequence `to` when given.

    `operator` is the root of trust that the caller was told. Raises `FoldFault` when these are
    not the records of that realm in order. `progress` is told the sequence reached, now and then.
    """
    fold = Fold(State(realm), operator=operator)
    for record in records:
        if to is not None and record.sequence > to:
            break
        fold.apply(record, verify=verify)
        if record.sequence % PROGRESS_EVERY == 0:
            fold.state.take_changes()
            if progress is not None:
                progress(record.sequence)
    fold.state.take_changes()
    return fold.state


def report(state: State) -> Report:
    """What `state` says, in the shape that `audit replay` prints."""
    counts = dict(state.counts)
    applied, noop = counts.pop("applied", 0), counts.pop("noop", 0)
    return Report(
        realm=state.name,
        sequence=state.sequence,
        time=rfc3339(state.time_ns // 1_000_000) if state.sequence else None,
        outcomes=OutcomeCounts(applied, noop, dict(sorted(counts.items()))),
        recipes=tuple(_recipe(state.recipes[key]) for key in sorted(state.recipes)),
        claims=tuple(
            _claim(state, claim)
            for claim in sorted(state.all_claims(), key=lambda c: (c.node, c.shard_id))
        ),
        nodes=tuple(
            _node(row)
            for _, row in sorted(state.nodes.items())
            if row.status != "not-enrolled" or state.claims.get(row.node)
        ),
    )


def _recipe(recipe: Recipe) -> RecipeReport:
    certification = recipe.certification
    return RecipeReport(
        recipe_key=recipe.recipe_key,
        status=recipe.status,
        certified_at=rfc3339(certification.time_ms) if certification else None,
        certified_sequence=certification.sequence if certification else None,
        model_artifact_digest=recipe.model_artifact_digest,
        runtime_recipe_digest=recipe.runtime_recipe_digest,
        layer_count=recipe.layer_count,
        proven_seams=recipe.proven_seams,
        since_sequence=recipe.sequence,
    )


def _claim(state: State, claim: Claim) -> ClaimReport:
    verdict = judge(state, claim)
    identity = claim.identity
    return ClaimReport(
        node=claim.node,
        shard_id=claim.shard_id,
        boot_id=claim.boot_id,
        endpoint=claim.endpoint,
        start=identity.shard_start if identity else None,
        end=identity.shard_end if identity else None,
        recipe_key=claim.recipe_key,
        eligible_to_serve=verdict.to_serve,
        eligible_to_certify=verdict.to_certify,
        reasons=verdict.reasons,
        status=claim.status,
        refusal=claim.refusal,
        refusal_detail=claim.refusal_detail,
        sequence=claim.sequence,
    )


def _node(row: Node) -> NodeReport:
    return NodeReport(
        node=row.node,
        status=row.status,
        label=row.label,
        group=row.group,
        enrolled=row.enrolled,
        equivocated=row.equivocated,
        boot_id=row.boot_id,
    )
