"""The weights of some layers, from the tensors of a file: float32, each once, no others.

Rules

- Which tensors go with which layers is `pin.layers`' table, the same by which a cut is made, so a
  shard computes alike from the whole file, from a split set and from a cut.
- A tensor that the architecture has no name for, one that is missing and one of another shape are
  refused by name: left out or misread, any would change the numbers.
- Tensors are read and dequantized a few megabytes at a time, straight into their place. Loading
  needs little more memory than what is loaded, and nothing is dequantized twice: where head and
  embedding are tied, they are one array.
- Every weight is a finite number, or its tensor is refused by name: a forward sees one that is none
  only once a token comes along that leads to it.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from msgspec import Struct

from meshnet_node.backends import BackendError
from meshnet_node.backends.reference.architecture import Architecture, Block
from meshnet_node.backends.reference.keys import ArchitectureKeys, count
from meshnet_node.backends.reference.shape import Array, TensorShapes
from meshnet_node.pin.gguf_file import GgufFile, Tensor
from meshnet_node.pin.layers import tensors_of
from meshnet_node.pin.split import Artifact

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
HEAD_NORM = "output_norm.weight"
_TOKENS_KEY = "tokenizer.ggml.tokens"
_MATRIX = 2
_CHUNK_BYTES = 1 << 21


class Weights(Struct, frozen=True):
    """Blocks by layer, and what lies outside of them by the tensor's name."""

    blocks: Mapping[int, Block]
    shared: Mapping[str, Array]

    @property
    def embedding(self) -> Array:
        """One row for each token id; with the first layer, and with the last where tied."""
        return self.shared[EMBEDDING]

    @property
    def head(self) -> Array:
        """One row for each token id, the embedding where tied; with the last layer."""
        own = self.shared.get(HEAD)
        return self.embedding if own is None else own

    @property
    def head_norm(self) -> Array:
        """The norm before the head; with the last layer."""
        return self.shared[HEAD_NORM]

    @property
    def size_bytes(self) -> int:
        """What all of them take up."""
        blocks = sum(array.nbytes for block in self.blocks.values() for array in block.values())
        return blocks + sum(array.nbytes for array in self.shared.values())


def count_vocabulary(artifact: Artifact, keys: ArchitectureKeys) -> int:
    """How many token ids there are, also for layers that never see one.

    Raises `BackendError` where the file does not say, or says it in ways that differ.
    """
    stated = {
        f"the rows of {tensor.name}": tensor.dimensions[-1]
        for _, tensor in artifact.tensors()
        if tensor.name in {EMBEDDING, HEAD} and len(tensor.dimensions) == _MATRIX
    }
    if keys.holds("vocab_size"):
        stated["the key vocab_size"] = keys.integer("vocab_size")
    if len(set(stated.values())) > 1:
        told = ", ".join(f"{number} by {what}" for what, number in stated.items())
        raise BackendError(
            f"{artifact.head.path}: the number of tokens is {told}, expected one number; convert the "
            "model again"
        )
    if stated:
        return next(iter(stated.values()))
    tokens = count(artifact.head, _TOKENS_KEY)
    if tokens is None:
        raise BackendError(
            f"{artifact.head.path}: neither tensors nor keys say how many tokens there are; load "
            "these layers from the file that it was cut from"
        )
    return tokens


def read_weights(
    artifact: Artifact,
    architecture: Architecture,
    *,
    start: int,
    end: int,
    layer_count: int,
    vocabulary: int,
) -> Weights:
    """Read the weights of layers `[start, end)`, all of them in the files.

    Raises `BackendError` and `PinError`.
    """
    expected = _expected(architecture, vocabulary)
    found: dict[str, tuple[GgufFile, Tensor]] = {}
    for file, tensor in tensors_of(artifact, start, end, layer_count):
        shape = expected.get(_without_layer(tensor.name))
        if shape is None:
            raise BackendError(
                f"{file.path}: the tensor {tensor.name[:80]!a} is not known here and may change "
                "what the model computes; use another backend for it"
            )
        if tensor.dimensions != shape[::-1]:
            raise BackendError(
                f"{file.path}: the tensor {tensor.name!a} is {tensor.dimensions}, the keys make it "
                f"{shape[::-1]}; convert the model again"
            )
        found[tensor.name] = (file, tensor)
    for name in _required(architecture, start, end, layer_count, tied=HEAD not in found):
        if name not in found:
            raise BackendError(
                f"{artifact.head.path}: the tensor {name!a} is missing; convert the model again"
            )
    blocks = {
        layer: {
            name: read_tensor(*found[f"blk.{layer}.{name}"]) for name in architecture.block_tensors
        }
        for layer in range(start, end)
    }
    outside = {
        name: read_tensor(*where) for name, where in found.items() if not name.startswith("blk.")
    }
    return Weights(blocks, outside)


def _without_layer(name: str) -> str:
    return "blk." + name.split(".", 2)[2] if name.startswith("blk.") else name


def _expected(architecture: Architecture, vocabulary: int) -> TensorShapes:
    width = architecture.shape.embedding
    return {
        **{f"blk.{name}": shape for name, shape in architecture.block_tensors.items()},
        **architecture.extra_tensors,
        EMBEDDING: (vocabulary, width),
        HEAD: (vocabulary, width),
        HEAD_NORM: (width,),
    }


def _required(
    architecture: Architecture, start: int, end: int, layer_count: int, *, tied: bool
) -> Iterator[str]:
    for layer in range(start, end):
        yield from (f"blk.{layer}.{name}" for name in architecture.block_tensors)
    if start == 0 or (end == layer_count and tied):
        yield EMBEDDING
    if end == layer_count:
        yield HEAD_NORM


def read_tensor(file: GgufFile, tensor: Tensor) -> Array:
    """One tensor, rows first.

    Raises `BackendError` for a type that gguf cannot dequantize, and for a number that is none.
    """
    kind = GGMLQuantizationType(tensor.type_id)
    weights: Array = np.empty(tensor.dimensions[::-1], np.float32)
    columns = tensor.dimensions[0]
    flat = weights.reshape(-1, columns)
    row_bytes = tensor.size_bytes // flat.shape[0]
    step = max(1, _CHUNK_BYTES // row_bytes)
    for first in range(0, flat.shape[0], step):
        last = min(first + step, flat.shape[0])
        data = b"".join(
            file.read(tensor.start + first * row_bytes, tensor.start + last * row_bytes)
        )
        rows = np.frombuffer(data, np.uint8).reshape(last - first, row_bytes)
        try:
            # A scale that is no number is refused below, not warned of here.
            with np.errstate(all="ignore"):
                flat[first:last] = dequantize(rows, kind)
        except NotImplementedError as error:
            raise BackendError(
                f"{file.path}: the tensor {tensor.name!a} has the type {tensor.type_name}, which "
                "gguf cannot dequantize; quantize the model to another"
            ) from error
        finite = np.isfinite(flat[first:last])
        if not finite.all():
            row, column = divmod(int(finite.argmin()), columns)
            raise BackendError(
                f"{file.path}: the tensor {tensor.name!a} holds a NaN or an infinity, in row "
                f"{first + row} at {column}; get the file again and compare it with its publisher's "
                "digest"
            )
    return weights
