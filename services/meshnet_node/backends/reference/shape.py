"""The sizes that both architectures share, read from a model's keys, and the types of arrays."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from meshnet_node.backends import BackendError
from meshnet_node.backends.reference.keys import ArchitectureKeys

Array = NDArray[np.float32]

TensorShapes = dict[str, tuple[int, ...]]
"""Name of a tensor -> its shape, rows first (a file states it the other way round)."""


class Shape(Struct, frozen=True):
    """Sizes in elements. `heads` query heads share `kv_heads` key and value heads, in order."""

    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    rope_size: int
    epsilon: float
    context_length: int

    def block_tensors(self) -> TensorShapes:
        """The tensors of a block that both architectures have, without their `blk.N.`."""
        queries, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        return {
            "attn_norm.weight": (self.embedding,),
            "attn_q.weight": (queries, self.embedding),
            "attn_k.weight": (kv, self.embedding),
            "attn_v.weight": (kv, self.embedding),
            "attn_output.weight": (self.embedding, queries),
            "ffn_norm.weight": (self.embedding,),
            "ffn_gate.weight": (self.feed_forward, self.embedding),
            "ffn_up.weight": (self.feed_forward, self.embedding),
            "ffn_down.weight": (self.embedding, self.feed_forward),
        }


def read_shape(keys: ArchitectureKeys) -> Shape:
    """Read the sizes. Raises `BackendError` where they do not fit together."""
    # Counts that `pin` has read, and one that repeats the size of a tensor.
    keys.known("block_count", "nextn_predict_layers", "vocab_size")
    embedding = keys.integer("embedding_length")
    heads = keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise BackendError(
            f"{keys.file.path}: {heads} query heads cannot share {kv_heads} key heads evenly; "
            "convert the model again"
        )
    head_size = keys.integer("attention.key_length", embedding // heads or 1)
    value_size = keys.integer("attention.value_length", embedding // heads or 1)
    rope_size = keys.integer("rope.dimension_count", head_size)
    if value_size != head_size:
        raise BackendError(
            f"{keys.file.path}: heads of {head_size} for keys and {value_size} for values; only "
            "heads of one size are known here, use another backend for it"
        )
    if rope_size % 2 or rope_size > head_size:
        raise BackendError(
            f"{keys.file.path}: rope.dimension_count {rope_size} of heads of {head_size} is odd or "
            "too large; convert the model again"
        )
    return Shape(
        embedding=embedding,
        feed_forward=keys.integer("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        rope_size=rope_size,
        epsilon=keys.number("attention.layer_norm_rms_epsilon"),
        context_length=keys.integer("context_length"),
    )
