"""The reference backend on small real models: right numbers, the same everywhere, and refusals."""

import hashlib
import re
import struct
from contextlib import closing
from importlib.metadata import version

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, TokenType
from hypothesis import given
from hypothesis import strategies as st

from backend_kit import greedy
from gguf_files import write_model
from meshnet_node.backends import (
    BackendError,
    ContextFull,
    NotFinite,
    NoTokenizer,
    find_backend,
)
from meshnet_node.backends.reference import shard as shard_module
from meshnet_node.backends.reference import tiny as tiny_module
from meshnet_node.backends.reference import weights as weights_module
from meshnet_node.backends.reference.tiny import EMBEDDING, write_tiny_llama
from meshnet_node.pin import cut, pin
from naive import GEMMA_LAYERS, GEMMA_VOCABULARY, GEMMA_WINDOW, Naive, write_gemma3

IDS = (1, 40, 70, 3, 40, 17, 22, 9)


@pytest.fixture(scope="module")
def backend():
    return find_backend("reference-numpy")


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def tiny(backend, tiny_path):
    return load(backend, tiny_path)


def load(backend, *files, start=0, end=4):
    return backend.load(files, start=start, end=end, device="cpu")


def activations(step):
    return np.frombuffer(step.activations, "<f4").reshape(-1, EMBEDDING)


def generate(slot, ids, count):
    """Greedy tokens with their logits' bytes."""
    for step in greedy(slot, ids, count):
        yield step.token, bytes(step.logits)


def llama_with_rope_divisors(path):
    return write_model(path, layers=2, tied=True)[0], 2


def llama_that_turns_half_of_each_head(path):
    half = {"llama.rope.dimension_count": 8}
    return write_model(path, layers=2, integers=half, without_tensors=["rope_freqs.weight"])[0], 2


def tiny_llama(path):
    return write_tiny_llama(path), 4


def tiny_gemma(path):
    return write_gemma3(path), GEMMA_LAYERS


def tiny_gemma_stretched(path):
    stretch = {"gemma3.rope.scaling.factor": 8.0}
    kind = {"gemma3.rope.scaling.type": "linear"}
    return write_gemma3(path, texts=kind, floats=stretch), GEMMA_LAYERS


# ── Right ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "make",
    [
        tiny_llama,
        llama_with_rope_divisors,
        llama_that_turns_half_of_each_head,
        tiny_gemma,
        tiny_gemma_stretched,
    ],
)
def test_every_seam_and_every_logit_is_what_the_formulae_give(backend, tmp_path, make):
    path, layers = make(tmp_path / "model.gguf")
    assert len(IDS) > 2 * GEMMA_WINDOW
    seams, logits = Naive(path).run(IDS)
    shard = load(backend, path, end=layers)

    for seam in range(1, layers):
        with closing(shard.open(0, seam)) as slot:
            found = activations(slot.forward_tokens(IDS, sample=False))
        assert_close(found, seams[seam])
    with closing(shard.open(0, layers)) as slot:
        for token, expected in zip(IDS, logits, strict=True):
            step = slot.forward_tokens((token,), sample=True)
            assert_close(np.asarray(step.logits), expected)
            assert step.token == expected.argmax()


def assert_close(found, expected):
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


def test_of_equal_logits_the_smallest_id_wins(backend, tmp_path):
    path = write_tiny_llama(tmp_path / "equal.gguf")
    head = tensor(path, "output.weight")
    head.data[:] = 0

    with closing(load(backend, path).open(0, 4)) as slot:
        assert slot.forward_tokens(IDS, sample=True).token == 0


@pytest.mark.parametrize("count", [200, shard_module.STEP_POSITIONS + 50])
def test_a_prompt_in_one_go_means_what_it_means_token_by_token(tiny, count):
    """One step, whose cache has room at once, and more than one; the other cache grows."""
    ids = [index % tiny.vocabulary for index in range(count)]
    with closing(tiny.open(0, 4)) as slot:
        at_once = slot.forward_tokens(ids, sample=True)
        assert slot.position == len(ids)
    with closing(tiny.open(0, 4)) as slot:
        for token in ids:
            one = slot.forward_tokens((token,), sample=True)

    np.testing.assert_allclose(np.asarray(at_once.logits), np.asarray(one.logits), atol=2e-4)
    assert at_once.token == one.token


# ── The same everywhere ──────────────────────────────────────────────────────────────────────────


def test_the_same_calls_give_the_same_bytes(backend, tiny, tiny_path):
    with closing(tiny.open(0, 4)) as slot:
        first = list(generate(slot, IDS, 20))
    with closing(load(backend, tiny_path).open(0, 4)) as slot:
        assert list(generate(slot, IDS, 20)) == first


def test_room_set_aside_changes_nothing(tiny):
    with closing(tiny.open(0, 4)) as wide, closing(tiny.open(0, 4, positions=90)) as narrow:
        assert list(generate(wide, IDS, 80)) == list(generate(narrow, IDS, 80))


def test_slots_of_one_shard_do_not_see_each_other(tiny):
    prompts = [IDS, (1, 5), tuple(range(100, 180))]

    alone = []
    for prompt in prompts:
        with closing(tiny.open(0, 4)) as slot:
            alone.append(list(generate(slot, prompt, 15)))
    slots = [tiny.open(0, 4) for _ in prompts]
    turns = [generate(slot, prompt, 15) for slot, prompt in zip(slots, prompts, strict=True)]
    together = zip(*turns, strict=True)

    assert [list(answers) for answers in zip(*together, strict=True)] == alone


def test_a_call_that_failed_leaves_the_slot_where_it_was(tiny):
    with closing(tiny.open(0, 2)) as slot:
        given = slot.forward_tokens(IDS, sample=False).activations
    damaged = given[:-4] + struct.pack("<f", float("nan"))
    with closing(tiny.open(2, 4, positions=10)) as slot:
        expected = slot.forward_activations(given, sample=True)
    with closing(tiny.open(2, 4, positions=10)) as slot:
        with pytest.raises(NotFinite, match="layer 3"):
            slot.forward_activations(damaged, sample=True)
        with pytest.raises(ContextFull, match="16 positions do not fit after 0 of 10"):
            slot.forward_activations(given * 2, sample=True)
        assert slot.position == 0
        step = slot.forward_activations(given, sample=True)
        assert (step.token, bytes(step.logits)) == (expected.token, bytes(expected.logits))


def test_only_what_is_held_is_read_and_nothing_is_read_twice(backend, tmp_path, monkeypatch):
    """Rows that pass the dequantizer, by the number of their columns."""
    path = write_gemma3(tmp_path / "gemma.gguf")
    rows = []
    real = weights_module.dequantize

    def counting(data, kind):
        result = real(data, kind)
        rows.append(result.size)
        return result

    monkeypatch.setattr(weights_module, "dequantize", counting)
    held = {t.name: int(np.prod(t.shape)) for t in GGUFReader(path).tensors}
    middle = sum(size for name, size in held.items() if re.match(r"blk\.[23]\.", name))

    shard = load(backend, path, start=2, end=4)
    assert sum(rows) == middle
    assert shard.memory_bytes == 4 * middle

    rows.clear()
    shard = load(backend, path, end=GEMMA_LAYERS)
    assert sum(rows) == sum(held.values())  # the tied embedding once, for both its uses
    assert shard.memory_bytes == 4 * sum(held.values())

    rows.clear()
    with closing(shard.open(0, GEMMA_LAYERS)) as slot:
        assert len(list(generate(slot, IDS, 5))) == 5
    assert rows == []


# ── What it says of itself ───────────────────────────────────────────────────────────────────────


def test_the_axes_are_the_pins_and_what_runs(backend, tiny, tiny_path):
    assert {axis: tiny.axes[axis] for axis in pin([tiny_path]).recipe_fields} == pin(
        [tiny_path]
    ).recipe_fields
    assert tiny.axes["runtime_version"] == backend.runtime_version
    assert tiny.axes["backend_id"] == backend.backend_id == "reference-numpy"
    assert tiny.axes["kv_layout"] == "contiguous/HND"
    assert {tiny.axes[f"{what}_dtype"] for what in ("activation", "compute", "kv")} == {"float32"}
    assert len(tiny.axes) == 9


def test_the_version_names_all_that_moves_the_numbers(backend):
    ours, _, others = backend.runtime_version.partition("+")
    assert ours == version("meshnet-registry")
    assert others.startswith(f"numpy-{np.__version__}.")
    assert "blas-" in others
    assert others.endswith(f".gguf-{version('gguf')}")


def test_a_shard_in_the_middle_of_a_cut_knows_the_whole(backend, tiny, tiny_path, tmp_path):
    cut([tiny_path], layers=(1, 3), destination=tmp_path / "cut.gguf")

    shard = load(backend, tmp_path / "cut.gguf", start=1, end=3)

    assert (shard.start, shard.end, shard.layer_count) == (1, 3, 4)
    assert shard.axes == tiny.axes
    assert shard.vocabulary == tiny.vocabulary
    assert shard.end_tokens == tiny.end_tokens == {2}
    assert shard.position_bytes == tiny.position_bytes == 4 * EMBEDDING
    assert shard.context_length == 512


def test_the_token_that_ends_a_turn_ends_a_text_too(backend, tmp_path):
    keys = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 9}
    path = write_model(tmp_path / "model.gguf", integers=keys)[0]
    assert load(backend, path, end=2).end_tokens == {7, 9}


# ── Text ─────────────────────────────────────────────────────────────────────────────────────────


def text_of(shard, ids):
    return b"".join(shard.decode(token) for token in ids).decode()


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
def test_any_text_comes_back(tiny, text):
    ids = tiny.encode(text)
    assert ids[0] == 1
    assert text_of(tiny, ids) == (f" {text}" if text else "")


def test_words_are_one_token_and_what_has_none_is_bytes(tiny):
    the_node, unknown = tiny.encode("the node"), tiny.encode("é")
    assert [tiny.decode(token) for token in the_node] == [b"", b" the", b" node"]
    assert [tiny.decode(token) for token in unknown] == [b"", b" ", b"\xc3", b"\xa9"]


def test_a_control_token_spelled_out_is_plain_text(tiny):
    ids = tiny.encode("</s><s><unk>")
    assert not {0, 1, 2} & set(ids[1:])
    assert text_of(tiny, ids) == " </s><s><unk>"


def test_spaces_that_a_user_defined_are_one_token(backend, tmp_path, monkeypatch):
    """Converters write these spaces out, where every other piece has U+2581."""
    special = (*tiny_module._SPECIAL, ("   ", TokenType.USER_DEFINED))
    monkeypatch.setattr(tiny_module, "_SPECIAL", special)
    shard = load(backend, write_tiny_llama(tmp_path / "spaces.gguf"))

    ids = shard.encode("the   node")

    assert [shard.decode(token) for token in ids][1:3] == [b" the", b"   "]
    assert text_of(shard, ids) == " the   node"


def test_without_bytes_what_no_piece_covers_is_unknown(backend, tmp_path, monkeypatch):
    """The unknown token is called a control token here, as converters do."""
    pieces = tiny_module._pieces

    def without_bytes(words):
        (unknown, _), *others = pieces(words)
        kept = [one for one in others if one[1] != TokenType.BYTE]
        return [(unknown, TokenType.CONTROL), *kept]

    monkeypatch.setattr(tiny_module, "_pieces", without_bytes)
    shard = load(backend, write_tiny_llama(tmp_path / "no-bytes.gguf"))

    ids = shard.encode("the é")

    assert 0 in ids
    assert text_of(shard, ids) == " the "


def test_half_a_surrogate_pair_is_no_text(tiny):
    with pytest.raises(ValueError, match="surrogate"):
        tiny.encode("a\ud800")


@pytest.mark.parametrize(
    ("model", "reason"),
    [({}, "of the kind 'gpt2'"), ({"tokenizer": False}, "no tokenizer")],
)
def test_without_a_tokenizer_ids_can_be_computed(backend, tmp_path, model, reason):
    shard = load(backend, *write_model(tmp_path / "model.gguf", **model), end=2)

    with pytest.raises(NoTokenizer, match=reason):
        shard.encode("text")
    with pytest.raises(NoTokenizer, match="token ids"):
        shard.decode(1)
    with closing(shard.open(0, 2)) as slot:
        assert slot.forward_tokens(IDS, sample=True).token is not None
    assert ("tokenizer_revision" in shard.axes) == (not model)


@pytest.mark.parametrize(
    ("piece", "other", "reason"),
    [
        ("<0x41>", "<0x42>", "already defined"),
        ("<0x41>", "<0xZZ>", "is invalid"),
        ("<0x41>", "\0" * 6, "null character"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_no_tokenizer(backend, tmp_path, piece, other, reason):
    path = write_tiny_llama(tmp_path / "model.gguf")
    data = path.read_bytes()
    assert data.count(piece.encode()) == 1
    path.write_bytes(data.replace(piece.encode(), other.encode()))

    shard = load(backend, path)

    with pytest.raises(NoTokenizer, match=reason):
        shard.encode("text")
    with closing(shard.open(0, 4)) as slot:
        assert slot.forward_tokens(IDS, sample=True).token is not None


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────


def tensor(path, name):
    return next(t for t in GGUFReader(path, "r+").tensors if t.name == name)


def retyped(path, name, kind):
    """The file with one matrix called another type of the same size."""
    data = bytearray(path.read_bytes())
    at = data.index(name.encode()) + len(name)
    (rank,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at + 4 + 8 * rank, kind)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({"texts": {"llama.rope.scaling.type": "yarn"}}, "rope.scaling.type 'yarn'"),
        ({"integers": {"llama.expert_count": 8}}, "'llama.expert_count'"),
        ({"integers": {"llama.feed_forward_length": 96}}, r"blk\.0\.ffn_.*\(64, 128\).*\(64, 96\)"),
        ({"integers": {"llama.attention.head_count_kv": 3}}, "3 key heads"),
        ({"integers": {"llama.attention.value_length": 8}}, "16 for keys and 8 for values"),
        ({"integers": {"llama.rope.dimension_count": 7}}, "rope.dimension_count 7"),
        ({"integers": {"llama.context_length": 0}}, "'llama.context_length' is 0"),
        ({"texts": {"llama.embedding_length": "64"}}, "'llama.embedding_length' is not an integer"),
        ({"without_tensors": ["blk.1.ffn_up.weight"]}, "'blk.1.ffn_up.weight' is missing"),
        ({"without_tensors": ["output_norm.weight"]}, "'output_norm.weight' is missing"),
        ({"without_tensors": ["token_embd.weight"]}, "'token_embd.weight' is missing"),
        ({"extra_tensors": ["blk.1.attn_q.bias"]}, "tensor 'blk.1.attn_q.bias' is not known"),
        ({"extra_tensors": ["rope_factors_long.weight"]}, "'rope_factors_long.weight'"),
        ({"integers": {"tokenizer.ggml.eos_token_id": 96}}, "eos_token_id is 96, there are 96"),
        (
            {"integers": {"llama.vocab_size": 95}},
            "tokens is 96 by the rows of token_embd.weight, .*, 95 by the key vocab_size",
        ),
    ],
)
def test_a_model_that_is_not_known_here_is_refused_by_name(backend, tmp_path, model, named):
    path = write_model(tmp_path / "model.gguf", **model)[0]
    with pytest.raises(BackendError, match=named):
        load(backend, path, end=2)


def test_a_soft_cap_of_gemma_is_refused_by_name(backend, tmp_path):
    key = "gemma3.final_logit_softcapping"
    path = write_gemma3(tmp_path / "model.gguf", floats={key: 30.0})
    with pytest.raises(BackendError, match=key):
        load(backend, path, end=GEMMA_LAYERS)


def test_another_architecture_is_refused_by_name(backend, tmp_path):
    path = tmp_path / "model.gguf"
    data = write_model(path)[0].read_bytes()
    path.write_bytes(data.replace(b"llama", b"mamba"))
    with pytest.raises(BackendError, match=r"'mamba' is not known.*gemma3, llama"):
        load(backend, path, end=2)


def test_a_type_that_gguf_cannot_dequantize_is_refused_by_name(backend, tmp_path):
    path = write_model(tmp_path / "model.gguf")[0]
    retyped(path, "blk.1.ffn_norm.weight", GGMLQuantizationType.I32)
    with pytest.raises(BackendError, match=r"'blk\.1\.ffn_norm\.weight' has the type I32"):
        load(backend, path, end=2)


def test_a_file_that_is_no_model_is_refused(backend, tmp_path):
    (tmp_path / "text.gguf").write_text("not a model")
    for files, reason in (
        ([tmp_path / "text.gguf"], "not a GGUF file"),
        ([tmp_path / "absent.gguf"], "No such file"),
        ([], "no file given"),
    ):
        with pytest.raises(BackendError, match=reason):
            backend.load(files, start=0, end=1, device="cpu")


@pytest.mark.parametrize("layers", [(0, 5), (2, 2), (-1, 2), (3, 1)])
def test_layers_that_the_model_has_not_are_refused(backend, tiny_path, layers):
    with pytest.raises(BackendError, match=r"it holds \[0, 4\) of 4"):
        load(backend, tiny_path, start=layers[0], end=layers[1])


def test_layers_outside_of_a_cut_are_refused(backend, tiny_path, tmp_path):
    cut([tiny_path], layers=(1, 3), destination=tmp_path / "cut.gguf")
    with pytest.raises(BackendError, match=r"it holds \[1, 3\) of 4"):
        load(backend, tmp_path / "cut.gguf", start=0, end=2)


def test_a_cut_that_does_not_say_how_many_tokens_there_are_is_refused(backend, tmp_path):
    whole = write_gemma3(tmp_path / "whole.gguf", counted=False)
    cut([whole], layers=(2, 4), destination=tmp_path / "cut.gguf")
    assert load(backend, whole, start=2, end=4).vocabulary == GEMMA_VOCABULARY
    with pytest.raises(BackendError, match="how many tokens"):
        load(backend, tmp_path / "cut.gguf", start=2, end=4)


def test_another_device_is_refused(backend, tiny_path):
    with pytest.raises(BackendError, match="'cuda:0'"):
        backend.load([tiny_path], start=0, end=4, device="cuda:0")


@pytest.mark.parametrize(
    ("name", "row", "column", "value"),
    [
        ("output.weight", 300, 7, np.nan),
        ("blk.1.ffn_norm.weight", 0, 5, np.inf),
        ("blk.3.attn_v.weight", 31, 63, -np.inf),
    ],
)
def test_a_weight_that_is_no_number_is_refused_by_name_and_place(
    backend, tmp_path, monkeypatch, name, row, column, value
):
    path = write_tiny_llama(tmp_path / "damaged.gguf")
    tensor(path, name).data.reshape(-1, EMBEDDING)[row, column] = value
    # also where a tensor is read in parts
    for chunk_bytes in (weights_module._CHUNK_BYTES, 1_000):
        monkeypatch.setattr(weights_module, "_CHUNK_BYTES", chunk_bytes)
        with pytest.raises(BackendError, match=f"{name}' holds .* in row {row} at {column};"):
            load(backend, path)
    # of layers that are not asked for nothing is read
    assert load(backend, path, end=1).end == 1


def test_a_scale_that_is_no_number_is_refused_although_no_token_leads_to_it(backend, tmp_path):
    """Quantized weights are judged as they are computed with."""
    path = write_tiny_llama(tmp_path / "damaged.gguf")
    tensor(path, "token_embd.weight").data[400][:2] = np.float16(np.nan).view("2u1")
    with pytest.raises(BackendError, match=r"'token_embd\.weight' holds .* in row 400 at 0;"):
        load(backend, path)


def test_numbers_that_grow_past_all_bounds_give_no_token(backend, tmp_path):
    path = write_tiny_llama(tmp_path / "damaged.gguf")
    tensor(path, "output_norm.weight").data[:] = 3e38
    tensor(path, "blk.1.ffn_norm.weight").data[:] = 3e38
    shard = load(backend, path)

    with closing(shard.open(0, 4)) as slot, pytest.raises(NotFinite, match="after layer 3"):
        slot.forward_tokens(IDS, sample=False)
    with closing(shard.open(0, 1)) as slot:
        given = slot.forward_tokens(IDS, sample=False).activations
    with closing(shard.open(2, 4)) as slot, pytest.raises(NotFinite, match="logits"):
        slot.forward_activations(given, sample=True)


def test_what_a_slot_does_not_take_is_refused(tiny):
    one = bytes(tiny.position_bytes)
    with closing(tiny.open(0, 2)) as slot:
        for ids, reason in (((), "no token id"), ((tiny.vocabulary,), "497"), ((3, -1), "-1")):
            with pytest.raises(ValueError, match=reason):
                slot.forward_tokens(ids, sample=False)
        with pytest.raises(ValueError, match="layer 0 takes token ids"):
            slot.forward_activations(one, sample=False)
    with closing(tiny.open(2, 4)) as slot:
        for given in (b"", one[:-1], one + b"\0" * 4):
            with pytest.raises(ValueError, match=f"{len(given)} bytes"):
                slot.forward_activations(given, sample=False)
        with pytest.raises(ValueError, match="layer 2 takes activations"):
            slot.forward_tokens(IDS, sample=False)
    with pytest.raises(ValueError, match="497 is no token id"):
        tiny.decode(tiny.vocabulary)


@pytest.mark.parametrize(
    ("start", "end", "positions"), [(0, 5, None), (2, 2, None), (0, 4, 513), (0, 4, 0)]
)
def test_a_slot_that_cannot_be_is_refused(tiny, start, end, positions):
    with pytest.raises(ValueError, match=r"not held|positions"):
        tiny.open(start, end, positions=positions)


def test_what_is_closed_computes_no_more(backend, tiny_path):
    shard = load(backend, tiny_path)
    slot, other = shard.open(0, 4), shard.open(0, 4)
    slot.close()
    slot.close()
    with pytest.raises(BackendError, match="slot is closed"):
        slot.forward_tokens(IDS, sample=False)
    shard.close()
    with pytest.raises(BackendError, match="shard is closed"):
        other.forward_tokens(IDS, sample=False)


# ── The tiny model ───────────────────────────────────────────────────────────────────────────────


def test_the_tiny_model_is_small_and_the_same_every_time(tiny_path, tmp_path):
    again = write_tiny_llama(tmp_path / "again.gguf")
    other = write_tiny_llama(tmp_path / "other.gguf", seed=1)

    digests = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (tiny_path, again, other)]
    assert digests[0] == digests[1] != digests[2]
    assert 100_000 <= tiny_path.stat().st_size <= 300_000
    assert pin([tiny_path]).recipe_fields["weight_quantization"] == "F16:5,F32:9,Q4_0:8,Q8_0:17"


def test_the_tiny_model_speaks_in_words(tiny):
    with closing(tiny.open(0, 4)) as slot:
        tokens = [token for token, _ in generate(slot, tiny.encode("the node"), 30)]
    assert re.fullmatch(r"( [a-z]+|[.,])+", text_of(tiny, tokens))
    assert len(set(tokens)) > 5
