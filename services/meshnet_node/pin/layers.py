"""Which tensor belongs to which layers, and how many layers there are.

`layer_count` is the stack a route tiles: `<arch>.block_count` minus `<arch>.nextn_predict_layers`.
The blocks above it are next-token-prediction (MTP) layers. They belong to no shard: no route runs
them and no axis of a recipe speaks of them, so a cut leaves them out. The keys are believed only
where the tensors agree:

- every block of the stack (of a cut: every block of its range, and no other) has tensors;
- no block lies at or above `block_count`;
- a block has `nextn` tensors exactly if the keys call it an MTP layer. Converters that drop the MTP
  layer but keep its key would otherwise lose the last real layer, and every token with it. MTP
  blocks may be absent altogether.

Outside the blocks, a table says what goes with the first layer, with the last, or with all. A name
that is not in it is refused rather than guessed: a tensor left out changes the numbers silently.
"""

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto

from msgspec import Struct

from meshnet_node.pin.errors import PinError
from meshnet_node.pin.gguf_file import GgufFile, Tensor
from meshnet_node.pin.split import Artifact
from meshnet_node.targets import BLOCK_PREFIX

MAX_BLOCKS = 1 << 16

_BLOCK = re.compile(r"blk\.(?P<index>0|[1-9][0-9]{0,5})\.(?P<rest>.+)", re.DOTALL)


class _Place(Enum):
    FIRST = auto()
    LAST = auto()
    EVERY = auto()


# By the first word of the name (`output.weight`, `cls.output.bias`).
_PLACES = {
    "token_embd": _Place.FIRST,
    "token_embd_norm": _Place.FIRST,
    "token_types": _Place.FIRST,
    "position_embd": _Place.FIRST,
    "output_norm": _Place.LAST,
    "output": _Place.LAST,
    "cls": _Place.LAST,
    "dense_2": _Place.LAST,
    "dense_3": _Place.LAST,
    "rope_freqs": _Place.EVERY,
    "rope_factors_long": _Place.EVERY,
    "rope_factors_short": _Place.EVERY,
}


class Layers(Struct, frozen=True):
    """`layer_count` is the stack that a route tiles, `nextn_layers` the MTP layers held above."""

    layer_count: int
    nextn_layers: int


def read_layers(artifact: Artifact, architecture: str, held: tuple[int, int] | None) -> Layers:
    """How many layers the keys state, checked against the tensors.

    `held` is the layer range of a cut, which has no tensors for the rest; None for a whole model.
    Raises `PinError`.
    """
    head = artifact.head
    block_count = _count(head, f"{architecture}.block_count", None)
    nextn_layers = _count(head, f"{architecture}.nextn_predict_layers", 0)
    layer_count = block_count - nextn_layers
    if layer_count < 1:
        raise PinError(
            f"{head.path}: block_count {block_count} minus nextn_predict_layers {nextn_layers}"
            " leaves no layer; its keys are wrong, convert the model again"
        )
    blocks, nextn_blocks = _blocks(artifact)
    for problem in _problems(blocks, nextn_blocks, block_count, layer_count, held):
        raise PinError(
            f"{head.path}: {problem} ({architecture}.block_count is {block_count},"
            f" nextn_predict_layers {nextn_layers}); keys and tensors must agree: get the whole"
            " model, or convert it again"
        )
    return Layers(layer_count, len(nextn_blocks))


def _count(head: GgufFile, key: str, default: int | None) -> int:
    count = head.integer(key)
    if count is None:
        count = default
    if count is None:
        raise PinError(f"{head.path}: it has no key {key}; is it a language model?")
    if not 0 <= count <= MAX_BLOCKS:
        raise PinError(f"{head.path}: {key} is {count} (at most {MAX_BLOCKS}); get it elsewhere")
    return count


def _blocks(artifact: Artifact) -> tuple[set[int], set[int]]:
    """The blocks that have tensors, and those of them that have `nextn` tensors."""
    blocks: set[int] = set()
    nextn_blocks: set[int] = set()
    for file, tensor in artifact.tensors():
        index = block_of(file, tensor)
        if index is not None:
            blocks.add(index)
            if ".nextn." in tensor.name:
                nextn_blocks.add(index)
    return blocks, nextn_blocks


def _problems(
    blocks: set[int],
    nextn_blocks: set[int],
    block_count: int,
    layer_count: int,
    held: tuple[int, int] | None,
) -> Iterator[str]:
    start, end = held or (0, layer_count)
    if not 0 <= start < end <= layer_count:
        yield f"it says it was cut to layers [{start}, {end}) of {layer_count}"
        return
    absent = [index for index in range(start, end) if index not in blocks]
    if absent:
        yield f"layer {absent[0]} has no tensors (one of {len(absent)} such layers)"
    foreign = sorted(index for index in blocks if index >= block_count)
    if foreign:
        yield f"block {foreign[0]} has tensors"
    if held:
        outside = sorted(index for index in blocks if not start <= index < end)
        if outside:
            yield f"block {outside[0]} lies outside the layers [{start}, {end}) it was cut to"
    misnamed = sorted(
        index for index in blocks if (index >= layer_count) != (index in nextn_blocks)
    )
    if misnamed:
        kind = "no nextn tensors" if misnamed[0] >= layer_count else "nextn tensors"
        yield f"block {misnamed[0]} has {kind}"


def block_of(file: GgufFile, tensor: Tensor) -> int | None:
    """The block that a tensor is of; None outside the blocks. Raises `PinError`."""
    match = _BLOCK.fullmatch(tensor.name)
    if match:
        return int(match["index"])
    if tensor.name.startswith(BLOCK_PREFIX):
        raise PinError(f"{file.path}: {tensor.name!a} is no tensor name; get it elsewhere")
    return None


def group_of(name: str, block: int | None) -> str:
    """Which tensors go together: `blk.3` for those of one block, else each by its own name."""
    return name if block is None else f"{BLOCK_PREFIX}{block}"


def tensors_of(
    artifact: Artifact, start: int, end: int, layer_count: int
) -> Iterable[tuple[GgufFile, Tensor]]:
    """The tensors that a shard of layers `[start, end)` needs, in the order of the source.

    Raises `PinError` for a tensor whose place is unknown.
    """
    grouped = [
        (group_of(tensor.name, block_of(file, tensor)), file, tensor)
        for file, tensor in artifact.tensors()
    ]
    held = held_groups(
        (group for group, _, _ in grouped), start, end, layer_count, of=str(artifact.head.path)
    )
    return ((file, tensor) for group, file, tensor in grouped if group in held)


def held_groups(
    groups: Iterable[str], start: int, end: int, layer_count: int, *, of: str
) -> frozenset[str]:
    """Those of a model's groups that a shard of layers `[start, end)` needs.

    Embeddings go with the first layer, norms and head with the last. Without a head of its own
    (no `output` tensor) the model reads tokens off its embedding, so the last layer takes that
    too. Raises `PinError` for a tensor whose place is unknown; `of` is what holds it.
    """
    groups = frozenset(groups)
    tied = "output.weight" not in groups
    places = {_Place.EVERY}
    if start == 0:
        places.add(_Place.FIRST)
    if end == layer_count:
        places.add(_Place.LAST)
    held = set()
    for group in groups:
        if group.startswith(BLOCK_PREFIX):
            wanted = start <= int(group.removeprefix(BLOCK_PREFIX)) < end
        else:
            place = _PLACES.get(group.partition(".")[0])
            if place is None:
                raise PinError(
                    f"{of}: no layer is known for tensor {group!a}, so the model cannot be cut;"
                    " use the whole file"
                )
            shared = tied and group == "token_embd.weight" and _Place.LAST in places
            wanted = place in places or shared
        if wanted:
            held.add(group)
    return frozenset(held)
