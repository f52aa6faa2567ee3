"""Routes: chains of claims that may compute together, or every reason why there are none.

A route starts at layer 0 and ends at the last. Where the next shard overlaps the one before, it is
told where that one stopped: effective start = that, effective end = the shard's own end. So a route
is fixed by its claims alone, and a seam lies wherever one claim's layers end.

Best is, in this order: fewest hops; most proven seams to serve, fewest to certify (so that new cuts
get proven); the lowest highest load; the smallest node keys, then shard ids, hop by hop. The same
state gives the same answer. Alternatives are the next best that share no claim with those before.

When there is none, the reasons name what is in the way: what would have to be otherwise for a route
to exist. A hole in the layers comes first, since nothing else matters while there is one.
"""

from collections.abc import Collection
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from meshnet_events import reasons as codes
from meshnet_tracker.registry.coverage import cover
from meshnet_tracker.registry.eligibility import Liveness, is_usable
from meshnet_tracker.registry.routing.certifying import certifying
from meshnet_tracker.registry.routing.problem import Demands, Problem
from meshnet_tracker.registry.routing.serving import serving
from meshnet_tracker.registry.rows import Claim, Recipe
from meshnet_tracker.registry.state import State

Purpose = Literal["serve", "certify"]


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


class Obstacle(Struct, frozen=True):
    """One reason why there is no route: its code, and a sentence for people."""

    code: str
    detail: str


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
    """
    recipe = state.recipes.get(recipe_key)
    if recipe is None:
        unknown = Obstacle(codes.UNKNOWN_RECIPE, f"no admitted claim offered {recipe_key}")
        return NoRoute(recipe_key, purpose, (unknown,), state.sequence)
    problem = _problem(state, recipe, purpose, exclude, liveness)
    barred = _barred_by_status(recipe, purpose)
    if barred is None and (claims := _solve(problem, purpose)) is not None:
        routes = [claims]
        while len(routes) <= alternatives:
            problem = problem.without(claims)
            if (claims := _solve(problem, purpose)) is None:
                break
            routes.append(claims)
        best, *others = (_hops(route) for route in routes)
        return Route(
            recipe_key=recipe_key,
            model_artifact_digest=recipe.model_artifact_digest,
            runtime_recipe_digest=recipe.runtime_recipe_digest,
            purpose=purpose,
            hops=best,
            sequence=state.sequence,
            alternatives=tuple(others),
        )
    obstacles = _obstacles(problem, purpose)
    if barred is not None:
        obstacles = (barred, *obstacles)
    return NoRoute(recipe_key, purpose, obstacles, state.sequence)


def _problem(
    state: State,
    recipe: Recipe,
    purpose: Purpose,
    exclude: Collection[str],
    liveness: Liveness | None,
) -> Problem:
    policy = state.policy
    certify = purpose == "certify"
    claims = tuple(
        claim
        for claim in state.live_claims.get(recipe.recipe_key, {}).values()
        if claim.node not in exclude and is_usable(state, claim, liveness)
    )
    demands, hosts, groups = Demands(), dict[tuple[str, str], str](), dict[str, str]()
    if certify:
        demands = Demands(
            policy.min_certifying_nodes, policy.min_distinct_hosts, policy.min_distinct_groups
        )
        for claim in claims:
            groups[claim.node] = state.nodes[claim.node].group
            if claim.host.source == "machine-id" or policy.accept_declared_hosts:
                hosts[claim.node, claim.shard_id] = claim.host.id
    return Problem(
        claims=claims,
        layer_count=recipe.layer_count,
        proven=frozenset(recipe.proven_seams),
        refused=frozenset(state.refused_pairs.get(recipe.recipe_key, ())),
        loads={c.node: liveness.load(c.node) for c in claims} if liveness else {},
        only_proven=not certify and policy.certify == "seams",
        demands=demands,
        hosts=hosts,
        groups=groups,
    )


def _solve(problem: Problem, purpose: Purpose) -> tuple[Claim, ...] | None:
    return serving(problem) if purpose == "serve" else certifying(problem)


def _barred_by_status(recipe: Recipe, purpose: Purpose) -> Obstacle | None:
    if recipe.status == "revoked":
        return Obstacle(codes.REVOKED, f"an operator revoked it: {recipe.revoked_reason}")
    if purpose == "serve" and recipe.status != "certified":
        return Obstacle(
            codes.NOT_CERTIFIED, f"the recipe is {recipe.status}; only a certified one serves"
        )
    return None


def _obstacles(problem: Problem, purpose: Purpose) -> tuple[Obstacle, ...]:
    """What is in the way, by waiving demands: first each alone, then all but each."""
    ranges = [_layers(claim) for claim in problem.claims]
    gaps = cover(ranges, problem.layer_count).gaps
    if gaps:
        named = ", ".join(f"[{start}, {end})" for start, end in gaps)
        return (Obstacle(codes.RANGE, f"no usable claim holds layers {named}"),)
    if _solve(problem, purpose) is not None:
        return ()
    demanded = problem.demanded()
    guilty = [c for c in demanded if _solve(problem.relaxed(c), purpose) is not None]
    if not guilty:
        guilty = [
            code
            for code in demanded
            if _solve(problem.relaxed(*(c for c in demanded if c != code)), purpose) is None
        ]
    free = _solve(problem.relaxed(*demanded), purpose) or ()
    return tuple(Obstacle(code, _describe(code, problem, free)) for code in guilty or demanded)


def _describe(code: str, problem: Problem, free: tuple[Claim, ...]) -> str:
    """Say what stands against the best route that asks for nothing."""
    demands = problem.demands
    seams = [_layers(claim)[1] for claim in free[:-1]]
    match code:
        case codes.SEAM:
            unproven = [str(seam) for seam in seams if seam not in problem.proven]
            noun = "seam" if len(unproven) == 1 else "seams"
            verb = "is" if len(unproven) == 1 else "are"
            return f"{noun} {', '.join(unproven)} {verb} not proven, and the policy asks for it"
        case codes.HANDSHAKE:
            pairs = pairwise(free)
            at_odds = [(a.node, b.node) for a, b in pairs if not problem.get_along(a, b)]
            return "; ".join(f"{a} and {b} refused one another" for a, b in at_odds)
        case codes.NODES:
            return _too_few("node", len({c.node for c in problem.claims}), demands.nodes, free)
        case codes.HOSTS:
            return _too_few("host", len(set(problem.hosts.values())), demands.hosts, free)
        case _:
            groups = {group for group in problem.groups.values() if group}
            return _too_few("group", len(groups), demands.groups, free)


def _too_few(noun: str, there: int, asked: int, free: tuple[Claim, ...]) -> str:
    plural = "" if asked == 1 else "s"
    text = f"a certifying route needs {asked} distinct {noun}{plural}"
    if there < asked:
        return f"{text}; the usable claims have {there}"
    if len(free) == 1:
        return f"{text}; one hop already covers the model"
    return f"{text}; no chain of usable claims has them"


def _layers(claim: Claim) -> tuple[int, int]:
    if claim.identity is None:  # a live claim's identity is sound
        return (0, 0)
    return claim.identity.shard_start, claim.identity.shard_end


def _hops(claims: tuple[Claim, ...]) -> tuple[Hop, ...]:
    hops, reached = [], 0
    for claim in claims:
        start, end = _layers(claim)
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
