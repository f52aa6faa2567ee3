"""A recipe at a glance: who holds its layers, what is proven, and whether routes exist.

Made from the state on demand, never kept. Only usable claims count: those that could take part in
a route, if the status of the recipe allows any. With a liveness overlay a summary speaks of what is
live, without one of what the log knows; people are shown both.
"""

from msgspec import Struct

from meshnet_tracker.registry.coverage import Interval, cover
from meshnet_tracker.registry.eligibility import Liveness, usable_claims
from meshnet_tracker.registry.routing.plan import NoRoute, Route, plan
from meshnet_tracker.registry.routing.problem import layers
from meshnet_tracker.registry.rows import RecipeStatus
from meshnet_tracker.registry.state import State


class RecipeSummary(Struct, frozen=True):
    """What there is to say about one recipe.

    `replicas` tile `[0, layer_count)`, `gaps` are those of them that nobody holds, and
    `least_replicas` is the lowest. `distinct_hosts` are counted as the policy counts them: declared
    ones only where it accepts them. A route that does not exist comes as its obstacles.
    """

    recipe_key: str
    status: RecipeStatus
    layer_count: int
    claims: int
    replicas: tuple[Interval, ...]
    gaps: tuple[tuple[int, int], ...]
    least_replicas: int
    distinct_hosts: int
    proven_seams: tuple[int, ...]
    serving: Route | NoRoute
    certifying: Route | NoRoute


def summarize(state: State, recipe_key: str, liveness: Liveness | None = None) -> RecipeSummary:
    """Summarize the recipe called `recipe_key`; one that nobody offered is `unknown`, and empty."""
    recipe = state.recipes.get(recipe_key)
    layer_count = 0 if recipe is None else recipe.layer_count
    claims = usable_claims(state, recipe_key, liveness)
    coverage = cover(map(layers, claims), layer_count)
    hosts = {claim.host.id for claim in claims if state.policy.counts(claim.host)}
    return RecipeSummary(
        recipe_key=recipe_key,
        status="unknown" if recipe is None else recipe.status,
        layer_count=layer_count,
        claims=len(claims),
        replicas=coverage.intervals,
        gaps=coverage.gaps,
        least_replicas=coverage.least_replicas,
        distinct_hosts=len(hosts),
        proven_seams=() if recipe is None else recipe.proven_seams,
        serving=plan(state, recipe_key, "serve", liveness=liveness),
        certifying=plan(state, recipe_key, "certify", liveness=liveness),
    )
