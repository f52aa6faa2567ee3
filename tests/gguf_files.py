"""Small real GGUF files for tests: made by the `gguf` package, or by hand where it refuses to.

`write_model` makes a llama-shaped model of a few kilobytes with mixed tensor types; `raw_gguf`
writes whatever it is told, sound or not.
"""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants

EMBEDDING = 64
FEED_FORWARD = 128
VOCABULARY = 96

F32 = GGMLQuantizationType.F32
Q8_0 = GGMLQuantizationType.Q8_0
Q4_0 = GGMLQuantizationType.Q4_0

# (name within a block, rows, columns, type)
_BLOCK = (
    ("attn_norm.weight", None, EMBEDDING, F32),
    ("attn_q.weight", EMBEDDING, EMBEDDING, Q8_0),
    ("attn_k.weight", EMBEDDING, EMBEDDING, Q8_0),
    ("attn_v.weight", EMBEDDING, EMBEDDING, Q4_0),
    ("attn_output.weight", EMBEDDING, EMBEDDING, Q8_0),
    ("ffn_norm.weight", None, EMBEDDING, F32),
    ("ffn_gate.weight", FEED_FORWARD, EMBEDDING, Q4_0),
    ("ffn_up.weight", FEED_FORWARD, EMBEDDING, Q4_0),
    ("ffn_down.weight", EMBEDDING, FEED_FORWARD, Q8_0),
)
_NEXTN = (
    ("nextn.eh_proj.weight", EMBEDDING, 2 * EMBEDDING, Q8_0),
    ("nextn.enorm.weight", None, EMBEDDING, F32),
    ("nextn.hnorm.weight", None, EMBEDDING, F32),
)


def write_model(
    path: Path,
    *,
    layers: int = 2,
    nextn_layers: int = 0,
    nextn_tensors: bool = True,
    tied: bool = False,
    texts: Mapping[str, str] | None = None,
    integers: Mapping[str, int] | None = None,
    tokenizer: bool = True,
    pre: str = "llama-bpe",
    name: str | None = "Tiny Llama",
    alignment: int | None = None,
    extra_tensors: Iterable[str] = (),
    without_tensors: Iterable[str] = (),
    parts_of_tensors: int = 0,
    seed: int = 1,
) -> list[Path]:
    """Write a llama model and return its file, or its parts in order.

    `layers` counts the stack; `nextn_layers` more blocks follow it. `integers` and `texts` add or
    replace keys. `parts_of_tensors` above 0 splits after that many tensors. Without some tensors, or
    with `extra_tensors`, the others are as they are in the whole model of that seed.
    """
    writer = GGUFWriter(path, "llama", split_max_tensors=parts_of_tensors)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    if name is not None:
        writer.add_name(name)
    writer.add_file_type(7)
    numbers = {
        "llama.block_count": layers + nextn_layers,
        "llama.context_length": 128,
        "llama.embedding_length": EMBEDDING,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 4,
        **({"llama.nextn_predict_layers": nextn_layers} if nextn_layers else {}),
        **(integers or {}),
    }
    for key, number in numbers.items():
        writer.add_uint32(key, number)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if tokenizer:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([f"tok{index}é" for index in range(VOCABULARY)])
        writer.add_token_scores([index / 3 for index in range(VOCABULARY)])
        writer.add_token_types([1] * VOCABULARY)
    for key, text in (texts or {}).items():
        writer.add_string(key, text)
    _add_tensors(
        writer,
        layers=layers,
        nextn_layers=nextn_layers if nextn_tensors else 0,
        tied=tied,
        extra=extra_tensors,
        without=set(without_tensors),
        seed=seed,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return writer.format_shard_names(path)


def _add_tensors(
    writer: GGUFWriter,
    *,
    layers: int,
    nextn_layers: int,
    tied: bool,
    extra: Iterable[str],
    without: set[str],
    seed: int,
) -> None:
    blocks = [
        (f"blk.{index}.{name}", rows, columns, kind)
        for index in range(layers + nextn_layers)
        for name, rows, columns, kind in (*_BLOCK, *(_NEXTN if index >= layers else ()))
    ]
    tensors = [
        ("token_embd.weight", VOCABULARY, EMBEDDING, Q8_0),
        ("rope_freqs.weight", None, 8, F32),
        *blocks,
        ("output_norm.weight", None, EMBEDDING, F32),
        *([] if tied else [("output.weight", VOCABULARY, EMBEDDING, Q8_0)]),
        *((name, None, EMBEDDING, F32) for name in extra),
    ]
    random = np.random.default_rng(seed)
    for name, rows, columns, kind in tensors:
        shape = (columns,) if rows is None else (rows, columns)
        weights = random.standard_normal(shape).astype(np.float32)
        if name not in without:
            writer.add_tensor(name, quants.quantize(weights, kind), raw_dtype=kind)


def rewrite_keys(source: Path, destination: Path, keys: Mapping[str, bytes]) -> None:
    """Copy a file, giving each u16, u32 or i32 key in `keys` the bytes instead of its own."""
    data = bytearray(source.read_bytes())
    for key, value in keys.items():
        at = data.index(key.encode()) + len(key) + 4
        data[at : at + len(value)] = value
    destination.write_bytes(data)


def text(value: str | bytes) -> bytes:
    """A string as GGUF spells it."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    """A key as GGUF spells it; `value` without its type."""
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, dimensions: Iterable[int] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    """A tensor's entry as GGUF spells it."""
    sizes = tuple(dimensions)
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


SOUND_KEYS = (
    key("general.architecture", GGUFValueType.STRING, text("llama")),
    key("llama.block_count", GGUFValueType.UINT32, struct.pack("<I", 1)),
)
SOUND_TENSORS = (tensor("blk.0.attn_norm.weight"),)


def raw_gguf(
    keys: Iterable[bytes] = SOUND_KEYS, tensors: Iterable[bytes] = SOUND_TENSORS, **header: Any
) -> bytes:
    """The bytes of a file. `magic`, `version`, `tensor_count`, `key_count`, `data` override."""
    keys, tensors = tuple(keys), tuple(tensors)
    head = header.get("magic", b"GGUF") + struct.pack(
        "<IQQ",
        header.get("version", 3),
        header.get("tensor_count", len(tensors)),
        header.get("key_count", len(keys)),
    )
    body = head + b"".join(keys) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + header.get("data", bytes(64))
