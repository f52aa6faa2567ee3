"""What a search can know before it starts: the ways on from every layer, and their least cost.

Every claim that holds a layer is a way on from there, to its *stop*: the layer where it ends. The
cost of going on is that of the best chain to the last layer if nothing were asked of neighbours and
participants but a number of hops. It is never above what a real route costs, so a search that is
led by it meets the best route first; where nothing stands in the way it is exact.

A cost is (hops, proven seams, highest load), compared in this order. Proven seams count below zero
where they are sought, above where they are avoided.
"""

from collections.abc import Iterator
from typing import NamedTuple

from meshnet_tracker.registry.routing.problem import Problem, claim_key
from meshnet_tracker.registry.rows import Claim

Cost = tuple[int, int, int]
# The least cost through a claim, its key, and the claim; None stands for all that cost more.
Option = tuple[Cost, tuple[str, str], Claim | None]

# How far ahead a demand for more hops is foreseen; one beyond it is only met by searching.
_FORESIGHT = 8
_NO_KEY = ("", "")


class _Stop(NamedTuple):
    """A layer where claims end, the first that one of them holds, and what a seam there costs.

    `stairs` is for loads: (start, least load of a claim that starts there or before), last first.
    """

    end: int
    least_start: int
    seam: int
    stairs: list[tuple[int, int]]
    claims: list[tuple[int, Claim]]


# Hops and seams of the least costs from a stop on, and the stops next on such ways, each with the
# lowest highest load from there on.
_Tier = tuple[int, int, list[tuple[_Stop, int]]]


class Chart:
    """The stops of a problem and the ways between them."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._stops = _find_stops(problem)
        self._ways: dict[int, list[_Stop]] = {}
        self._costs: list[dict[int, Cost | None]] = [{} for _ in range(1 + _FORESIGHT)]
        self._tiers: dict[tuple[int, int], list[_Tier]] = {}
        self._options: dict[tuple[int, int, int, int], list[Option]] = {}
        self._look_back()
        self.seams = {stop.end: stop.seam for stop in self._stops}
        # nodes that are party to a refused handshake
        self.touchy = {node for pair in problem.refused for node in pair}
        # nodes with several claims, where none may be named twice, and where their last claim ends
        self.repeated = _find_repeated(self._stops) if problem.demands.nodes else {}

    def cost(self, at: int, hops: int) -> Cost | None:
        """The least cost from stop `at` on, with at least `hops` hops; None: no way leads on."""
        hops = min(hops, _FORESIGHT)
        costs = self._costs[hops]
        if at not in costs:
            for stop in self._ways[at]:
                self.cost(stop.end, hops - 1)
            costs[at] = self._least_cost(at, self._costs[hops - 1])
        return costs[at]

    def onward(self, at: int, hops: int, peak: int) -> Iterator[Option]:
        """Claims that may come next at stop `at`, after a highest load of `peak`, best first.

        Each comes with the least cost from `at` on through it, with at least `hops` hops. Of claims
        that differ in nothing a search looks at, only the best comes.
        """
        tiers = self._tiers.get((at, hops))
        if tiers is None:
            tiers = self._tiers[at, hops] = self._find_tiers(at, hops)
        for index, (least_hops, seams, stops) in enumerate(tiers):
            if index:
                yield (least_hops, seams, peak), _NO_KEY, None
            where = (at, hops, peak, index)
            options = self._options.get(where)
            if options is None:
                best: dict[tuple[object, ...], Option] = {}
                for stop, load in stops:
                    self._find_options(best, stop, at, (least_hops, seams, max(peak, load)))
                options = self._options[where] = sorted(best.values())
            yield from options

    def _look_back(self) -> None:
        """Find the ways on and the costs from every stop, and from layer 0, last layers first."""
        ahead: list[_Stop] = []
        for stop in self._stops:
            ahead = self._settle(stop.end, ahead)
            if self._costs[0][stop.end] is not None:
                ahead = [*ahead, stop]
        self._settle(0, ahead)

    def _settle(self, at: int, ahead: list[_Stop]) -> list[_Stop]:
        # what does not reach back to here does not reach back to any layer before
        ways = self._ways[at] = [stop for stop in ahead if stop.least_start <= at]
        costs = self._costs[0]
        is_last = at == self._problem.layer_count
        costs[at] = (0, 0, 0) if is_last else self._least_cost(at, costs)
        return ways

    def _least_cost(self, at: int, onward: dict[int, Cost | None]) -> Cost | None:
        """The least cost from `at` on through any stop, given those from there on."""
        best: Cost | None = None
        for end, _, seam, stairs, _ in self._ways[at]:
            rest = onward[end]
            if rest is None or (best is not None and rest[0] >= best[0]):
                continue
            peak = rest[2]
            if stairs:
                peak = max(peak, next(load for start, load in stairs if start <= at))
            cost = (rest[0] + 1, rest[1] + seam, peak)
            if best is None or cost < best:
                best = cost
        return best

    def _find_tiers(self, at: int, hops: int) -> list[_Tier]:
        tiers: dict[tuple[int, int], list[tuple[_Stop, int]]] = {}
        for stop in self._ways[at]:
            rest = self.cost(stop.end, max(hops - 1, 0))
            if rest is not None:
                through = (rest[0] + 1, rest[1] + stop.seam)
                tiers.setdefault(through, []).append((stop, rest[2]))
        return [(*through, tiers[through]) for through in sorted(tiers)]

    def _find_options(
        self, best: dict[tuple[object, ...], Option], stop: _Stop, at: int, cost: Cost
    ) -> None:
        """Note the best claim of each kind that leads from `at` to `stop`."""
        problem, touchy, repeated = self._problem, self.touchy, self.repeated
        has_hosts, has_groups = problem.demands.hosts > 0, problem.demands.groups > 0
        hops, seams, peak = cost
        for start, claim in stop.claims:
            if start > at:
                continue
            node = claim.node
            kind = (
                stop.end,
                node if node in touchy or node in repeated else None,
                problem.host(claim) if has_hosts else None,
                problem.group(claim) if has_groups else None,
            )
            if problem.loads:
                cost = (hops, seams, max(peak, problem.load(claim)))
            option = (cost, claim_key(claim), claim)
            other = best.get(kind)
            if other is None or option < other:
                best[kind] = option


def _find_stops(problem: Problem) -> list[_Stop]:
    """The stops, last layers first."""
    by_end: dict[int, list[tuple[int, Claim]]] = {}
    for claim in problem.claims:
        identity = claim.identity
        if identity is None:  # none that is live
            continue
        claims = by_end.get(identity.shard_end)
        if claims is None:
            claims = by_end[identity.shard_end] = []
        claims.append((identity.shard_start, claim))
    worth = -1 if problem.seeks_proven else 1
    stops = []
    for end in sorted(by_end, reverse=True):
        is_seam = end != problem.layer_count
        is_proven = end in problem.proven
        if is_seam and problem.only_proven and not is_proven:
            continue
        claims = by_end[end]
        stairs = _find_stairs(problem, claims) if problem.loads else []
        least_start = min(start for start, _ in claims)
        stops.append(_Stop(end, least_start, worth * (is_seam and is_proven), stairs, claims))
    return stops


def _find_stairs(problem: Problem, claims: list[tuple[int, Claim]]) -> list[tuple[int, int]]:
    loads = sorted((start, problem.load(claim)) for start, claim in claims)
    stairs = loads[:1]
    for start, load in loads:
        if load < stairs[-1][1]:
            stairs.append((start, load))
    return stairs[::-1]


def _find_repeated(stops: list[_Stop]) -> dict[str, int]:
    last: dict[str, int] = {}
    repeated: dict[str, int] = {}
    for stop in stops:
        for _, claim in stop.claims:
            node = claim.node
            if node in last:
                repeated[node] = last[node]
            else:
                last[node] = stop.end
    return repeated
