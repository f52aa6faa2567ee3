"""What a search for a route is given.

A problem holds usable claims of one recipe and what is asked of their chain, and nothing that
refers back to the state. `relaxed` gives the same problem without one of its demands: comparing
what is solvable with and without it is how the obstacles are found.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from meshnet_events import reasons as codes
from meshnet_tracker.registry.rows import Claim


class Demands(Struct, frozen=True):
    """What the policy asks of the participants of a certifying route; 0 asks nothing.

    With `nodes` above 0, no node may be named twice either.
    """

    nodes: int = 0
    hosts: int = 0
    groups: int = 0


class Problem(Struct, frozen=True):
    """Find a chain of `claims` from layer 0 to `layer_count`.

    `refused` holds pairs of nodes of which the first refused the second; `loads` and `groups` go by
    node, `hosts` by claim and only for hosts that the policy counts.
    """

    claims: tuple[Claim, ...]
    layer_count: int
    proven: frozenset[int]
    refused: frozenset[tuple[str, str]]
    loads: Mapping[str, int]
    only_proven: bool
    demands: Demands
    hosts: Mapping[tuple[str, str], str]
    groups: Mapping[str, str]

    def load(self, claim: Claim) -> int:
        """The load of the claim's node, from 0 to 1000; 0 where it is not known."""
        return self.loads.get(claim.node, 0)

    def get_along(self, one: Claim, other: Claim) -> bool:
        """Whether neither node refused the other in its current boot."""
        return (one.node, other.node) not in self.refused and (
            other.node,
            one.node,
        ) not in self.refused

    def without(self, claims: Iterable[Claim]) -> "Problem":
        """The same problem without these claims."""
        gone = {(claim.node, claim.shard_id) for claim in claims}
        return structs.replace(
            self, claims=tuple(c for c in self.claims if (c.node, c.shard_id) not in gone)
        )

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

    def relaxed(self, *waived: str) -> "Problem":
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
