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
from meshnet_tracker.registry.routing.problem import Problem, layers
from meshnet_tracker.registry.routing.search import MAX_STEPS, Effort, best_chain
from meshnet_tracker.registry.rows import Claim

UNDECIDED = "undecided: the search gave up before it found whether this is in the way"

_QUESTION_STEPS = MAX_STEPS // 10


class Obstacle(Struct, frozen=True):
    """One reason why there is no route: its code, and a sentence for people."""

    code: str
    detail: str


def find_obstacles(problem: Problem) -> tuple[Obstacle, ...]:
    """What is in the way of a route, in the order of `Problem.demanded`; nothing if there is one.

    Each question whether there is one without some demand is bounded. When the answers stay out,
    every demand is named, and said to be undecided.
    """
    gaps = cover(map(layers, problem.claims), problem.layer_count).gaps
    if gaps:
        named = ", ".join(f"[{start}, {end})" for start, end in gaps)
        return (Obstacle(codes.RANGE, f"no usable claim holds layers {named}"),)
    demanded = problem.demanded()
    for size in range(len(demanded) + 1):
        found: dict[str, str] = {}
        is_route = False
        for waived in combinations(demanded, size):
            chain = best_chain(problem.relaxed(waived), Effort(_QUESTION_STEPS))
            if chain is None:
                continue
            is_route = True
            for code in waived:
                found.setdefault(code, _describe(code, problem, chain))
        if is_route:
            return tuple(Obstacle(code, found[code]) for code in demanded if code in found)
    return tuple(Obstacle(code, UNDECIDED) for code in demanded)


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
            return f"{'; '.join(refusals)}, for this fingerprint"
        case codes.NODES:
            return _too_few("node", len({claim.node for claim in chain}), demands.nodes, len(chain))
        case codes.HOSTS:
            hosts = {problem.host(claim) for claim in chain} - {None}
            return _too_few("host", len(hosts), demands.hosts, len(chain))
        case _:
            groups = {problem.group(claim) for claim in chain} - {""}
            return _too_few("group", len(groups), demands.groups, len(chain))


def _refusal(problem: Problem, one: str, other: str) -> str:
    if (other, one) not in problem.refused:
        return f"{one} refused {other}"
    if (one, other) not in problem.refused:
        return f"{other} refused {one}"
    return f"{one} and {other} refused one another"


def _too_few(noun: str, found: int, asked: int, hops: int) -> str:
    if found >= asked:  # enough nodes, yet one of them twice
        return (
            "a certifying route names no node twice; "
            f"the best without that names {found} in {hops} hops"
        )
    needs = f"a certifying route needs {asked} distinct {noun}{_plural(asked)}"
    if hops == 1:
        return f"{needs}; one hop already covers the model"
    return f"{needs}; the best without that has {found}"


def _plural(count: int) -> str:
    return "" if count == 1 else "s"
