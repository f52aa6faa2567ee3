"""A backend of somebody else: a toy architecture, computed in plain Python.

A layer mixes each position with the mean of those before it, h = x + tanh(W (x + mean)); the mean is
what its KV cache would be. Numbers are rounded to float32 wherever a layer ends, so that a model gives
the same bytes however it is cut.
"""

import math
from array import array

from gguf import GGUFReader

from meshnet_node.backends import BackendError, ContextFull, NotFinite, NoTokenizer, Step

ARCHITECTURE = "acme-toy"
VERSION = "1.0"  # of the code that runs, not of whatever is installed


class ToyBackend:
    backend_id = "acme-toy"
    runtime_version = VERSION
    synthetic = False  # it computes the model that is in the file
    devices = ("cpu",)

    def load(self, files, *, start, end, device):
        if len(files) != 1 or device not in self.devices:
            raise BackendError("expected one file, and the device cpu")
        try:
            return ToyShard(GGUFReader(files[0]), start, end)
        except (KeyError, OSError, ValueError) as error:
            raise BackendError(f"{files[0]} is no {ARCHITECTURE} model: {error!r}") from error


class ToyShard:
    end_tokens = frozenset[int]()

    def __init__(self, file, start, end):
        def key(name):
            return file.fields[name].contents()

        if key("general.architecture") != ARCHITECTURE:
            raise BackendError(f"expected the architecture {ARCHITECTURE}")
        tensors = {tensor.name: tensor.data.tolist() for tensor in file.tensors}
        self.start, self.end = start, end
        self.layer_count = key(f"{ARCHITECTURE}.block_count")
        self.context_length = key(f"{ARCHITECTURE}.context_length")
        self.width = key(f"{ARCHITECTURE}.embedding_length")
        self.position_bytes = 4 * self.width
        self.vocabulary = key(f"{ARCHITECTURE}.vocab_size")
        self.layers = {n: tensors[f"blk.{n}.mix.weight"] for n in range(start, end)}
        self.embedding = tensors["token_embd.weight"] if start == 0 else None
        self.head = tensors["output.weight"] if end == self.layer_count else None
        # What runs, told by what was loaded. Never what the recipe says: that is to be checked
        cut_from = file.fields.get("meshnet.weight_quantization")  # a cut states its source's
        self.axes = {
            "weight_quantization": cut_from.contents() if cut_from else f"F32:{len(tensors)}",
            "activation_dtype": "float32",
            "compute_dtype": "float64",
            "kv_dtype": "float64",
            "kv_layout": "mean",
            "architecture_adapter": ARCHITECTURE,
            "backend_id": ToyBackend.backend_id,
            "runtime_version": VERSION,
        }

    @property
    def memory_bytes(self):
        return 8 * self.width * self.width * len(self.layers)

    def open(self, start, end, *, positions=None):
        if not self.start <= start < end <= self.end:
            raise ValueError(f"layers [{start}, {end}) are not held")
        return ToySlot(self, start, end, min(positions or math.inf, self.context_length))

    def encode(self, text):
        raise NoTokenizer("a toy has no tokenizer")

    def decode(self, token):
        raise NoTokenizer("a toy has no tokenizer")

    def close(self):
        self.layers = {}


class ToySlot:
    def __init__(self, shard, start, end, room):
        self.shard, self.start, self.end, self.room = shard, start, end, room
        self.position = 0
        self.sums = {n: [0.0] * shard.width for n in range(start, end)}

    def forward_tokens(self, ids, *, sample):
        if not ids or not all(0 <= token < self.shard.vocabulary for token in ids):
            raise ValueError("expected token ids of the vocabulary, one at least")
        return self._forward([self.shard.embedding[token] for token in ids], sample)

    def forward_activations(self, activations, *, sample):
        numbers, width = array("f", activations), self.shard.width
        if not numbers or len(numbers) % width:
            raise ValueError("expected a whole number of positions")
        rows = [list(numbers[at : at + width]) for at in range(0, len(numbers), width)]
        return self._forward(rows, sample)

    def _forward(self, rows, sample):
        if self.position + len(rows) > self.room:
            raise ContextFull(f"room for {self.room} positions")
        out = [self._through_layers(row) for row in rows]
        if self.end < self.shard.layer_count:
            return Step(activations=b"".join(row.tobytes() for row in out))
        if not sample:
            return Step()
        logits = array("f", [_dot(row, out[-1]) for row in self.shard.head])
        return Step(token=logits.index(max(logits)), logits=memoryview(logits))

    def _through_layers(self, row):
        self.position += 1
        for n, sums in self.sums.items():
            mean = [total / self.position for total in sums]
            mixed = [x + m for x, m in zip(row, mean, strict=True)]
            self.sums[n] = [total + x for total, x in zip(sums, row, strict=True)]
            weights = self.shard.layers[n]
            row = array(
                "f", [x + math.tanh(_dot(w, mixed)) for x, w in zip(row, weights, strict=True)]
            )
        if not all(map(math.isfinite, row)):
            raise NotFinite(f"position {self.position} is no longer finite")
        return row

    def close(self):
        self.sums = {}


def _dot(left, right):
    return sum(a * b for a, b in zip(left, right, strict=True))
