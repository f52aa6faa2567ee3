"""Oracles for the reference backend: whole forwards in float64, one position at a time, no cache.

Written from the papers' formulae and read through the `gguf` package's own reader, so that nothing
is shared with what they check: rotations are complex numbers here, attention is a loop over what a
position may see. `write_gemma3` makes a small model of that architecture, its weights random.
"""

import cmath
import math
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants


class Naive:
    """One model file; `run` gives the activations at every seam and the logits of every position."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.keys = {name: field.contents() for name, field in reader.fields.items()}
        self.arch = self.keys["general.architecture"]
        self.tensors = {
            tensor.name: quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors
        }
        self.heads = self.key("attention.head_count")
        self.kv_heads = self.key("attention.head_count_kv")
        self.size = self.key("attention.key_length", self.key("embedding_length") // self.heads)
        self.rope = self.key("rope.dimension_count", self.size)
        self.layers = self.key("block_count")

    def key(self, name, default=None):
        return self.keys.get(f"{self.arch}.{name}", default)

    def norm(self, vector, name):
        mean_square = sum(value * value for value in vector) / len(vector)
        epsilon = self.key("attention.layer_norm_rms_epsilon")
        return vector / math.sqrt(mean_square + epsilon) * self.tensors[name]

    def turned(self, head, position, base, factor=1.0):
        """`head` with its pairs multiplied by e^(i·angle)."""
        divisors = self.tensors.get("rope_freqs.weight", np.ones(self.rope // 2))
        result = head.copy()
        for pair in range(self.rope // 2):
            if self.arch == "llama":
                first, second = 2 * pair, 2 * pair + 1
            else:
                first, second = pair, pair + self.rope // 2
            angle = position / factor * base ** (-2 * pair / self.rope) / divisors[pair]
            number = complex(head[first], head[second]) * cmath.exp(1j * angle)
            result[first], result[second] = number.real, number.imag
        return result

    def attention(self, layer, normed, scale, base, window, factor):
        weight = {name: self.tensors[f"blk.{layer}.attn_{name}.weight"] for name in "qkv"}
        heads = {}
        for name, count in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            for position, vector in enumerate(normed):
                product = weight[name] @ vector
                for head in range(count):
                    part = product[head * self.size : (head + 1) * self.size]
                    if name != "v":
                        if self.arch == "gemma3":
                            part = self.norm(part, f"blk.{layer}.attn_{name}_norm.weight")
                        part = self.turned(part, position, base, factor)
                    heads[name, position, head] = part
        shared = self.heads // self.kv_heads
        results = []
        for position in range(len(normed)):
            mixed = []
            for head in range(self.heads):
                oldest = 0 if window is None else max(0, position - window + 1)
                visible = range(oldest, position + 1)
                raw = [
                    math.exp(scale * (heads["q", position, head] @ heads["k", at, head // shared]))
                    for at in visible
                ]
                mixed.append(
                    sum(
                        share / sum(raw) * heads["v", at, head // shared]
                        for share, at in zip(raw, visible, strict=True)
                    )
                )
            output = self.tensors[f"blk.{layer}.attn_output.weight"]
            results.append(output @ np.concatenate(mixed))
        return results

    def feed_forward(self, layer, vector):
        block = f"blk.{layer}."
        gate = self.tensors[block + "ffn_gate.weight"] @ vector
        if self.arch == "llama":
            gate = np.array([value / (1 + math.exp(-value)) for value in gate])
        else:
            root = math.sqrt(2 / math.pi)
            gate = np.array(
                [
                    value * (1 + math.tanh(root * (value + 0.044715 * value**3))) / 2
                    for value in gate
                ]
            )
        up = self.tensors[block + "ffn_up.weight"] @ vector
        return self.tensors[block + "ffn_down.weight"] @ (gate * up)

    def layer(self, layer, stream):
        block, gemma = f"blk.{layer}.", self.arch == "gemma3"
        base, window = self.key("rope.freq_base", 10_000.0), None
        factor = self.key("rope.scaling.factor", 1.0)
        if gemma and (layer + 1) % 6:
            base, window, factor = 10_000.0, self.key("attention.sliding_window"), 1.0
        normed = [self.norm(vector, block + "attn_norm.weight") for vector in stream]
        added = self.attention(layer, normed, 1 / math.sqrt(self.size), base, window, factor)
        if gemma:
            added = [self.norm(vector, block + "post_attention_norm.weight") for vector in added]
        stream = [vector + more for vector, more in zip(stream, added, strict=True)]
        result = []
        for vector in stream:
            more = self.feed_forward(layer, self.norm(vector, block + "ffn_norm.weight"))
            if gemma:
                more = self.norm(more, block + "post_ffw_norm.weight")
            result.append(vector + more)
        return result

    def run(self, ids):
        """The activations before layer 0, 1, …, after the last, and the logits: arrays."""
        scale = math.sqrt(self.key("embedding_length")) if self.arch == "gemma3" else 1.0
        stream = [self.tensors["token_embd.weight"][token] * scale for token in ids]
        seams = [np.array(stream)]
        for layer in range(self.layers):
            stream = self.layer(layer, stream)
            seams.append(np.array(stream))
        head = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        logits = [head @ self.norm(vector, "output_norm.weight") for vector in stream]
        return seams, np.array(logits)


GEMMA_VOCABULARY = 80
GEMMA_LAYERS = 7
GEMMA_WINDOW = 3


def write_gemma3(
    path: Path, *, texts=None, floats=None, integers=None, counted=True, seed=3
) -> Path:
    """A gemma3 model: local and global layers, heads wider than the embedding divided, tied head."""
    width, wide, heads, size = 64, 96, 4, 32
    random = np.random.default_rng(seed)
    writer = GGUFWriter(path, "gemma3")
    writer.add_name("Tiny Gemma")
    writer.add_block_count(GEMMA_LAYERS)
    writer.add_context_length(64)
    if counted:
        writer.add_vocab_size(GEMMA_VOCABULARY)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_sliding_window(GEMMA_WINDOW)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1_000_000.0)
    for key, text in (texts or {}).items():
        writer.add_string(key, text)
    for key, number in (floats or {}).items():
        writer.add_float32(key, number)
    for key, number in (integers or {}).items():
        writer.add_uint32(key, number)

    def add(name, *shape, kind=GGMLQuantizationType.F32):
        if len(shape) == 1:
            weights = random.uniform(0.5, 1.5, shape)
        else:
            weights = random.standard_normal(shape) / math.sqrt(shape[1])
        data = quants.quantize(weights.astype(np.float32), kind)
        writer.add_tensor(name, data, raw_dtype=kind)

    add("token_embd.weight", GEMMA_VOCABULARY, width, kind=GGMLQuantizationType.Q8_0)
    for layer in range(GEMMA_LAYERS):
        block = f"blk.{layer}."
        add(block + "attn_norm.weight", width)
        add(block + "attn_q.weight", heads * size, width, kind=GGMLQuantizationType.Q5_0)
        add(block + "attn_k.weight", size, width, kind=GGMLQuantizationType.Q8_0)
        add(block + "attn_v.weight", size, width, kind=GGMLQuantizationType.BF16)
        add(block + "attn_q_norm.weight", size)
        add(block + "attn_k_norm.weight", size)
        add(block + "attn_output.weight", width, heads * size, kind=GGMLQuantizationType.Q4_1)
        add(block + "post_attention_norm.weight", width)
        add(block + "ffn_norm.weight", width)
        add(block + "ffn_gate.weight", wide, width, kind=GGMLQuantizationType.F16)
        add(block + "ffn_up.weight", wide, width)
        add(block + "ffn_down.weight", width, wide, kind=GGMLQuantizationType.Q8_0)
        add(block + "post_ffw_norm.weight", width)
    add("output_norm.weight", width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
