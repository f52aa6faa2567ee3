"""The best route to certify a recipe, under the policy's demands.

Best is: fewest hops, then fewest proven seams (so that new cuts get proven), then the lowest
highest load, then the smallest keys. The route names no node twice and has the nodes, hosts and
groups that the policy asks for.

Each of the four is settled before the next, by asking whether any route exists within it. That
question is answered by a search over claims that remembers what it found hopeless: whether a
partial route can be completed depends only on the layer reached, the hops and proven seams left,
the nodes that could come again, and the hosts and groups seen, as far as the policy still asks for
more. The search takes a bounded number of steps and then gives up: no route is the safe answer.
"""

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from meshnet_tracker.registry.routing.problem import Problem, claim_key
from meshnet_tracker.registry.rows import Claim

MAX_STEPS = 100_000


class _Partial(Struct, frozen=True):
    """All that decides whether a partial route can be completed.

    `hops` and `proven` are what is left of them; `hosts` and `groups` are None once there are
    enough; `last` is the claim before, where it matters who that was.
    """

    end: int
    hops: int
    proven: int
    last: tuple[str, str] | None
    nodes: frozenset[str]
    hosts: frozenset[str] | None
    groups: frozenset[str] | None


class _Kind(Struct):
    """Claims that differ in nothing that a search looks at; the least loaded comes first."""

    start: int
    end: int
    host: str | None
    group: str
    claims: list[Claim]


class _GaveUp(Exception):
    """The search took more steps than it may."""


def certifying(problem: Problem) -> tuple[Claim, ...] | None:
    """The claims of the best route, first layers first, or None when there is no route."""
    try:
        return _Search(problem).best()
    except _GaveUp:
        return None


class _Search:
    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._touchy = {node for pair in problem.refused for node in pair}
        times = Counter(claim.node for claim in problem.claims)
        self._repeated = {node for node, count in times.items() if count > 1}
        self._distinct = problem.demands.nodes > 0
        self._most_hops = len(times) if self._distinct else problem.layer_count
        self._kinds = self._sort_claims()
        self._claims = {claim_key(claim): claim for claim in problem.claims}
        self._hopeless: set[tuple[_Partial, int]] = set()
        self._steps = 0

    def best(self) -> tuple[Claim, ...] | None:
        """Settle hops, proven seams, peak load and keys, in this order."""
        problem = self._problem
        peaks = sorted({problem.load(claim) for claim in problem.claims})
        ends = {kind.end for kind in self._kinds}
        for hops in range(max(1, problem.demands.nodes), min(self._most_hops, len(ends)) + 1):
            for proven in range(hops):
                start = self._start(hops, proven)
                if self._completes(start, peaks[-1]):
                    peak = next(peak for peak in peaks if self._completes(start, peak))
                    return self._smallest(start, peak)
        return None

    def _sort_claims(self) -> list[_Kind]:
        problem, kinds = self._problem, dict[tuple[object, ...], _Kind]()
        for claim in problem.claims:
            if claim.identity is None:
                continue
            start, end = claim.identity.shard_start, claim.identity.shard_end
            host = problem.hosts.get(claim_key(claim))
            group = problem.groups.get(claim.node, "")
            alone = claim.node in self._touchy or claim.node in self._repeated
            itself = claim_key(claim) if alone else None
            key = (start, end, host, group, problem.load(claim), itself)
            kind = kinds.get(key)
            if kind is None:
                kinds[key] = _Kind(start, end, host, group, [claim])
            else:
                kind.claims.append(claim)
        for kind in kinds.values():
            kind.claims.sort(key=claim_key)
        return list(kinds.values())

    def _start(self, hops: int, proven: int) -> _Partial:
        demands = self._problem.demands
        return _Partial(
            end=0,
            hops=hops,
            proven=proven,
            last=None,
            nodes=frozenset(),
            hosts=frozenset() if demands.hosts else None,
            groups=frozenset() if demands.groups else None,
        )

    def _completes(self, partial: _Partial, peak: int) -> bool:
        """Whether some route goes on from `partial` with no node loaded above `peak`."""
        if partial.hops == 0:
            return partial.hosts is None and partial.groups is None
        if (partial, peak) in self._hopeless:
            return False
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _GaveUp
        if any(self._completes(after, peak) for _, after in self._onward(partial, peak)):
            return True
        self._hopeless.add((partial, peak))
        return False

    def _onward(self, partial: _Partial, peak: int) -> Iterator[tuple[Claim, _Partial]]:
        """Every kind of claim that may come next, by its first claim, and where that leads."""
        problem, end = self._problem, partial.end
        proven = partial.proven - (end in problem.proven)
        if proven < 0:
            return
        last = None if partial.last is None else self._claims[partial.last]
        for kind in self._kinds:
            if not kind.start <= end < kind.end:
                continue
            if (kind.end == problem.layer_count) != (partial.hops == 1):
                continue
            claim = kind.claims[0]
            if claim.node in partial.nodes or problem.load(claim) > peak:
                continue
            if last is not None and not problem.get_along(last, claim):
                continue
            yield claim, self._after(partial, kind, claim, proven)

    def _after(self, partial: _Partial, kind: _Kind, claim: Claim, proven: int) -> _Partial:
        demands = self._problem.demands
        comes_again = self._distinct and claim.node in self._repeated
        return _Partial(
            end=kind.end,
            hops=partial.hops - 1,
            proven=proven,
            last=claim_key(claim) if claim.node in self._touchy else None,
            nodes=partial.nodes | {claim.node} if comes_again else partial.nodes,
            hosts=_seen(partial.hosts, kind.host, demands.hosts),
            groups=_seen(partial.groups, kind.group, demands.groups),
        )

    def _smallest(self, partial: _Partial, peak: int) -> tuple[Claim, ...]:
        """The route with the smallest keys, hop by hop, that `partial` can be completed to."""
        route: list[Claim] = []
        while partial.hops:
            options = sorted(self._onward(partial, peak), key=lambda option: claim_key(option[0]))
            claim, partial = next(o for o in options if self._completes(o[1], peak))
            route.append(claim)
        return tuple(route)


def _seen(before: frozenset[str] | None, name: str | None, asked: int) -> frozenset[str] | None:
    """What was seen, and None once it is enough. No host and no group count as nothing."""
    if before is None or not name:
        return before
    after = before | {name}
    return None if len(after) >= asked else after
