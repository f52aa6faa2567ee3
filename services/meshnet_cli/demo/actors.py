"""Scripted nodes. Keys, signatures, chains and events are real; no model is behind them.

The events say so as well as they can: the backend is called `demo-script`, the diagnostics tell, and
hosts are declared, which the demo's realm accepts. A real node proves what it claims by computing.
"""

import uuid

import msgspec
from msgspec import Struct

from meshnet_bus.publisher import Published, Publisher
from meshnet_cli.demo.model import LAYERS, MIDDLE, digest
from meshnet_events import facts
from meshnet_events.envelope import canonical
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
        fingerprint = shard.fingerprint
        proof = facts.Capability(
            backend_id=shard.recipe.backend_id,
            device="cpu",
            diagnostics=("scripted: no model was run",),
            duration_ms=1,
            model_artifact_digest=fingerprint.model_artifact_digest,
            model_id=shard.artifact.artifact_id,
            output_digest=digest("output", self.name),
            recipe_id=fingerprint.recipe_id,
            recipe_version=fingerprint.recipe_version,
            runtime_recipe_digest=fingerprint.runtime_recipe_digest,
            shard_end=shard.shard_end,
            shard_start=shard.shard_start,
            status="passed",
            synthetic=False,
            tokens=4,
            validated_at_ms=validated_at_ms,
        )
        return await self.publisher.publish(
            facts.ShardRegistered(
                boot_id=self.boot_id,
                capability=proof,
                device="cpu",
                endpoint=f"grpc://{self.name}.example:7001",
                host=facts.Host(id=digest("host", self.host), source="declared"),
                identity=msgspec.Raw(canonical(shard.to_dict(with_fingerprint=True))),
                shard_id="main",
            )
        )

    async def shake_hands(self, peer: "Actor", ours: ShardIdentity, *, role: str) -> Published:
        """Report that `peer` presented the same fingerprint."""
        members = msgspec.structs.asdict(_fact_of(ours))
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
        chain = (evidence.input_digest, *evidence.seams, evidence.output_digest)
        return await self.publisher.publish(
            facts.ForwardAttested(
                evidence=evidence, hop=hop, in_digest=chain[hop], out_digest=chain[hop + 1]
            )
        )


def forward(
    session: str, first: Actor, last: Actor, shard: ShardIdentity, now_ms: int
) -> facts.Evidence:
    """The evidence that `first` and `last` would have of a forward cut in the middle."""
    fingerprint = shard.fingerprint
    return facts.Evidence(
        completed_at_ms=now_ms,
        hops=tuple(
            facts.Hop(
                boot_id=actor.boot_id,
                end=end,
                node=actor.key.public,
                shard_id="main",
                start=start,
            )
            for actor, start, end in ((first, 0, MIDDLE), (last, MIDDLE, LAYERS))
        ),
        input_digest=digest("prompt", session),
        layer_count=LAYERS,
        model_artifact_digest=fingerprint.model_artifact_digest,
        output_digest=digest("tokens", session),
        route_epoch=0,
        route_session_id=session,
        runtime_recipe_digest=fingerprint.runtime_recipe_digest,
        seams=(digest("activations", session),),
        synthetic=False,
        tokens_generated=16,
    )


def _fact_of(shard: ShardIdentity) -> facts.Fingerprint:
    fingerprint = shard.fingerprint
    return facts.Fingerprint(
        catalogue_version=fingerprint.catalogue_version,
        model_artifact_digest=fingerprint.model_artifact_digest,
        recipe_id=fingerprint.recipe_id,
        recipe_version=fingerprint.recipe_version,
        runtime_recipe_digest=fingerprint.runtime_recipe_digest,
    )
