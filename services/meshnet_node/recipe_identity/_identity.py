"""The four identities and their blocks: artifact, recipe, fingerprint, shard.

Every type checks itself when it is made, so a value that exists is sound; `from_dict` adds what
only a block can get wrong (an axis left out, a member nobody knows, a fingerprint that lies).
"""

from typing import Any, Self

from msgspec import Struct

from meshnet_node.recipe_identity._canonical import domain_digest
from meshnet_node.recipe_identity._checks import (
    RecipeIdentityError,
    check_digest,
    check_integer,
    check_pin,
    check_text,
    check_type,
    found,
    members,
)
from meshnet_node.recipe_identity._mismatch import (
    MISMATCH_ACTIVATION_RECIPE,
    MISMATCH_ARCHITECTURE,
    MISMATCH_BACKEND,
    MISMATCH_BOUNDARY_SCHEMA,
    MISMATCH_CACHE_LAYOUT,
    MISMATCH_FINGERPRINT,
    MISMATCH_RUNTIME,
    MISMATCH_TOKENIZER,
    MISMATCH_WEIGHT_QUANTIZATION,
    RouteIncompatible,
    RouteMismatch,
)
from meshnet_proto import BUNDLE_VERSION, SCHEMA_VERSION, shard_runtime_pb2

IDENTITY_SCHEMA_VERSION = 1
ARTIFACT_DOMAIN = "meshnet.model-artifact.v1"
RECIPE_DOMAIN = "meshnet.runtime-recipe.v1"

AXIS_REASONS = {
    "weight_quantization": MISMATCH_WEIGHT_QUANTIZATION,
    "activation_dtype": MISMATCH_ACTIVATION_RECIPE,
    "compute_dtype": MISMATCH_ACTIVATION_RECIPE,
    "kv_dtype": MISMATCH_CACHE_LAYOUT,
    "kv_layout": MISMATCH_CACHE_LAYOUT,
    "tokenizer_revision": MISMATCH_TOKENIZER,
    "architecture_adapter": MISMATCH_ARCHITECTURE,
    "backend_id": MISMATCH_BACKEND,
    "runtime_version": MISMATCH_RUNTIME,
    "boundary_schema_version": MISMATCH_BOUNDARY_SCHEMA,
    "protocol_schema_version": MISMATCH_BOUNDARY_SCHEMA,
}
"""Each axis and the reason a route reports when it differs."""

RECIPE_AXES = tuple(AXIS_REASONS)

_INTEGER_AXES = ("boundary_schema_version", "protocol_schema_version")
_RECIPE_LABELS = ("recipe_id", "recipe_version", "catalogue_version")
_ARTIFACT_MEMBERS = (
    "artifact_id",
    "revision",
    "content_digest",
    "architecture",
    "architecture_digest",
    "layer_count",
)
_BINDING_MEMBERS = ("source_artifact_digest", "shard_start", "shard_end")
_FINGERPRINT_DIGESTS = ("model_artifact_digest", "runtime_recipe_digest")
_SHARD_MEMBERS = ("schema_version", "artifact", "recipe", "shard_start", "shard_end")


def _members_of(value: Struct, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


class DerivativeBinding(Struct, frozen=True):
    """What a cut file was cut from: the source's content digest and the layers `[start, end)`."""

    source_artifact_digest: str
    shard_start: int
    shard_end: int

    def __post_init__(self) -> None:
        field = "artifact.derived_from"
        check_digest(self.source_artifact_digest, f"{field}.source_artifact_digest")
        _check_range(self.shard_start, self.shard_end, f"{field}.")

    def covers(self, start: int, end: int) -> bool:
        """Whether layers `[start, end)` lie within the cut."""
        return self.shard_start <= start and end <= self.shard_end

    def to_dict(self) -> dict[str, Any]:
        """The block's `derived_from`."""
        return _members_of(self, _BINDING_MEMBERS)

    @classmethod
    def from_dict(cls, block: object) -> Self:
        """Parse a block's `derived_from`; raises RecipeIdentityError."""
        return cls(**members(block, "artifact.derived_from", _BINDING_MEMBERS))


class ArtifactIdentity(Struct, frozen=True):
    """Exactly which weights, config and architecture a shard loaded.

    `artifact_id` and `revision` say where the bytes came from and are not part of the digest: a
    mirror of identical bytes is the same artifact. `layer_count` is the transformer stack a route
    tiles, without next-token-prediction layers. A derivative carries its own `content_digest` and
    routes under its source's.
    """

    artifact_id: str
    revision: str
    content_digest: str
    architecture: str
    architecture_digest: str
    layer_count: int
    derived_from: DerivativeBinding | None = None

    def __post_init__(self) -> None:
        check_text(self.artifact_id, "artifact.artifact_id")
        check_pin(self.revision, "artifact.revision")
        check_digest(self.content_digest, "artifact.content_digest")
        check_text(self.architecture, "artifact.architecture")
        check_digest(self.architecture_digest, "artifact.architecture_digest")
        check_integer(self.layer_count, "artifact.layer_count", least=1)
        if self.derived_from is not None:
            self._check_derivation(self.derived_from)

    def _check_derivation(self, binding: DerivativeBinding) -> None:
        field = "artifact.derived_from"
        check_type(binding, DerivativeBinding, field)
        if binding.source_artifact_digest == self.content_digest:
            raise RecipeIdentityError(
                f"{field}.source_artifact_digest: found the artifact's own content_digest, "
                "expected that of the file it was cut from"
            )
        if binding.shard_end > self.layer_count:
            raise RecipeIdentityError(
                f"{field}.shard_end: found {binding.shard_end}, expected at most "
                f"artifact.layer_count, {self.layer_count}"
            )

    @property
    def is_derivative(self) -> bool:
        """Whether the file was cut from another."""
        return self.derived_from is not None

    @property
    def source_digest(self) -> str:
        """Content digest of the whole artifact: the binding's source, or its own."""
        if self.derived_from is not None:
            return self.derived_from.source_artifact_digest
        return self.content_digest

    @property
    def model_artifact_digest(self) -> str:
        """The artifact's half of the fingerprint, 64 hex."""
        return domain_digest(
            ARTIFACT_DOMAIN,
            {
                "source_digest": self.source_digest,
                "architecture": self.architecture,
                "architecture_digest": self.architecture_digest,
                "layer_count": self.layer_count,
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """The block's `artifact`."""
        binding = self.derived_from
        return {
            **_members_of(self, _ARTIFACT_MEMBERS),
            "derived_from": None if binding is None else binding.to_dict(),
        }

    @classmethod
    def from_dict(cls, block: object) -> Self:
        """Parse a block's `artifact` (`derived_from` is optional); raises RecipeIdentityError."""
        stated = dict(members(block, "artifact", _ARTIFACT_MEMBERS, ("derived_from",)))
        binding = stated.pop("derived_from", None)
        return cls(
            **stated,
            derived_from=None if binding is None else DerivativeBinding.from_dict(binding),
        )


class RuntimeRecipe(Struct, frozen=True):
    """How a shard executes its artifact: eleven axes, and three labels that ride along."""

    weight_quantization: str
    activation_dtype: str
    compute_dtype: str
    kv_dtype: str
    kv_layout: str
    tokenizer_revision: str
    architecture_adapter: str
    backend_id: str
    runtime_version: str
    boundary_schema_version: int = BUNDLE_VERSION
    protocol_schema_version: int = SCHEMA_VERSION
    recipe_id: str = "unnamed"
    recipe_version: str = "0"
    catalogue_version: str = "0"

    def __post_init__(self) -> None:
        for name in (*RECIPE_AXES, *_RECIPE_LABELS):
            value, field = getattr(self, name), f"recipe.{name}"
            if name in _INTEGER_AXES:
                check_integer(value, field, least=1)
            elif name == "tokenizer_revision":
                check_pin(value, field)
            else:
                check_text(value, field)

    @property
    def axes(self) -> dict[str, str | int]:
        """The eleven axes by name, in the order of `RECIPE_AXES`."""
        return _members_of(self, RECIPE_AXES)

    @property
    def runtime_recipe_digest(self) -> str:
        """The recipe's half of the fingerprint, 64 hex."""
        return domain_digest(RECIPE_DOMAIN, self.axes)

    def to_dict(self) -> dict[str, Any]:
        """The block's `recipe`."""
        return _members_of(self, (*RECIPE_AXES, *_RECIPE_LABELS))

    @classmethod
    def from_dict(cls, block: object) -> Self:
        """Parse a block's `recipe`; raises RecipeIdentityError.

        Nothing defaults here: an axis that is not stated is not proven.
        """
        return cls(**members(block, "recipe", (*RECIPE_AXES, *_RECIPE_LABELS)))


class CompatibilityFingerprint(Struct, frozen=True):
    """What admission and the handshake compare: two digests, the recipe's labels beside them."""

    model_artifact_digest: str
    runtime_recipe_digest: str
    recipe_id: str
    recipe_version: str
    catalogue_version: str

    def __post_init__(self) -> None:
        for name in _FINGERPRINT_DIGESTS:
            check_digest(getattr(self, name), f"fingerprint.{name}")
        for name in _RECIPE_LABELS:
            check_text(getattr(self, name), f"fingerprint.{name}")

    @property
    def key(self) -> tuple[str, str]:
        """The two digests: all that is ever compared."""
        return self.model_artifact_digest, self.runtime_recipe_digest

    def matches(self, other: "CompatibilityFingerprint") -> bool:
        """Whether both name the same artifact and recipe, whatever their labels."""
        return self.key == other.key

    def to_dict(self) -> dict[str, str]:
        """The five members."""
        return _members_of(self, (*_FINGERPRINT_DIGESTS, *_RECIPE_LABELS))

    @classmethod
    def from_dict(cls, block: object) -> Self:
        """Parse a block's `fingerprint`; raises RecipeIdentityError."""
        return cls(**members(block, "fingerprint", (*_FINGERPRINT_DIGESTS, *_RECIPE_LABELS)))

    def to_proto(self) -> shard_runtime_pb2.Fingerprint:
        """The message a handshake presents."""
        return shard_runtime_pb2.Fingerprint(**self.to_dict())

    @classmethod
    def from_proto(cls, message: object) -> Self:
        """Read what a peer presented; raises RecipeIdentityError.

        A member the peer left out arrives as an empty text and is refused like one; so is a message
        with members that are not known here.
        """
        if not isinstance(message, shard_runtime_pb2.Fingerprint):
            raise RecipeIdentityError(
                f"fingerprint: found {found(message)}, expected a meshnet.shard.v1.Fingerprint"
            )
        fingerprint = cls(
            model_artifact_digest=message.model_artifact_digest,
            runtime_recipe_digest=message.runtime_recipe_digest,
            recipe_id=message.recipe_id,
            recipe_version=message.recipe_version,
            catalogue_version=message.catalogue_version,
        )
        # A message keeps members it does not know, and only they can make it larger than ours.
        if message.ByteSize() != fingerprint.to_proto().ByteSize():
            raise RecipeIdentityError(
                "fingerprint: found members that are not known here; the peer's protocol is newer"
            )
        return fingerprint


class ShardIdentity(Struct, frozen=True):
    """Layers `[shard_start, shard_end)` of an artifact, executed under a recipe."""

    artifact: ArtifactIdentity
    recipe: RuntimeRecipe
    shard_start: int
    shard_end: int

    def __post_init__(self) -> None:
        check_type(self.artifact, ArtifactIdentity, "artifact")
        check_type(self.recipe, RuntimeRecipe, "recipe")
        _check_range(self.shard_start, self.shard_end, "")
        if self.shard_end > self.artifact.layer_count:
            raise RecipeIdentityError(
                f"shard_end: found {self.shard_end}, expected at most artifact.layer_count, "
                f"{self.artifact.layer_count}"
            )
        binding = self.artifact.derived_from
        if binding is not None and not binding.covers(self.shard_start, self.shard_end):
            raise RecipeIdentityError(
                f"shard_start, shard_end: found [{self.shard_start}, {self.shard_end}), expected a "
                f"range within artifact.derived_from, [{binding.shard_start}, {binding.shard_end})"
            )

    @property
    def fingerprint(self) -> CompatibilityFingerprint:
        """Derived each time it is asked for; never stored and never taken from the wire."""
        return CompatibilityFingerprint(
            model_artifact_digest=self.artifact.model_artifact_digest,
            runtime_recipe_digest=self.recipe.runtime_recipe_digest,
            recipe_id=self.recipe.recipe_id,
            recipe_version=self.recipe.recipe_version,
            catalogue_version=self.recipe.catalogue_version,
        )

    def to_dict(self, *, with_fingerprint: bool = False) -> dict[str, Any]:
        """The identity block. A registration must declare its fingerprint: ask for it then."""
        block = {
            "schema_version": IDENTITY_SCHEMA_VERSION,
            "artifact": self.artifact.to_dict(),
            "recipe": self.recipe.to_dict(),
            "shard_start": self.shard_start,
            "shard_end": self.shard_end,
        }
        if with_fingerprint:
            block["fingerprint"] = self.fingerprint.to_dict()
        return block

    @classmethod
    def from_dict(cls, block: object) -> Self:
        """Parse an identity block.

        Raises RecipeIdentityError, or RouteIncompatible with reason `fingerprint` when the block
        declares a fingerprint that does not follow from the rest of it.
        """
        stated = members(block, "", _SHARD_MEMBERS, ("fingerprint",))
        version = stated["schema_version"]
        if type(version) is not int or version != IDENTITY_SCHEMA_VERSION:
            raise RecipeIdentityError(
                f"schema_version: found {found(version)}, expected the integer "
                f"{IDENTITY_SCHEMA_VERSION}"
            )
        identity = cls(
            artifact=ArtifactIdentity.from_dict(stated["artifact"]),
            recipe=RuntimeRecipe.from_dict(stated["recipe"]),
            shard_start=stated["shard_start"],
            shard_end=stated["shard_end"],
        )
        if "fingerprint" in stated:
            identity._check_declared(CompatibilityFingerprint.from_dict(stated["fingerprint"]))
        return identity

    def _check_declared(self, declared: CompatibilityFingerprint) -> None:
        derived = self.fingerprint
        lies = [
            f"{name} is {getattr(declared, name)}, derived {getattr(derived, name)}"
            for name in _FINGERPRINT_DIGESTS
            if getattr(declared, name) != getattr(derived, name)
        ]
        if lies:
            raise RouteIncompatible(
                [RouteMismatch(MISMATCH_FINGERPRINT, f"declared {'; '.join(lies)}")]
            )


def _check_range(start: int, end: int, prefix: str) -> None:
    """Refuse anything but a non-empty `[start, end)` from layer 0 on."""
    check_integer(start, f"{prefix}shard_start", least=0)
    check_integer(end, f"{prefix}shard_end", least=0)
    if end <= start:
        raise RecipeIdentityError(
            f"{prefix}shard_end: found {end}, expected more than shard_start, {start}"
        )
