"""`handshake.completed`: one side's newest word on a neighbour.

| order | rejected | when |
|---|---|---|
| 1 | `unknown-peer` | the peer is not a known node |
| 2 | `stale-boot` | either boot is not its node's current one (before it registers it has none) |

Applied, it replaces what this side said before of this peer, both boots and this fingerprint. Of
its mismatches the first sixteen are kept, each detail cut to 256 characters: the log has the rest.

Every applied one is also counted, for whoever watches, under its first reason: one of `REASONS`, or
`other`, since a reason is whatever a node wrote. That count is no state.
"""

from msgspec import structs

from meshnet_events.facts import HandshakeCompleted, Mismatch, recipe_key
from meshnet_events.reasons import STALE_BOOT, UNKNOWN_PEER
from meshnet_tracker import recipe
from meshnet_tracker.registry.outcome import APPLIED, Outcome, rejected
from meshnet_tracker.registry.rows import Handshake
from meshnet_tracker.registry.state import Cause, State

REASONS = recipe.REASONS | {"fingerprint"}
"""Why two shards may not compute together: the axes that `recipe.explain` tells, and the whole."""
OTHER = "other"

_MAX_MISMATCHES = 16
_MAX_DETAIL = 256


def completed(state: State, fact: HandshakeCompleted, cause: Cause) -> Outcome:
    """Keep the result."""
    nodes = state.nodes
    peer = nodes.get(fact.peer)
    if peer is None and not state.is_known(fact.peer):
        return rejected(UNKNOWN_PEER, f"{fact.peer} is not a known node")
    node = nodes.get(cause.issuer)
    if node is None or node.boot_id != fact.boot_id:
        return rejected(STALE_BOOT, f"boot_id {fact.boot_id} is not the current boot of the issuer")
    if peer is None or peer.boot_id != fact.peer_boot_id:
        return rejected(
            STALE_BOOT, f"peer_boot_id {fact.peer_boot_id} is not the current boot of the peer"
        )
    local = fact.local
    state.put_handshake(
        Handshake(
            accepted=fact.accepted,
            boot_id=node.boot_id,  # equal to the fact's, and kept anyway
            mismatches=_kept(fact.mismatches) if fact.mismatches else (),
            node=node.node,
            peer=peer.node,
            peer_boot_id=peer.boot_id,
            presented=None if fact.accepted else fact.presented,
            recipe_key=recipe_key(local.model_artifact_digest, local.runtime_recipe_digest),
            role=fact.role,
            route_epoch=fact.route_epoch,
            route_session_id=fact.route_session_id,
            sequence=cause.sequence,
            time_ms=cause.time_ms,
        )
    )
    reason = "" if fact.accepted else _first_reason(fact.mismatches)
    said = state.changes.handshakes_said
    said[reason] = said.get(reason, 0) + 1
    return APPLIED


def _first_reason(mismatches: tuple[Mismatch, ...]) -> str:
    return mismatches[0].reason if mismatches and mismatches[0].reason in REASONS else OTHER


def _kept(mismatches: tuple[Mismatch, ...]) -> tuple[Mismatch, ...]:
    """As much as people need: a row must not be as large as whoever sent it likes."""
    return tuple(
        structs.replace(one, detail=one.detail[:_MAX_DETAIL], reason=one.reason[:_MAX_DETAIL])
        for one in mismatches[:_MAX_MISMATCHES]
    )
