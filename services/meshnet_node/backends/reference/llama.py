"""The llama architecture: RMSNorm, rope, grouped-query attention, SwiGLU (arXiv:2302.13971).

The converter of llama.cpp reorders the rows of `attn_q` and `attn_k` so that the elements which
turn together are neighbours; hence `turn_neighbours`. Llama 3.1 brings a divisor for each pair in
`rope_freqs.weight`. Not known here: biases, experts, and whatever else would show as a tensor or a
key without a name in this module.
"""

import math
from collections.abc import Mapping

from meshnet_node.backends.reference.architecture import Block
from meshnet_node.backends.reference.cache import LayerCache
from meshnet_node.backends.reference.keys import ArchitectureKeys
from meshnet_node.backends.reference.layers import (
    attend,
    gated_feed_forward,
    linear,
    rms_norm,
    silu,
    split_heads,
)
from meshnet_node.backends.reference.rope import Turn, read_rope, turn_neighbours
from meshnet_node.backends.reference.shape import Array, TensorShapes, read_shape

ROPE_DIVISORS = "rope_freqs.weight"


class Llama:
    """Raises `BackendError` when its keys are missing, odd, or not known."""

    def __init__(self, keys: ArchitectureKeys) -> None:
        self.shape = read_shape(keys)
        self._rope = read_rope(keys, self.shape.rope_size, 10_000.0)
        # What an old converter says about the file it read.
        keys.known("tensor_data_layout")
        keys.refuse_unasked()
        self._scale = 1 / math.sqrt(self.shape.head_size)
        self.block_tensors: TensorShapes = self.shape.block_tensors()
        self.extra_tensors: TensorShapes = {ROPE_DIVISORS: (self.shape.rope_size // 2,)}

    def embed(self, rows: Array) -> Array:
        """The rows as they are."""
        return rows

    def turns(self, first: int, count: int, extra: Mapping[str, Array]) -> tuple[Turn, ...]:
        """One turn for all layers."""
        return (self._rope.turn(first, count, extra.get(ROPE_DIVISORS)),)

    def block(
        self,
        layer: int,  # noqa: ARG002  # all layers are alike
        weights: Block,
        x: Array,
        first: int,
        cache: LayerCache,
        turns: tuple[Turn, ...],
    ) -> Array:
        """Attention and feed-forward, each added to what went in."""
        shape, (turn,) = self.shape, turns
        normed = rms_norm(x, weights["attn_norm.weight"], shape.epsilon)
        queries = split_heads(linear(normed, weights["attn_q.weight"]), shape.heads)
        keys = split_heads(linear(normed, weights["attn_k.weight"]), shape.kv_heads)
        values = split_heads(linear(normed, weights["attn_v.weight"]), shape.kv_heads)
        keys, values = cache.put(first, turn_neighbours(keys, turn), values)
        mixed = attend(turn_neighbours(queries, turn), keys, values, scale=self._scale)
        x = x + linear(mixed, weights["attn_output.weight"])
        normed = rms_norm(x, weights["ffn_norm.weight"], shape.epsilon)
        return x + gated_feed_forward(
            normed,
            weights["ffn_gate.weight"],
            weights["ffn_up.weight"],
            weights["ffn_down.weight"],
            silu,
        )
