"""`meshnet node pin`: model files in, an identity out; layers cut, targets locked.

What is there is not written over unasked: neither a cut nor a lock of other files, for whoever checks
against that lock would be told to get their sound files again.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Group, Parameter

from meshnet_cli import look
from meshnet_cli.errors import USAGE, CliError
from meshnet_cli.options import OUTPUT, Output, parse_layers
from meshnet_cli.output import answer, pairs
from meshnet_cli.progress import progress

if TYPE_CHECKING:
    from rich.console import Console

    from meshnet_node.pin import Pinned
    from meshnet_node.targets import LockedTarget, LockedTargetError, TargetFacts

_CUT = Group("Cutting", sort_key=1)
_LOCK = Group("Locking a target", sort_key=2)


def pin(
    files: Annotated[list[Path], Parameter(help="A model file, or every part of a split one.")],
    /,
    *,
    artifact_id: Annotated[
        str | None, Parameter(help="Where it came from, like acme/model-gguf. Default: its name.")
    ] = None,
    revision: Annotated[
        str | None, Parameter(help="The commit it came from. Default: its own digest.")
    ] = None,
    cache: Annotated[
        bool, Parameter(negative="--no-cache", help="Whether digests seen before are trusted.")
    ] = True,
    layers: Annotated[
        str | None, Parameter(group=_CUT, help="Cut layers A:B, the last not included.")
    ] = None,
    destination: Annotated[
        Path | None,
        Parameter(
            name="--output",
            group=_CUT,
            help="Where the cut is written. Default: NAME.layers-A-B.gguf in this folder.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, Parameter(help="Write over a cut that is there, or over a lock of other files.")
    ] = False,
    target: Annotated[
        str | None,
        Parameter(
            group=_LOCK,
            help="Lock the target of this name to these files; a new name makes a new one.",
        ),
    ] = None,
    output: Output = OUTPUT,
) -> None:
    """Turn real model files into an identity.

    What is written in the files decides which artifact a shard loads and some axes of its recipe;
    the other axes are the node's to declare. `--layers` writes a file with just those layers, bound
    to its source. `--target` writes a lock, which others check their files against: a file to hand on,
    which they put into their folder of targets or name by its path (`meshnet node doctor --target`).

    ```
    meshnet node pin model-00001-of-00002.gguf model-00002-of-00002.gguf -o json
    meshnet node pin model.gguf --layers 0:9 --output first.gguf
    meshnet node pin model.gguf --target tiny
    ```
    """
    from meshnet_node.pin import cut, default_destination
    from meshnet_node.pin import pin as pin_files

    if layers is not None:
        span = parse_layers(layers)
        if target is not None:
            raise CliError("--target needs whole files: no --layers", code=USAGE)
        if artifact_id is not None or revision is not None:
            raise CliError(
                "a cut keeps its source's labels", "pin the cut itself to label it", code=USAGE
            )
        destination = destination or default_destination(files, span)
        if destination.is_file() and not overwrite:
            raise CliError(
                f"{destination}: it exists already",
                "name another with --output, or write over it with --overwrite",
            )
        with progress("hashing", "bytes") as meter:
            pinned = cut(
                files,
                layers=span,
                destination=destination,
                overwrite=overwrite,
                cache=cache,
                progress=meter,
            )
        written = ("written to", str(destination))
        answer(output, pinned.to_dict(), lambda screen: _show_pinned(screen, pinned, written))
        return
    if destination is not None:
        raise CliError("--output is where a cut is written: it needs --layers", code=USAGE)
    if overwrite and target is None:
        raise CliError(
            "--overwrite is of a cut or a lock: it needs --layers or --target", code=USAGE
        )
    known = _known_target(target, overwrite=overwrite)
    before = None if target is None else _lock_until_now(target, overwrite=overwrite)
    with progress("hashing", "bytes") as meter:
        pinned = pin_files(
            files,
            artifact_id=artifact_id or (known.repository if known else None),
            revision=revision,
            tensors=target is not None,
            cache=cache,
            progress=meter,
        )
    locked = ("", "")
    if target is not None:
        content = pinned.artifact.content_digest
        if revision is None and before and before.artifact.content_digest == content:
            # which commit they came from was said when they were locked
            artifact = msgspec.structs.replace(pinned.artifact, revision=before.artifact.revision)
            pinned = msgspec.structs.replace(pinned, artifact=artifact)
        lock = pinned.lock(known or pinned.target_facts(target), before=before)
        locked = ("locked in", str(_lock(lock, before, overwrite=overwrite)))
    answer(output, pinned.to_dict(), lambda screen: _show_pinned(screen, pinned, locked))


def _known_target(name: str | None, *, overwrite: bool) -> "TargetFacts | None":
    """What the target of this name should be; None when there is none, or no name.

    None too where what is there is no sound lock, and may be written over.
    """
    from meshnet_node.targets import LockedTargetError, UnknownTarget, load_target_facts, own_lock

    if name is None:
        return None
    own_lock(name)  # a lock is written under a name, never to a path
    try:
        return load_target_facts(name)
    except UnknownTarget:
        return None
    except LockedTargetError as error:
        if overwrite:
            return None
        raise _unsound(error) from error


def _lock_until_now(name: str, *, overwrite: bool) -> "LockedTarget | None":
    """The target as it is locked; None if it is not, or not soundly and may be written over."""
    from meshnet_node.targets import (
        LockedTargetError,
        TargetNotLocked,
        UnknownTarget,
        load_locked_target,
    )

    try:
        return load_locked_target(name)
    except (UnknownTarget, TargetNotLocked):
        return None
    except LockedTargetError as error:
        if overwrite:
            return None
        raise _unsound(error) from error


def _unsound(error: "LockedTargetError") -> CliError:
    return CliError(str(error), "write over it with --overwrite, or name another --target")


def _lock(target: "LockedTarget", before: "LockedTarget | None", *, overwrite: bool) -> Path:
    """Write the lock into the user's folder; where it is. Raises `CliError` if that needs a word."""
    from meshnet_node.targets import own_lock, write_locked_target

    name, found = target.facts.name, target.artifact.content_digest
    if before is not None and before.artifact.content_digest != found and not overwrite:
        raise CliError(
            f"target {name} is locked to other files: content {before.artifact.content_digest}, and "
            f"these have {found}",
            "name another --target, or write over it with --overwrite: whoever was given that lock "
            "needs the new one",
        )
    path = own_lock(name)
    write_locked_target(path, target)
    return path


def _show_pinned(screen: "Console", pinned: "Pinned", written: tuple[str, str]) -> None:
    artifact = pinned.artifact
    binding = artifact.derived_from
    pairs(
        screen,
        (
            ("artifact", artifact.artifact_id),
            ("revision", artifact.revision),
            ("architecture", artifact.architecture),
            ("layers", str(artifact.layer_count)),
            ("cut", look.layers(binding.shard_start, binding.shard_end) if binding else ""),
            ("content", artifact.content_digest),
            ("cut from", binding.source_artifact_digest if binding else ""),
            ("architecture digest", artifact.architecture_digest),
            ("artifact digest", artifact.model_artifact_digest),
            *pinned.recipe_fields.items(),
            *(
                pair
                for file in pinned.files
                for pair in ((file.name, f"{file.size_bytes:,} bytes"), ("", file.sha256))
            ),
            written,
        ),
    )
