"""The gemma3 architecture, text only (Gemma 3 Technical Report, arXiv:2503.19786).

It differs from llama: the embedding is scaled by the square root of its width; queries and keys are
normed head by head; the results of attention and feed-forward are normed before they are added;
GELU instead of SiLU; pairs for rope are halves of a head; five layers of six look back only over a
window and turn by another base. No soft caps (a file that states one is refused).

Two things to know of the files. Gemma multiplies by `1 + weight` in its norms, and the converter of
llama.cpp has added the 1 already (`convert_hf_to_gguf.py`, `norm_shift`), so norms are llama's here.
And the pattern of local layers, their base and the attention scale of the 27B model are in no key
of most files: they are the architecture's, as in llama.cpp (`LLM_ARCH_GEMMA3`).
"""

import math
from collections.abc import Mapping

import numpy as np

from meshnet_node.backends.reference.architecture import Block
from meshnet_node.backends.reference.cache import LayerCache
from meshnet_node.backends.reference.keys import ArchitectureKeys
from meshnet_node.backends.reference.layers import (
    attend,
    gated_feed_forward,
    gelu_tanh,
    linear,
    rms_norm,
    split_heads,
)
from meshnet_node.backends.reference.rope import Rope, Turn, read_rope, turn_halves
from meshnet_node.backends.reference.shape import Array, TensorShapes, read_shape

_PATTERN = 6
_LOCAL_BASE = 10_000.0
_GLOBAL_BASE = 1_000_000.0
_LAYERS_OF_27B = 62


class Gemma3:
    """Raises `BackendError` when its keys are missing, odd, or not known."""

    def __init__(self, keys: ArchitectureKeys) -> None:
        self.shape = read_shape(keys)
        shape = self.shape
        self._global_rope = read_rope(keys, shape.rope_size, _GLOBAL_BASE)
        # A scaling stretches global layers alone: local ones never see far.
        self._local_rope = Rope(shape.rope_size, keys.number("rope.freq_base_swa", _LOCAL_BASE))
        self._window = (
            keys.integer("attention.sliding_window")
            if keys.holds("attention.sliding_window")
            else None
        )
        self._pattern = keys.integer("attention.sliding_window_pattern", _PATTERN)
        keys.refuse_unasked()
        per_head = shape.head_size
        if keys.integer("block_count") == _LAYERS_OF_27B:
            per_head = shape.embedding // shape.heads
        self._scale = 1 / math.sqrt(per_head)
        self._embedding_scale = np.float32(math.sqrt(shape.embedding))
        self.block_tensors: TensorShapes = {
            **shape.block_tensors(),
            "attn_q_norm.weight": (shape.head_size,),
            "attn_k_norm.weight": (shape.head_size,),
            "post_attention_norm.weight": (shape.embedding,),
            "post_ffw_norm.weight": (shape.embedding,),
        }
        self.extra_tensors: TensorShapes = {}

    def is_local(self, layer: int) -> bool:
        """Whether a layer looks back only over the window."""
        return self._window is not None and layer % self._pattern < self._pattern - 1

    def embed(self, rows: Array) -> Array:
        """The rows, scaled."""
        return rows * self._embedding_scale

    def turns(
        self,
        first: int,
        count: int,
        extra: Mapping[str, Array],  # noqa: ARG002  # it has none
    ) -> tuple[Turn, ...]:
        """The turn of global layers, then that of local ones."""
        return (self._global_rope.turn(first, count), self._local_rope.turn(first, count))

    def block(
        self,
        layer: int,
        weights: Block,
        x: Array,
        first: int,
        cache: LayerCache,
        turns: tuple[Turn, ...],
    ) -> Array:
        """Attention and feed-forward, each normed and added to what went in."""
        shape, epsilon, local = self.shape, self.shape.epsilon, self.is_local(layer)
        turn = turns[local]
        normed = rms_norm(x, weights["attn_norm.weight"], epsilon)
        queries = split_heads(linear(normed, weights["attn_q.weight"]), shape.heads)
        keys = split_heads(linear(normed, weights["attn_k.weight"]), shape.kv_heads)
        values = split_heads(linear(normed, weights["attn_v.weight"]), shape.kv_heads)
        queries = turn_halves(rms_norm(queries, weights["attn_q_norm.weight"], epsilon), turn)
        keys = turn_halves(rms_norm(keys, weights["attn_k_norm.weight"], epsilon), turn)
        keys, values = cache.put(first, keys, values)
        mixed = attend(
            queries, keys, values, scale=self._scale, window=self._window if local else None
        )
        mixed = linear(mixed, weights["attn_output.weight"])
        x = x + rms_norm(mixed, weights["post_attention_norm.weight"], epsilon)
        normed = rms_norm(x, weights["ffn_norm.weight"], epsilon)
        forward = gated_feed_forward(
            normed,
            weights["ffn_gate.weight"],
            weights["ffn_up.weight"],
            weights["ffn_down.weight"],
            gelu_tanh,
        )
        return x + rms_norm(forward, weights["post_ffw_norm.weight"], epsilon)
