"""Is the peer that just opened a session computing the same thing?

Only a fingerprint crosses the wire, so a difference is known down to its half: the artifact
(`artifact`) or the recipe (`fingerprint`; which axis differs, only the identity blocks can tell).
What cannot be read as a fingerprint at all is `fingerprint`, alone.
"""

from collections.abc import Iterable

from meshnet_node.recipe_identity._checks import RecipeIdentityError
from meshnet_node.recipe_identity._identity import CompatibilityFingerprint, ShardIdentity
from meshnet_node.recipe_identity._mismatch import (
    MISMATCH_ARTIFACT,
    MISMATCH_FINGERPRINT,
    RouteMismatch,
)
from meshnet_proto import shard_runtime_pb2


def check_handshake(
    local: ShardIdentity | CompatibilityFingerprint, remote_proto: object
) -> tuple[RouteMismatch, ...]:
    """Compare what a peer presented with our own fingerprint; empty means the same.

    `remote_proto` is a `meshnet.shard.v1.Fingerprint`. It may hold anything: no input raises.
    """
    ours = local.fingerprint if isinstance(local, ShardIdentity) else local
    try:
        theirs = CompatibilityFingerprint.from_proto(remote_proto)
    except RecipeIdentityError as error:
        return (RouteMismatch(MISMATCH_FINGERPRINT, f"the peer presented none: {error}"),)
    reasons = []
    if theirs.model_artifact_digest != ours.model_artifact_digest:
        reasons.append(
            RouteMismatch(
                MISMATCH_ARTIFACT,
                f"the peer's model_artifact_digest is {theirs.model_artifact_digest}, "
                f"expected {ours.model_artifact_digest}",
            )
        )
    if theirs.runtime_recipe_digest != ours.runtime_recipe_digest:
        reasons.append(
            RouteMismatch(
                MISMATCH_FINGERPRINT,
                f"the peer's runtime_recipe_digest is {theirs.runtime_recipe_digest}, "
                f"expected {ours.runtime_recipe_digest}",
            )
        )
    return tuple(reasons)


def handshake_error(mismatches: Iterable[RouteMismatch]) -> shard_runtime_pb2.ShardError | None:
    """The refusal to send to the peer, or None when there is nothing to refuse.

    It is never retryable: the same two processes will differ again.
    """
    reasons = tuple(mismatches)
    if not reasons:
        return None
    return shard_runtime_pb2.ShardError(
        code=shard_runtime_pb2.ERROR_CODE_FINGERPRINT_MISMATCH,
        detail="; ".join(mismatch.describe() for mismatch in reasons),
        retryable=False,
    )
