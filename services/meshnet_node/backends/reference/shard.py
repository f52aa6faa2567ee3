"""A loaded range of layers, and the sequences on their way through it.

Rules

- Positions go through in steps of at most `STEP_POSITIONS`, each through all layers before the
  next: a long prompt takes no more memory than a step, its KV cache apart. Steps count from the
  first position of a call, so neighbours that are called alike step alike, wherever the cut is.
- A call that fails leaves the slot where it was; the same positions may be given again.
- Every activation that leaves, and every logit, is checked to be finite. A number that is none
  stays in the stream it was added to, so the end of a shard's layers is the place to look.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from meshnet_node.backends import BackendError, ContextFull, NotFinite, NoTokenizer, Step
from meshnet_node.backends.reference.architecture import Architecture
from meshnet_node.backends.reference.cache import LayerCache
from meshnet_node.backends.reference.layers import linear, rms_norm
from meshnet_node.backends.reference.shape import Array
from meshnet_node.backends.reference.tokenizer import Tokenizer
from meshnet_node.backends.reference.weights import Weights

STEP_POSITIONS = 256
_WIRE = np.dtype("<f4")


class Model(Struct, frozen=True):
    """What was read from the files: layers `[start, end)` of `layer_count`, ready to compute.

    `tokenizer` is the reason why, where there is none.
    """

    architecture: Architecture
    weights: Weights
    start: int
    end: int
    layer_count: int
    vocabulary: int
    tokenizer: Tokenizer | str
    end_tokens: frozenset[int]


class ReferenceShard:
    """A `LoadedShard`."""

    def __init__(self, model: Model, axes: Mapping[str, str]) -> None:
        self._model: Model | None = model
        self._shape = model.architecture.shape
        self.start = model.start
        self.end = model.end
        self.layer_count = model.layer_count
        self.axes = axes
        self.position_bytes = self._shape.embedding * _WIRE.itemsize
        self.vocabulary = model.vocabulary
        self.context_length = self._shape.context_length
        self.end_tokens = model.end_tokens
        self.memory_bytes = model.weights.size_bytes

    @property
    def model(self) -> Model:
        """The layers. Raises `BackendError` once they are given back."""
        if self._model is None:
            raise BackendError("this shard is closed; load its layers again")
        return self._model

    def open(self, start: int, end: int, *, positions: int | None = None) -> "ReferenceSlot":
        """Make a slot, as `LoadedShard.open` says; ValueError for a bad number of positions too."""
        if not self.start <= start < end <= self.end:
            raise ValueError(
                f"layers [{start}, {end}) are not held; this shard has [{self.start}, {self.end})"
            )
        if positions is None:
            positions = self.context_length
        if not 1 <= positions <= self.context_length:
            raise ValueError(
                f"a slot of {positions} positions; the model has 1 to {self.context_length}"
            )
        return ReferenceSlot(self, start, end, positions)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt. Raises `NoTokenizer`."""
        return self._tokenizer().encode(text)

    def decode(self, token: int) -> bytes:
        """What a token adds to a text. Raises `NoTokenizer`, and ValueError for no token's id."""
        tokenizer = self._tokenizer()
        check_ids((token,), self.vocabulary)
        return tokenizer.decode(token)

    def _tokenizer(self) -> Tokenizer:
        tokenizer = self.model.tokenizer
        if isinstance(tokenizer, str):
            raise NoTokenizer(tokenizer)
        return tokenizer

    def close(self) -> None:
        """Give the layers back; a slot that is still open can compute no more."""
        self._model = None


class ReferenceSlot:
    """A `Slot`: one KV cache for each of its layers."""

    def __init__(self, shard: ReferenceShard, start: int, end: int, positions: int) -> None:
        shape = shard.model.architecture.shape
        self._shard = shard
        self._layers = range(start, end)
        self._positions = positions
        self._caches: dict[int, LayerCache] | None = {
            layer: LayerCache(shape.kv_heads, shape.head_size, positions) for layer in self._layers
        }
        self.position = 0

    def forward_tokens(self, ids: Sequence[int], *, sample: bool) -> Step:
        """Compute from token ids, as `Slot.forward_tokens` says."""
        model = self._shard.model
        if self._layers.start != 0:
            raise ValueError(f"layer {self._layers.start} takes activations, not token ids")
        if not ids:
            raise ValueError("no token id was given; a forward needs one at least")
        check_ids(ids, model.vocabulary)
        steps = (
            model.architecture.embed(model.weights.embedding[list(ids[first:last])])
            for first, last in _steps(len(ids))
        )
        return self._forward(model, steps, len(ids), sample=sample)

    def forward_activations(self, activations: bytes, *, sample: bool) -> Step:
        """Compute from activations, as `Slot.forward_activations` says."""
        model = self._shard.model
        if self._layers.start == 0:
            raise ValueError("layer 0 takes token ids, not activations")
        count, rest = divmod(len(activations), self._shard.position_bytes)
        if rest or not count:
            raise ValueError(
                f"{len(activations)} bytes of activations; a position has "
                f"{self._shard.position_bytes}, and a forward needs one at least"
            )
        # Copied a step at a time, out of bytes that lie at any address.
        given = np.frombuffer(activations, _WIRE).reshape(count, -1)
        steps = (given[first:last].astype(np.float32) for first, last in _steps(count))
        return self._forward(model, steps, count, sample=sample)

    def close(self) -> None:
        """Give the KV cache back."""
        self._caches = None

    def _forward(self, model: Model, steps: Iterator[Array], count: int, *, sample: bool) -> Step:
        if self._caches is None:
            raise BackendError("this slot is closed; open another")
        if count > self._positions - self.position:
            raise ContextFull(
                f"{count} positions do not fit after {self.position} of {self._positions}; open a "
                "slot for more, or end the text"
            )
        given: list[bytes] = []
        # What overflows is found by the checks, and said there.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for computed in self._computed(model, steps, self._caches):
                if self._layers.stop < model.layer_count:
                    given.append(computed.astype(_WIRE, copy=False).tobytes())
            step = Step(activations=b"".join(given))
            if sample and self._layers.stop == model.layer_count:
                step = _sampled(model, computed[-1:])
        self.position += count
        return step

    def _computed(
        self, model: Model, steps: Iterator[Array], caches: Mapping[int, LayerCache]
    ) -> Iterator[Array]:
        """The activations after the last layer, step by step."""
        architecture, weights, first = model.architecture, model.weights, self.position
        what = f"the activations after layer {self._layers.stop - 1}"
        for given in steps:
            x = given
            turns = architecture.turns(first, x.shape[0], weights.shared)
            for layer in self._layers:
                x = architecture.block(layer, weights.blocks[layer], x, first, caches[layer], turns)
            _check_finite(x, what)
            yield x
            first += x.shape[0]


def check_ids(ids: Sequence[int], vocabulary: int) -> None:
    """Raise ValueError for an id that no token has."""
    for token in ids:
        if not 0 <= token < vocabulary:
            raise ValueError(f"{token} is no token id; there are {vocabulary}, counted from 0")


def _steps(count: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, STEP_POSITIONS):
        yield first, min(first + STEP_POSITIONS, count)


def _sampled(model: Model, last: Array) -> Step:
    """The most likely token after the activations `last`, (1, embedding)."""
    weights = model.weights
    normed = rms_norm(last, weights.head_norm, model.architecture.shape.epsilon)
    logits = linear(normed, weights.head)[0].astype(_WIRE, copy=False)
    _check_finite(logits, "the logits")
    # Of equals, argmax takes the first.
    return Step(token=int(np.argmax(logits)), logits=memoryview(logits).toreadonly())


def _check_finite(numbers: Array, what: str) -> None:
    if not np.isfinite(numbers).all():
        raise NotFinite(
            f"{what} are not all finite numbers: what went in was none, or the weights are damaged; "
            "compare the file with its publisher's digest"
        )
