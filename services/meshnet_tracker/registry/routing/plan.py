"""Routes: chains of claims that may compute together, or every reason why there are none.

A route starts at layer 0 and ends at the last. Where the next shard overlaps the one before, it is
told where that one stopped: effective start = that, effective end = the shard's own end. So a route
is fixed by its claims alone, and a seam lies wherever one claim's layers end.

Best is, in this order: fewest hops; most proven seams to serve, fewest to certify (so that new cuts
get proven); the lowest highest load; the smallest node keys, then shard ids, hop by hop. The same
state gives the same answer. Alternatives are the next best that share no claim with those before.

When there is none, the reasons name what is in the way: what would have to be otherwise for a route
to exist. A hole in the layers comes first, since nothing else matters while there is one.

A search is bounded. One that gives up has still tried what is easy to find, so its route may not be
the best; and where it found none, all that is asked is named, and said to be undecided.
"""

from collections.abc import Collection
from typing import Literal

from msgspec import Struct

from meshnet_events import reasons as codes
from meshnet_tracker.registry.eligibility import Liveness, usable_claims
from meshnet_tracker.registry.routing.obstacles import Obstacle, find_obstacles, undecided
from meshnet_tracker.registry.routing.problem import Demands, Effort, GaveUp, Problem, layers
from meshnet_tracker.registry.routing.search import best_chain
from meshnet_tracker.registry.rows import Claim, Recipe
from meshnet_tracker.registry.state import State

Purpose = Literal["serve", "certify"]

_NO_DEMANDS = Demands()
_NO_PAIRS: frozenset[tuple[str, str]] = frozenset()


class Hop(Struct, frozen=True):
    """One hop: the claim, the layers it holds `[start, end)`, and those it computes here."""

    node: str
    endpoint: str
    boot_id: str
    shard_id: str
    start: int
    end: int
    effective_start: int
    effective_end: int


class Route(Struct, frozen=True):
    """A chain of claims over the whole model, and the sequence it was computed at."""

    recipe_key: str
    model_artifact_digest: str
    runtime_recipe_digest: str
    purpose: Purpose
    hops: tuple[Hop, ...]
    sequence: int
    alternatives: tuple[tuple[Hop, ...], ...] = ()


class NoRoute(Struct, frozen=True):
    """There is no route, and why."""

    recipe_key: str
    purpose: Purpose
    obstacles: tuple[Obstacle, ...]
    sequence: int

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes alone."""
        return tuple(obstacle.code for obstacle in self.obstacles)


def plan(
    state: State,
    recipe_key: str,
    purpose: Purpose = "serve",
    *,
    exclude: Collection[str] = (),
    alternatives: int = 0,
    liveness: Liveness | None = None,
) -> Route | NoRoute:
    """The best route for `purpose` that names no node of `exclude`, and up to `alternatives` more.

    `liveness` is the presence overlay: without it, every claim that the log knows counts as live.
    Raises `ValueError` when `alternatives` is below 0.
    """
    if alternatives < 0:
        raise ValueError(f"alternatives is {alternatives}; expected 0 or more")
    recipe = state.recipes.get(recipe_key)
    if recipe is None:
        unknown = Obstacle(codes.UNKNOWN_RECIPE, f"no admitted claim offered {recipe_key}")
        return NoRoute(recipe_key, purpose, (unknown,), state.sequence)
    problem = _problem(state, recipe, purpose, exclude, liveness)
    barred = _barred_by_status(recipe, purpose)
    if barred is not None:
        obstacles = (barred, *find_obstacles(problem))
        return NoRoute(recipe_key, purpose, obstacles, state.sequence)
    try:
        chains = _best_chains(problem, 1 + alternatives)
    except GaveUp:
        return NoRoute(recipe_key, purpose, undecided(problem), state.sequence)
    if not chains:
        return NoRoute(recipe_key, purpose, find_obstacles(problem), state.sequence)
    best, *others = map(_hops, chains)
    return Route(
        recipe_key=recipe_key,
        model_artifact_digest=recipe.model_artifact_digest,
        runtime_recipe_digest=recipe.runtime_recipe_digest,
        purpose=purpose,
        hops=best,
        sequence=state.sequence,
        alternatives=tuple(others),
    )


def _problem(
    state: State,
    recipe: Recipe,
    purpose: Purpose,
    exclude: Collection[str],
    liveness: Liveness | None,
) -> Problem:
    policy = state.policy
    claims = usable_claims(state, recipe.recipe_key, liveness)
    if exclude:
        claims = [claim for claim in claims if claim.node not in exclude]
    demands = _NO_DEMANDS
    if purpose == "certify":
        demands = Demands(
            policy.min_certifying_nodes, policy.min_distinct_hosts, policy.min_distinct_groups
        )
    return Problem(
        claims=claims,
        layer_count=recipe.layer_count,
        proven=frozenset(recipe.proven_seams),
        seeks_proven=purpose == "serve",
        only_proven=purpose == "serve" and policy.certify == "seams",
        refused=state.refused_pairs.get(recipe.recipe_key, _NO_PAIRS),
        nodes=state.nodes,
        loads={claim.node: liveness.load(claim.node) for claim in claims}
        if liveness is not None
        else {},
        demands=demands,
        policy=policy,
    )


def _best_chains(problem: Problem, count: int) -> list[tuple[Claim, ...]]:
    """The best chain, the best of what it leaves, and so on.

    Raises `GaveUp` when nobody knows whether there is one.
    """
    chains: list[tuple[Claim, ...]] = []
    effort = Effort()
    while len(chains) < count:
        if chains:
            problem = problem.without(chains[-1])
        try:
            chain = best_chain(problem, effort)
        except GaveUp:
            if not chains:
                raise
            break
        if chain is None:
            break
        chains.append(chain)
    return chains


def _barred_by_status(recipe: Recipe, purpose: Purpose) -> Obstacle | None:
    if recipe.status == "revoked":
        return Obstacle(codes.REVOKED, f"an operator revoked it: {recipe.said_why}")
    if purpose == "serve" and recipe.status != "certified":
        return Obstacle(
            codes.NOT_CERTIFIED, f"the recipe is {recipe.status}; only a certified one serves"
        )
    return None


def _hops(claims: tuple[Claim, ...]) -> tuple[Hop, ...]:
    hops, reached = [], 0
    for claim in claims:
        start, end = layers(claim)
        hops.append(
            Hop(
                node=claim.node,
                endpoint=claim.endpoint,
                boot_id=claim.boot_id,
                shard_id=claim.shard_id,
                start=start,
                end=end,
                effective_start=reached,
                effective_end=end,
            )
        )
        reached = end
    return tuple(hops)
