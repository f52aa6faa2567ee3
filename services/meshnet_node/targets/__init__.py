"""Locked targets: one model each, pinned down to its digests, in a file that people review.

A target is what it should be (name, repository, quantization, architecture facts) and, once
somebody had the files in hand, the *lock*: what they turned out to be. The file is JSON, called
`NAME.json`:

    {
      "format": "meshnet.locked-target.v1",
      "name": "tiny",
      "repository": "acme/tiny-gguf",
      "quantization": "Q8_0",
      "architecture": {"model_type": "llama", "num_hidden_layers": 2, "total_artifact_layers": 2},
      "lock": {
        "artifact": {"artifact_id": "acme/tiny-gguf", "revision": "<commit>", …},
        "files": [{"name": "tiny.gguf", "size_bytes": 4096, "sha256": "<64 hex>"}],
        "model_artifact_digest": "<64 hex>",
        "recipe": {"weight_quantization": "F32:5,Q8_0:14", …},
        "tensors": {"token_embd.weight": "<64 hex>", "blk.0": "<64 hex>", "blk.1": "<64 hex>", …},
        "forward": {
          "challenge": "meshnet.doctor-challenge.v1",
          "axes": {"activation_dtype": "float32", …, "backend_id": "reference-numpy"},
          "output_digest": "<64 hex>"
        }
      }
    }

`artifact` is the block of an identity, `recipe` the axes that the files decide.

`tensors` may be left out: they are digests of its tensor groups (`meshnet_node.pin.tensors`), which
show whose layers a cut holds. A target without them takes a cut at its word.

`forward` may be left out: it is what the doctor's forward through the *whole* model put out
(`meshnet_node.probe`), where it once ran with the values of `axes`, which are those of `FORWARD_AXES`. A
recipe with other values is not compared with it, and neither is a challenge of another name. Whoever has
a passing report of the whole model records it so, and reviews the change of the file:

    write_locked_target(path, with_forward(target, recipe, report.output_digest))

Rules
- `num_hidden_layers` is the stack that a route tiles; `total_artifact_layers` counts what the files
  hold, next-token-prediction layers included.
- Every digest is checked on load: `content_digest` follows from `files`, `model_artifact_digest`
  from `artifact`, and the artifact is the whole one, of that repository and that many layers. Those of
  `tensors` follow from the bytes alone: every block has one, and whoever has the files locks them again
  to see that they are right.
- `"lock": null` is a target nobody here had the files of. Loading it says how to complete it. A
  digest is never made up.
- A lock in the user's folder (`target_directory()`) goes before the one shipped with this package.
- Whoever was given a lock puts it there, or names its path: what holds a `/` or ends in `.json`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import platformdirs
from msgspec import Meta, Struct

from meshnet_node.challenge import CHALLENGE
from meshnet_node.files import read_file, replace_file
from meshnet_node.foreign import shown
from meshnet_node.recipe_identity import (
    RECIPE_AXES,
    ArtifactIdentity,
    DerivativeBinding,
    RecipeIdentityError,
    RuntimeRecipe,
    canonical_sha256,
)

MAX_TARGET_BYTES = 16 * 1024 * 1024
BLOCK_PREFIX = "blk."
"""How the tensor group of a block is called, before its index; and the tensors in it."""
SET_DOMAIN = "meshnet.artifact-set.v1"
FORWARD_AXES = ("activation_dtype", "compute_dtype", "kv_dtype", "backend_id")
"""Axes that decide which tokens come out of given files. A new version must give the same ones."""

_WHOLE = "the whole artifact (`meshnet node doctor CUT --target NAME` compares a cut with it)"
_SHIPPED = Path(__file__).resolve().parent
# With the length, because `$` also matches before a newline.
_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]


class LockedTargetError(RecipeIdentityError):
    """A locked target cannot be read, or does not add up."""


class UnknownTarget(LockedTargetError):
    """There is no target of this name."""


class TargetNotLocked(LockedTargetError):
    """The target is known and its files have not been pinned yet."""


class ArchitectureFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """What the publisher's configuration says of the architecture."""

    model_type: str
    num_hidden_layers: int
    total_artifact_layers: int


class TargetFacts(Struct, frozen=True):
    """What a target should be, known before anyone has its files."""

    name: str
    repository: str
    quantization: str
    architecture: ArchitectureFacts


class LockedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the artifact: its name without folder, its length, its SHA-256 (hex)."""

    name: str
    size_bytes: Annotated[int, Meta(ge=0)]
    sha256: _Digest


class RecordedForward(Struct, frozen=True, forbid_unknown_fields=True):
    """What the doctor's forward through the whole model put out, and the axes it ran with."""

    challenge: str
    axes: dict[str, str]
    output_digest: _Digest


class LockedTarget(Struct, frozen=True):
    """A target with its lock. It cannot be made unless the two fit and the digests follow.

    `files` come in the order of their parts; `recipe` maps axes to the values the files decide.
    `tensors` maps tensor groups to digests, and is empty where nobody made them; `forward` is None
    where nobody has recorded one.
    """

    facts: TargetFacts
    artifact: ArtifactIdentity
    files: tuple[LockedFile, ...]
    recipe: dict[str, str]
    tensors: dict[str, _Digest] = {}
    forward: RecordedForward | None = None

    def __post_init__(self) -> None:
        facts, artifact = self.facts, self.artifact
        if artifact.derived_from is not None:
            raise self._wrong("artifact.derived_from", "a cut file", _WHOLE)
        for field, got, wanted in (
            ("artifact.artifact_id", artifact.artifact_id, facts.repository),
            ("artifact.layer_count", artifact.layer_count, facts.architecture.num_hidden_layers),
        ):
            if got != wanted:
                raise self._wrong(field, repr(got), repr(wanted))
        if not self.files:
            raise self._wrong("files", "none", "every file of the artifact")
        followed = set_digest([file.sha256 for file in self.files])
        if artifact.content_digest != followed:
            raise self._wrong("artifact.content_digest", artifact.content_digest, followed)
        for axis in self.recipe:
            if axis not in RECIPE_AXES:
                raise self._wrong("recipe", "a member that is none", "only axes of a recipe")
        self._check_tensors()
        if self.forward is not None and self.forward.axes.keys() != set(FORWARD_AXES):
            raise self._wrong("forward.axes", "other members", ", ".join(FORWARD_AXES))

    def _check_tensors(self) -> None:
        """Raise LockedTargetError unless there are digests of every block, or none at all."""
        if not self.tensors:
            return
        count = self.artifact.layer_count
        blocks = [group for group in self.tensors if group.startswith(BLOCK_PREFIX)]
        wanted = f"{BLOCK_PREFIX}0 to {BLOCK_PREFIX}{count - 1}"
        # how many first: the count of layers may be anything, and is not to be counted up to
        if len(blocks) != count:
            raise self._wrong("tensors", f"{len(blocks)} blocks", wanted)
        for index in range(count):
            if f"{BLOCK_PREFIX}{index}" not in self.tensors:
                raise self._wrong("tensors", f"no {BLOCK_PREFIX}{index}", wanted)

    def recorded_output(self, recipe: RuntimeRecipe) -> str | None:
        """What the whole model must put out under `recipe`; None where nothing says so."""
        recorded = self.forward
        if recorded is None or recorded.challenge != CHALLENGE:
            return None
        return recorded.output_digest if recorded.axes == _forward_axes(recipe) else None

    def _wrong(self, field: str, got: str, wanted: str) -> LockedTargetError:
        return LockedTargetError(
            f"target {self.facts.name}: {field}: found {got}, expected {wanted}"
        )

    def cut(self, binding: DerivativeBinding, *, content_digest: str) -> ArtifactIdentity:
        """Return the identity of a file cut from this target.

        Raises LockedTargetError when it was cut from another artifact, and RecipeIdentityError when
        it reaches beyond this one.
        """
        if binding.source_artifact_digest != self.artifact.content_digest:
            raise self._wrong(
                "artifact.derived_from.source_artifact_digest",
                binding.source_artifact_digest,
                self.artifact.content_digest,
            )
        return msgspec.structs.replace(
            self.artifact, content_digest=content_digest, derived_from=binding
        )


class _Lock(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    artifact: dict[str, Any]
    files: tuple[LockedFile, ...]
    model_artifact_digest: _Digest
    recipe: dict[str, str]
    tensors: dict[str, _Digest] = {}
    forward: RecordedForward | None = None


class _TargetFile(Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["meshnet.locked-target.v1"]
    name: str
    repository: str
    quantization: str
    architecture: ArchitectureFacts
    lock: _Lock | None


def target_directory() -> Path:
    """Where locks of this user are, before those that ship with the package."""
    return platformdirs.user_config_path("meshnet") / "targets"


def own_lock(name: str) -> Path:
    """Where the user's own lock of this target is, or would be. Raises LockedTargetError for no name."""
    if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii():
        raise LockedTargetError("target: expected a name of letters, digits, `-` and `_`")
    return target_directory() / f"{name}.json"


def load_target_facts(named: str) -> TargetFacts:
    """What a target should be, whether it is locked or not. It is named, or its file is.

    Raises UnknownTarget when there is none, or LockedTargetError.
    """
    path = _path(named)
    return _facts(_read(path, path.stem))


def load_locked_target(named: str) -> LockedTarget:
    """The target that is named, or whose file is, every digest checked.

    Raises TargetNotLocked, saying how to lock it, UnknownTarget, or LockedTargetError.
    """
    return read_locked_target(_path(named))


def read_locked_target(path: Path, *, name: str | None = None) -> LockedTarget:
    """The target in one file, which must be called `name` (default: the name of the file)."""
    name = path.stem if name is None else name
    content = _read(path, name)
    if content.lock is None:
        raise TargetNotLocked(
            f"target {name} has no revision, content_digest or architecture_digest: nobody had the "
            f"files of {content.repository} ({content.quantization}) in hand when {path.name} was "
            "made, and a digest is never made up. To lock it, download all of its files at one "
            f"commit and run `meshnet node pin FILE… --target {name} --revision COMMIT`, which "
            f"writes {target_directory() / path.name}"
        )
    try:
        artifact = ArtifactIdentity.from_dict(content.lock.artifact)
    except RecipeIdentityError as error:
        raise LockedTargetError(f"target {name}: {error}") from error
    lock = content.lock
    target = LockedTarget(
        _facts(content), artifact, lock.files, lock.recipe, lock.tensors, lock.forward
    )
    if content.lock.model_artifact_digest != artifact.model_artifact_digest:
        raise LockedTargetError(
            f"target {name}: model_artifact_digest: found another digest, expected "
            f"{artifact.model_artifact_digest}; a member of artifact was changed by hand"
        )
    return target


def write_locked_target(path: Path, target: LockedTarget) -> None:
    """Write a target to `path`, whole or not at all; its folder is made if need be.

    The file is called after the target (`NAME.json`). Raises LockedTargetError when `path` is not,
    and OSError.
    """
    facts = target.facts
    if path.name != f"{facts.name}.json":
        raise LockedTargetError(
            f"target {facts.name}: found {path.name}, expected {facts.name}.json"
        )
    content = _TargetFile(
        format="meshnet.locked-target.v1",
        name=facts.name,
        repository=facts.repository,
        quantization=facts.quantization,
        architecture=facts.architecture,
        lock=_Lock(
            artifact=target.artifact.to_dict(),
            files=target.files,
            model_artifact_digest=target.artifact.model_artifact_digest,
            recipe=target.recipe,
            tensors=target.tensors,
            forward=target.forward,
        ),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def with_forward(target: LockedTarget, recipe: RuntimeRecipe, output_digest: str) -> LockedTarget:
    """The target with what a passing forward through its whole model put out under `recipe`."""
    recorded = RecordedForward(CHALLENGE, _forward_axes(recipe), output_digest)
    return msgspec.structs.replace(target, forward=recorded)


def _forward_axes(recipe: RuntimeRecipe) -> dict[str, str]:
    return {axis: str(recipe.axes[axis]) for axis in FORWARD_AXES}


def set_digest(file_digests: Sequence[str]) -> str:
    """Content digest of an artifact from the SHA-256 (hex) of its files, first part first."""
    if len(file_digests) == 1:
        return file_digests[0]
    return canonical_sha256({"domain": SET_DOMAIN, "body": {"files": list(file_digests)}})


def _path(named: str) -> Path:
    if "/" in named or named.endswith(".json"):
        return Path(named)
    own = own_lock(named)
    return own if own.is_file() else _SHIPPED / own.name


def _read(path: Path, name: str) -> _TargetFile:
    try:
        content = msgspec.json.decode(
            read_file(path, "target", most_bytes=MAX_TARGET_BYTES), type=_TargetFile
        )
    except FileNotFoundError:
        if path.parent != _SHIPPED:
            raise UnknownTarget(f"target {name}: there is no file {path}") from None
        shipped = ", ".join(sorted(entry.stem for entry in _SHIPPED.glob("*.json")))
        raise UnknownTarget(
            f"target {name}: there is no {path.name} in {target_directory()}, where a lock that you "
            f"were given goes, and this package has only: {shipped}"
        ) from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LockedTargetError(f"target {name}: {path} is not a locked target: {error}") from error
    layers = content.architecture
    if not 1 <= layers.num_hidden_layers <= layers.total_artifact_layers:
        raise LockedTargetError(
            f"target {name}: architecture.num_hidden_layers: found {layers.num_hidden_layers}, "
            f"expected 1 to total_artifact_layers, {layers.total_artifact_layers}"
        )
    if content.name != name:
        raise LockedTargetError(
            f"target {name}: name: found {shown(content.name)}, expected {name!r}, as {path.name} is "
            "called after its target"
        )
    return content


def _facts(content: _TargetFile) -> TargetFacts:
    return TargetFacts(content.name, content.repository, content.quantization, content.architecture)
