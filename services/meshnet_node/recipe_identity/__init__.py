"""What makes two shards the same computation, and what may be built from them.

Identity is a digest over executable semantics, not a model's name. An *artifact* is exactly which
weights, config and architecture were loaded; a *recipe* is how they are executed, along eleven axes
each of which can move the numbers. Their two digests are the *fingerprint*: shards that differ in
it may still exchange tensors of the right shape, and would emit the wrong tokens.

- Everything fails closed: an axis that is not stated is not proven, a member that is not known may
  move the numbers, a reference that can move is not a revision.
- A fingerprint is derived whenever it is needed; what a peer declares is compared, never adopted.
- Labels (recipe id, its version, the catalogue's) ride along for people and are never compared.
- The fingerprint leaves out the shard's range: shards of one route own different layers. Whether
  the route covers the model is a question about the route.
- No clock, file or network is used, but for `glm_alpha_artifact`, which reads the locked target it
  is named after.

The tracker derives the same digests on its own (`meshnet_tracker.recipe`). The two share no code
and are held together by committed vectors, so that one bug cannot make both sides wrong together.

    shard = ShardIdentity.from_dict(block)       # or RecipeIdentityError, naming the field
    shard.fingerprint.key                        # the two digests
    check_route([shard, …], registry=registry)   # every reason why not; () is yes
    check_handshake(shard, session_open.fingerprint)
"""

from meshnet_node.recipe_identity._canonical import canonical_sha256
from meshnet_node.recipe_identity._checks import RecipeIdentityError
from meshnet_node.recipe_identity._evidence import (
    EVIDENCE_COVERAGE,
    EVIDENCE_DUPLICATE_NODE,
    EVIDENCE_NO_TOKENS,
    EVIDENCE_SYNTHETIC,
    EVIDENCE_TOO_FEW_NODES,
    MIN_CERTIFYING_NODES,
    DistributedForwardEvidence,
    EvidenceRejection,
)
from meshnet_node.recipe_identity._handshake import check_handshake, handshake_error
from meshnet_node.recipe_identity._identity import (
    AXIS_REASONS,
    IDENTITY_SCHEMA_VERSION,
    RECIPE_AXES,
    ArtifactIdentity,
    CompatibilityFingerprint,
    DerivativeBinding,
    RuntimeRecipe,
    ShardIdentity,
)
from meshnet_node.recipe_identity._mismatch import (
    MISMATCH_ACTIVATION_RECIPE,
    MISMATCH_ARCHITECTURE,
    MISMATCH_ARTIFACT,
    MISMATCH_BACKEND,
    MISMATCH_BOUNDARY_SCHEMA,
    MISMATCH_CACHE_LAYOUT,
    MISMATCH_FINGERPRINT,
    MISMATCH_RANGE,
    MISMATCH_RUNTIME,
    MISMATCH_TOKENIZER,
    MISMATCH_UNCERTIFIED,
    MISMATCH_WEIGHT_QUANTIZATION,
    RouteIncompatible,
    RouteMismatch,
)
from meshnet_node.recipe_identity._registry import (
    RECIPE_STATUSES,
    STATUS_CERTIFIED,
    STATUS_DARK,
    STATUS_REVOKED,
    STATUS_UNKNOWN,
    RecipeNotCertified,
    RecipeRegistry,
    RecipeStatus,
)
from meshnet_node.recipe_identity._route import check_route, explain_mismatch, require_route

__all__ = [
    "AXIS_REASONS",
    "EVIDENCE_COVERAGE",
    "EVIDENCE_DUPLICATE_NODE",
    "EVIDENCE_NO_TOKENS",
    "EVIDENCE_SYNTHETIC",
    "EVIDENCE_TOO_FEW_NODES",
    "IDENTITY_SCHEMA_VERSION",
    "MIN_CERTIFYING_NODES",
    "MISMATCH_ACTIVATION_RECIPE",
    "MISMATCH_ARCHITECTURE",
    "MISMATCH_ARTIFACT",
    "MISMATCH_BACKEND",
    "MISMATCH_BOUNDARY_SCHEMA",
    "MISMATCH_CACHE_LAYOUT",
    "MISMATCH_FINGERPRINT",
    "MISMATCH_RANGE",
    "MISMATCH_RUNTIME",
    "MISMATCH_TOKENIZER",
    "MISMATCH_UNCERTIFIED",
    "MISMATCH_WEIGHT_QUANTIZATION",
    "RECIPE_AXES",
    "RECIPE_STATUSES",
    "STATUS_CERTIFIED",
    "STATUS_DARK",
    "STATUS_REVOKED",
    "STATUS_UNKNOWN",
    "ArtifactIdentity",
    "CompatibilityFingerprint",
    "DerivativeBinding",
    "DistributedForwardEvidence",
    "EvidenceRejection",
    "RecipeIdentityError",
    "RecipeNotCertified",
    "RecipeRegistry",
    "RecipeStatus",
    "RouteIncompatible",
    "RouteMismatch",
    "RuntimeRecipe",
    "ShardIdentity",
    "canonical_sha256",
    "check_handshake",
    "check_route",
    "explain_mismatch",
    "glm_alpha_artifact",
    "handshake_error",
    "require_route",
]


def glm_alpha_artifact(
    derived_from: DerivativeBinding | None = None, *, content_digest: str | None = None
) -> ArtifactIdentity:
    """Return the artifact that the locked target `glm_alpha` pins, or a file cut from it.

    A cut states what it was cut from and its own `content_digest`. For the whole artifact a
    `content_digest` is what the caller found, and must be the locked one. Raises
    RecipeIdentityError when the target is not locked (saying how to lock it) or the two disagree.
    """
    # Late, because targets are made of identities.
    from meshnet_node.targets import load_locked_target

    target = load_locked_target("glm_alpha")
    if derived_from is not None:
        if content_digest is None:
            raise RecipeIdentityError(
                "artifact.content_digest: found nothing, expected that of the cut file itself"
            )
        return target.cut(derived_from, content_digest=content_digest)
    if content_digest not in {None, target.artifact.content_digest}:
        raise RecipeIdentityError(
            "artifact.content_digest: found another than the locked one, expected "
            f"{target.artifact.content_digest}"
        )
    return target.artifact
