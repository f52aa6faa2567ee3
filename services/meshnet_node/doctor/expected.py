"""What model files should be, and in what they are not that.

Two things can say so: a locked target, which has the digest of every file of the whole artifact, and an
identity that was made of these very files before (a block, or what `meshnet node pin -o json` printed,
which has the digest of each file too). Only that identity knows a cut's own bytes. A target knows what
it was cut from, and whose its tensors are if it has their digests. With neither a cut is taken at its
word: nothing here can tell its layers from others under the same source digest.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from meshnet_node.files import read_file
from meshnet_node.foreign import shown
from meshnet_node.pin import PinError, Pinned
from meshnet_node.pin.layers import held_groups
from meshnet_node.recipe_identity import ArtifactIdentity, DerivativeBinding, RecipeIdentityError
from meshnet_node.targets import LockedFile, LockedTarget

_MAX_EXPECTED_BYTES = 1024 * 1024
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
    content = read_file(path, "identity", most_bytes=_MAX_EXPECTED_BYTES)
    try:
        document = msgspec.json.decode(content, type=_Document)
        return Expected(ArtifactIdentity.from_dict(document.artifact), document.files)
    except (msgspec.MsgspecError, RecursionError, RecipeIdentityError) as error:
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


def is_taken_at_its_word(
    pinned: Pinned, target: LockedTarget | None, expected: Expected | None
) -> bool:
    """Whether the files are a cut, and nothing here knows what its layers must hold."""
    is_known = expected is not None or (target is not None and bool(target.tensors))
    return pinned.artifact.derived_from is not None and not is_known


def label(pinned: Pinned, target: LockedTarget | None, expected: Expected | None) -> str:
    """What the files were compared with, for whoever reads that they are in order."""
    compared = [
        *([f"target {target.facts.name}"] if target else []),
        *(["the identity"] if expected else []),
    ]
    says = f", as {' and '.join(compared)} says" if compared else ""
    if not is_taken_at_its_word(pinned, target, expected):
        return says
    why = "the target has no digests of tensors: " if target else ""
    return f"{says} ({why}this cut is taken at its word)"


def _differ_from_target(pinned: Pinned, target: LockedTarget) -> list[str]:
    artifact, name = pinned.artifact, f"target {target.facts.name}"
    if artifact.derived_from is None:
        return _differ(pinned, target.artifact, target.files, name)
    if artifact.source_digest != target.artifact.content_digest:
        wanted = target.artifact.content_digest
        return [f"cut from {artifact.source_digest}, expected {wanted}, the content of {name}"]
    return [
        *_differ_in_facts(artifact, target.artifact, name),
        *(
            f"{axis}: found {pinned.recipe_fields.get(axis)}, expected {value}, as {name} says"
            for axis, value in target.recipe.items()
            if pinned.recipe_fields.get(axis) != value
        ),
        *(_differ_in_tensors(pinned, artifact.derived_from, target) if target.tensors else ()),
    ]


def _differ_in_tensors(pinned: Pinned, cut: DerivativeBinding, target: LockedTarget) -> list[str]:
    """The tensor groups that are not those of these layers, those it has not, those too many."""
    name = f"target {target.facts.name}"
    start, end, layer_count = cut.shard_start, cut.shard_end, target.artifact.layer_count
    try:
        held = held_groups(target.tensors, start, end, layer_count, of=name)
    except PinError as error:
        return [str(error)]
    found = pinned.tensors
    expected = {group: digest for group, digest in target.tensors.items() if group in held}
    wrong = [
        # What the target does not name, only the file does.
        f"{group if group in target.tensors else shown(group)}: found {found.get(group, 'none')}, "
        f"expected {expected.get(group, 'none')}"
        for group in dict.fromkeys((*expected, *found))
        if found.get(group) != expected.get(group)
    ]
    if not wrong:
        return []
    return [
        *_listed(wrong, "tensor groups"),
        f"these are not layers [{start}, {end}) of that model, as {name} says",
    ]


def _differ(
    pinned: Pinned, wanted: ArtifactIdentity, files: tuple[LockedFile, ...], name: str
) -> list[str]:
    found = pinned.artifact
    if found.content_digest != wanted.content_digest:
        # of one length the parts are compared in their order; names say nothing
        if files and len(files) == len(pinned.files):
            wrong = [
                f"{ours.name}: {_differ_in_bytes(ours, theirs)}, as {name} says"
                for ours, theirs in zip(pinned.files, files, strict=True)
                if ours.sha256 != theirs.sha256
            ]
            return _listed(wrong, "files")
        names = ", ".join(file.name for file in pinned.files[:_LISTED])
        digests = f"content {found.content_digest}, expected {wanted.content_digest}"
        return [f"{names}: {digests}, as {name} says"]
    if found.source_digest != wanted.source_digest:
        return [f"cut from {found.source_digest}, expected {wanted.source_digest}, as {name} says"]
    return _differ_in_facts(found, wanted, name)


def _differ_in_bytes(ours: LockedFile, theirs: LockedFile) -> str:
    if ours.size_bytes == theirs.size_bytes:
        return f"found sha256 {ours.sha256}, expected {theirs.sha256}"
    return (
        f"found {ours.size_bytes:,} bytes, sha256 {ours.sha256}, expected "
        f"{theirs.size_bytes:,} bytes, {theirs.sha256}"
    )


def _listed(wrong: list[str], what: str) -> list[str]:
    """The first few, and how many more there are."""
    more = len(wrong) - _LISTED
    return [*wrong[:_LISTED], *([f"and {more} more {what}"] if more > 0 else [])]


def _differ_in_facts(found: ArtifactIdentity, wanted: ArtifactIdentity, name: str) -> list[str]:
    return [
        f"{member}: found {getattr(found, member)}, expected {getattr(wanted, member)}, as {name} says"
        for member in ("architecture", "architecture_digest", "layer_count")
        if getattr(found, member) != getattr(wanted, member)
    ]
