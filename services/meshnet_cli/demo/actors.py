"""Scripted nodes. Keys, signatures, chains and events are real; no model is behind them.

The events say so as well as they can: the backend is called `demo-script`, the diagnostics tell, and
hosts are declared, which the demo's realm accepts. A real node proves what it claims by computing.
"""

import uuid

import msgspec
from msgspec import Struct

from meshnet_bus.publisher import Published, Publisher
from meshnet_cli import scripted
from meshnet_events import facts
from meshnet_events.keys import EventKey
from meshnet_node.recipe_identity import ShardIdentity


class Actor(Struct):
    """One scripted node in one boot."""

    name: str
    host: str
    key: EventKey
    publisher: Publisher
    boot_id: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))

    async def register(self, shard: ShardIdentity, *, validated_at_ms: int) -> Published:
        """Offer `shard`, with a proof of that age."""
        proof = scripted.capability(
            shard,
            device="cpu",
            diagnostics=("scripted: no model was run",),
            output_digest=scripted.digest("output", self.name),
            validated_at_ms=validated_at_ms,
        )
        return await self.publisher.publish(
            facts.ShardRegistered(
                boot_id=self.boot_id,
                capability=proof,
                device="cpu",
                endpoint=f"grpc://{self.name}.example:7001",
                host=facts.Host(id=scripted.digest("host", self.host), source="declared"),
                identity=scripted.identity_block(shard),
                shard_id=scripted.SHARD_ID,
            )
        )

    async def shake_hands(self, peer: "Actor", ours: ShardIdentity, *, role: str) -> Published:
        """Report that `peer` presented the same fingerprint."""
        members = scripted.members(ours)
        return await self.publisher.publish(
            facts.HandshakeCompleted(
                accepted=True,
                boot_id=self.boot_id,
                local=facts.Fingerprint(**members),
                mismatches=(),
                peer=peer.key.public,
                peer_boot_id=peer.boot_id,
                presented=facts.PresentedFingerprint(**members),
                role="initiator" if role == "initiator" else "responder",
                route_epoch=0,
                route_session_id="demo-handshake",
            )
        )

    async def attest(self, evidence: facts.Evidence, hop: int) -> Published:
        """Say that this is what was seen at `hop`."""
        return await self.publisher.publish(scripted.attestation(evidence, hop))
