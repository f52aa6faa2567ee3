"""Cutting: a GGUF file that holds some layers of an artifact and states whose they are.

By itself it cannot prove that: a file's own digest says nothing of the whole it was taken from. A locked
target with digests of tensors can (`tensors`). Without one, nobody who has only the cut can tell layers
of another model under the right source digest.

The cut keeps every key of its source byte for byte (raw bytes are copied, nothing is encoded
again), so architecture and tokenizer digests stay the source's; only `split.*` is left out, because
a cut is one file. It adds

    meshnet.source_digest          string   content digest of the source, 64 hex
    meshnet.layer_start            u32      first layer held
    meshnet.layer_end              u32      first layer after those held
    meshnet.weight_quantization    string   the source's, since a cut may miss some types

and the tensors of `layers.tensors_of`, their bytes unchanged, in the order of the source.

Rules

- The source is hashed, then copied through the same open handle, and has not changed by the end.
- The file appears whole or not at all: written beside its destination under another name, synced,
  read back and identified like any other file, then renamed. Whatever stops it removes it.
- A cut is made from the source, not from another cut, so that its digest is one that was seen here.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from meshnet_node.pin.digest import Meter, Progress, digest_files
from meshnet_node.pin.errors import PinError, refusing_os_errors
from meshnet_node.pin.gguf_file import MAGIC, STRING, UINT32, VERSION, GgufFile, Tensor, padded
from meshnet_node.pin.identity import (
    LAYER_END_KEY,
    LAYER_START_KEY,
    SOURCE_DIGEST_KEY,
    WEIGHT_QUANTIZATION_KEY,
    ModelFacts,
    Origin,
    read_facts,
)
from meshnet_node.pin.layers import tensors_of
from meshnet_node.pin.result import Pinned, identify, pinned
from meshnet_node.pin.split import Artifact, names_part, open_artifact
from meshnet_node.pin.tensors import digest_groups, groups_of
from meshnet_node.targets import LockedFile, set_digest


def cut(
    paths: Sequence[Path],
    *,
    layers: tuple[int, int],
    destination: Path,
    overwrite: bool = False,
    cache: bool = True,
    progress: Progress | None = None,
) -> Pinned:
    """Write layers `[start, end)` of a model to `destination` and return the cut, pinned.

    `progress` counts bytes hashed, written, and of tensors read back. Raises `PinError`; then, as
    after an interruption, nothing new is left on disk and an existing destination is as it was.
    """
    start, end = layers
    with open_artifact(paths) as source:
        facts = read_facts(source)
        _check_request(source, facts, start, end)
        _check_destination(source, destination, overwrite=overwrite)
        tensors = tuple(tensors_of(source, start, end, facts.layers.layer_count))
        # A digest's length is known before the digest is.
        size = _Layout(source, facts, Origin("0" * 64, start, end), tensors).size_bytes
        _check_space(destination, size)
        read_back = sum(tensor.size_bytes for _, tensor in tensors)
        hashed = sum(file.stamp.size_bytes for file in source.files)
        meter = Meter(progress, hashed + size + read_back)
        digest = set_digest(digest_files(source.files, cache=cache, meter=meter))
        layout = _Layout(source, facts, Origin(digest, start, end), tensors)
        with _new_file(destination, overwrite=overwrite) as (stream, temporary):
            written = hashlib.sha256()
            for chunk in layout.chunks():
                stream.write(chunk)
                written.update(chunk)
                meter.advance(len(chunk))
            stream.flush()
            os.fsync(stream.fileno())
            for file in source.files:
                file.check_unchanged()
            return _identified(temporary, destination, written.hexdigest(), meter)


def _check_request(source: Artifact, facts: ModelFacts, start: int, end: int) -> None:
    path, layer_count = source.head.path, facts.layers.layer_count
    if facts.origin is not None:
        raise PinError(
            f"{path}: it is itself a cut (layers [{facts.origin.start}, {facts.origin.end})); cut"
            " the file that it was cut from"
        )
    if not 0 <= start < end <= layer_count:
        raise PinError(
            f"{path}: layers {start}:{end} cannot be cut from a model of {layer_count};"
            f" choose START:END with 0 <= START < END <= {layer_count}"
        )


def _check_destination(source: Artifact, destination: Path, *, overwrite: bool) -> None:
    if names_part(destination):
        raise PinError(f"{destination}: named like a part of a split set; choose another name")
    with refusing_os_errors(destination, "looking for it"):
        if not destination.parent.is_dir():
            raise PinError(f"{destination}: its folder does not exist; make it first")
        if destination.is_dir():
            raise PinError(f"{destination}: a folder; name a file in it")
        if destination.exists() and any(destination.samefile(file.path) for file in source.files):
            raise PinError(f"{destination}: a file of the source; choose another name")
    _check_absent(destination, overwrite=overwrite)


def _check_absent(destination: Path, *, overwrite: bool) -> None:
    if not overwrite and os.path.lexists(destination):
        raise PinError(f"{destination}: it exists already; remove it, or allow overwriting")


def _check_space(destination: Path, size: int) -> None:
    with refusing_os_errors(destination, "measuring free space"):
        free = shutil.disk_usage(destination.parent).free
    if free < size:
        raise PinError(f"{destination}: it needs {size} bytes, {free} are free; make room first")


@contextmanager
def _new_file(destination: Path, *, overwrite: bool) -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a new file and its temporary name; rename it to `destination` if all went well."""
    temporary = destination.with_name(f".meshnet-cut-{secrets.token_hex(4)}.part")
    with refusing_os_errors(destination, "writing it"):
        try:
            with temporary.open("xb") as stream:
                yield stream, temporary
            # Asked again, for whoever made it meanwhile.
            _check_absent(destination, overwrite=overwrite)
            temporary.replace(destination)
        finally:
            temporary.unlink(missing_ok=True)


def _identified(temporary: Path, destination: Path, digest: str, meter: Meter) -> Pinned:
    """Pin the cut from what lies on disk; only the digest is known from writing it."""
    with open_artifact([temporary]) as made:
        facts = read_facts(made)
        # Not the temporary name, for a model that has none of its own.
        identity = identify(made, facts, digest, artifact_id=facts.name or destination.stem)
        files = (LockedFile(destination.name, made.head.stamp.size_bytes, digest),)
        groups = groups_of(made, facts.layers.layer_count)
        return pinned(identity, facts, files, digest_groups(made, groups, cache=False, meter=meter))


class _Layout:
    """The bytes of the cut, in order, and how many there are."""

    def __init__(
        self,
        source: Artifact,
        facts: ModelFacts,
        origin: Origin,
        tensors: Sequence[tuple[GgufFile, Tensor]],
    ) -> None:
        self._head = source.head
        self._tensors = tensors
        self._kept = [
            value for key, value in source.head.values.items() if not key.startswith("split.")
        ]
        added = (
            _text_key(SOURCE_DIGEST_KEY, origin.source_digest),
            _u32_key(LAYER_START_KEY, origin.start),
            _u32_key(LAYER_END_KEY, origin.end),
            _text_key(WEIGHT_QUANTIZATION_KEY, facts.weight_quantization),
        )
        self._key_count = len(self._kept) + len(added)
        self._added = b"".join(added)
        self._entries, self._data_bytes = self._tensor_entries()

    def _tensor_entries(self) -> tuple[bytes, int]:
        entries = bytearray()
        offset = 0
        for _, tensor in self._tensors:
            entries += _sized(tensor.name.encode())
            entries += _u32(len(tensor.dimensions))
            entries += b"".join(_u64(dimension) for dimension in tensor.dimensions)
            entries += _u32(tensor.type_id)
            entries += _u64(offset)
            offset += padded(tensor.size_bytes, self._head.alignment)
        return bytes(entries), offset

    @property
    def _header_bytes(self) -> int:
        kept = sum(value.end - value.start for value in self._kept)
        return 24 + kept + len(self._added) + len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Size of the whole file."""
        return padded(self._header_bytes, self._head.alignment) + self._data_bytes

    def chunks(self) -> Iterator[bytes]:
        """The file's bytes, in pieces of bounded size."""
        yield MAGIC + _u32(VERSION) + _u64(len(self._tensors)) + _u64(self._key_count)
        for value in self._kept:
            yield from self._head.read(value.start, value.end)
        yield self._added
        yield self._entries
        yield self._padding(self._header_bytes)
        for file, tensor in self._tensors:
            yield from file.read(tensor.start, tensor.start + tensor.size_bytes)
            yield self._padding(tensor.size_bytes)

    def _padding(self, size: int) -> bytes:
        return bytes(padded(size, self._head.alignment) - size)


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _sized(data: bytes) -> bytes:
    return _u64(len(data)) + data


def _text_key(key: str, text: str) -> bytes:
    return _sized(key.encode()) + _u32(STRING) + _sized(text.encode())


def _u32_key(key: str, number: int) -> bytes:
    return _sized(key.encode()) + _u32(UINT32) + _u32(number)
