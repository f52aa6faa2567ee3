"""Digests of tensors, by which a cut shows whose layers it holds.

Tensors go in *groups*: all those of one block are one group, `blk.3`; outside the blocks each tensor is
a group by its own name, `token_embd.weight`. A cut takes whole groups and changes no byte, so a group
has one digest in the artifact and in every cut of it. A locked target keeps those of the whole
(`tensors`), and whoever has only a cut compares.

The digest of a group is SHA-256 over its tensors, in the order of their names' UTF-8 bytes, each as

    u32 length of the name, the name in UTF-8, u32 tensor type, u32 number of dimensions,
    u64 each dimension (innermost first), u64 length of the data, the data as the file holds it

with integers little-endian. Where in a file a tensor lies does not matter, nor in which part of a set.

Example: a block 0 of `blk.0.attn_norm.weight`, two 32-bit floats (type 0) 1.0 and 2.0, and
`blk.0.attn_k.weight`, 2 by 1 16-bit floats (type 1) 1.0 and -1.0. Its group `blk.0` has the bytes

    13000000 626c6b2e302e6174746e5f6b2e776569676874
    01000000 02000000 0200000000000000 0100000000000000 0400000000000000 003c00bc
    16000000 626c6b2e302e6174746e5f6e6f726d2e776569676874
    00000000 01000000 0200000000000000 0800000000000000 0000803f00000040

and the digest

    978aa4e34ebc70701828b892850f8f08f70d52f4c2befddf1f7654bc4f27cddf

Next-token-prediction (MTP) blocks have none: no cut holds them.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence

from meshnet_node.pin.digest import Meter, remember_tensors, remembered_tensors
from meshnet_node.pin.gguf_file import GgufFile, Tensor
from meshnet_node.pin.layers import block_of, group_of
from meshnet_node.pin.split import Artifact

Groups = Mapping[str, Sequence[tuple[GgufFile, Tensor]]]
"""Tensors by group, each with the file that it lies in."""


def groups_of(artifact: Artifact, layer_count: int) -> Groups:
    """The groups that have a digest, in file order. Raises `PinError` for what is no tensor name."""
    groups: dict[str, list[tuple[GgufFile, Tensor]]] = {}
    for file, tensor in artifact.tensors():
        index = block_of(file, tensor)
        if index is None or index < layer_count:
            groups.setdefault(group_of(tensor.name, index), []).append((file, tensor))
    return groups


def size_of(groups: Groups) -> int:
    """How many bytes `digest_groups` reads."""
    return sum(tensor.size_bytes for held in groups.values() for _, tensor in held)


def digest_groups(
    artifact: Artifact, groups: Groups, *, cache: bool, meter: Meter
) -> dict[str, str]:
    """SHA-256 (hex) of each group. Remembered for an artifact of one file, as every cut is.

    Raises `PinError` when a file cannot be read or changes meanwhile.
    """
    sole = artifact.head if cache and len(artifact.files) == 1 else None
    if sole is not None:
        known = remembered_tensors(sole)
        if known.keys() == groups.keys():
            meter.advance(size_of(groups))
            return known
    digests = {group: _digest(held, meter) for group, held in groups.items()}
    for file in artifact.files:
        file.check_unchanged()
    if sole is not None:
        remember_tensors(sole, digests)
    return digests


def _digest(held: Sequence[tuple[GgufFile, Tensor]], meter: Meter) -> str:
    digest = hashlib.sha256()
    for file, tensor in sorted(held, key=lambda pair: pair[1].name.encode()):
        name, sizes = tensor.name.encode(), tensor.dimensions
        head = struct.pack(f"<I{len(name)}sII", len(name), name, tensor.type_id, len(sizes))
        digest.update(head + struct.pack(f"<{len(sizes)}QQ", *sizes, tensor.size_bytes))
        for chunk in file.read(tensor.start, tensor.start + tensor.size_bytes):
            digest.update(chunk)
            meter.advance(len(chunk))
    return digest.hexdigest()
