"""Write a toy model: `python -m acme_toy.make_model toy.gguf`."""

import sys

import numpy as np
from gguf import GGUFWriter

from acme_toy import ARCHITECTURE

LAYERS, WIDTH, VOCABULARY = 2, 8, 32


def write(path, *, spoil=None):
    """Write the model; `spoil` may change its tensors before that."""
    chance = np.random.default_rng(1)
    shapes = {
        "token_embd.weight": (VOCABULARY, WIDTH),
        **{f"blk.{n}.mix.weight": (WIDTH, WIDTH) for n in range(LAYERS)},
        "output.weight": (VOCABULARY, WIDTH),
    }
    tensors = {name: chance.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    if spoil is not None:
        spoil(tensors)
    writer = GGUFWriter(path, ARCHITECTURE)
    writer.add_name("Toy")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_vocab_size(VOCABULARY)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(sys.argv[1])
