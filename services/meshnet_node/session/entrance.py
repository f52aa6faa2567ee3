"""How a session begins at a hop: what is asked before it is accepted, in this order.

    challenge out, open in      within a bound
    form, realm, proof          `opening`: a stranger costs one signature check
    boot, shard                 what this process is and holds
    the caller                  `peers`: who it is, as the tracker knows it
    fingerprint                 `check_handshake`; both sides publish what came of it
    range                       the layers asked for, and how the hops after go on
    backend                     whether it answers, where something is to be computed
    our own claim               `peers`: whether it may serve, or certify
    epoch                       `epochs`: a session's id and epoch are good for one forward

Nothing is published about a driver: it is nobody's neighbour. A hop publishes only of a peer that
proved its key and is a node of the realm in its current boot.
"""

import secrets
from typing import NamedTuple, Protocol

from meshnet_events.session import NONCE_BYTES
from meshnet_node.handshake import presented_in
from meshnet_node.recipe_identity import check_handshake, handshake_error
from meshnet_node.session.epochs import Seat
from meshnet_node.session.failure import SessionFailed, violation
from meshnet_node.session.link import Meeting
from meshnet_node.session.node import Node, ServedShard
from meshnet_node.session.opening import Opening, range_fault, read_opening
from meshnet_node.session.peers import check_caller, check_status
from meshnet_node.session.transport import MAX_SMALL_FRAME_BYTES
from meshnet_node.session.waiting import within
from meshnet_proto import shard_runtime_pb2 as pb


class Stream(Protocol):
    """The caller's stream, as a hop sees it."""

    async def receive(self, most_bytes: int) -> pb.CallerFrame | None:
        """The next frame; None when the caller will send no more.

        Raises SessionFailed for one that is larger or cannot be read.
        """

    async def send(self, frame: pb.ResponderFrame) -> None:
        """Send a frame."""


class CallerGone(Exception):
    """The caller closed its end before the session was over."""


class Entered(NamedTuple):
    """A session that was accepted, and its seat among all that run here."""

    opening: Opening
    shard: ServedShard
    seat: Seat


async def enter(node: Node, stream: Stream) -> Entered:
    """Everything up to `SessionAccepted`. Raises SessionFailed or CallerGone."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    challenge = pb.SessionChallenge(key=node.key.public, nonce=nonce)
    with within(node.limits.open_timeout_s, "SessionOpen"):
        frame = await _challenged(stream, challenge)
    opening = read_opening(frame, realm=node.realm, key=node.key.public, nonce=nonce)
    shard = _shard_of(node, opening)
    await check_caller(node.tracker, opening)
    mismatches = check_handshake(shard.identity, opening.presented)
    if opening.is_between_neighbours:
        meeting = Meeting(opening.terms, opening.presented, mismatches)
        await node.report(meeting, "responder", shard)
    ours = shard.fingerprint.to_proto()
    proof = opening.terms.prove(node.key, "responder", presented_in(ours))
    responder = pb.Responder(boot_id=node.boot_id, fingerprint=ours, proof=proof)
    error = handshake_error(mismatches)
    if error is not None:
        raise SessionFailed(error.code, error.detail, responder=responder)
    held = shard.facts
    fault = range_fault(opening, start=held.start, end=held.end, layer_count=held.layer_count)
    if fault is not None:
        raise SessionFailed(pb.ERROR_CODE_RANGE_MISMATCH, fault)
    if opening.purpose != "handshake" and shard.shard_id not in node.answering:
        raise SessionFailed(
            pb.ERROR_CODE_UNAVAILABLE, "the backend does not return from a call: try another node"
        )
    await check_status(node.tracker, opening)
    seat = await _seat(node, opening)
    accepted = pb.ResponderFrame(accepted=pb.SessionAccepted(responder=responder))
    try:
        with within(node.limits.open_timeout_s, "room to answer"):
            await stream.send(accepted)
    except BaseException:
        node.epochs.leave(opening.session[0], seat)
        raise
    return Entered(opening, shard, seat)


async def _seat(node: Node, opening: Opening) -> Seat:
    caller = opening.terms.keys.caller
    if opening.purpose == "handshake":  # nothing is computed, so there is nothing to be in the way
        return Seat(caller)
    return await node.epochs.enter(*opening.session, opening.hop, caller)


async def _challenged(stream: Stream, challenge: pb.SessionChallenge) -> pb.SessionOpen:
    """The caller's answer to our challenge."""
    await stream.send(pb.ResponderFrame(challenge=challenge))
    frame = await stream.receive(MAX_SMALL_FRAME_BYTES)
    if frame is None:
        raise CallerGone
    if frame.WhichOneof("frame") != "open":
        raise violation(f"{frame.WhichOneof('frame') or 'an unknown frame'}, expected open")
    return frame.open


def _shard_of(node: Node, opening: Opening) -> ServedShard:
    asked = opening.terms.boots.responder
    if asked != node.boot_id:
        raise SessionFailed(
            pb.ERROR_CODE_STALE_BOOT,
            f"boot {asked} was asked for, this process is boot {node.boot_id}: plan the route anew",
        )
    shard = node.shards.get(opening.shard_id)
    if shard is None:
        raise SessionFailed(
            pb.ERROR_CODE_RANGE_MISMATCH, f"no shard {opening.shard_id!r} is served here"
        )
    return shard
