"""The keys and values that a slot remembers of one layer.

Each is one contiguous float32 array (key-value heads, positions, head size), so that a head's
positions are a matrix for BLAS as they lie. That is what the recipe axis `kv_layout` calls
`contiguous/HND`. Room doubles as it is needed, up to what the slot was opened for: a short session
does not cost the whole context, and growing moves bytes without changing any.

Layers with a sliding window keep every position too; they only look back less far.
"""

import numpy as np

from meshnet_node.backends.reference.shape import Array

KV_LAYOUT = "contiguous/HND"
_FIRST_ROOM = 64


class LayerCache:
    """Keys and values of one layer for up to `positions` positions."""

    def __init__(self, kv_heads: int, head_size: int, positions: int) -> None:
        self._most = positions
        room = min(_FIRST_ROOM, positions)
        self._keys: Array = np.empty((kv_heads, room, head_size), np.float32)
        self._values: Array = np.empty((kv_heads, room, head_size), np.float32)

    def put(self, first: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Keep what belongs to the positions from `first` on; return all up to their end.

        Positions at or after `first` that were kept before are forgotten.
        """
        end = first + keys.shape[1]
        if end > self._keys.shape[1]:
            room = min(max(end, 2 * self._keys.shape[1]), self._most)
            self._keys = _grown(self._keys, first, room)
            self._values = _grown(self._values, first, room)
        self._keys[:, first:end] = keys
        self._values[:, first:end] = values
        return self._keys[:, :end], self._values[:, :end]


def _grown(kept: Array, used: int, room: int) -> Array:
    grown = np.empty((kept.shape[0], room, kept.shape[2]), np.float32)
    grown[:, :used] = kept[:, :used]
    return grown
