"""What a search for a route is given.

A problem holds usable claims of one recipe and what is asked of their chain. It borrows rows and
sets of the state for as long as one question takes, and decides nothing itself. `relaxed` gives the
same problem without some of its demands: comparing what is solvable with and without them is how
the obstacles are found.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct, structs

from meshnet_events import reasons as codes
from meshnet_tracker.registry.rows import Claim, Node


class Demands(Struct, frozen=True):
    """What the policy asks of the participants of a certifying route; 0 asks nothing.

    With `nodes` above 0, no node may be named twice either.
    """

    nodes: int = 0
    hosts: int = 0
    groups: int = 0


class Problem(Struct, frozen=True):
    """Find a chain of `claims` from layer 0 to `layer_count`.

    `proven` are the seams that a forward has crossed, `seeks_proven` whether a route with more of
    them is better, or one with fewer, and `only_proven` whether all of its seams must be. `refused`
    holds pairs of nodes of which the first refused the second. `nodes` has the row of every node
    that a claim names. `loads` goes by node, and one that is not there has 0.
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
    accepts_declared_hosts: bool

    def load(self, claim: Claim) -> int:
        """The load of the claim's node, from 0 to 1000."""
        return self.loads.get(claim.node, 0)

    def host(self, claim: Claim) -> str | None:
        """The host under the claim, if the policy counts it."""
        host = claim.host
        return host.id if host.source == "machine-id" or self.accepts_declared_hosts else None

    def group(self, claim: Claim) -> str:
        """The group of the claim's node; empty for none, which counts as nothing."""
        return self.nodes[claim.node].group

    def get_along(self, one: str, other: str) -> bool:
        """Whether neither of two nodes refused the other in its current boot."""
        return (one, other) not in self.refused and (other, one) not in self.refused

    def without(self, claims: Iterable[Claim]) -> "Problem":
        """The same problem without these claims."""
        gone = {claim_key(claim) for claim in claims}
        return structs.replace(self, claims=[c for c in self.claims if claim_key(c) not in gone])

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
