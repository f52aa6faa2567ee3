"""A small llama model in GGUF with random weights: real to every program here, and saying nothing.

Tests, and the demo where the big model is not installed, need a file that is pinned, cut, loaded and
computed like any other in a moment. Its architecture, tokenizer, tensor types and arithmetic are
real. Its weights are drawn at random, so *its text is nonsense* and no measure of anything.

- The same arguments give the same bytes, with one version of numpy and gguf.
- Any text can be encoded: what no piece covers becomes bytes.
- So that the nonsense can be read, the head favours whole words.
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

from meshnet_node.backends.reference.shape import Array

EMBEDDING = 64
_FEED_FORWARD = 128
_HEADS = 4
_KV_HEADS = 2
_HEAD_SIZE = EMBEDDING // _HEADS
_CONTEXT = 512

_F32 = GGMLQuantizationType.F32
_F16 = GGMLQuantizationType.F16
_Q8_0 = GGMLQuantizationType.Q8_0
_Q4_0 = GGMLQuantizationType.Q4_0

# (name within a block, rows, columns, type); no rows for a norm.
_BLOCK = (
    ("attn_norm.weight", 0, EMBEDDING, _F32),
    ("attn_q.weight", EMBEDDING, EMBEDDING, _Q8_0),
    ("attn_k.weight", _KV_HEADS * _HEAD_SIZE, EMBEDDING, _Q8_0),
    ("attn_v.weight", _KV_HEADS * _HEAD_SIZE, EMBEDDING, _F16),
    ("attn_output.weight", EMBEDDING, EMBEDDING, _Q8_0),
    ("ffn_norm.weight", 0, EMBEDDING, _F32),
    ("ffn_gate.weight", _FEED_FORWARD, EMBEDDING, _Q4_0),
    ("ffn_up.weight", _FEED_FORWARD, EMBEDDING, _Q4_0),
    ("ffn_down.weight", EMBEDDING, _FEED_FORWARD, _Q8_0),
)
_SPECIAL = (("<unk>", TokenType.UNKNOWN), ("<s>", TokenType.CONTROL), ("</s>", TokenType.CONTROL))
_LETTERS = "▁abcdefghijklmnopqrstuvwxyz.,"
_TEXT = (
    "a and answers asks before but carries certifies counts dark each every finds first from gives "
    "hears holds hop in is it keeps last layer light listens log names never node of on one opens "
    "or proves proof reads realm route says seam sees shard signs speaks still that the then these "
    "this to token two under waits what when where while with"
)


def write_tiny_llama(path: Path, *, layers: int = 4, seed: int = 2026) -> Path:
    """Write the model to `path` (about 200 kB with 4 layers) and return it. Its text is nonsense."""
    words = _TEXT.split()
    writer = GGUFWriter(path, "llama")
    writer.add_name("Tiny random llama")
    writer.add_block_count(layers)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(EMBEDDING)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_HEAD_SIZE)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    pieces = _pieces(words)
    _add_tokenizer(writer, pieces)
    favoured = [
        index
        for index, (piece, _) in enumerate(pieces)
        if piece[1:] in words or piece in {".", ","}
    ]
    _add_tensors(writer, np.random.default_rng(seed), layers, len(pieces), favoured)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _pieces(words: list[str]) -> list[tuple[str, TokenType]]:
    """Special tokens, every byte, letters, and words with all that they are merged from."""
    merges = dict.fromkeys(
        f"▁{word[:length]}" for word in words for length in range(1, len(word) + 1)
    )
    return [
        *_SPECIAL,
        *((f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)),
        *((piece, TokenType.NORMAL) for piece in (*_LETTERS, *merges)),
    ]


def _add_tokenizer(writer: GGUFWriter, pieces: list[tuple[str, TokenType]]) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([piece for piece, _ in pieces])
    # Of two merges the earlier piece wins.
    writer.add_token_scores([-float(index) for index in range(len(pieces))])
    writer.add_token_types([int(kind) for _, kind in pieces])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)  # noqa: FBT003  # the library's own signature
    writer.add_add_space_prefix(True)  # noqa: FBT003


def _add_tensors(
    writer: GGUFWriter,
    chance: np.random.Generator,
    layers: int,
    vocabulary: int,
    favoured: list[int],
) -> None:
    def add(name: str, weights: Array, kind: GGMLQuantizationType) -> None:
        writer.add_tensor(name, quants.quantize(weights, kind), raw_dtype=kind)

    def matrix(rows: int, columns: int) -> Array:
        # Uniform with variance 1/columns, so that a product is as large as what went in.
        bound = np.sqrt(3 / columns)
        return chance.uniform(-bound, bound, (rows, columns)).astype(np.float32)

    def norm() -> Array:
        return chance.uniform(0.5, 1.5, EMBEDDING).astype(np.float32)

    add("token_embd.weight", matrix(vocabulary, EMBEDDING), _Q8_0)
    for layer in range(layers):
        for name, rows, columns, kind in _BLOCK:
            add(f"blk.{layer}.{name}", matrix(rows, columns) if rows else norm(), kind)
    add("output_norm.weight", norm(), _F32)
    head = matrix(vocabulary, EMBEDDING)
    head[favoured] *= 8
    add("output.weight", head, _F16)
