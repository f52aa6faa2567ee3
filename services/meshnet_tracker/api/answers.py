"""A query in, the answer or an error out: what the registry's state says, in the words of the contract.

Pure: state and presence come in, and nothing is decided here that `eligibility`, `routing` or
`explain` did not decide. With `liveness` a claim that is not live is neither eligible nor planned, as
the answer's `presence` tells; without it, every claim counts that the log knows.

A recipe goes by its key or by 8 hex digits or more of it. None that fits is `not-found`, several are
`ambiguous`; which those are is not listed, for there is no end to them.

Left out: the broker's time and messages of the log, which are no matter of the state (`api.nats`).
"""

from collections.abc import Iterator
from typing import assert_never

import msgspec
from msgspec import Struct

from meshnet_events.answers import (
    MAX_OBSTACLES,
    MAX_SHARDS,
    Answer,
    ClaimAnswer,
    NodeAnswer,
    Obstacle,
    PlanAnswer,
    PlannedHop,
    RecipeAnswer,
    fitted,
)
from meshnet_events.facts import Fingerprint
from meshnet_events.queries import (
    AMBIGUOUS,
    NOT_FOUND,
    ClaimQuery,
    NodeQuery,
    PlanQuery,
    QueryError,
    RecipeQuery,
)
from meshnet_events.reasons import NOT_ENROLLED, NOT_LIVE, SUSPENDED
from meshnet_tracker.registry.eligibility import LIVE_FOR_S, Liveness, judge
from meshnet_tracker.registry.explain import name_of, why_recipe
from meshnet_tracker.registry.routing.plan import Hop, NoRoute, plan
from meshnet_tracker.registry.rows import Identity, Node, Recipe
from meshnet_tracker.registry.state import State

StateQuery = ClaimQuery | NodeQuery | PlanQuery | RecipeQuery
"""What the state alone answers."""
_MOST_NAMED = 8


class _RecipeLabels(Struct, frozen=True):
    catalogue_version: str
    recipe_id: str
    recipe_version: str


class _Block(Struct, frozen=True):
    """As much of an identity block as an answer repeats."""

    recipe: _RecipeLabels


def answer_from(state: State, query: StateQuery, liveness: Liveness | None) -> Answer | QueryError:
    """Answer `query` as of the state's sequence."""
    match query:
        case ClaimQuery():
            return _claim(state, query, liveness)
        case NodeQuery():
            return _node(state, query)
        case PlanQuery():
            return _plan(state, query, liveness)
        case RecipeQuery():
            return _recipe(state, query, liveness)
        case _:
            assert_never(query)


def _claim(state: State, query: ClaimQuery, liveness: Liveness | None) -> ClaimAnswer | QueryError:
    claim = state.claim(query.node, query.shard_id)
    if claim is None:
        return QueryError(NOT_FOUND, f"{query.node} never registered a shard {query.shard_id}")
    verdict = judge(state, claim, liveness)
    identity = claim.identity
    recipe = state.recipes.get(claim.recipe_key or "")
    return ClaimAnswer(
        boot_id=claim.boot_id,
        device=claim.device,
        endpoint=claim.endpoint,
        eligible_to_certify=verdict.to_certify,
        eligible_to_serve=verdict.to_serve,
        end=identity.shard_end if identity else None,
        fingerprint=_fingerprint(identity, identity) if identity else None,
        host=claim.host,
        node=claim.node,
        presence=liveness is not None,
        reasons=verdict.reasons,
        recipe_key=claim.recipe_key,
        recipe_status=recipe.status if recipe else "unknown",
        refusal=claim.refusal,
        refusal_detail=fitted(claim.refusal_detail),
        registered_sequence=claim.sequence,
        shard_id=claim.shard_id,
        start=identity.shard_start if identity else None,
        status=claim.status,
    )


def _node(state: State, query: NodeQuery) -> NodeAnswer:
    row = state.nodes.get(query.node) or Node(query.node)
    barred = {NOT_ENROLLED, SUSPENDED}.intersection(row.bars(state.policy))
    head = state.chain_of(query.node)
    claims = state.claims.get(query.node, {})
    live = sorted(shard_id for shard_id, claim in claims.items() if claim.status == "live")
    is_heard_of = query.node in state.nodes or state.is_known(query.node)
    return NodeAnswer(
        boot_id=row.boot_id,
        group=row.group,
        head_digest=head.digest,
        head_issuerseq=head.issuerseq,
        head_sequence=head.sequence,
        label=row.label,
        may_speak=not barred,
        node=query.node,
        shards=tuple(live[:MAX_SHARDS]),
        status=row.status if is_heard_of else "unknown",
    )


def _plan(state: State, query: PlanQuery, liveness: Liveness | None) -> PlanAnswer | QueryError:
    recipe = _find(state, query.recipe)
    if isinstance(recipe, QueryError):
        return recipe
    found = plan(
        state,
        recipe.recipe_key,
        query.purpose,
        exclude=frozenset(query.exclude),
        liveness=liveness,
    )
    hops: tuple[PlannedHop, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    if isinstance(found, NoRoute):
        obstacles = (
            *(Obstacle(one.code, fitted(one.detail)) for one in found.obstacles),
            *_silent(state, recipe.recipe_key, liveness),
        )[:MAX_OBSTACLES]
    else:
        hops = tuple(_hop(state, hop) for hop in found.hops)
    return PlanAnswer(
        fingerprint=_fingerprint_of(recipe),
        hops=hops,
        layer_count=recipe.layer_count,
        obstacles=obstacles,
        purpose=query.purpose,
        recipe_key=recipe.recipe_key,
    )


def _silent(state: State, recipe_key: str, liveness: Liveness | None) -> Iterator[Obstacle]:
    """The claims that a route might have used, had anybody heard of them lately."""
    if liveness is None:
        return
    silent = [
        claim
        for claim in state.live_claims.get(recipe_key, {}).values()
        if not liveness.is_live(claim) and claim.identity is not None
    ]
    for claim in silent[:_MOST_NAMED]:
        identity, name = claim.identity, name_of(state, claim.node)
        if identity is not None:
            yield Obstacle(
                NOT_LIVE,
                f"{name}/{claim.shard_id} [{identity.shard_start}, {identity.shard_end}) has not "
                f"been heard of for {LIVE_FOR_S} s; does its process run?",
            )
    if len(silent) > _MOST_NAMED:
        yield Obstacle(NOT_LIVE, f"and {len(silent) - _MOST_NAMED} more have not been heard of")


def _hop(state: State, hop: Hop) -> PlannedHop:
    return PlannedHop(
        boot_id=hop.boot_id,
        end=hop.effective_end,
        endpoint=hop.endpoint,
        label=state.nodes[hop.node].label,
        node=hop.node,
        shard_id=hop.shard_id,
        start=hop.effective_start,
    )


def _recipe(
    state: State, query: RecipeQuery, liveness: Liveness | None
) -> RecipeAnswer | QueryError:
    recipe = _find(state, query.recipe)
    if isinstance(recipe, QueryError):
        return recipe
    proof = recipe.certification
    return RecipeAnswer(
        certified_time_ms=proof.time_ms if proof else None,
        fingerprint=_fingerprint_of(recipe),
        layer_count=recipe.layer_count,
        proven_seams=recipe.proven_seams,
        recipe_key=recipe.recipe_key,
        status=recipe.status,
        why=fitted(why_recipe(state, recipe.recipe_key, liveness)),
    )


def _find(state: State, prefix: str) -> Recipe | QueryError:
    """The recipe whose key begins with `prefix`."""
    if (whole := state.recipes.get(prefix)) is not None:
        return whole
    found = [recipe for key, recipe in state.recipes.items() if key.startswith(prefix)]
    if not found:
        return QueryError(NOT_FOUND, f"no admitted claim has offered a recipe {prefix}")
    if len(found) > 1:
        return QueryError(
            AMBIGUOUS, f"{len(found)} recipes begin with {prefix}: give more of the key"
        )
    return found[0]


def _fingerprint_of(recipe: Recipe) -> Fingerprint:
    """The recipe's digests, with the labels of the claim that made it known."""
    return _fingerprint(recipe, msgspec.json.decode(recipe.identity, type=_Block).recipe)


def _fingerprint(digests: Identity | Recipe, labels: Identity | _RecipeLabels) -> Fingerprint:
    return Fingerprint(
        catalogue_version=labels.catalogue_version,
        model_artifact_digest=digests.model_artifact_digest,
        recipe_id=labels.recipe_id,
        recipe_version=labels.recipe_version,
        runtime_recipe_digest=digests.runtime_recipe_digest,
    )
