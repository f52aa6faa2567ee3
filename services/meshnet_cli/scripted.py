"""Facts about a shard that a script states, for the demo and the benches: no model is behind them.

A real node computes what these make up. Digests here stand for something that it would have hashed.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from meshnet_events import facts
from meshnet_events.envelope import canonical
from meshnet_node.recipe_identity import ShardIdentity

SHARD_ID = "main"


def digest(*words: object) -> str:
    """64 hex that stand for something."""
    return hashlib.sha256("/".join(map(str, words)).encode()).hexdigest()


def identity_block(shard: ShardIdentity) -> msgspec.Raw:
    """The `identity` of a registration of `shard`."""
    return msgspec.Raw(canonical(shard.to_dict(with_fingerprint=True)))


def members(shard: ShardIdentity) -> dict[str, str]:
    """The five members of the shard's fingerprint, for a fact to state."""
    fingerprint = shard.fingerprint
    return {
        "catalogue_version": fingerprint.catalogue_version,
        "model_artifact_digest": fingerprint.model_artifact_digest,
        "recipe_id": fingerprint.recipe_id,
        "recipe_version": fingerprint.recipe_version,
        "runtime_recipe_digest": fingerprint.runtime_recipe_digest,
    }


def capability(
    shard: ShardIdentity,
    *,
    device: str,
    output_digest: str,
    validated_at_ms: int,
    duration_ms: int = 1,
    diagnostics: tuple[str, ...] = (),
) -> facts.Capability:
    """A proof that passed, for exactly `shard`."""
    fingerprint = shard.fingerprint
    return facts.Capability(
        backend_id=shard.recipe.backend_id,
        device=device,
        diagnostics=diagnostics,
        duration_ms=duration_ms,
        model_artifact_digest=fingerprint.model_artifact_digest,
        model_id=shard.artifact.artifact_id,
        output_digest=output_digest,
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


def forward(
    session: str,
    participants: Sequence[tuple[str, str]],
    first: ShardIdentity,
    *,
    route_epoch: int,
    completed_at_ms: int,
) -> facts.Evidence:
    """Evidence that two participants, (node, boot) each, have of a forward cut where `first` ends."""
    fingerprint = first.fingerprint
    layers, cut = first.artifact.layer_count, first.shard_end
    return facts.Evidence(
        completed_at_ms=completed_at_ms,
        hops=tuple(
            facts.Hop(boot_id=boot_id, end=end, node=node, shard_id=SHARD_ID, start=start)
            for (node, boot_id), start, end in zip(
                participants, (0, cut), (cut, layers), strict=True
            )
        ),
        input_digest=digest(session, "input"),
        layer_count=layers,
        model_artifact_digest=fingerprint.model_artifact_digest,
        output_digest=digest(session, "output"),
        route_epoch=route_epoch,
        route_session_id=session,
        runtime_recipe_digest=fingerprint.runtime_recipe_digest,
        seams=(digest(session, "seam"),),
        synthetic=False,
        tokens_generated=16,
    )


def attestation(evidence: facts.Evidence, hop: int) -> facts.ForwardAttested:
    """The word of the participant at `hop`."""
    chain = (evidence.input_digest, *evidence.seams, evidence.output_digest)
    return facts.ForwardAttested(
        evidence=evidence, hop=hop, in_digest=chain[hop], out_digest=chain[hop + 1]
    )
