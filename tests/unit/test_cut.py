"""Cutting: the file holds its layers, byte for byte, and pins as a derivative of its source."""

import errno
import hashlib
import json
import os
import re
import resource
import shutil
import struct
from contextlib import contextmanager

import pytest
from gguf import GGUFReader, GGUFValueType

from gguf_files import key, raw_gguf, rewrite_keys, text, write_model
from meshnet_node.pin import PinError, cut, pin
from meshnet_node.recipe_identity import (
    DerivativeBinding,
    RuntimeRecipe,
    ShardIdentity,
    check_route,
    explain_mismatch,
)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model.gguf", layers=4)[0]


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "cut.gguf"


def tensors(path):
    """Every tensor of a file by the gguf package's reader: type, shape, bytes."""
    return {
        tensor.name: (tensor.tensor_type, tensor.shape.tolist(), tensor.data.tobytes())
        for tensor in GGUFReader(path).tensors
    }


def keys(path):
    """Every key of a file by the gguf package's reader: the raw bytes from its name on."""
    return {
        name: b"".join(part.tobytes() for part in field.parts)
        for name, field in GGUFReader(path).fields.items()
        if not name.startswith("GGUF.")
    }


def block_tensors(names, start, end):
    return {
        name for name in names if name.startswith("blk.") and start <= int(name.split(".")[1]) < end
    }


def recipe(fields):
    return RuntimeRecipe(
        **fields,
        activation_dtype="f32",
        compute_dtype="f32",
        kv_dtype="f32",
        kv_layout="dense",
        backend_id="reference-numpy",
        runtime_version="1",
    )


# What a cut holds


@pytest.mark.parametrize(
    ("layers", "others"),
    [
        ((0, 2), {"token_embd.weight", "rope_freqs.weight"}),
        ((1, 3), {"rope_freqs.weight"}),
        ((2, 4), {"rope_freqs.weight", "output_norm.weight", "output.weight"}),
        (
            (0, 4),
            {"token_embd.weight", "rope_freqs.weight", "output_norm.weight", "output.weight"},
        ),
    ],
)
def test_a_cut_holds_its_layers_with_embedding_first_and_head_last(model, out, layers, others):
    cut([model], layers=layers, destination=out)

    source, made = tensors(model), tensors(out)
    assert set(made) == block_tensors(source, *layers) | others
    assert made == {name: source[name] for name in made}


def test_with_tied_embeddings_first_and_last_both_hold_them_once(tmp_path, out):
    source = write_model(tmp_path / "tied.gguf", layers=3, tied=True)

    held = []
    for layers in ((0, 1), (1, 2), (2, 3), (0, 3)):
        cut(source, layers=layers, destination=out, overwrite=True)
        held.append([tensor.name for tensor in GGUFReader(out).tensors].count("token_embd.weight"))

    assert held == [1, 0, 1, 1]


def test_next_token_layers_go_with_no_cut(tmp_path, out):
    source = write_model(tmp_path / "mtp.gguf", layers=2, nextn_layers=1)

    cut(source, layers=(1, 2), destination=out)

    assert block_tensors(tensors(out), 0, 99) == block_tensors(tensors(source[0]), 1, 2)
    assert pin([out]).artifact.layer_count == 2


def test_keys_of_the_source_stay_byte_for_byte_and_four_are_added(model, out):
    cut([model], layers=(1, 3), destination=out)

    before, after = keys(model), keys(out)
    assert {name: after[name] for name in before} == before
    fields = GGUFReader(out).fields
    assert {name: fields[name].contents() for name in after.keys() - before.keys()} == {
        "meshnet.source_digest": hashlib.sha256(model.read_bytes()).hexdigest(),
        "meshnet.layer_start": 1,
        "meshnet.layer_end": 3,
        "meshnet.weight_quantization": "F32:10,Q4_0:12,Q8_0:18",
    }


@pytest.mark.parametrize("alignment", [8, 256])
def test_another_alignment_is_kept(tmp_path, out, alignment):
    source = write_model(tmp_path / "model.gguf", alignment=alignment)

    cut(source, layers=(1, 2), destination=out)

    made = GGUFReader(out)
    assert made.alignment == alignment
    assert all(tensor.data_offset % alignment == 0 for tensor in made.tensors)
    assert tensors(out).items() <= tensors(source[0]).items()


def test_a_set_is_cut_into_one_file_without_split_keys(tmp_path, model, out):
    parts = write_model(tmp_path / "set.gguf", layers=4, parts_of_tensors=9)

    of_set = cut(parts, layers=(1, 3), destination=out)

    assert tensors(out).items() <= tensors(model).items()
    assert not [name for name in keys(out) if name.startswith("split.")]
    assert of_set.artifact.source_digest == pin(parts).artifact.content_digest
    assert pin([out]).artifact == of_set.artifact


# What a cut is


def test_a_cut_pins_as_a_derivative_with_the_sources_recipe(model, out):
    source = pin([model])

    made = cut([model], layers=(1, 3), destination=out)

    artifact = made.artifact
    assert artifact.content_digest == hashlib.sha256(out.read_bytes()).hexdigest()
    assert artifact.derived_from == DerivativeBinding(source.artifact.content_digest, 1, 3)
    assert artifact.architecture_digest == source.artifact.architecture_digest
    assert artifact.layer_count == 4
    assert artifact.model_artifact_digest == source.artifact.model_artifact_digest
    assert made.recipe_fields == source.recipe_fields
    assert [file.name for file in made.files] == ["cut.gguf"]
    assert pin([out]) == made


def test_cuts_of_one_source_tile_a_route_with_the_whole_file(model, tmp_path):
    whole = pin([model])
    shards = []
    for start, end in ((0, 1), (1, 3)):
        path = tmp_path / f"{start}.gguf"
        made = cut([model], layers=(start, end), destination=path)
        shards.append(ShardIdentity(made.artifact, recipe(made.recipe_fields), start, end))
    shards.append(ShardIdentity(whole.artifact, recipe(whole.recipe_fields), 3, 4))

    assert check_route(shards) == ()


def test_cuts_of_different_sources_do_not_match(tmp_path, model):
    other = write_model(tmp_path / "other.gguf", layers=4, seed=2)
    shards = [
        ShardIdentity(made.artifact, recipe(made.recipe_fields), 0, 2)
        for made in (
            cut(source, layers=(0, 2), destination=tmp_path / f"cut-{index}.gguf")
            for index, source in enumerate(([model], other))
        )
    ]

    assert [mismatch.reason for mismatch in explain_mismatch(*shards)] == ["artifact"]


def test_cutting_twice_gives_the_same_bytes(model, tmp_path):
    cuts = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for path in cuts:
        cut([model], layers=(0, 3), destination=path)

    assert cuts[0].read_bytes() == cuts[1].read_bytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("meshnet.layer_end", struct.pack("<I", 4)),  # claims a layer that it does not hold
        ("meshnet.layer_start", struct.pack("<I", 2)),  # holds a layer that it does not claim
        ("meshnet.layer_start", struct.pack("<I", 3)),  # empty
        ("meshnet.layer_end", struct.pack("<I", 5)),  # beyond the stack
        ("meshnet.source_digest", struct.pack("<Q", 64) + b"G" * 64),
        ("meshnet.weight_quantization", struct.pack("<Q", 22) + b"F32:10,Q4_0:12,Q8_0:01"),
        ("meshnet.weight_quantization", struct.pack("<Q", 22) + b"F32:10,Q4_0:12,Q9_0:18"),
        ("meshnet.weight_quantization", struct.pack("<Q", 22) + b"Q4_0:12,F32:10,Q8_0:18"),
    ],
)
def test_a_cut_whose_claims_do_not_fit_its_tensors_is_refused(tmp_path, model, out, name, value):
    cut([model], layers=(1, 3), destination=out)
    forged = tmp_path / "forged.gguf"
    rewrite_keys(out, forged, {name: value})
    assert forged.read_bytes() != out.read_bytes()

    with pytest.raises(PinError, match=r"cut|whole model"):
        pin([forged])


def test_a_file_with_some_keys_of_a_cut_is_not_taken_for_a_whole_model(tmp_path):
    sound = [
        key("general.architecture", GGUFValueType.STRING, text("llama")),
        key("llama.block_count", GGUFValueType.UINT32, struct.pack("<I", 1)),
    ]
    path = tmp_path / "half.gguf"
    path.write_bytes(raw_gguf(sound))
    assert not pin([path]).artifact.is_derivative
    path.write_bytes(raw_gguf([*sound, key("meshnet.layer_start", 4, bytes(4))]))

    with pytest.raises(PinError, match="which layers of which artifact"):
        pin([path])


# Refusals


@pytest.mark.parametrize("layers", [(0, 0), (2, 1), (-1, 2), (3, 5), (4, 5)])
def test_a_range_that_the_model_has_not_is_refused(model, out, layers):
    with pytest.raises(PinError, match="START < END <= 4"):
        cut([model], layers=layers, destination=out)

    assert not out.exists()


def test_a_cut_is_not_cut_again(tmp_path, model, out):
    cut([model], layers=(0, 3), destination=out)

    with pytest.raises(PinError, match="itself a cut"):
        cut([out], layers=(0, 1), destination=tmp_path / "again.gguf")


@pytest.mark.parametrize("name", ["per_layer_model_proj.weight", "blk", "blkx.0.weight"])
def test_a_tensor_whose_layer_is_unknown_is_named(tmp_path, out, name):
    source = write_model(tmp_path / "model.gguf", extra_tensors=[name])

    with pytest.raises(PinError, match=f"no layer is known for tensor '{re.escape(name)}'"):
        cut(source, layers=(0, 1), destination=out)


def test_an_existing_file_stays_unless_overwriting_is_allowed(model, out):
    out.write_bytes(b"mine")
    steps = []

    with pytest.raises(PinError, match="exists already"):
        cut([model], layers=(0, 1), destination=out, progress=lambda *step: steps.append(step))
    assert out.read_bytes() == b"mine"
    assert not steps  # known before gigabytes are hashed

    cut([model], layers=(0, 1), destination=out, overwrite=True)
    assert pin([out]).artifact.is_derivative


def test_a_file_that_appears_meanwhile_is_not_overwritten(model, out):
    def appear(done, total):
        out.write_bytes(b"another's")

    with pytest.raises(PinError, match="exists already"):
        cut([model], layers=(0, 1), destination=out, progress=appear)

    assert out.read_bytes() == b"another's"
    assert list(out.parent.iterdir()) == [out]


def test_a_destination_that_cannot_be_is_refused_with_what_to_do(tmp_path, model):
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    for destination, complaint in (
        (model, "of the source"),
        (link, "of the source"),
        (tmp_path, "a folder"),
        (tmp_path / "absent" / "cut.gguf", "folder does not exist"),
        (tmp_path / "cut-00001-of-00002.gguf", "part of a split set"),
    ):
        with pytest.raises(PinError, match=complaint):
            cut([model], layers=(0, 1), destination=destination, overwrite=True)
    assert pin([model]).artifact.layer_count == 4


# Whole or not at all


def test_an_interruption_at_any_step_leaves_nothing_behind(model, out):
    steps = []
    cut([model], layers=(0, 4), destination=out, progress=lambda *step: steps.append(step))
    out.unlink()

    for stop_at, _ in steps:

        def interrupt(done, total, stop_at=stop_at):
            if done >= stop_at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cut([model], layers=(0, 4), destination=out, progress=interrupt)
        assert not list(out.parent.iterdir())


@contextmanager
def file_size_limit(size):
    """The kernel refuses to let any file grow beyond this, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_the_system_refuses_leaves_nothing_behind(model, out):
    with file_size_limit(10_000), pytest.raises(PinError, match="writing it failed") as refusal:
        cut([model], layers=(0, 4), destination=out)

    assert refusal.value.__cause__.errno == errno.EFBIG
    assert not list(out.parent.iterdir())


def test_a_cut_that_cannot_fit_is_refused_before_hashing(model, out, monkeypatch):
    steps = []
    usage = shutil.disk_usage(out.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))

    with pytest.raises(PinError, match="1000 are free"):
        cut([model], layers=(0, 4), destination=out, progress=lambda *step: steps.append(step))

    assert not steps


def test_a_source_that_changes_while_it_is_copied_is_refused(model, out):
    size = model.stat().st_size

    def write_to_it(done, total):
        if done > size:
            os.utime(model, ns=(0, 0))

    with pytest.raises(PinError, match="changed while it was read"):
        cut([model], layers=(0, 1), destination=out, progress=write_to_it)
    assert not list(out.parent.iterdir())


def test_progress_covers_hashing_writing_and_reading_back(model, out):
    steps = []

    cut([model], layers=(1, 3), destination=out, progress=lambda *step: steps.append(step))

    read_back = sum(tensor.n_bytes for tensor in GGUFReader(out).tensors)
    total = model.stat().st_size + out.stat().st_size + int(read_back)
    assert steps[-1] == (total, total)
    assert steps == sorted(steps)


def test_a_cut_gets_the_permissions_of_any_new_file(model, out):
    cut([model], layers=(0, 1), destination=out)

    plain = out.parent / "plain"
    plain.touch()
    assert out.stat().st_mode == plain.stat().st_mode


def test_a_cut_as_json_names_its_source(model, out):
    made = cut([model], layers=(0, 2), destination=out)

    shown = json.loads(json.dumps(made.to_dict()))

    assert shown["artifact"]["derived_from"] == {
        "source_artifact_digest": hashlib.sha256(model.read_bytes()).hexdigest(),
        "shard_start": 0,
        "shard_end": 2,
    }
