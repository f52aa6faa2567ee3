"""`reference-numpy`: a small, correct backend for llama and gemma3 models in GGUF, on a CPU.

It exists so that the whole loop is real without a GPU, and so that there is something to compare
others with: float32 throughout, greedy, deterministic, nothing clever. Reasons, limits and measured
numbers are in `docs/explanation/reference-backend.md`.

    keys          keys of a file as values, none overlooked
    shape         the sizes that architectures share
    rope          the arithmetic of positions
    layers        the arithmetic of all else
    architecture  what an architecture offers
    llama         the llama architecture
    gemma3        the gemma3 architecture, text only
    cache         keys and values of one layer
    weights       tensors of a file as float32 arrays
    tokenizer     text and token ids
    shard         LoadedShard and Slot
    tiny          writes a small model with random weights, for tests and the demo

A file is hostile until parsed: `meshnet_node.pin` reads it within bounds, and what is not known
here, be it a key, a tensor or a type, is refused by name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np

from meshnet_node.backends import BackendError, NoTokenizer
from meshnet_node.backends.reference.architecture import Architecture
from meshnet_node.backends.reference.cache import KV_LAYOUT
from meshnet_node.backends.reference.gemma3 import Gemma3
from meshnet_node.backends.reference.keys import ArchitectureKeys
from meshnet_node.backends.reference.llama import Llama
from meshnet_node.backends.reference.shard import Model, ReferenceShard
from meshnet_node.backends.reference.tokenizer import Tokenizer, read_end_tokens, read_tokenizer
from meshnet_node.backends.reference.weights import count_vocabulary, read_weights
from meshnet_node.pin.errors import PinError
from meshnet_node.pin.gguf_file import GgufFile
from meshnet_node.pin.identity import ModelFacts, read_facts
from meshnet_node.pin.split import open_artifact

__all__ = ["ReferenceBackend"]

BACKEND_ID = "reference-numpy"
DEVICE = "cpu"

_ARCHITECTURES: dict[str, Callable[[ArchitectureKeys], Architecture]] = {
    "gemma3": Gemma3,
    "llama": Llama,
}


def _running_version() -> str:
    """What moves the numbers: this code, the dequantizer, numpy, and the BLAS that numpy is with."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return (
        f"{version('meshnet-registry')}+numpy-{np.__version__}"
        f".{blas['name']}-{blas.get('version', 'none')}.gguf-{version('gguf')}"
    )


# Asked for when the code is imported: an upgrade beneath a running process does not change it.
_VERSION = _running_version()


class ReferenceBackend:
    """A `Backend`."""

    backend_id = BACKEND_ID
    runtime_version = _VERSION
    synthetic = False
    devices = (DEVICE,)

    def load(self, files: Sequence[Path], *, start: int, end: int, device: str) -> ReferenceShard:
        """Load layers, as `Backend.load` says. Layers that the files do not hold are refused too."""
        if device not in self.devices:
            raise BackendError(f"device {device!r} is not known to {BACKEND_ID}; it has {DEVICE!r}")
        with _refusing_bad_files(), open_artifact(files) as artifact:
            head, facts = artifact.head, read_facts(artifact)
            _check_range(head, facts, start, end)
            keys = ArchitectureKeys(head, facts.architecture)
            architecture = _architecture(keys, facts.architecture)
            vocabulary = count_vocabulary(artifact, keys)
            model = Model(
                architecture=architecture,
                weights=read_weights(
                    artifact,
                    architecture,
                    start=start,
                    end=end,
                    layer_count=facts.layers.layer_count,
                    vocabulary=vocabulary,
                ),
                start=start,
                end=end,
                layer_count=facts.layers.layer_count,
                vocabulary=vocabulary,
                tokenizer=_tokenizer(head, vocabulary)
                if start == 0 or end == facts.layers.layer_count
                else _IN_THE_MIDDLE,
                end_tokens=read_end_tokens(head, vocabulary),
            )
            for file in artifact.files:
                file.check_unchanged()
        return ReferenceShard(model, _axes(facts))


# The first hop of a route encodes and the last one decodes; a large vocabulary costs tens of megabytes.
_IN_THE_MIDDLE = (
    "layers in the middle of a model meet no text, so no tokenizer was built; give token ids"
)


@contextmanager
def _refusing_bad_files() -> Iterator[None]:
    try:
        yield
    except PinError as error:
        raise BackendError(str(error)) from error


def _check_range(file: GgufFile, facts: ModelFacts, start: int, end: int) -> None:
    held = facts.origin
    first, last = (held.start, held.end) if held else (0, facts.layers.layer_count)
    if not first <= start < end <= last:
        raise BackendError(
            f"{file.path}: layers [{start}, {end}) were asked for, it holds [{first}, {last}) of "
            f"{facts.layers.layer_count}; ask for some of these, or name the file that has them"
        )


def _architecture(keys: ArchitectureKeys, name: str) -> Architecture:
    make = _ARCHITECTURES.get(name)
    if make is None:
        raise BackendError(
            f"{keys.file.path}: the architecture {name!a} is not known to {BACKEND_ID} (it has "
            f"{', '.join(sorted(_ARCHITECTURES))}); use another backend for it"
        )
    return make(keys)


def _tokenizer(file: GgufFile, vocabulary: int) -> Tokenizer | str:
    try:
        return read_tokenizer(file, vocabulary)
    except NoTokenizer as reason:
        return str(reason)


def _axes(facts: ModelFacts) -> dict[str, str]:
    axes = {
        "weight_quantization": facts.weight_quantization,
        "activation_dtype": "float32",
        "compute_dtype": "float32",
        "kv_dtype": "float32",
        "kv_layout": KV_LAYOUT,
        "architecture_adapter": facts.architecture,
        "backend_id": BACKEND_ID,
        "runtime_version": _VERSION,
    }
    if facts.tokenizer_digest is not None:
        axes["tokenizer_revision"] = facts.tokenizer_digest
    return axes
