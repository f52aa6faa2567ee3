"""What model files should be, and in what they are not that.

Two things can say so: a locked target, which has the digest of every file of the whole artifact, and an
identity that was made of these very files before (a block, or what `meshnet node pin -o json` printed,
which has the digest of each file too). A target knows nothing of a cut but what it was cut from; only
the identity knows the cut's own bytes.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from meshnet_node.pin import Pinned
from meshnet_node.recipe_identity import ArtifactIdentity, RecipeIdentityError
from meshnet_node.targets import LockedFile, LockedTarget

_MAX_EXPECTED = 1 << 20
_LISTED = 4


class ExpectedError(ValueError):
    """A file does not say what model files should be."""


class Expected(Struct, frozen=True):
    """An identity that was made before, and its files where they are known."""

    artifact: ArtifactIdentity
    files: tuple[LockedFile, ...] = ()


class _Document(Struct):
    artifact: dict[str, Any]
    files: tuple[LockedFile, ...] = ()


def read_expected(path: Path) -> Expected:
    """Read an identity block or a pin. Raises `ExpectedError` and OSError."""
    with path.open("rb") as file:
        content = file.read(_MAX_EXPECTED + 1)
    try:
        if len(content) > _MAX_EXPECTED:
            raise ExpectedError(f"{path} is larger than {_MAX_EXPECTED:,} bytes: no identity")
        document = msgspec.json.decode(content, type=_Document)
        return Expected(ArtifactIdentity.from_dict(document.artifact), document.files)
    except (msgspec.MsgspecError, RecipeIdentityError) as error:
        raise ExpectedError(
            f"{path} is no identity: {error}; expected a block, or what `meshnet node pin -o json` "
            "prints"
        ) from error


def files_faults(
    pinned: Pinned, target: LockedTarget | None, expected: Expected | None
) -> tuple[str, ...]:
    """In what the pinned files differ from what they should be; nothing when they do not."""
    faults: list[str] = []
    if target is not None:
        faults += _differ_from_target(pinned, target)
    if expected is not None:
        faults += _differ(pinned, expected.artifact, expected.files, "the identity")
    return tuple(faults)


def label(target: LockedTarget | None, expected: Expected | None) -> str:
    """What the files were compared with, for whoever reads that they are in order."""
    compared = [
        *([f"target {target.facts.name}"] if target else []),
        *(["the identity"] if expected else []),
    ]
    return f", as {' and '.join(compared)} says" if compared else ""


def _differ_from_target(pinned: Pinned, target: LockedTarget) -> list[str]:
    artifact, name = pinned.artifact, f"target {target.facts.name}"
    if artifact.derived_from is None:
        return _differ(pinned, target.artifact, target.files, name)
    if artifact.source_digest != target.artifact.content_digest:
        wanted = target.artifact.content_digest
        return [f"cut from {artifact.source_digest}, expected {wanted}, the content of {name}"]
    return _differ_in_facts(artifact, target.artifact, name)


def _differ(
    pinned: Pinned, wanted: ArtifactIdentity, files: tuple[LockedFile, ...], name: str
) -> list[str]:
    found = pinned.artifact
    if found.content_digest != wanted.content_digest:
        # of one length the parts are compared in their order; names say nothing
        if files and len(files) == len(pinned.files):
            wrong = [
                f"{ours.name}: found {ours.size_bytes:,} bytes, sha256 {ours.sha256}, expected "
                f"{theirs.size_bytes:,} bytes, {theirs.sha256}, as {name} says"
                for ours, theirs in zip(pinned.files, files, strict=True)
                if ours.sha256 != theirs.sha256
            ]
            more = len(wrong) - _LISTED
            return [*wrong[:_LISTED], *([f"and {more} more files"] if more > 0 else [])]
        names = ", ".join(file.name for file in pinned.files[:_LISTED])
        digests = f"content {found.content_digest}, expected {wanted.content_digest}"
        return [f"{names}: {digests}, as {name} says"]
    if found.source_digest != wanted.source_digest:
        return [f"cut from {found.source_digest}, expected {wanted.source_digest}, as {name} says"]
    return _differ_in_facts(found, wanted, name)


def _differ_in_facts(found: ArtifactIdentity, wanted: ArtifactIdentity, name: str) -> list[str]:
    return [
        f"{member}: found {getattr(found, member)}, expected {getattr(wanted, member)}, as {name} says"
        for member in ("architecture", "architecture_digest", "layer_count")
        if getattr(found, member) != getattr(wanted, member)
    ]
