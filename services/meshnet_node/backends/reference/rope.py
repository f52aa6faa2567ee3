"""Rotary position embedding: pairs of a head's elements, turned by an angle that grows with position.

Pair `i` of `n` elements turns by `position · base^(-2i/n)`. Which elements make a pair is the
architecture's habit: neighbours (2i, 2i+1), which is also how GGUF's llama converter reorders the
rows of `attn_q` and `attn_k`, or halves (i, i+n/2). Source: Su et al., arXiv:2104.09864; llama.cpp
calls them NORM and NEOX. Angles are taken in float64 and turned to float32 as sine and cosine, so
that late positions are as exact as early ones.

Two scalings are known: linear (positions divided by a factor), and a divisor for each pair from the
tensor `rope_freqs.weight` (Llama 3.1). Any other is refused by name.
"""

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from meshnet_node.backends import BackendError
from meshnet_node.backends.reference.keys import ArchitectureKeys
from meshnet_node.backends.reference.shape import Array


class Turn(NamedTuple):
    """Cosines and sines of some positions in a row, each (positions, pairs)."""

    cosines: Array
    sines: Array


class Rope(Struct, frozen=True):
    """How fast pairs turn: `size` elements of a head take part, `factor` divides positions."""

    size: int
    base: float
    factor: float = 1.0

    def turn(self, first: int, count: int, divisors: Array | None = None) -> Turn:
        """The turn of positions `[first, first + count)`; `divisors` has one for each pair."""
        speeds = self.base ** (-np.arange(0, self.size, 2, dtype=np.float64) / self.size)
        if divisors is not None:
            speeds = speeds / divisors
        positions = np.arange(first, first + count, dtype=np.float64) / self.factor
        angles = np.multiply.outer(positions, speeds)
        return Turn(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))


def read_rope(keys: ArchitectureKeys, size: int, default_base: float) -> Rope:
    """The rope of a model's (global) layers. Raises `BackendError` for a scaling not known here."""
    base = keys.number("rope.freq_base", default_base)
    kind = keys.text("rope.scaling.type")
    factor = keys.number("rope.scaling.factor", 1.0)
    keys.known("rope.scaling.original_context_length", "rope.scaling.finetuned")
    if kind not in {None, "none", "linear"}:
        raise BackendError(
            f"{keys.file.path}: rope.scaling.type {kind[:80]!a} is not known here (none and linear "
            "are); use another backend for it"
        )
    return Rope(size, base, 1.0 if kind == "none" else factor)


def turn_neighbours(heads: Array, turn: Turn) -> Array:
    """Turn pairs (2i, 2i+1) of `heads`, (heads, positions, head size); the rest stays."""
    size = 2 * turn.cosines.shape[1]
    turned = heads.copy()
    even, odd = heads[..., 0:size:2], heads[..., 1:size:2]
    turned[..., 0:size:2] = even * turn.cosines - odd * turn.sines
    turned[..., 1:size:2] = even * turn.sines + odd * turn.cosines
    return turned


def turn_halves(heads: Array, turn: Turn) -> Array:
    """Turn pairs (i, i + size/2) of `heads`, (heads, positions, head size); the rest stays."""
    half = turn.cosines.shape[1]
    turned = heads.copy()
    low, high = heads[..., :half], heads[..., half : 2 * half]
    turned[..., :half] = low * turn.cosines - high * turn.sines
    turned[..., half : 2 * half] = low * turn.sines + high * turn.cosines
    return turned
