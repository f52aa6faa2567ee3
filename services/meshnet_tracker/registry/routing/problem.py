"""What a search for a route is given.

A problem holds usable claims of one recipe and what is asked of their chain. It borrows rows and
sets of the state for as long as one question takes, and decides nothing itself. `relaxed` gives the
same problem without some of its demands: comparing what is solvable with and without them is how
the obstacles are found.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

from msgspec import Struct, structs

from meshnet_events import reasons as codes
from meshnet_events.facts import Policy
from meshnet_tracker.registry.rows import Claim, Node

MAX_STEPS = 300_000
"""What one plan may take: some tenths of a second."""


class GaveUp(Exception):
    """The search took all the steps that it may: whether there is a route is undecided."""


class Effort(Struct):
    """How many steps a search, or several, may still take. A step is a look at a claim or a stop."""

    steps: int = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Take so many steps, or raise `GaveUp` when fewer are left."""
        if steps > self.steps:
            self.steps = 0
            raise GaveUp
        self.steps -= steps


class Demands(Struct, frozen=True):
    """What the policy asks of the participants of a certifying route; 0 asks nothing.

    With `nodes` above 0, no node may be named twice either.
    """

    nodes: int = 0
    hosts: int = 0
    groups: int = 0

    @property
    def hops(self) -> int:
        """The hops that a chain must have at least to meet them."""
        return max(self.nodes, self.hosts, self.groups)


class Problem(Struct, frozen=True):
    """Find a chain of `claims` from layer 0 to `layer_count`.

    `proven` are the seams that a forward has crossed, `seeks_proven` whether a route with more of
    them is better, or one with fewer, and `only_proven` whether all of its seams must be. `refused`
    holds pairs of nodes of which the first refused the second. `nodes` has the row of every node
    that a claim names. `loads` goes by node, and one that is not there has 0. `policy` says which
    hosts count.
    """

    claims: Collection[Claim]
    layer_count: int
    proven: AbstractSet[int]
    seeks_proven: bool
    only_proven: bool
    refused: AbstractSet[tuple[str, str]]
    nodes: Mapping[str, Node]
    loads: Mapping[str, int]
    demands: Demands
    policy: Policy

    def load(self, claim: Claim) -> int:
        """The load of the claim's node, from 0 to 1000."""
        return self.loads.get(claim.node, 0)

    def host(self, claim: Claim) -> str | None:
        """The host under the claim, if the policy counts it."""
        return claim.host.id if self.policy.counts(claim.host) else None

    def group(self, claim: Claim) -> str:
        """The group of the claim's node; empty for none, which counts as nothing."""
        return self.nodes[claim.node].group

    def get_along(self, one: str, other: str) -> bool:
        """Whether neither of two nodes refused the other in its current boot."""
        return (one, other) not in self.refused and (other, one) not in self.refused

    def is_met_by(self, chain: Sequence[Claim]) -> bool:
        """Whether `chain` meets what is asked of neighbours and of participants."""
        if self.refused and not all(
            self.get_along(one.node, other.node) for one, other in pairwise(chain)
        ):
            return False
        if nodes := self.demands.nodes:
            distinct = len({claim.node for claim in chain})
            if distinct < len(chain) or distinct < nodes:
                return False
        return self._has_enough(chain)

    def asks_more_than_there_is(self, hops: int) -> bool:
        """Whether all the claims together are of too few nodes, hosts or groups for a chain.

        A chain has `hops` hops at least.
        """
        nodes = self.demands.nodes
        if nodes and len({claim.node for claim in self.claims}) < max(nodes, hops):
            return True
        return not self._has_enough(self.claims)

    def _has_enough(self, claims: Collection[Claim]) -> bool:
        """Whether `claims` are of as many hosts and groups as are asked for."""
        hosts, groups = self.demands.hosts, self.demands.groups
        if hosts and len({self.host(claim) for claim in claims} - {None}) < hosts:
            return False
        return not groups or len({self.group(claim) for claim in claims} - {""}) >= groups

    def among(self, claims: Iterable[Claim]) -> "Problem":
        """The same problem with these claims instead."""
        return structs.replace(self, claims=list(claims))

    def without(self, claims: Iterable[Claim]) -> "Problem":
        """The same problem without these claims."""
        gone = {claim_key(claim) for claim in claims}
        return self.among(claim for claim in self.claims if claim_key(claim) not in gone)

    def at_most_loaded(self, peak: int) -> "Problem":
        """The same problem among the nodes with no load above `peak`, their loads left out."""
        claims = [claim for claim in self.claims if self.load(claim) <= peak]
        return structs.replace(self, claims=claims, loads={})

    def demanded(self) -> tuple[str, ...]:
        """Codes of what this problem asks beyond an unbroken chain."""
        asked = {
            codes.SEAM: self.only_proven,
            codes.HANDSHAKE: bool(self.refused),
            codes.NODES: self.demands.nodes > 0,
            codes.HOSTS: self.demands.hosts > 0,
            codes.GROUPS: self.demands.groups > 0,
        }
        return tuple(code for code, is_asked in asked.items() if is_asked)

    def relaxed(self, waived: Collection[str]) -> "Problem":
        """The same problem without the demands `waived`, by code."""
        return structs.replace(
            self,
            only_proven=self.only_proven and codes.SEAM not in waived,
            refused=frozenset() if codes.HANDSHAKE in waived else self.refused,
            demands=Demands(
                nodes=0 if codes.NODES in waived else self.demands.nodes,
                hosts=0 if codes.HOSTS in waived else self.demands.hosts,
                groups=0 if codes.GROUPS in waived else self.demands.groups,
            ),
        )


def claim_key(claim: Claim) -> tuple[str, str]:
    """What ties are broken by: node key, then shard id."""
    return (claim.node, claim.shard_id)


def layers(claim: Claim) -> tuple[int, int]:
    """The layers `[start, end)` of a live claim."""
    identity = claim.identity
    if identity is None:
        raise ValueError(f"{claim.node}/{claim.shard_id} has no sound identity, so it is not live")
    return identity.shard_start, identity.shard_end
