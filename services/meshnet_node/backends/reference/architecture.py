"""What an architecture has to offer so that a shard can run it."""

from collections.abc import Mapping
from typing import Protocol

from meshnet_node.backends.reference.cache import LayerCache
from meshnet_node.backends.reference.rope import Turn
from meshnet_node.backends.reference.shape import Array, Shape, TensorShapes

Block = Mapping[str, Array]
"""The weights of one block by name, without their `blk.N.`."""


class Architecture(Protocol):
    """The maths of one architecture with one model's sizes."""

    @property
    def shape(self) -> Shape:
        """The model's sizes."""

    @property
    def block_tensors(self) -> TensorShapes:
        """Every tensor that a block has, and must have."""

    @property
    def extra_tensors(self) -> TensorShapes:
        """Tensors outside the blocks that it may have, besides embedding, head and norm."""

    def embed(self, rows: Array) -> Array:
        """The activations of layer 0 from rows of the embedding."""

    def turns(self, first: int, count: int, extra: Mapping[str, Array]) -> tuple[Turn, ...]:
        """The rope turns of positions `[first, first + count)`, computed once for all layers."""

    def block(
        self,
        layer: int,
        weights: Block,
        x: Array,
        first: int,
        cache: LayerCache,
        turns: tuple[Turn, ...],
    ) -> Array:
        """The activations after `layer`, from those before it at positions from `first` on."""
