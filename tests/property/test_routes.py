"""Routes against an oracle that lists every chain of claims and sorts them.

The oracle shares nothing with the search but the rows: it knows no classes, no costs to go, no
states. It reads the demands off *Routes* and *Eligibility* of the specification, one predicate
each, so that it can also say which of them is in the way.
"""

import random
from collections.abc import Iterator
from itertools import combinations, pairwise

from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec import structs

from meshnet_tracker.registry.routing.plan import Hop, NoRoute, Purpose, Route, _problem, plan
from meshnet_tracker.registry.routing.problem import Effort, GaveUp, Problem
from meshnet_tracker.registry.routing.search import best_chain
from meshnet_tracker.registry.rows import Claim, Node
from meshnet_tracker.registry.state import State
from rows_kit import KEY, Presence, claim, registry

Chain = tuple[Claim, ...]

NODES = ("n1", "n2", "n3", "n4", "n5")
HOSTS = ("h1", "h2", "h3", "~h3", "~h4")
GROUPS = ("", "g1", "g1", "g2", "g3")


class Case:
    """A state, what is asked of it, and what the overlay says. `rows` are all its claims."""

    def __init__(
        self,
        rows: list[Claim],
        state: State,
        purpose: Purpose,
        exclude: frozenset[str],
        liveness: Presence | None,
        alternatives: int = 0,
    ) -> None:
        self.rows = rows
        self.state = state
        self.purpose = purpose
        self.exclude = exclude
        self.liveness = liveness
        self.alternatives = alternatives
        self.recipe = state.recipes[KEY]

    def __repr__(self) -> str:
        claims = [
            f"{one.node}/{one.shard_id}@{one.host.id[:4]}:{one.host.source}[{start},{end})"
            for one in self.rows
            for start, end in [layers(one)]
        ]
        overlay = None if self.liveness is None else vars(self.liveness)
        return (
            f"{self.purpose} {' '.join(claims)}, {self.recipe.status}, proven "
            f"{self.recipe.proven_seams}, refused {self.state.refused_pairs}, without "
            f"{set(self.exclude)}, overlay {overlay}, {self.state.policy}, "
            f"{list(self.state.nodes.values())}"
        )

    def plan(self) -> Route | NoRoute:
        return plan(
            self.state,
            KEY,
            self.purpose,
            exclude=self.exclude,
            alternatives=self.alternatives,
            liveness=self.liveness,
        )


# -- the oracle --------------------------------------------------------------------------------------


def layers(one: Claim) -> tuple[int, int]:
    assert one.identity is not None
    return one.identity.shard_start, one.identity.shard_end


def key(one: Claim) -> tuple[str, str]:
    return one.node, one.shard_id


def is_usable(case: Case, one: Claim) -> bool:
    node = case.state.nodes[one.node]
    return not (
        one.status != "live"
        or one.synthetic
        or node.conflict
        or node.suspended
        or (case.state.policy.enrolment == "required" and not node.enrolled)
        or (case.liveness is not None and not case.liveness.is_live(one))
        or one.node in case.exclude
    )


def chains(usable: list[Claim], layer_count: int, reached: int = 0) -> Iterator[Chain]:
    for one in usable:
        start, end = layers(one)
        if start <= reached < end:
            if end == layer_count:
                yield (one,)
            for rest in chains(usable, layer_count, end):
                yield (one, *rest)


def is_proven_throughout(case: Case, chain: Chain) -> bool:
    return all(layers(one)[1] in case.recipe.proven_seams for one in chain[:-1])


def has_peace(case: Case, chain: Chain) -> bool:
    said_no = {(h.node, h.peer) for h in case.state.handshakes.values() if not h.accepted}
    return not any(
        (a.node, b.node) in said_no or (b.node, a.node) in said_no for a, b in pairwise(chain)
    )


def has_nodes(case: Case, chain: Chain) -> bool:
    distinct = len({one.node for one in chain})
    return distinct == len(chain) and distinct >= case.state.policy.min_certifying_nodes


def has_hosts(case: Case, chain: Chain) -> bool:
    policy = case.state.policy
    counted = {
        one.host.id
        for one in chain
        if one.host.source == "machine-id" or policy.accept_declared_hosts
    }
    return len(counted) >= policy.min_distinct_hosts


def has_groups(case: Case, chain: Chain) -> bool:
    groups = {case.state.nodes[one.node].group for one in chain} - {""}
    return len(groups) >= case.state.policy.min_distinct_groups


def demands(case: Case) -> dict[str, bool]:
    """What is asked, in the order in which it is reported."""
    certify = case.purpose == "certify"
    return {
        "seam": not certify and case.state.policy.certify == "seams",
        "handshake": bool(case.state.refused_pairs.get(KEY)),
        "nodes": certify,
        "hosts": certify,
        "groups": certify,
    }


MEETS = {
    "seam": is_proven_throughout,
    "handshake": has_peace,
    "nodes": has_nodes,
    "hosts": has_hosts,
    "groups": has_groups,
}


def order(case: Case, chain: Chain) -> tuple[int, int, int, list[tuple[str, str]]]:
    proven = sum(layers(one)[1] in case.recipe.proven_seams for one in chain[:-1])
    load = case.liveness.load if case.liveness else lambda _: 0
    return (
        len(chain),
        proven if case.purpose == "certify" else -proven,
        max(load(one.node) for one in chain),
        [key(one) for one in chain],
    )


def best(case: Case, usable: list[Claim], waived: tuple[str, ...] = ()) -> Chain | None:
    asked = [code for code, is_asked in demands(case).items() if is_asked and code not in waived]
    found = [
        chain
        for chain in chains(usable, case.recipe.layer_count)
        if all(MEETS[code](case, chain) for code in asked)
    ]
    return min(found, key=lambda chain: order(case, chain), default=None)


def expected_hops(chain: Chain) -> tuple[Hop, ...]:
    hops, reached = [], 0
    for one in chain:
        start, end = layers(one)
        hops.append(
            Hop(one.node, one.endpoint, one.boot_id, one.shard_id, start, end, reached, end)
        )
        reached = end
    return tuple(hops)


def holes(case: Case, usable: list[Claim]) -> list[tuple[int, int]]:
    held = {layer for one in usable for layer in range(*layers(one))}
    missing = [layer for layer in range(case.recipe.layer_count) if layer not in held]
    starts = [layer for layer in missing if layer - 1 not in missing]
    ends = [layer + 1 for layer in missing if layer + 1 not in missing]
    return list(zip(starts, ends, strict=True))


def smallest_waivers(case: Case, usable: list[Claim]) -> set[str]:
    """Every demand in any smallest set of them without which there would be a route."""
    asked = [code for code, is_asked in demands(case).items() if is_asked]
    for size in range(1, len(asked) + 1):
        found = {
            code
            for waived in combinations(asked, size)
            if best(case, usable, waived) is not None
            for code in waived
        }
        if found:
            return found
    raise AssertionError("an unbroken chain exists once nothing is demanded of it")


# -- problems ----------------------------------------------------------------------------------------


def make_case(chance: random.Random) -> Case:
    """Up to 8 claims over up to 12 layers, most of them in chains that nearly are routes."""
    layer_count = chance.randint(1, 12)
    rows: dict[tuple[str, str], Claim] = {}
    nodes = list(NODES)
    chance.shuffle(nodes)
    cuts = [0, *sorted(chance.sample(range(1, layer_count), min(layer_count - 1, 3))), layer_count]
    while len(rows) < chance.randint(1, 8):
        hops = chance.choice([1, 2, 2, 3, 3])
        ends = sorted({*chance.sample(cuts[1:], min(hops, len(cuts) - 1)), layer_count})
        for start, end in pairwise([0, *ends]):
            held_from = max(0, start - chance.choice([0, 0, 0, 1, 4]))
            node = nodes[len(rows) % 5] if chance.random() < 0.6 else chance.choice(NODES)
            name = f"{node}/{chance.choice('abc')}@{chance.choice(HOSTS)}"
            made = claim(f"{name}[{held_from},{end})", layers=layer_count)
            made.synthetic = chance.random() < 0.02
            if len(rows) < 8 and chance.random() < 0.95:
                rows.setdefault(key(made), made)
    state = registry(
        *rows.values(),
        layers=layer_count,
        status=chance.choices(["certified", "dark", "revoked"], [8, 1, 1])[0],
        proven=chance.sample(cuts, chance.randint(0, len(cuts))),
        refused=[tuple(chance.sample(NODES, 2)) for _ in range(chance.choice([0, 0, 1, 3, 6]))],
        nodes=[
            Node(
                name,
                boot_id=f"boot-of-{name}",
                enrolled=chance.random() < 0.98,
                conflict=chance.random() < 0.02,
                suspended=chance.random() < 0.02,
                group=chance.choice(GROUPS),
            )
            for name in NODES
        ],
        certify=chance.choice(["recipe", "seams"]),
        enrolment=chance.choice(["required", "open"]),
        accept_declared_hosts=chance.random() < 0.5,
        min_certifying_nodes=chance.choice([2, 2, 3]),
        min_distinct_hosts=chance.choice([1, 2, 2, 3]),
        min_distinct_groups=chance.choice([1, 1, 2, 3]),
    )
    liveness = None
    if chance.random() < 0.6:
        silent = {one for one in rows if chance.random() < 0.05}
        loads = {name: chance.choice([0, 200, 200, 900, 1000]) for name in NODES}
        liveness = Presence(rows.keys() - silent, loads)
    return Case(
        list(rows.values()),
        state,
        chance.choice(["serve", "certify", "certify"]),
        frozenset(chance.sample(NODES, chance.choice([0, 0, 0, 1]))),
        liveness,
        chance.randint(0, 3),
    )


cases = st.randoms(use_true_random=True).map(make_case)


# -- properties --------------------------------------------------------------------------------------


@given(cases)
@settings(max_examples=2000)
def test_the_route_is_the_first_of_all_chains_in_the_order_of_the_specification(case):
    usable = [one for one in case.rows if is_usable(case, one)]
    status = case.recipe.status
    is_barred = status == "revoked" or (case.purpose == "serve" and status != "certified")
    chain = None if is_barred else best(case, usable)
    found = case.plan()
    event(f"{case.purpose}: {'none' if chain is None else f'{len(chain)} hops'}")
    if chain is None:
        assert isinstance(found, NoRoute)
        return
    assert isinstance(found, Route)
    assert found.hops == expected_hops(chain)
    assert found.sequence == case.state.sequence
    fingerprint = (found.model_artifact_digest, found.runtime_recipe_digest)
    assert fingerprint == (case.recipe.model_artifact_digest, case.recipe.runtime_recipe_digest)


@given(cases)
@settings(max_examples=500)
def test_every_hop_computes_within_its_shard_and_together_they_tile_the_model(case):
    found = case.plan()
    if isinstance(found, NoRoute):
        return
    for hops in (found.hops, *found.alternatives):
        reached = 0
        for hop in hops:
            assert hop.effective_start == reached
            assert hop.start <= hop.effective_start < hop.effective_end <= hop.end
            reached = hop.effective_end
        assert reached == case.recipe.layer_count


@given(cases)
@settings(max_examples=800)
def test_each_alternative_is_the_best_of_what_the_routes_before_left(case):
    found = case.plan()
    if isinstance(found, NoRoute):
        return
    left = [one for one in case.rows if is_usable(case, one)]
    routes = [found.hops, *found.alternatives]
    for hops in routes:
        chain = best(case, left)
        assert chain is not None
        assert hops == expected_hops(chain)
        left = [one for one in left if one not in chain]
    if len(routes) <= case.alternatives:
        assert best(case, left) is None


@given(cases, st.randoms(use_true_random=False))
@settings(max_examples=500)
def test_the_order_in_which_claims_and_refusals_came_does_not_matter(case, chance):
    before = case.plan()
    live = case.state.live_claims.get(KEY, {})
    shuffled = list(live.items())
    chance.shuffle(shuffled)
    case.state.live_claims[KEY] = dict(shuffled)
    assert case.plan() == before


def search(problem: Problem, effort: Effort) -> Chain | type[GaveUp] | None:
    try:
        return best_chain(problem, effort)
    except GaveUp:
        return GaveUp


@given(cases, st.integers(0, 300), st.randoms(use_true_random=False))
@settings(max_examples=500)
def test_a_search_gives_up_or_does_not_in_whatever_order_the_claims_came(case, steps, chance):
    """A state that was read back has its claims in another order, and must answer alike."""
    problem = _problem(case.state, case.recipe, case.purpose, case.exclude, case.liveness)
    effort = Effort(steps)
    chain = search(problem, effort)
    event(f"{'had enough' if effort.steps else 'gave up'}: {type(chain)}")
    for _ in range(3):
        shuffled = list(problem.claims)
        chance.shuffle(shuffled)
        again = Effort(steps)
        assert search(structs.replace(problem, claims=shuffled), again) == chain
        assert again == effort


@given(cases, st.integers(0, 300))
@settings(max_examples=500)
def test_what_is_found_where_a_search_gives_up_is_a_route(case, steps):
    problem = _problem(case.state, case.recipe, case.purpose, case.exclude, case.liveness)
    chain = search(problem, Effort(steps))
    usable = [one for one in case.rows if is_usable(case, one)]
    event("gave up" if chain is GaveUp else "none" if chain is None else "some")
    if chain is GaveUp:
        return
    assert (chain is None) == (best(case, usable) is None)
    if chain is not None:
        assert all(one in usable for one in chain)
        asked = [code for code, is_asked in demands(case).items() if is_asked]
        assert all(MEETS[code](case, chain) for code in asked)


@given(cases)
@settings(max_examples=2000)
def test_obstacles_are_exactly_what_is_in_the_way(case):
    found = case.plan()
    if isinstance(found, Route):
        return
    codes = list(found.codes)
    assert codes
    assert all(obstacle.detail for obstacle in found.obstacles)

    status = case.recipe.status
    if status == "revoked":
        assert codes.pop(0) == "revoked"
    elif case.purpose == "serve" and status == "dark":
        assert codes.pop(0) == "not-certified"

    usable = [one for one in case.rows if is_usable(case, one)]
    if gaps := holes(case, usable):
        event("range")
        assert codes == ["range"]
        named = ", ".join(f"[{start}, {end})" for start, end in gaps)
        assert found.obstacles[-1].detail == f"no usable claim holds layers {named}"
    elif best(case, usable) is not None:
        assert codes == []
    else:
        expected = smallest_waivers(case, usable)
        event(f"in the way: {sorted(expected)}")
        assert codes == [code for code in MEETS if code in expected]
