"""The best chain of claims, under everything that a problem asks.

Best is: fewest hops; most proven seams, or fewest; the lowest highest load; the smallest node keys,
then shard ids, hop by hop.

The search is A*: of all beginnings of a route it goes on with the one whose cost so far, together
with the least cost to go (`chart`), is the best. What can still become of a beginning depends only
on where it ends, the hops, hosts and groups that it is short of, the nodes in it that could come
again, and who its last node does not get along with; of beginnings that agree in all of these only
the best is gone on with. So a search takes polynomial time where two hosts and two groups are
asked. More of them, and nodes with many claims, can make it exponential: then it gives up after so
many steps, and no route is the safe answer.

A load that only shows late can make the better keys of a beginning worthless or not. Where the
highest load turns out above what the chart foresaw, keys are therefore settled by a second search
among the nodes that are not loaded above it.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from msgspec import Struct

from meshnet_tracker.registry.routing.chart import Chart, Cost, Option
from meshnet_tracker.registry.routing.problem import Problem, claim_key, layers
from meshnet_tracker.registry.rows import Claim

MAX_STEPS = 50_000


class Effort(Struct):
    """How many steps a search, or several, may still take. A step is a look at one claim."""

    steps: int = MAX_STEPS


class _GaveUp(Exception):
    """The search took all the steps that it may."""


class _Beginning(Struct, frozen=True):
    """The first hops of a route: where they end, what they lack, and what they cost.

    `short` is the hops that are lacking. `last` is None where the last node gets along with all;
    `nodes` are those that could come again; `hosts` and `groups` are None once there are enough.
    """

    end: int
    short: int
    last: str | None
    nodes: frozenset[str]
    hosts: frozenset[str] | None
    groups: frozenset[str] | None
    cost: Cost = (0, 0, 0)
    keys: tuple[tuple[str, str], ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def prospects(self) -> tuple[object, ...]:
        """All that decides what can become of it."""
        return (self.end, self.short, self.last, self.nodes, self.hosts, self.groups)


def best_chain(problem: Problem, effort: Effort) -> tuple[Claim, ...] | None:
    """The claims of the best route, first layers first; None: there is none, or it gave up."""
    try:
        search = _Search(problem, effort)
        found = search.run()
        if found is not None and problem.loads and found.cost != search.foreseen():
            found = _Search(problem.at_most_loaded(found.cost[2]), effort).run()
    except _GaveUp:
        return None
    return None if found is None else found.claims


# A cost foreseen, keys, and how they come about: the claim that follows on a beginning, and what
# else may follow on it. Keys are never equal twice, so nothing after them is ever compared.
_Entry = tuple[Cost, tuple[tuple[str, str], ...], Claim | None, _Beginning, Iterator[Option]]


class _Search:
    def __init__(self, problem: Problem, effort: Effort) -> None:
        demands = problem.demands
        self._problem = problem
        self._effort = effort
        self._chart = Chart(problem)
        self._heap: list[_Entry] = []
        self._empty = _Beginning(
            end=0,
            short=max(demands.nodes, demands.hosts, demands.groups),
            last=None,
            nodes=frozenset(),
            hosts=frozenset() if demands.hosts else None,
            groups=frozenset() if demands.groups else None,
        )

    def foreseen(self) -> Cost | None:
        """The least cost of a route, before anything that stands in its way is known."""
        return self._chart.cost(0, self._empty.short)

    def run(self) -> _Beginning | None:
        """The best beginning that is a whole route."""
        closed: set[tuple[object, ...]] = set()
        self._branch(self._empty, self._onward(self._empty))
        while self._heap:
            _, _, claim, before, siblings = heappop(self._heap)
            self._branch(before, siblings)
            if claim is None:
                continue
            here = self._after(before, claim)
            prospects = here.prospects
            if prospects in closed:
                continue
            closed.add(prospects)
            if here.end == self._problem.layer_count and here.hosts is here.groups is None:
                return here
            self._branch(here, self._onward(here))
        return None

    def _onward(self, here: _Beginning) -> Iterator[Option]:
        return self._chart.onward(here.end, here.short, here.cost[2])

    def _branch(self, before: _Beginning, options: Iterator[Option]) -> None:
        """Note the best of `options` that may follow on `before`, and that there are more."""
        for (hops, seams, peak), key, claim in options:
            if self._effort.steps == 0:
                raise _GaveUp
            self._effort.steps -= 1
            if claim is not None and self._is_barred(before, claim.node):
                continue
            cost = (before.cost[0] + hops, before.cost[1] + seams, peak)
            heappush(self._heap, (cost, (*before.keys, key), claim, before, options))
            return

    def _is_barred(self, before: _Beginning, node: str) -> bool:
        """Whether `node` was there already, or the last node does not get along with it."""
        if node in before.nodes:
            return True
        return before.last is not None and not self._problem.get_along(before.last, node)

    def _after(self, before: _Beginning, claim: Claim) -> _Beginning:
        problem, demands = self._problem, self._problem.demands
        node, end = claim.node, layers(claim)[1]
        hops, seams, peak = before.cost
        nodes = before.nodes
        if self._chart.repeated.get(node, 0) > end:
            nodes |= {node}
        return _Beginning(
            end=end,
            short=max(before.short - 1, 0),
            last=node if node in self._chart.touchy else None,
            nodes=frozenset(n for n in nodes if self._chart.repeated[n] > end) if nodes else nodes,
            hosts=_seen(before.hosts, problem.host(claim), demands.hosts),
            groups=_seen(before.groups, problem.group(claim), demands.groups),
            cost=(hops + 1, seams + self._chart.seams[end], max(peak, problem.load(claim))),
            keys=(*before.keys, claim_key(claim)),
            claims=(*before.claims, claim),
        )


def _seen(before: frozenset[str] | None, name: str | None, asked: int) -> frozenset[str] | None:
    """What was seen, and None once it is enough. No host and no group count as nothing."""
    if before is None or not name:
        return before
    after = before | {name}
    return None if len(after) >= asked else after
