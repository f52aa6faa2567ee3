"""What pinning yields: an identity, the recipe fields that the file decides, and the files behind.

The other recipe axes (dtypes, cache, backend, runtime) are the node's to declare; a file says
nothing of them. `architecture_adapter` is the file's name for its architecture: a backend whose
adapter has another name declares that instead.

The content digest of one file is the SHA-256 of its bytes; that of a set, over the digests of its
parts, is `meshnet_node.targets.set_digest`, where a locked target is checked by the same rule.
"""

from typing import Any

import msgspec
from msgspec import Struct

from meshnet_node.pin.errors import PinError
from meshnet_node.pin.identity import ModelFacts, Origin
from meshnet_node.pin.split import Artifact
from meshnet_node.recipe_identity import ArtifactIdentity, DerivativeBinding, RecipeIdentityError
from meshnet_node.targets import ArchitectureFacts, LockedFile, LockedTarget, TargetFacts


class Pinned(Struct, frozen=True):
    """One artifact, pinned.

    `recipe_fields` maps axes of `RuntimeRecipe` to values: `weight_quantization`,
    `architecture_adapter`, and `tokenizer_revision` unless the file holds no tokenizer.
    `nextn_layers` counts the next-token-prediction layers held beside `artifact.layer_count`.
    `files` are named without folder, so that a pin tells no one's paths. `tensors` maps groups of
    tensors to digests (`meshnet_node.pin.tensors`): of a cut, and of a whole model where it was asked
    for them.
    """

    artifact: ArtifactIdentity
    recipe_fields: dict[str, str]
    files: tuple[LockedFile, ...]
    nextn_layers: int
    tensors: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """JSON values: the block's `artifact`, its derived digest, recipe fields, files."""
        return {
            "artifact": self.artifact.to_dict(),
            "model_artifact_digest": self.artifact.model_artifact_digest,
            "recipe": dict(self.recipe_fields),
            "files": [msgspec.to_builtins(file) for file in self.files],
        }

    def target_facts(self, name: str) -> TargetFacts:
        """The facts of a new target called `name`, as far as the files tell them."""
        return TargetFacts(
            name=name,
            repository=self.artifact.artifact_id,
            quantization=self.recipe_fields["weight_quantization"],
            architecture=ArchitectureFacts(
                model_type=self.artifact.architecture,
                num_hidden_layers=self.artifact.layer_count,
                total_artifact_layers=self.artifact.layer_count + self.nextn_layers,
            ),
        )

    def lock(self, facts: TargetFacts, *, before: LockedTarget | None = None) -> LockedTarget:
        """The target of `facts`, locked to these files, for `write_locked_target`.

        `before` is its lock until now: what that records of a forward is kept if it is of the same
        content. Raises `LockedTargetError` if they are not the files of that target: pinned under
        another `artifact_id` than its repository, with other layers, or a cut.
        """
        content = self.artifact.content_digest
        return LockedTarget(
            facts,
            self.artifact,
            self.files,
            dict(self.recipe_fields),
            tensors=dict(self.tensors),
            forward=before.forward
            if before and before.artifact.content_digest == content
            else None,
        )


def identify(
    artifact: Artifact,
    facts: ModelFacts,
    digest: str,
    *,
    artifact_id: str | None,
    revision: str | None = None,
) -> ArtifactIdentity:
    """The identity. Raises `PinError` for a label that cannot stand, such as a moving revision.

    `artifact_id` defaults to the model's own name, or the file's; `revision` to its digest, which
    pins a file that came from nowhere in particular.
    """
    try:
        return ArtifactIdentity(
            artifact_id=artifact_id if artifact_id is not None else facts.name or artifact.stem,
            revision=revision if revision is not None else f"sha256:{digest}",
            content_digest=digest,
            architecture=facts.architecture,
            architecture_digest=facts.architecture_digest,
            layer_count=facts.layers.layer_count,
            derived_from=_binding(facts.origin),
        )
    except RecipeIdentityError as error:
        raise PinError(f"{artifact.head.path}: {error}") from error


def _binding(origin: Origin | None) -> DerivativeBinding | None:
    if origin is None:
        return None
    return DerivativeBinding(
        source_artifact_digest=origin.source_digest,
        shard_start=origin.start,
        shard_end=origin.end,
    )


def pinned(
    identity: ArtifactIdentity,
    facts: ModelFacts,
    files: tuple[LockedFile, ...],
    tensors: dict[str, str],
) -> Pinned:
    """Put the parts together."""
    recipe_fields = {
        "weight_quantization": facts.weight_quantization,
        "architecture_adapter": facts.architecture,
    }
    if facts.tokenizer_digest is not None:
        recipe_fields["tokenizer_revision"] = facts.tokenizer_digest
    return Pinned(identity, recipe_fields, files, facts.layers.nextn_layers, tensors)
