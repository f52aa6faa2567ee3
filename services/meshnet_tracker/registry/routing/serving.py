"""The best route to serve.

Best is: fewest hops, then most proven seams, then the lowest highest load, then the smallest keys.

Claims that hold the same layers are interchangeable for hops and seams, so the search goes over
*classes* of them; a claim whose node is party to a refused handshake stands for itself. From the
last layers to the first, each class learns its best (hops, proven seams) to the end. Among what is
optimal so far, the lowest highest load and then the smallest keys are found in the same way.
With n claims in c classes this takes O(n + c²).
"""

from msgspec import Struct

from meshnet_tracker.registry.routing.problem import Problem, claim_key
from meshnet_tracker.registry.rows import Claim


class _Class(Struct):
    """Claims over the same layers, and the best way on from here (itself included)."""

    start: int
    end: int
    claims: list[Claim]
    cost: tuple[int, int] | None = None  # hops, and minus the proven seams: less is better
    onward: list["_Class"] = []
    peak: int = 0
    chain: tuple[Claim, ...] = ()


def serving(problem: Problem) -> tuple[Claim, ...] | None:
    """The claims of the best route, first layers first, or None when there is no route."""
    classes = _classes(problem)
    done: list[_Class] = []
    for this in classes:
        _find_cost(problem, this, done)
        if this.cost is not None:
            done.append(this)
    starts = [this for this in done if this.start == 0]
    if not starts:
        return None
    best = min(this.cost for this in starts if this.cost is not None)
    starts = [this for this in starts if this.cost == best]
    peak = _lowest_peak(problem, done, starts) if problem.loads else 0
    for this in done:
        _find_chain(problem, this, peak)
    chains = [this.chain for this in starts if this.chain]
    return min(chains, key=_keys)


def _classes(problem: Problem) -> list[_Class]:
    """Every class, those that end last first."""
    touchy = {node for pair in problem.refused for node in pair}
    classes: dict[tuple[object, ...], _Class] = {}
    for claim in problem.claims:
        identity = claim.identity
        if identity is None:
            continue
        start, end = identity.shard_start, identity.shard_end
        key = (start, end, claim.node, claim.shard_id) if claim.node in touchy else (start, end)
        this = classes.get(key)
        if this is None:
            classes[key] = _Class(start, end, [claim])
        else:
            this.claims.append(claim)
    return sorted(classes.values(), key=lambda c: -c.end)


def _find_cost(problem: Problem, this: _Class, done: list[_Class]) -> None:
    """The least cost from `this` to the last layer, and every class that it may go on with."""
    end = this.end
    if end == problem.layer_count:
        this.cost = (1, 0)
        return
    is_proven = end in problem.proven
    if problem.only_proven and not is_proven:
        return
    best: tuple[int, int] | None = None
    onward: list[_Class] = []
    for after in done:
        if after.start > end or after.end <= end or after.cost is None:
            continue
        if best is not None and after.cost > best:
            continue
        if problem.refused and not problem.get_along(this.claims[0], after.claims[0]):
            continue
        if after.cost == best:
            onward.append(after)
        else:
            best, onward = after.cost, [after]
    if best is not None:
        this.cost = (best[0] + 1, best[1] - is_proven)
        this.onward = onward


def _lowest_peak(problem: Problem, done: list[_Class], starts: list[_Class]) -> int:
    """The lowest highest load that an optimal route can have."""
    for this in done:
        own = min(problem.load(claim) for claim in this.claims)
        this.peak = max(own, min((after.peak for after in this.onward), default=0))
    return min(this.peak for this in starts)


def _find_chain(problem: Problem, this: _Class, peak: int) -> None:
    """The claims with the smallest keys from here on, among those loaded at most `peak`."""
    claims = this.claims
    if problem.loads:
        claims = [claim for claim in claims if problem.load(claim) <= peak]
    rests = [after.chain for after in this.onward if after.chain]
    if claims and (rests or not this.onward):
        first = min(claims, key=claim_key)
        this.chain = (first, *min(rests, key=_keys)) if rests else (first,)


def _keys(chain: tuple[Claim, ...]) -> list[tuple[str, str]]:
    return [claim_key(claim) for claim in chain]
