"""Pinning: from real model files to the identity that a node registers. Formats: GGUF.

    pin(paths)                                  -> Pinned
    cut(paths, layers=(0, 9), destination=…)    -> Pinned, of the file it wrote
    default_destination(paths, (0, 9))          -> Path, what to call a cut
    pinned.to_dict()                            -> JSON values
    pinned.lock(facts)                          -> LockedTarget, for `targets.write_locked_target`

`pin` and `cut` raise `PinError` and nothing else for what is wrong with files, disk or arguments.
Another format joins as another opener that yields the same `ModelFacts`; nothing here prints or
asks.

    errors      PinError, and under it NoSuchFile
    gguf_file   one open file: ranges of keys and tensors, from bytes that nobody vouches for
    split       one artifact: a file, or every part of a split set
    layers      how many layers there are, and which tensors go with which
    identity    what keys and tensors decide: digests, quantization, origin
    digest      SHA-256, streamed and remembered
    tensors     digests of tensors, by which a cut shows whose layers it holds
    result      Pinned
    cut         writing a derivative
"""

from collections.abc import Sequence
from pathlib import Path

from meshnet_node.pin.cut import cut
from meshnet_node.pin.digest import Meter, Progress, digest_files
from meshnet_node.pin.errors import PinError
from meshnet_node.pin.identity import read_facts
from meshnet_node.pin.result import Pinned, identify, pinned
from meshnet_node.pin.split import open_artifact, stem_of
from meshnet_node.pin.tensors import digest_groups, groups_of, size_of
from meshnet_node.targets import LockedFile, set_digest

__all__ = ["PinError", "Pinned", "Progress", "cut", "default_destination", "pin"]


def pin(
    paths: Sequence[Path],
    *,
    artifact_id: str | None = None,
    revision: str | None = None,
    tensors: bool = False,
    cache: bool = True,
    progress: Progress | None = None,
) -> Pinned:
    """Pin one model file, or all parts of one split model in any order.

    `artifact_id` and `revision` say where the files came from (a repository and a commit); left
    out, they are the model's own name and `sha256:` with its content digest. The tensors of a cut are
    digested too, and with `tensors` those of a whole model, as a lock keeps them. `cache=False`
    hashes every byte even where the digest is remembered. `progress` is called with (bytes done,
    bytes in all). Raises `PinError`.
    """
    with open_artifact(paths) as artifact:
        facts = read_facts(artifact)
        # Bad labels are refused before gigabytes are read: any digest will do to ask.
        identify(artifact, facts, "0" * 64, artifact_id=artifact_id, revision=revision)
        wanted = tensors or facts.origin is not None
        groups = groups_of(artifact, facts.layers.layer_count) if wanted else {}
        size = sum(file.stamp.size_bytes for file in artifact.files)
        meter = Meter(progress, size + size_of(groups))
        digests = digest_files(artifact.files, cache=cache, meter=meter)
        identity = identify(
            artifact, facts, set_digest(digests), artifact_id=artifact_id, revision=revision
        )
        files = tuple(
            LockedFile(file.path.name, file.stamp.size_bytes, digest)
            for file, digest in zip(artifact.files, digests, strict=True)
        )
        tensor_digests = digest_groups(artifact, groups, cache=cache, meter=meter) if wanted else {}
        return pinned(identity, facts, files, tensor_digests)


def default_destination(paths: Sequence[Path], layers: tuple[int, int]) -> Path:
    """What a cut of layers `[start, end)` is called when nobody says, in the current folder."""
    start, end = layers
    return Path(f"{stem_of(paths[0])}.layers-{start}-{end}.gguf")
