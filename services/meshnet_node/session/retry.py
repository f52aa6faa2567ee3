"""A neighbour that refused, or was refused, is met again: a session in which nothing is computed.

Whoever comes to accept publishes so, and so does the other side: the pair may compute together again.
Nothing that a peer or a tracker says ends the node: what nobody foresaw is logged, and the pair waits
for the next time.
"""

import logging
import uuid

from meshnet_bus.asker import QueryRefused
from meshnet_bus.client import Unreachable
from meshnet_bus.outbox_file import OutboxError
from meshnet_events.answers import ClaimAnswer
from meshnet_events.facts import recipe_key
from meshnet_events.queries import ClaimQuery, NodeQuery
from meshnet_node.handshake import Refused
from meshnet_node.session.failure import SessionFailed
from meshnet_node.session.link import Request
from meshnet_node.session.node import Node
from meshnet_node.session.opening import RouteHop

_log = logging.getLogger("meshnet_node.session")


async def try_again(node: Node, refused: Refused) -> None:
    """Shake hands once more with a peer, if it is still there in that boot under our recipe."""
    try:
        await _meet(node, refused)
    except Exception:  # noqa: BLE001 - one pair's fault must not be the process's
        _log.exception("%s was not met again, for a reason that nobody foresaw", refused.peer.node)


async def _meet(node: Node, refused: Refused) -> None:
    shard = node.shards.get(refused.shard_id)
    if shard is None or refused.peer.our_boot_id != node.boot_id:
        return
    try:
        claim = await _claim_of(node, refused)
    except (QueryRefused, Unreachable) as error:
        _log.info("%s is not met again now: %s", refused.peer.node, error)
        return
    if claim is None or claim.start is None or claim.end is None:
        return

    request = Request(
        purpose="handshake",
        route_session_id=str(uuid.uuid4()),
        route_epoch=0,
        hop=0,
        responder=RouteHop(
            node=claim.node,
            boot_id=claim.boot_id,
            shard_id=claim.shard_id,
            endpoint=claim.endpoint,
            start=claim.start,
            end=claim.end,
        ),
    )
    try:
        async with node.open(shard, request):
            _log.info("%s accepts us again", claim.node)
    except (SessionFailed, OutboxError, Unreachable) as failure:
        _log.info("%s was met again: %s", claim.node, failure)


async def _claim_of(node: Node, refused: Refused) -> ClaimAnswer | None:
    """The peer's live claim under our recipe, in the boot that was met; None when there is none."""
    peer = refused.peer
    ours = recipe_key(peer.model_artifact_digest, peer.runtime_recipe_digest)
    known = await node.tracker.ask(NodeQuery(node=peer.node))
    if known.boot_id != peer.boot_id:
        return None
    for shard_id in known.shards:
        claim = await node.tracker.ask(ClaimQuery(node=peer.node, shard_id=shard_id))
        if claim.status == "live" and claim.recipe_key == ours:
            return claim
    return None
