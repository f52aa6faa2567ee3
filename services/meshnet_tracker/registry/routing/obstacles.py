"""Why there is no route: what would have to be otherwise for one to exist.

A hole in the layers comes first, since nothing else matters while there is one. Without a hole some
chain of claims reaches from the first layer to the last, so what is in the way is something that is
asked of it: the obstacles are the fewest demands without which there would be a route. Where that
could be this one or that one, both are named, each with what the best route without it is like.
"""

from itertools import combinations, pairwise

from msgspec import Struct

from meshnet_events import reasons as codes
from meshnet_tracker.registry.coverage import cover
from meshnet_tracker.registry.routing.chart import Chart
from meshnet_tracker.registry.routing.problem import Effort, GaveUp, Problem, layers
from meshnet_tracker.registry.routing.search import best_chain
from meshnet_tracker.registry.rows import Claim

UNDECIDED = "undecided: the search gave up before it found whether this is in the way"


class Obstacle(Struct, frozen=True):
    """One reason why there is no route: its code, and a sentence for people."""

    code: str
    detail: str


def find_obstacles(problem: Problem) -> tuple[Obstacle, ...]:
    """What is in the way of a route, in the order of `Problem.demanded`; nothing if there is one.

    Together the questions whether there is one without some demand are bounded. When one of them
    stays open, no reason is given that may be false: see `undecided`.
    """
    gaps = cover(map(layers, problem.claims), problem.layer_count).gaps
    if gaps:
        named = ", ".join(f"[{start}, {end})" for start, end in gaps)
        return (Obstacle(codes.RANGE, f"no usable claim holds layers {named}"),)
    try:
        return _fewest_waived(problem)
    except GaveUp:
        return undecided(problem)


def undecided(problem: Problem) -> tuple[Obstacle, ...]:
    """Everything that is asked, for when the search gave up: nobody knows what is in the way."""
    return tuple(Obstacle(code, UNDECIDED) for code in problem.demanded())


def _fewest_waived(problem: Problem) -> tuple[Obstacle, ...]:
    """The demands in any smallest set of them without which there is a route."""
    demanded = problem.demanded()
    effort = Effort()
    charts: dict[bool, Chart] = {}
    for size in range(len(demanded) + 1):
        found: dict[str, str] = {}
        is_route = False
        for waived in combinations(demanded, size):
            relaxed = problem.relaxed(waived)
            chart = charts.get(relaxed.only_proven)
            if chart is None:
                chart = charts[relaxed.only_proven] = Chart(relaxed)
            chain = best_chain(relaxed, effort, chart)
            if chain is None:
                continue
            is_route = True
            for code in waived:
                found.setdefault(code, _describe(code, problem, chain))
        if is_route:
            return tuple(Obstacle(code, found[code]) for code in demanded if code in found)
    raise AssertionError("without a gap there is a chain once nothing is asked of it")


def _describe(code: str, problem: Problem, chain: tuple[Claim, ...]) -> str:
    """Say what is wrong with the best route that the demand `code` does not hold for."""
    demands = problem.demands
    match code:
        case codes.SEAM:
            seams = [layers(claim)[1] for claim in chain[:-1]]
            unproven = [str(seam) for seam in seams if seam not in problem.proven]
            are = "is" if len(unproven) == 1 else "are"
            noun = f"seam{_plural(len(unproven))}"
            return f"{noun} {', '.join(unproven)} {are} not proven, and the policy asks for it"
        case codes.HANDSHAKE:
            pairs = [(one.node, other.node) for one, other in pairwise(chain)]
            refusals = [_refusal(problem, *pair) for pair in pairs if not problem.get_along(*pair)]
            return f"{'; '.join(dict.fromkeys(refusals))}, for this fingerprint"
        case codes.NODES:
            return _too_few("node", len({claim.node for claim in chain}), demands.nodes, len(chain))
        case codes.HOSTS:
            hosts = {problem.host(claim) for claim in chain} - {None}
            return _too_few("host", len(hosts), demands.hosts, len(chain))
        case codes.GROUPS:
            groups = {problem.group(claim) for claim in chain} - {""}
            return _too_few("group", len(groups), demands.groups, len(chain))
        case _:
            raise LookupError(f"there is no sentence for the demand {code!r}")


def _refusal(problem: Problem, one: str, other: str) -> str:
    if (other, one) not in problem.refused:
        return f"{one} refused {other}"
    if (one, other) not in problem.refused:
        return f"{other} refused {one}"
    return f"{one} and {other} refused one another"


_NONE_COUNTS = {
    "host": "declared hosts do not count under this policy, and the best without that has no others",
    "group": "no node of the best without that has one",
}
"""Why a chain, which is always of some node, can be of no host and of no group."""


def _too_few(noun: str, found: int, asked: int, hops: int) -> str:
    if found >= asked:  # enough nodes, yet one of them twice
        return (
            "a certifying route names no node twice; "
            f"the best without that names {found} in {hops} hops"
        )
    needs = f"a certifying route needs {asked} distinct {noun}{_plural(asked)}"
    if not found:
        return f"{needs}; {_NONE_COUNTS[noun]}"
    if hops == 1:
        return f"{needs}; one hop already covers the model: nodes must serve fewer layers each"
    return f"{needs}; the best without that has {found}"


def _plural(count: int) -> str:
    return "" if count == 1 else "s"
