"""May this claim serve, may it certify, and every reason why not.

| reason | holds when | bars serving | bars certifying |
|---|---|---|---|
| `refused` | the registration was refused | yes | yes |
| `withdrawn` | the node took the shard back | yes | yes |
| `superseded` | a newer registration or boot took its place | yes | yes |
| `conflict` | two hosts use the node's key | yes | yes |
| `suspended` | the node is suspended, or the claim ended when it was | yes | yes |
| `not-enrolled` | the policy requires enrolment and the node has none | yes | yes |
| `synthetic` | the backend computes no model | yes | yes |
| `dark` | the recipe is not certified yet | yes | no |
| `revoked` | the recipe is revoked | yes | yes |
| `not-live` | the liveness overlay, where given, does not know the claim | yes | yes |

Reasons come in this order, all of them at once. Freshness was judged once, at registration: nothing
here expires.
"""

from typing import Protocol

from msgspec import Struct

from meshnet_events import reasons as codes
from meshnet_tracker.registry.rows import Claim
from meshnet_tracker.registry.state import State

LIVE_FOR_S = 15
"""For how long presence that named a claim makes it live, in seconds."""


class Liveness(Protocol):
    """An overlay of presence: outside the log and outside state digests."""

    def is_live(self, claim: Claim) -> bool:
        """Whether presence within `LIVE_FOR_S` named the claim's boot and shard."""
        ...

    def load(self, node: str) -> int:
        """The node's load as it last said, from 0 to 1000."""
        ...


class Eligibility(Struct, frozen=True):
    """The verdict on one claim."""

    to_serve: bool
    to_certify: bool
    reasons: tuple[str, ...]


_ENDED = {
    "refused": codes.REFUSED,
    "withdrawn": codes.WITHDRAWN,
    "superseded": codes.SUPERSEDED,
    "suspended": codes.SUSPENDED,
}
_ORDER = (
    codes.REFUSED,
    codes.WITHDRAWN,
    codes.SUPERSEDED,
    codes.CONFLICT,
    codes.SUSPENDED,
    codes.NOT_ENROLLED,
    codes.SYNTHETIC,
    codes.DARK,
    codes.REVOKED,
    codes.NOT_LIVE,
)


def usable_claims(state: State, recipe_key: str, liveness: Liveness | None = None) -> list[Claim]:
    """The claims that may take part in routes, as far as the status of their recipe allows any."""
    live = state.live_claims.get(recipe_key)
    if not live:
        return []
    nodes, policy = state.nodes, state.policy
    return [
        claim
        for claim in live.values()
        if not claim.synthetic
        and not nodes[claim.node].bars(policy)
        and (liveness is None or liveness.is_live(claim))
    ]


def judge(state: State, claim: Claim, liveness: Liveness | None = None) -> Eligibility:
    """Judge `claim` by the state, and by presence where `liveness` is given."""
    recipe = state.recipes.get(claim.recipe_key or "")
    status = "unknown" if recipe is None else recipe.status
    holds = {_ENDED.get(claim.status), *state.nodes[claim.node].bars(state.policy)}
    if claim.synthetic:
        holds.add(codes.SYNTHETIC)
    if status in {codes.DARK, codes.REVOKED}:
        holds.add(status)
    if liveness is not None and not liveness.is_live(claim):
        holds.add(codes.NOT_LIVE)
    found = tuple(code for code in _ORDER if code in holds)
    return Eligibility(
        to_serve=not found, to_certify=not found or found == (codes.DARK,), reasons=found
    )
