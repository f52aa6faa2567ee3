"""What a hop asks its tracker about its neighbours, and what the answers mean for a session.

A stray driver could name any two nodes as neighbours and make them refuse each other, or send a node
to connect wherever it likes. So a hop goes by what its tracker lists and not by what it was told: it
opens the next hop only where the claim named is that node's current one under our recipe, at the
endpoint that was registered; and it takes a caller for the hop before only if that is a node of the
realm in the boot it says.
"""

from meshnet_bus.asker import QueryRefused
from meshnet_bus.client import Unreachable
from meshnet_events.answers import ClaimAnswer, NodeAnswer
from meshnet_events.facts import recipe_key
from meshnet_events.queries import NOT_FOUND, ClaimQuery, NodeQuery
from meshnet_node.recipe_identity import CompatibilityFingerprint
from meshnet_node.session.failure import SessionFailed
from meshnet_node.session.node import Tracker
from meshnet_node.session.opening import Opening, Purpose, RouteHop
from meshnet_proto import shard_runtime_pb2 as pb


async def check_caller(tracker: Tracker, opening: Opening) -> None:
    """Raise SessionFailed unless the caller may take the part it takes.

    A neighbour must be a node in its current boot, or what is published of it would be of nobody; who
    asks for a forward to be attested must be a node that is heard; a user who wants tokens may be
    anyone.
    """
    if opening.hop == 0 and opening.purpose == "serve":
        return
    caller = opening.terms.keys.caller
    known = await _node(tracker, caller)
    if not known.may_speak:
        raise SessionFailed(
            pb.ERROR_CODE_UNKNOWN_PEER,
            f"the tracker calls {caller} {known.status}: it may not take part in a session to "
            f"{opening.purpose}",
        )
    if opening.is_between_neighbours and known.boot_id != opening.terms.boots.caller:
        raise SessionFailed(
            pb.ERROR_CODE_STALE_BOOT,
            f"the tracker's current boot of {caller} is {known.boot_id}, the caller's is "
            f"{opening.terms.boots.caller}",
        )


async def check_status(tracker: Tracker, opening: Opening) -> None:
    """Raise SessionFailed where our own claim may not do what is asked, or is of another boot."""
    if opening.purpose == "handshake":
        return
    us, our_boot = opening.terms.keys.responder, opening.terms.boots.responder
    ours = await _claim(tracker, us, opening.shard_id)
    if ours.boot_id != our_boot:
        raise SessionFailed(
            pb.ERROR_CODE_STALE_BOOT,
            f"the tracker's boot of this hop is {ours.boot_id}, this process is boot {our_boot}",
        )
    fault = _bars(ours, opening.purpose)
    if fault is not None:
        allowed = {"certified"} if opening.purpose == "serve" else {"certified", "dark"}
        code = (
            pb.ERROR_CODE_UNAVAILABLE
            if ours.recipe_status in allowed
            else pb.ERROR_CODE_NOT_CERTIFIED
        )
        raise SessionFailed(code, f"this hop's own claim may not {opening.purpose}: {fault}")


async def next_endpoint(
    tracker: Tracker, hop: RouteHop, ours: CompatibilityFingerprint, purpose: Purpose
) -> str:
    """Where the next hop is reached, as its claim says. Raises SessionFailed."""
    claim = await _claim(tracker, hop.node, hop.shard_id)
    fault = _claim_fault(claim, hop, ours) or _bars(claim, purpose)
    if fault is not None:
        raise SessionFailed(
            pb.ERROR_CODE_UNKNOWN_PEER, f"the tracker's claim {hop.node}/{hop.shard_id}: {fault}"
        )
    return claim.endpoint


def _claim_fault(claim: ClaimAnswer, hop: RouteHop, ours: CompatibilityFingerprint) -> str | None:
    key = recipe_key(ours.model_artifact_digest, ours.runtime_recipe_digest)
    if claim.status != "live":
        return f"it is {claim.status}"
    if claim.boot_id != hop.boot_id:
        return f"its boot is {claim.boot_id}, the route's is {hop.boot_id}"
    if claim.recipe_key != key:
        return f"its recipe is {claim.recipe_key}, ours is {key}"
    if (
        claim.start is None
        or claim.end is None
        or not claim.start <= hop.start < hop.end <= claim.end
    ):
        return f"it holds [{claim.start}, {claim.end}), the route's is [{hop.start}, {hop.end})"
    return None


def _bars(claim: ClaimAnswer, purpose: Purpose) -> str | None:
    """What keeps a claim from `purpose`. Silence does not: whether it answers, asking it will tell."""
    if purpose == "handshake":
        return None
    allowed = {"not-live"} if purpose == "serve" else {"not-live", "dark"}
    barred = [reason for reason in claim.reasons if reason not in allowed]
    return ", ".join(barred) or None


async def _claim(tracker: Tracker, node: str, shard_id: str) -> ClaimAnswer:
    try:
        return await tracker.ask(ClaimQuery(node=node, shard_id=shard_id))
    except QueryRefused as refusal:
        raise _refused(refusal) from refusal
    except Unreachable as error:
        raise _unreachable(error) from error


async def _node(tracker: Tracker, node: str) -> NodeAnswer:
    try:
        return await tracker.ask(NodeQuery(node=node))
    except QueryRefused as refusal:
        raise _refused(refusal) from refusal
    except Unreachable as error:
        raise _unreachable(error) from error


def _refused(refusal: QueryRefused) -> SessionFailed:
    code = pb.ERROR_CODE_UNKNOWN_PEER if refusal.code == NOT_FOUND else pb.ERROR_CODE_UNAVAILABLE
    return SessionFailed(code, f"the tracker says {refusal.code}: {refusal.detail}")


def _unreachable(error: Unreachable) -> SessionFailed:
    return SessionFailed(pb.ERROR_CODE_UNAVAILABLE, f"the tracker cannot be asked: {error}")
