"""The arithmetic that both architectures are made of, in float32.

Activations are (positions, embedding), weights (rows, columns) as the file has them, so a product
is `x · Wᵀ`. Everything that is large goes through `linear` and `attend`, and there through BLAS;
nothing here keeps state, and the same input gives the same bytes.
"""

import math
from collections.abc import Callable

import numpy as np

from meshnet_node.backends.reference.shape import Array

# Typed, so that no product becomes float64.
_HALF, _ONE, _CUBIC = np.float32(0.5), np.float32(1), np.float32(0.044715)
_ROOT_2_PI = np.float32(math.sqrt(2 / math.pi))


def linear(x: Array, weight: Array) -> Array:
    """`x · weightᵀ`."""
    return x @ weight.T


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """Scale the last axis to a root mean square of 1, then by `weight` (arXiv:1910.07467)."""
    square: Array = np.mean(x * x, axis=-1, keepdims=True)
    normed: Array = x / np.sqrt(square + np.float32(epsilon)) * weight
    return normed


def silu(x: Array) -> Array:
    """`x · sigmoid(x)` (arXiv:1702.03118)."""
    divisor: Array = np.exp(-x) + _ONE
    return x / divisor


def gelu_tanh(x: Array) -> Array:
    """GELU by its tanh approximation (arXiv:1606.08415), which is what Gemma was trained with."""
    inner = _ROOT_2_PI * (x + _CUBIC * x * x * x)
    doubled: Array = np.tanh(inner) + _ONE
    return _HALF * x * doubled


def gated_feed_forward(
    x: Array, gate: Array, up: Array, down: Array, activation: Callable[[Array], Array]
) -> Array:
    """`down · (activation(gate · x) ∘ up · x)` (arXiv:2002.05202)."""
    return linear(activation(linear(x, gate)) * linear(x, up), down)


def split_heads(x: Array, heads: int) -> Array:
    """(positions, heads · size) as (heads, positions, size)."""
    return x.reshape(x.shape[0], heads, -1).transpose(1, 0, 2)


def attend(
    queries: Array, keys: Array, values: Array, *, scale: float, window: int | None = None
) -> Array:
    """Causal attention of the last positions over all; (positions, heads · size).

    `queries` are (heads, positions, size); `keys` and `values` (key-value heads, all positions,
    size), each shared by as many query heads in a row. A position sees itself and what is before
    it, with a `window` only that many positions, itself counted (arXiv:1706.03762, 2305.13245).
    """
    heads, count, size = queries.shape
    first = keys.shape[1] - count
    oldest = 0 if window is None else max(0, first - window + 1)
    keys, values = keys[:, oldest:], values[:, oldest:]
    kv_heads, seen, _ = keys.shape
    # The query heads of one key head are rows of one product.
    rows = (queries * np.float32(scale)).reshape(kv_heads, -1, size)
    scores = (rows @ keys.transpose(0, 2, 1)).reshape(heads, count, seen)
    if count > 1:
        distance = np.arange(first, first + count)[:, None] - np.arange(oldest, oldest + seen)
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        scores[:, hidden] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = weights.reshape(kv_heads, -1, seen) @ values
    return mixed.reshape(heads, count, size).transpose(1, 0, 2).reshape(count, heads * size)
