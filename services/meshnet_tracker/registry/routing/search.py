"""The best chain of claims, under everything that a problem asks.

Best is: fewest hops; most proven seams, or fewest; the lowest highest load; the smallest node keys,
then shard ids, hop by hop.

Mostly the best chain of all (`chart`) meets what is asked, and is the answer. Else the search is
A*: of all beginnings of a route it goes on with the one whose cost so far, together with the least
cost to go, is the best. What can still become of a beginning depends only on where it ends, the
nodes, hosts and groups that it is short of, the nodes in it that could come again, and who its last
node does not get along with. Of beginnings that agree in all but the last, each is gone on with
only to those nodes that no better one gets along with. Loads are left to the end: once hops and
seams are known, the lowest highest load that allows them is found by halving.

The question is hard: nodes with many claims, or three hosts, can make it exponential, and whoever
registers many claims can make it so. So a search may take so many steps, and then *gives up*. It is
no answer that there is none: chains among fewer claims are tried, where a search is short. What they
find is a route, though maybe not the best; if they find none either, nobody knows.
"""

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heappop, heappush
from operator import itemgetter

from msgspec import Struct

from meshnet_tracker.registry.routing.chart import Chart, Stop
from meshnet_tracker.registry.routing.problem import (
    MAX_STEPS,
    Effort,
    GaveUp,
    Problem,
    claim_key,
    layers,
)
from meshnet_tracker.registry.rows import Claim

# To go on with a claim takes as long as so many looks at claims that may not come next.
_STEPS_TO_GO_ON = 10
_FALLBACK_STEPS = MAX_STEPS // 8

_NOBODY: frozenset[str] = frozenset()
_NO_KEY = ("", "")

Key = tuple[str, str]


class _Beginning(Struct, frozen=True):
    """The first hops of a route: where they end, what they lack, and what they cost.

    `cost` is (hops, proven seams). `short` is the hops that are lacking. `odds` are the nodes that
    may not come next, `nodes` those that were there and could come again; `hosts` and `groups` are
    None once there are enough.
    """

    end: int
    short: int
    odds: frozenset[str]
    nodes: frozenset[str]
    hosts: frozenset[str] | None
    groups: frozenset[str] | None
    cost: tuple[int, int] = (0, 0)
    keys: tuple[Key, ...] = ()
    claim: Claim | None = None
    before: "_Beginning | None" = None

    @property
    def prospects(self) -> tuple[object, ...]:
        """All that decides what can become of it, but for `odds`."""
        return (self.end, self.short, self.nodes, self.hosts, self.groups)

    def chain(self) -> tuple[Claim, ...]:
        """Its claims, first layers first."""
        chain = []
        here: _Beginning | None = self
        while here is not None and here.claim is not None:
            chain.append(here.claim)
            here = here.before
        return tuple(reversed(chain))


# Hops and proven seams of the least cost through a claim, its key, the claim and where it ends; in
# place of a claim, None stands for all that cost no less.
_Option = tuple[int, int, Key, Claim | None, int]


def best_chain(
    problem: Problem, effort: Effort, chart: Chart | None = None
) -> tuple[Claim, ...] | None:
    """The claims of the best route, first layers first; None: there is none.

    `chart` saves drawing one anew. Raises `GaveUp` when nobody knows.
    """
    chart = chart or Chart(problem)
    easiest = chart.easiest(problem.demands.hops)
    if easiest is None or problem.is_met_by(easiest):
        return easiest
    if problem.asks_more_than_there_is(len(easiest)):
        return None
    try:
        found = _Search(problem, effort, chart).run()
    except GaveUp:
        found = _some_chain(problem)
        if found is None:
            raise
        return found.chain()
    if found is None:
        return None
    return (_least_loaded(problem, found, effort) if problem.loads else found).chain()


def _least_loaded(problem: Problem, found: _Beginning, effort: Effort) -> _Beginning:
    """The best of the routes that cost what `found` does, loads considered."""
    peak = max(map(problem.load, found.chain()))
    loads = sorted({load for load in map(problem.load, problem.claims) if load <= peak})

    def is_enough(load: int) -> bool:
        nonlocal found
        quiet = problem.at_most_loaded(load)
        better = _Search(quiet, effort, Chart(quiet)).run()
        if better is None or better.cost != found.cost:
            return False
        found = better  # halving asks for ever less after this
        return True

    try:
        bisect_left(loads, True, key=is_enough)  # noqa: FBT003 - False below, True from there on
    except GaveUp:
        return found  # a route, and one with a lower load maybe
    return found


def _some_chain(problem: Problem) -> _Beginning | None:
    """A route among fewer claims, so few that a search among them is short; None: none is found.

    A node that registers many claims takes part with its widest only; and in turn those are left
    out that refused anybody, and those that anybody refused, so that all others get along.
    """
    widest: dict[str, Claim] = {}
    for claim in sorted(problem.claims, key=claim_key):
        other = widest.get(claim.node)
        if other is None or _width(claim) > _width(other):
            widest[claim.node] = claim
    refusing = {one for one, _ in problem.refused}
    refused = {other for _, other in problem.refused}
    for claims in (widest.values(), problem.claims):
        for absent in (_NOBODY, refusing, refused):
            fewer = problem.among(claim for claim in claims if claim.node not in absent)
            try:
                found = _Search(fewer, Effort(_FALLBACK_STEPS), Chart(fewer)).run()
            except GaveUp:
                continue
            if found is not None:
                return found
    return None


def _width(claim: Claim) -> int:
    start, end = layers(claim)
    return end - start


class _Fork(Struct):
    """Where a beginning may go on: `options` are what is left of them, best first.

    It goes on with the nodes `only`, if that is not None.
    """

    before: _Beginning
    only: frozenset[str] | None
    options: Iterator[_Option]


# The cost foreseen, the keys, the beginning, and the fork that has more once this was looked at.
# Keys are never equal twice, so nothing after them is ever compared.
_Entry = tuple[tuple[int, int], tuple[Key, ...], _Beginning | None, _Fork | None]


class _Search:
    def __init__(self, problem: Problem, effort: Effort, chart: Chart) -> None:
        self._problem = problem
        self._effort = effort
        self._chart = chart
        self._odds = _find_odds(problem)
        # nodes with several claims, where none may be named twice, and where their last claim ends
        self._repeated = _find_repeated(problem) if problem.demands.nodes else {}
        self._ways: dict[tuple[int, int, int], dict[int, list[Stop]]] = {}
        self._options: dict[tuple[int, int, int, int], list[_Option]] = {}
        self._heap: list[_Entry] = []

    def run(self) -> _Beginning | None:
        """The best beginning that is a whole route, loads left out; None: there is none."""
        demands = self._problem.demands
        empty = _Beginning(
            end=0,
            short=demands.hops,
            odds=_NOBODY,
            nodes=_NOBODY,
            hosts=_NOBODY if demands.hosts else None,
            groups=_NOBODY if demands.groups else None,
        )
        # by prospects: the nodes that no beginning with these got along with
        unmet: dict[tuple[object, ...], frozenset[str]] = {}
        self._note(self._fork(empty, None))
        while self._heap:
            _, _, here, fork = heappop(self._heap)
            if fork is not None:
                self._note(fork)
            if here is None:
                continue
            if here.end == self._problem.layer_count:
                return here
            only = unmet.get(here.prospects)
            if only is not None and only <= here.odds:
                continue
            unmet[here.prospects] = here.odds if only is None else only & here.odds
            self._note(self._fork(here, only))
        return None

    def _fork(self, before: _Beginning, only: frozenset[str] | None) -> _Fork:
        return _Fork(before, only, self._onward(before.end, before.short))

    def _note(self, fork: _Fork) -> None:
        """Note what may come next, up to the first that costs what is foreseen of all after it."""
        before, only, effort = fork.before, fork.only, self._effort
        odds, nodes = before.odds, before.nodes
        for total, seams, key, claim, end in fork.options:
            foreseen = (before.cost[0] + total, before.cost[1] + seams)
            keys = (*before.keys, key)
            if claim is None:
                effort.spend(_STEPS_TO_GO_ON)
                heappush(self._heap, (foreseen, keys, None, fork))
                return
            effort.spend(1)
            node = claim.node
            if node in odds or node in nodes or (only is not None and node not in only):
                continue
            effort.spend(_STEPS_TO_GO_ON + len(keys) // 8)
            here = self._after(before, claim, end, keys)
            rest = self._chart.cost(end, here.short)
            if rest is None:
                continue
            cost = (here.cost[0] + rest[0], here.cost[1] + rest[1])
            if cost == foreseen:
                heappush(self._heap, (cost, keys, here, fork))
                return
            heappush(self._heap, (cost, keys, here, None))

    def _after(
        self, before: _Beginning, claim: Claim, end: int, keys: tuple[Key, ...]
    ) -> _Beginning:
        problem, demands = self._problem, self._problem.demands
        node = claim.node
        nodes = before.nodes
        if self._repeated.get(node, 0) > end:
            nodes |= {node}
        if nodes:
            nodes = frozenset(n for n in nodes if self._repeated[n] > end)
        hops, seams = before.cost
        hosts = _seen(before.hosts, problem.host(claim), demands.hosts)
        groups = _seen(before.groups, problem.group(claim), demands.groups)
        return _Beginning(
            end=end,
            short=max(
                0,
                demands.nodes - hops - 1,
                0 if hosts is None else demands.hosts - len(hosts),
                0 if groups is None else demands.groups - len(groups),
            ),
            odds=self._odds.get(node, _NOBODY),
            nodes=nodes,
            hosts=hosts,
            groups=groups,
            cost=(hops + 1, seams + self._chart.seam(end)),
            keys=keys,
            claim=claim,
            before=before,
        )

    def _onward(self, at: int, hops: int) -> Iterator[_Option]:
        """Claims that may come next at stop `at`, if `hops` hops are lacking there, best first.

        Of claims that differ in nothing a search looks at, only the best comes.
        """
        is_first = True
        for total, width in self._chart.totals(at, hops):
            if not is_first:
                yield total, -total, _NO_KEY, None, at
            ways = self._ways.get((at, hops, total))
            if ways is None:
                self._effort.spend(width)
                ways = self._ways[at, hops, total] = self._chart.ways(at, hops, total)
            for seams in sorted(ways):
                if not is_first:
                    yield total, seams, _NO_KEY, None, at
                is_first = False
                options = self._options.get((at, hops, total, seams))
                if options is None:
                    options = self._find_options(ways[seams], at, total, seams)
                    self._options[at, hops, total, seams] = options
                yield from options

    def _find_options(self, stops: list[Stop], at: int, total: int, seams: int) -> list[_Option]:
        """The best claim of each kind that leads from `at` to one of `stops`."""
        problem, odds, repeated = self._problem, self._odds, self._repeated
        has_hosts, has_groups = problem.demands.hosts > 0, problem.demands.groups > 0
        best: dict[tuple[object, ...], _Option] = {}
        for end, _, _, _, claims in stops:
            self._effort.spend(len(claims))
            for start, claim in claims:
                if start > at:
                    continue
                node = claim.node
                kind = (
                    end,
                    node if node in odds or node in repeated else None,
                    problem.host(claim) if has_hosts else None,
                    problem.group(claim) if has_groups else None,
                )
                option = (total, seams, claim_key(claim), claim, end)
                other = best.get(kind)
                if other is None or option[2] < other[2]:
                    best[kind] = option
        return sorted(best.values(), key=itemgetter(2))


def _find_odds(problem: Problem) -> dict[str, frozenset[str]]:
    """Who does not get along with whom, either way."""
    odds: dict[str, set[str]] = {}
    for one, other in problem.refused:
        odds.setdefault(one, set()).add(other)
        odds.setdefault(other, set()).add(one)
    return {node: frozenset(others) for node, others in odds.items()}


def _find_repeated(problem: Problem) -> dict[str, int]:
    last: dict[str, int] = {}
    repeated: dict[str, int] = {}
    for claim in problem.claims:
        node, end = claim.node, layers(claim)[1]
        if node in last:
            repeated[node] = end = max(end, last[node])
        last[node] = end
    return repeated


def _seen(before: frozenset[str] | None, name: str | None, asked: int) -> frozenset[str] | None:
    """What was seen, and None once it is enough. No host and no group count as nothing."""
    if before is None or not name:
        return before
    after = before | {name}
    return None if len(after) >= asked else after
