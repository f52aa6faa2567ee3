"""What the bytes of a model file decide: architecture, tokenizer, quantization, layers, origin.

Metadata digest (`architecture_digest`, tokenizer digest): SHA-256 over some keys of the file, in
sorted order, each as

    u32 length of the key, the key in UTF-8, u32 value type, the value's bytes as they are

with integers little-endian. The value's bytes are everything after the value type: of a string its
u64 length and text, of an array its u32 element type, u64 count and elements. Nothing is decoded,
so no float is ever printed and no writer's habit matters. The architecture is the keys
`general.architecture` and `<arch>.*`, the tokenizer `tokenizer.*`.

Example: a file whose keys are `general.architecture` = "llama" (type 8) and `llama.block_count` = 2
(type 4, u32) has the architecture bytes

    14000000 67656e6572616c2e617263686974656374757265 08000000 0500000000000000 6c6c616d61
    11000000 6c6c616d612e626c6f636b5f636f756e74 04000000 02000000

and the `architecture_digest`

    1214d86bff0058761723e1b370aec4eceec871b10c26e68605712b22c9d5a9a5

`weight_quantization` counts tensors by type, sorted by the type's name: `F32:109,Q4_K:27`. It is
taken over the whole artifact, so a cut (see `cut`) carries its source's in a key.
`general.file_type` says only what most tensors are.

A file without `tokenizer.*` keys decides no tokenizer: its digest is None, never that of nothing.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from meshnet_node.pin.errors import PinError
from meshnet_node.pin.gguf_file import GgufFile
from meshnet_node.pin.layers import Layers, read_layers
from meshnet_node.pin.split import Artifact

CUT_PREFIX = "meshnet."
SOURCE_DIGEST_KEY = "meshnet.source_digest"
LAYER_START_KEY = "meshnet.layer_start"
LAYER_END_KEY = "meshnet.layer_end"
WEIGHT_QUANTIZATION_KEY = "meshnet.weight_quantization"

MAX_LABEL_LENGTH = 256

_DIGEST = re.compile("[0-9a-f]{64}")
_ARCHITECTURE = re.compile("[a-z0-9][a-z0-9_-]{0,63}")
_QUANTIZATION = re.compile(r"[A-Z0-9_]+:[1-9][0-9]{0,8}(,[A-Z0-9_]+:[1-9][0-9]{0,8})*")


class Origin(Struct, frozen=True):
    """What a cut says about its source: layers `[start, end)` of the artifact `source_digest`."""

    source_digest: str
    start: int
    end: int


class ModelFacts(Struct, frozen=True):
    """What the keys and tensors of one artifact decide. Digests are 64 lower-case hex."""

    architecture: str
    architecture_digest: str
    tokenizer_digest: str | None
    weight_quantization: str
    layers: Layers
    origin: Origin | None
    name: str | None


def read_facts(artifact: Artifact) -> ModelFacts:
    """Derive the facts from the artifact's bytes; tensor data is not read. Raises `PinError`."""
    head = artifact.head
    architecture = head.text("general.architecture")
    if architecture is None:
        raise PinError(f"{head.path}: it has no key general.architecture; is it a model?")
    if not _ARCHITECTURE.fullmatch(architecture):
        raise PinError(
            f"{head.path}: general.architecture is {architecture[:80]!a}, which names nothing;"
            " get the file elsewhere"
        )
    tokenizer_keys = [key for key in head.values if key.startswith("tokenizer.")]
    origin = _origin(artifact)
    counted = count_types(artifact)
    return ModelFacts(
        architecture=architecture,
        architecture_digest=metadata_digest(
            head,
            (
                key
                for key in head.values
                if key == "general.architecture" or key.startswith(f"{architecture}.")
            ),
        ),
        tokenizer_digest=metadata_digest(head, tokenizer_keys) if tokenizer_keys else None,
        weight_quantization=_of_source(head, counted) if origin else _written(counted),
        layers=read_layers(artifact, architecture, (origin.start, origin.end) if origin else None),
        origin=origin,
        name=_label(head.text("general.name")),
    )


def metadata_digest(file: GgufFile, keys: Iterable[str]) -> str:
    """SHA-256 (hex) over `keys` of `file` in the form at the head of this module."""
    digest = hashlib.sha256()
    for key in sorted(keys):  # by code point, which for UTF-8 is also by byte
        value = file.values[key]
        name = key.encode()
        digest.update(len(name).to_bytes(4, "little") + name)
        digest.update(value.type_id.to_bytes(4, "little"))
        for chunk in file.read(value.data_start, value.end):
            digest.update(chunk)
    return digest.hexdigest()


def count_types(artifact: Artifact) -> Counter[str]:
    """How many tensors of each type the files hold."""
    return Counter(tensor.type_name for _, tensor in artifact.tensors())


def _written(counted: Counter[str]) -> str:
    return ",".join(f"{name}:{count}" for name, count in sorted(counted.items()))


def _origin(artifact: Artifact) -> Origin | None:
    head = artifact.head
    if not any(key.startswith(CUT_PREFIX) for key in head.values):
        return None
    digest, start, end = (
        head.text(SOURCE_DIGEST_KEY),
        head.integer(LAYER_START_KEY),
        head.integer(LAYER_END_KEY),
    )
    if digest is None or start is None or end is None or not _DIGEST.fullmatch(digest):
        raise PinError(
            f"{head.path}: its {CUT_PREFIX}* keys do not say which layers of which artifact it is;"
            " cut it from its source again"
        )
    return Origin(digest, start, end)


def _of_source(head: GgufFile, counted: Counter[str]) -> str:
    """The source's `weight_quantization`, which the cut's own tensors must fit into."""
    stated = head.text(WEIGHT_QUANTIZATION_KEY) or ""
    counts: Counter[str] = Counter()
    if _QUANTIZATION.fullmatch(stated):
        for entry in stated.split(","):
            name, _, count = entry.partition(":")
            counts[name] += int(count)
    if _written(counts) != stated or not counted <= counts:
        raise PinError(
            f"{head.path}: {WEIGHT_QUANTIZATION_KEY} does not fit its own tensors;"
            " cut it from its source again"
        )
    return stated


def _label(name: str | None) -> str | None:
    """`general.name` where it can serve as a label: short, printable, not blank."""
    trimmed = (name or "").strip()
    return trimmed if trimmed.isprintable() and 0 < len(trimmed) <= MAX_LABEL_LENGTH else None
