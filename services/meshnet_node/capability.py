"""What the doctor proved about one shard on this machine, and what it was asked to prove.

A `CapabilityContext` is the question (this backend, these layers, this recipe, on this device), a
`CapabilityReport` the answer: whether a bounded real forward passed, when, and what it measured. A
validator turns one into the other; the doctor has the only one for production, and
`meshnet_node.testing` has explicit ones for tests. A report is written as JSON beside the node's
configuration and ends up, flattened, in the event that registers the shard (`to_fact`).

Whether a report is good enough to register with is `meshnet_node.admission`'s to say.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Literal, Protocol, Self

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from meshnet_events.facts import Capability
from meshnet_node.recipe_identity import ArtifactIdentity, RuntimeRecipe, ShardIdentity

CapabilityStatus = Literal["passed", "failed", "error"]

NO_OUTPUT_DIGEST = hashlib.sha256().hexdigest()
"""`output_digest` of a forward that put nothing out: SHA-256 of nothing."""


class CapabilityReportError(ValueError):
    """A report cannot be read."""


class ProvenModel(Struct, frozen=True, forbid_unknown_fields=True):
    """The artifact that was loaded: its id and its half of the fingerprint (64 hex)."""

    model_id: str
    model_artifact_digest: str


class ProvenShard(Struct, frozen=True, forbid_unknown_fields=True):
    """The layers that were loaded, `[start, end)`."""

    start: int
    end: int


class ProvenRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """The recipe that was executed: its labels and its half of the fingerprint (64 hex)."""

    recipe_id: str
    recipe_version: str
    runtime_recipe_digest: str


class ProvenBackend(Struct, frozen=True, forbid_unknown_fields=True):
    """What executed it, and on which device."""

    backend_id: str
    device: str


class CapabilityReport(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The doctor's answer. `validated_at` is in seconds since the epoch, `duration_ms` whole.

    `status` is `passed`, `failed` (it ran and the numbers are wrong) or `error` (it did not run).
    `synthetic` marks a backend that computes no model. A `passed` that is stated, as a file may,
    must agree with `status` and is not kept: `passed` follows from it. Raises ValueError when the
    two disagree.
    """

    model: ProvenModel
    shard: ProvenShard
    recipe: ProvenRecipe
    backend: ProvenBackend
    status: CapabilityStatus
    validated_at: float
    tokens: int
    duration_ms: int
    output_digest: str = NO_OUTPUT_DIGEST
    synthetic: bool = False
    diagnostics: tuple[str, ...] = ()
    stated_passed: bool | UnsetType = field(default=UNSET, name="passed")

    def __post_init__(self) -> None:
        if self.stated_passed is UNSET:
            return
        if self.stated_passed is not self.passed:
            raise ValueError(
                f"passed: found {str(self.stated_passed).lower()} beside the status "
                f"{self.status!r}, expected the two to agree"
            )
        msgspec.structs.force_setattr(self, "stated_passed", UNSET)

    @property
    def passed(self) -> bool:
        """Whether the forward ran and its numbers are right."""
        return self.status == "passed"

    def to_json(self) -> bytes:
        """The report as it is kept on disk."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Read what `to_json` wrote; raises CapabilityReportError."""
        try:
            return msgspec.json.decode(content, type=cls)
        except msgspec.MsgspecError as error:
            raise CapabilityReportError(
                f"this is not a capability report: {error}; run `meshnet node doctor` again"
            ) from error

    def to_fact(self) -> Capability:
        """The `capability` of the event that registers the shard.

        Times become whole milliseconds, rounded down: a proof must not look younger than it is.
        Raises ValueError for a report that the contract has no form for.
        """
        return msgspec.convert(
            {
                "backend_id": self.backend.backend_id,
                "device": self.backend.device,
                "diagnostics": self.diagnostics,
                "duration_ms": self.duration_ms,
                "model_artifact_digest": self.model.model_artifact_digest,
                "model_id": self.model.model_id,
                "output_digest": self.output_digest,
                "recipe_id": self.recipe.recipe_id,
                "recipe_version": self.recipe.recipe_version,
                "runtime_recipe_digest": self.recipe.runtime_recipe_digest,
                "shard_end": self.shard.end,
                "shard_start": self.shard.start,
                "status": self.status,
                "synthetic": self.synthetic,
                "tokens": self.tokens,
                "validated_at_ms": math.floor(self.validated_at * 1000),
            },
            type=Capability,
        )


class CapabilityBackend(Protocol):
    """As much of a backend as a report speaks of."""

    @property
    def backend_id(self) -> str:
        """The recipe axis that names this backend."""

    @property
    def synthetic(self) -> bool:
        """Whether it computes no model."""


class ShardSelection(Struct, frozen=True):
    """Which layers `[start, end)` of which artifact are to be served."""

    artifact: ArtifactIdentity
    start: int
    end: int


class CapabilityContext(Struct, frozen=True):
    """What is to be proven. `manifest` is where the recipe was declared, handed on unread.

    Raises ValueError when the backend is not the one the recipe names, and RecipeIdentityError when
    the artifact does not have the layers: nothing could ever be proven for either.
    """

    backend: CapabilityBackend
    selection: ShardSelection
    recipe: RuntimeRecipe
    manifest: object
    device: str

    def __post_init__(self) -> None:
        if self.backend.backend_id != self.recipe.backend_id:
            raise ValueError(
                f"backend: found {self.backend.backend_id!r}, expected recipe.backend_id, "
                f"{self.recipe.backend_id!r}"
            )
        self.identity  # noqa: B018 - making it is the check

    @property
    def identity(self) -> ShardIdentity:
        """The identity that a passing report admits."""
        selection = self.selection
        return ShardIdentity(selection.artifact, self.recipe, selection.start, selection.end)


CapabilityValidator = Callable[[CapabilityContext], CapabilityReport]
"""Runs the forward a context asks for and reports. It answers with a report whatever happens."""


def report_for(
    context: CapabilityContext,
    *,
    status: CapabilityStatus,
    validated_at: float,
    tokens: int,
    duration_ms: int,
    output_digest: str = NO_OUTPUT_DIGEST,
    diagnostics: tuple[str, ...] = (),
) -> CapabilityReport:
    """Make a report about exactly what a context asks for; validators add what they measured."""
    fingerprint = context.identity.fingerprint
    return CapabilityReport(
        model=ProvenModel(
            context.selection.artifact.artifact_id, fingerprint.model_artifact_digest
        ),
        shard=ProvenShard(context.selection.start, context.selection.end),
        recipe=ProvenRecipe(
            context.recipe.recipe_id,
            context.recipe.recipe_version,
            fingerprint.runtime_recipe_digest,
        ),
        backend=ProvenBackend(context.backend.backend_id, context.device),
        status=status,
        validated_at=validated_at,
        tokens=tokens,
        duration_ms=duration_ms,
        output_digest=output_digest,
        synthetic=context.backend.synthetic,
        diagnostics=diagnostics,
    )
