"""What a search can know before it starts: the least cost of going on from every layer.

Every claim that holds a layer is a way on from there, to its *stop*: the layer where it ends. The
cost of going on is that of the best chain to the last layer if nothing were asked of neighbours and
participants but a number of hops. It is never above what a real route costs, so a search that is
led by it meets the best route first; where nothing stands in the way it is exact, and `easiest` is
that route.

A cost is (hops, proven seams, highest load), compared in this order. Proven seams count below zero
where they are sought, above where they are avoided.

What a claim costs depends on its stop alone, so the least cost from a layer is the least among the
claims that start there or before, of all that end behind it. One pass over the stops, last layers
first, sees them all, and keeps only claims that are cheaper than every one that starts earlier. So
a chart takes about as long as sorting the claims does, however they overlap.
"""

from bisect import bisect_right
from collections import defaultdict
from operator import attrgetter
from typing import NamedTuple

from meshnet_tracker.registry.routing.problem import Problem, layers
from meshnet_tracker.registry.rows import Claim

Cost = tuple[int, int, int]

# How far ahead a demand for more hops is foreseen; one beyond it is only met by searching.
_FORESIGHT = 32

_by_key = attrgetter("node", "shard_id")


class Stop(NamedTuple):
    """A layer where claims end, the first that one of them holds, and what a seam there costs.

    `claims` come with their start. `stairs` are (start, load) of those that are less loaded than
    all that start before them.
    """

    end: int
    least_start: int
    seam: int
    stairs: list[tuple[int, int]]
    claims: list[tuple[int, Claim]]


class Chart:
    """The stops of a problem, and what it costs to go on from each.

    It holds for every problem that differs in `refused` and `demands` only.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._stops = _find_stops(problem)
        # both by the hops that are asked at least; the stops of a level go on with as many hops
        self._costs: list[dict[int, Cost]] = []
        self._levels: list[dict[int, list[Stop]]] = []

    def cost(self, at: int, hops: int) -> Cost | None:
        """The least cost from stop `at` on, with at least `hops` hops; None: no way leads on."""
        return self._at_least(hops)[0].get(at)

    def seam(self, at: int) -> int:
        """What a seam at stop `at` costs."""
        return self._stops[at].seam

    def totals(self, at: int, hops: int) -> list[tuple[int, int]]:
        """For which totals `ways` may find any, fewest first, and among how many stops it looks."""
        cost = self.cost(at, hops)
        if cost is None:
            return []
        least, levels = cost[0], self._at_least(hops - 1)[1]
        if hops <= 1:  # from further on it never takes more hops than from here
            totals = [least, least + 1]
        else:
            totals = sorted(level + 1 for level in levels if level + 1 >= least)
        return [(total, len(levels.get(total - 1, ()))) for total in totals]

    def ways(self, at: int, hops: int, total: int) -> dict[int, list[Stop]]:
        """The stops next from `at` for which the least cost through them is of `total` hops.

        They go on with `hops` hops at least, this one included; they come by their proven seams.
        """
        costs, levels = self._at_least(hops - 1)
        ways: dict[int, list[Stop]] = {}
        for stop in levels.get(total - 1, ()):
            if stop.end <= at:
                break
            if stop.least_start <= at:
                ways.setdefault(costs[stop.end][1] + stop.seam, []).append(stop)
        return ways

    def easiest(self, hops: int) -> tuple[Claim, ...] | None:
        """The best chain of at least `hops` hops, if nothing else is asked; None: there is none.

        However many stops there are, it looks at few: those of a level are looked at once.
        """
        problem = self._problem
        loads, last = problem.loads, problem.layer_count
        start_cost = self.cost(0, hops)
        if start_cost is None:
            return None
        peak = start_cost[2]
        chain: list[Claim] = []
        at = 0
        while at != last:
            total, seams, _ = self._at_least(hops)[0][at]
            onward = self._at_least(hops - 1)[0]
            choice = [
                claim
                for stop in self.ways(at, hops, total)[seams]
                if onward[stop.end][2] <= peak
                for start, claim in stop.claims
                if start <= at and (not loads or loads.get(claim.node, 0) <= peak)
            ]
            claim = min(choice, key=_by_key)
            chain.append(claim)
            at = layers(claim)[1]
            hops -= 1
        return tuple(chain)

    def _at_least(self, hops: int) -> tuple[dict[int, Cost], dict[int, list[Stop]]]:
        """The costs and levels with at least `hops` hops."""
        hops = max(0, min(hops, _FORESIGHT))
        while len(self._costs) <= hops:
            costs = self._next_costs()
            levels: dict[int, list[Stop]] = {}
            for end, cost in costs.items():
                if stop := self._stops.get(end):
                    levels.setdefault(cost[0], []).append(stop)
            self._costs.append(costs)
            self._levels.append(levels)
        return self._costs[hops], self._levels[hops]

    def _next_costs(self) -> dict[int, Cost]:
        """Costs with at least so many hops as there are costs already, last layers first."""
        last = self._problem.layer_count
        if len(self._costs) == 1:  # every way has one hop at least
            return {at: cost for at, cost in self._costs[0].items() if at != last}
        costs: dict[int, Cost] = {}
        onward = self._costs[-1] if self._costs else costs
        if not self._costs:
            costs[last] = (0, 0, 0)
        # a staircase: the further a claim starts, the less it costs to go through it
        starts: list[int] = []
        throughs: list[Cost] = []
        for end, _, seam, stairs, _ in self._stops.values():
            if end != last and (index := bisect_right(starts, end)):
                costs[end] = throughs[index - 1]
            rest = onward.get(end)
            if rest is None:
                continue
            hops, seams, peak = rest
            for start, load in stairs:
                through = (hops + 1, seams + seam, max(load, peak))
                index = bisect_right(starts, start)
                if index and throughs[index - 1] <= through:
                    continue
                until = index
                while until < len(starts) and throughs[until] >= through:
                    until += 1
                starts[index:until] = [start]
                throughs[index:until] = [through]
        if index := bisect_right(starts, 0):
            costs[0] = throughs[index - 1]
        return costs


def _find_stops(problem: Problem) -> dict[int, Stop]:
    """The stops by where they are, last layers first."""
    by_end: defaultdict[int, list[tuple[int, Claim]]] = defaultdict(list)
    for claim in problem.claims:
        identity = claim.identity
        if identity is not None:  # as that of every live claim is not
            by_end[identity.shard_end].append((identity.shard_start, claim))
    worth = -1 if problem.seeks_proven else 1
    stops: dict[int, Stop] = {}
    for end in sorted(by_end, reverse=True):
        is_seam = end != problem.layer_count
        is_proven = end in problem.proven
        if is_seam and problem.only_proven and not is_proven:
            continue
        claims = by_end[end]
        if problem.loads:
            stairs = _find_stairs(problem, claims)
        else:
            stairs = [(min([start for start, _ in claims]), 0)]
        seam = worth if is_seam and is_proven else 0
        stops[end] = Stop(end, stairs[0][0], seam, stairs, claims)
    return stops


def _find_stairs(problem: Problem, claims: list[tuple[int, Claim]]) -> list[tuple[int, int]]:
    by_node = problem.loads
    loads = sorted([(start, by_node.get(claim.node, 0)) for start, claim in claims])
    stairs = loads[:1]
    for start, load in loads:
        if load < stairs[-1][1]:
            stairs.append((start, load))
    return stairs
