"""Backends: what computes layers. The interface, and how one is found.

A `Backend` loads a range of layers into a `LoadedShard`; a shard opens a `Slot` for each sequence it
works on, which holds that sequence's KV cache; a slot is given token ids or activations and gives
activations or the next token. What comes in and goes out are bytes and integers, so a backend need
not know numpy, and the wire not know a backend.

    backend = find_backend("reference-numpy")
    shard = backend.load([path], start=0, end=9, device="cpu")
    with closing(shard.open(0, 9)) as slot:
        step = slot.forward_tokens((2, 651, 1437), sample=False)
        step.activations          # 3 positions, row-major little-endian, in shard.axes' activation_dtype

Rules

- A backend states what it *runs*, found out after its own initialisation: `LoadedShard.axes` and
  `runtime_version` are compared with what the recipe declares, and a difference is a refusal. It
  never repeats a declaration back.
- The same calls give the same bytes, whatever other slots do meanwhile and wherever the layers are
  cut: identical at every seam, or certification is worth nothing.
- What came before shows: a position computed after other positions gives other numbers.
- Calls block and may come from any thread, one at a time for each shard. What a shard says of itself is
  read once, after loading, and is what it stays (`meshnet_node.shard_facts`); sessions count a slot's
  positions themselves.
- A backend that computes no model says so with `synthetic`. Nothing it does certifies.

Found by entry point: a package that offers one declares, under its `backend_id`, something that gives
a `Backend` when called without arguments:

    [project.entry-points."meshnet.backends"]
    acme-cuda = "acme_cuda.meshnet:AcmeBackend"

An id is one backend's: where two distributions offer the same, which of them runs would depend on the
order of the path, so neither does. One distribution that lies on the path twice (a checkout that is
installed and on PYTHONPATH too) is one: as with imports, its first place counts.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from meshnet_node.foreign import fault_text, shown, text_of

ENTRY_POINTS = "meshnet.backends"


class BackendError(Exception):
    """A backend cannot do what was asked. The message says what was found and what to do."""


class NotFinite(BackendError):
    """A forward gave a number that is none (NaN or an infinity)."""


class ContextFull(BackendError):
    """A slot has no room for as many positions."""


class NoTokenizer(BackendError):
    """Text cannot be turned into token ids here; ids can be computed all the same."""


class Step(Struct, frozen=True):
    """What one forward gave.

    `activations` are of every position that went in, row-major little-endian in the shard's
    `activation_dtype`; empty at the last layer. There, if a token was asked for, `token` is the
    most likely next one (of equals the smallest id) and `logits` are those it was chosen by:
    float32 little-endian, one for each token of the vocabulary.
    """

    activations: bytes = b""
    token: int | None = None
    logits: memoryview | None = None


class Slot(Protocol):
    """One sequence on its way through the layers `[start, end)`, with its KV cache."""

    @property
    def position(self) -> int:
        """How many positions have gone in so far."""

    def forward_tokens(self, ids: Sequence[int], *, sample: bool) -> Step:
        """Compute the next positions from token ids; only where the slot starts at layer 0.

        `sample` asks for the token after the last of them; it means nothing before the last layer.
        Raises `ContextFull`, `NotFinite`, and ValueError for no ids or an id outside the vocabulary.
        """

    def forward_activations(self, activations: bytes, *, sample: bool) -> Step:
        """Compute the next positions from activations; only where the slot starts above layer 0.

        Raises as `forward_tokens`, and ValueError for bytes that are no whole number of positions.
        """

    def close(self) -> None:
        """Give the KV cache back. Once is enough; twice does no harm."""


class LoadedShard(Protocol):
    """Layers `[start, end)` of one artifact, ready to compute."""

    @property
    def start(self) -> int:
        """First layer held."""

    @property
    def end(self) -> int:
        """First layer after those held."""

    @property
    def layer_count(self) -> int:
        """Layers of the whole artifact."""

    @property
    def axes(self) -> Mapping[str, str]:
        """What runs, by recipe axis, as it turned out after loading.

        Every axis that is a text: `weight_quantization`, `activation_dtype`, `compute_dtype`,
        `kv_dtype`, `kv_layout`, `tokenizer_revision` (left out when the files hold no tokenizer),
        `architecture_adapter`, `backend_id` and `runtime_version`.
        """

    @property
    def position_bytes(self) -> int:
        """Size of one position's activations."""

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""

    @property
    def context_length(self) -> int:
        """Most positions of one slot."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Token ids after which a text is over."""

    @property
    def memory_bytes(self) -> int:
        """What the layers take up, without KV caches."""

    def open(self, start: int, end: int, *, positions: int | None = None) -> Slot:
        """Make a slot for layers `[start, end)`, all of them held.

        `positions` bounds what will go in (at most and by default `context_length`), so that no
        more is set aside. Raises ValueError for layers that are not held.
        """

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt, with those that open one. Raises `NoTokenizer`."""

    def decode(self, token: int) -> bytes:
        """What a token adds to a text: UTF-8, whole only together with its neighbours.

        Raises `NoTokenizer`.
        """

    def close(self) -> None:
        """Give the layers back; slots that are open must be closed before."""


class Backend(Protocol):
    """Something that computes layers."""

    @property
    def backend_id(self) -> str:
        """The recipe axis that names it."""

    @property
    def runtime_version(self) -> str:
        """The version of what *runs*, asked of the running code itself."""

    @property
    def synthetic(self) -> bool:
        """Whether it computes no model."""

    @property
    def devices(self) -> tuple[str, ...]:
        """What it can compute on, the best first, like `cpu`."""

    def load(self, files: Sequence[Path], *, start: int, end: int, device: str) -> LoadedShard:
        """Load layers `[start, end)` from the files of one artifact, or of one cut.

        Raises `BackendError` for a file it cannot read or an architecture it does not know.
        """


def available_backends() -> dict[str, EntryPoint]:
    """Every backend that is installed, by its id; none is imported."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def find_backend(backend_id: str) -> Backend:
    """The backend called `backend_id`.

    Raises `BackendError` when there is none or more than one, when it cannot be imported, or when it is
    another one than its entry point says.
    """
    point = _entry_point(backend_id)
    try:
        backend: Backend = point.load()()
        named = text_of(backend.backend_id)
    except ImportError as error:
        raise BackendError(
            f"the backend {backend_id!r} ({point.value}) cannot be imported: {error}; install what "
            "it needs"
        ) from error
    except (Exception, SystemExit) as error:
        raise BackendError(
            f"the backend {backend_id!r} ({point.value}) cannot be made: {fault_text(error)}; ask "
            "whoever makes it"
        ) from error
    if named != backend_id:
        raise BackendError(
            f"the entry point {backend_id!r} gave the backend {shown(named)}; its package must name "
            "both the same"
        )
    return backend


def _entry_point(backend_id: str) -> EntryPoint:
    """The one entry point of that name."""
    # Of distributions with one name importlib.metadata gives the first on the path alone.
    offers = {_offer(point): point for point in entry_points(group=ENTRY_POINTS, name=backend_id)}
    if not offers:
        raise BackendError(
            f"no backend {backend_id!r} is installed; there is: "
            f"{', '.join(sorted(available_backends())) or 'none'}. A backend comes with its package, "
            "as reference-numpy, in the checkout, with `pip install -e '.[reference]'`"
        )
    if len(offers) > 1:
        raise BackendError(
            f"the backend {backend_id!r} is offered more than once: by {' and by '.join(offers)}; "
            "expected one. Uninstall the distributions that are not meant to compute here "
            "(`pip uninstall NAME`)"
        )
    return next(iter(offers.values()))


def _offer(point: EntryPoint) -> str:
    """Who offers what."""
    by = f"{dist.name} {dist.version}" if (dist := point.dist) else "an unknown distribution"
    return f"{by} ({point.value})"
