"""One hop's word on the evidence of a driver: attested by an event of its own, or declined with why."""

import logging

import anyio

from meshnet_bus.outbox_file import OutboxError
from meshnet_events.facts import Hop
from meshnet_node.forward import Part, Seen, attestation, disagreements, read_evidence
from meshnet_node.session.failure import plain
from meshnet_node.session.node import Node, ServedShard
from meshnet_node.session.opening import Opening
from meshnet_proto import shard_runtime_pb2 as pb

_log = logging.getLogger("meshnet_node.session")


async def decide(
    node: Node, opening: Opening, shard: ServedShard, seen: Seen, content: bytes
) -> pb.Attestation:
    """Attest the evidence in `content`, once, or decline it.

    Attested means handed to the outbox: it will be published whatever happens. `sequence` is 0 where
    it was not stored within half of `attest_timeout_s`.
    """
    if opening.purpose != "certify":
        return declined(opening.hop, "this session was opened to serve, not to certify")
    try:
        evidence = read_evidence(content)
        part = _part(node, opening, shard, seen)
        against = disagreements(
            part, evidence, now_ms=node.clock_ms(), max_skew_ms=node.limits.max_skew_ms
        )
        if against:
            return declined(opening.hop, "; ".join(against))
        word = attestation(part, evidence)
        if not node.epochs.attest_once(*opening.session):
            return declined(opening.hop, "this node attested this session and epoch before")
        handed = await node.outbox.hand(word)
    except (ValueError, OutboxError) as error:
        return declined(opening.hop, str(error))
    sequence = 0
    with anyio.move_on_after(node.limits.attest_timeout_s / 2):
        try:
            sequence = (await node.outbox.stored(handed)).sequence
        except OutboxError as error:
            _log.info("hop %d attested, and that is not stored yet: %s", opening.hop, error)
    return pb.Attestation(hop=opening.hop, attested=True, sequence=sequence)


def declined(hop: int, why: str) -> pb.Attestation:
    """Say that a hop did not attest."""
    detail = plain(why)
    _log.warning("hop %d did not attest: %s", hop, detail)
    return pb.Attestation(hop=hop, attested=False, detail=detail)


def _part(node: Node, opening: Opening, shard: ServedShard, seen: Seen) -> Part:
    terms = opening.terms
    own = Hop(
        boot_id=node.boot_id,
        end=opening.end,
        node=node.key.public,
        shard_id=opening.shard_id,
        start=opening.start,
    )
    return Part(
        route_session_id=terms.route_session_id,
        route_epoch=terms.route_epoch,
        model_artifact_digest=shard.fingerprint.model_artifact_digest,
        runtime_recipe_digest=shard.fingerprint.runtime_recipe_digest,
        layer_count=shard.facts.layer_count,
        synthetic=shard.synthetic,
        index=opening.hop,
        before=(terms.keys.caller, terms.boots.caller) if opening.hop else None,
        hops=(own, *(hop.to_fact() for hop in opening.after)),
        seen=seen,
    )
