"""`meshnet node pin`: model files in, an identity out; layers cut, targets locked."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from meshnet_cli import look
from meshnet_cli.errors import USAGE, CliError
from meshnet_cli.options import OUTPUT, Output, parse_layers
from meshnet_cli.output import answer, pairs
from meshnet_cli.progress import progress

if TYPE_CHECKING:
    from rich.console import Console

    from meshnet_node.pin import Pinned
    from meshnet_node.targets import TargetFacts

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
        bool, Parameter(group=_CUT, help="Write the cut over a file that is there.")
    ] = False,
    target: Annotated[
        str | None,
        Parameter(group=_LOCK, help="Lock this target to these files; a new name makes a new one."),
    ] = None,
    output: Output = OUTPUT,
) -> None:
    """Turn real model files into an identity.

    What is written in the files decides which artifact a shard loads and some axes of its recipe;
    the other axes are the node's to declare. `--layers` writes a file with just those layers, bound
    to its source. `--target` writes a lock, which others check their files against; under a name that
    no target has yet, it makes one.

    ```
    meshnet node pin model-00001-of-00002.gguf model-00002-of-00002.gguf -o json
    meshnet node pin model.gguf --layers 0:9 --output first.gguf
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
        answer(output, pinned.to_dict(), lambda screen: _show_pinned(screen, pinned, None))
        return
    if destination is not None or overwrite:
        option = "--overwrite" if destination is None else "--output"
        raise CliError(f"{option} is about where a cut is written: it needs --layers", code=USAGE)
    if target is not None and revision is None:
        raise CliError("--target needs --revision: the commit that the files came from", code=USAGE)
    known = _known_target(target)
    with progress("hashing", "bytes") as meter:
        pinned = pin_files(
            files,
            artifact_id=artifact_id or (known.repository if known else None),
            revision=revision,
            tensors=target is not None,
            cache=cache,
            progress=meter,
        )
    locked = _lock(target, known, pinned) if target is not None else None
    answer(output, pinned.to_dict(), lambda screen: _show_pinned(screen, pinned, locked))


def _known_target(name: str | None) -> "TargetFacts | None":
    """What the target of this name should be; None when there is none, or no name."""
    from meshnet_node.targets import UnknownTarget, load_target_facts

    try:
        return None if name is None else load_target_facts(name)
    except UnknownTarget:
        return None


def _lock(name: str, known: "TargetFacts | None", pinned: "Pinned") -> Path:
    """Lock a target to what was pinned, a new one if it is not known; where the lock is."""
    from meshnet_node.targets import (
        LockedTargetError,
        load_locked_target,
        target_directory,
        write_locked_target,
    )

    try:
        before = load_locked_target(name)
    except LockedTargetError:  # not locked yet, or locked wrongly: nothing to keep
        before = None
    path = target_directory() / f"{name}.json"
    write_locked_target(path, pinned.lock(known or pinned.target_facts(name), before=before))
    return path


def _show_pinned(screen: "Console", pinned: "Pinned", locked: Path | None) -> None:
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
            ("locked in", str(locked) if locked else ""),
        ),
    )
