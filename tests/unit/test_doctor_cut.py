"""The doctor's check of files, for a cut: whether its layers are those of the target, not only its word.

Every cut is made by our own cut from a real GGUF file, then altered where it lies on disk.
"""

import shutil
import struct

import msgspec
import pytest
from gguf import GGUFReader

from gguf_files import rewrite_keys, write_model
from meshnet_node import targets
from meshnet_node.doctor import ExpectedError, ShardQuestion, examine_shard, read_expected
from meshnet_node.doctor.declare import observed_recipe
from meshnet_node.doctor.expected import Expected, files_faults, label
from meshnet_node.pin import cut, pin
from meshnet_node.recipe_manifest import write_manifest
from meshnet_node.targets import write_locked_target

LAYERS = 5
RANGES = [(start, end) for start in range(LAYERS) for end in range(start + 1, LAYERS + 1)]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Nothing of the user's own: neither digests that were seen before nor targets."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model.gguf", layers=LAYERS)[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cut.gguf"


def locked(files):
    pinned = pin(files, artifact_id="acme/tiny", revision="0f" * 20, tensors=True)
    return pinned.lock(pinned.target_facts("tiny"))


def faults(path, target):
    return files_faults(pin([path]), target, None)


def tensor(path, name):
    """Where the bytes of a tensor lie in a file."""
    (found,) = [one for one in GGUFReader(path).tensors if one.name == name]
    return slice(found.data_offset, found.data_offset + found.n_bytes)


def altered(path, change):
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def under_the_source_of(model, forged, path):
    """Copy the cut `forged` to `path`, its `meshnet.*` keys those of a cut from `model`."""
    honest = pin([model])
    digest = honest.artifact.content_digest.encode()
    counts = honest.recipe_fields["weight_quantization"].encode()
    assert len(counts) == len(pin([forged]).recipe_fields["weight_quantization"])
    rewrite_keys(
        forged,
        path,
        {
            "meshnet.source_digest": struct.pack("<Q", len(digest)) + digest,
            "meshnet.weight_quantization": struct.pack("<Q", len(counts)) + counts,
        },
    )


def foreign_cut(tmp_path, model, path, layers, **made):
    """A cut of another model under the source digest of `model`."""
    other = write_model(tmp_path / "other.gguf", layers=LAYERS, **made)
    cut(other, layers=layers, destination=tmp_path / "forged.gguf")
    under_the_source_of(model, tmp_path / "forged.gguf", path)


def named(faults):
    """The groups that differ, and that the last fault says of what they are not."""
    *groups, verdict = faults
    assert verdict.startswith("these are not layers [")
    assert "that model, as target tiny says" in verdict
    return [fault.partition(":")[0] for fault in groups]


# What is in order


@pytest.mark.parametrize("made", [{}, {"tied": True}, {"nextn_layers": 1}, {"parts_of_tensors": 7}])
def test_a_cut_of_any_layers_is_of_its_target(tmp_path, path, made):
    source = write_model(tmp_path / "model.gguf", layers=LAYERS, **made)
    target = locked(source)

    for layers in RANGES:
        assert cut(source, layers=layers, destination=path, overwrite=True) == pin([path])
        assert faults(path, target) == ()


def test_a_target_of_tensors_that_belong_to_no_layer_cannot_speak_of_a_cut(tmp_path, model, path):
    odd = write_model(tmp_path / "odd.gguf", layers=LAYERS, extra_tensors=["per_layer_proj.weight"])
    cut([model], layers=(0, 2), destination=path)
    source = locked([model]).artifact.content_digest.encode()
    target = locked(odd)
    wanted = target.artifact.content_digest.encode()
    altered(path, lambda data: data.__setitem__(slice(None), data.replace(source, wanted)))

    *_, fault = faults(path, target)

    assert "no layer is known for tensor 'per_layer_proj.weight'" in fault


# What is not


@pytest.mark.parametrize(
    ("layers", "name", "group"),
    [
        ((0, 2), "token_embd.weight", "token_embd.weight"),
        ((1, 3), "blk.2.ffn_down.weight", "blk.2"),
        ((1, 3), "rope_freqs.weight", "rope_freqs.weight"),
        ((2, 5), "output.weight", "output.weight"),
        ((2, 5), "output_norm.weight", "output_norm.weight"),
    ],
)
def test_a_flipped_bit_is_found_and_its_group_named(model, path, layers, name, group):
    target = locked([model])
    cut([model], layers=layers, destination=path)
    where = tensor(path, name)

    altered(path, lambda data: data.__setitem__(where.stop - 1, data[where.stop - 1] ^ 1))

    found = faults(path, target)
    assert named(found) == [group]
    assert f"expected {target.tensors[group]}" in found[0]
    assert f"found {pin([path]).tensors[group]}" in found[0]


def test_two_layers_in_each_others_place_are_both_named(model, path):
    target = locked([model])
    cut([model], layers=(0, 5), destination=path)
    pairs = [
        (tensor(path, name), tensor(path, name.replace("blk.1", "blk.2")))
        for name in tensors_of_block(path, 1)
    ]

    def swap(data):
        for ours, theirs in pairs:
            data[ours], data[theirs] = data[theirs], data[ours]

    altered(path, swap)

    assert named(faults(path, target)) == ["blk.1", "blk.2"]


def tensors_of_block(path, index):
    return [one.name for one in GGUFReader(path).tensors if one.name.startswith(f"blk.{index}.")]


def test_layers_of_another_model_under_the_right_source_digest_are_told_apart(
    tmp_path, model, path
):
    target = locked([model])
    foreign_cut(tmp_path, model, path, (1, 3), seed=2)
    assert pin([path]).artifact.source_digest == target.artifact.content_digest

    assert named(faults(path, target)) == ["rope_freqs.weight", "blk.1", "blk.2"]


def test_one_layer_of_another_model_is_named(tmp_path, model, path):
    target = locked([model])
    cut([model], layers=(1, 4), destination=path)
    (other,) = write_model(tmp_path / "other.gguf", layers=LAYERS, seed=2)
    theirs = other.read_bytes()

    def replace(data):
        for name in tensors_of_block(path, 3):
            data[tensor(path, name)] = theirs[tensor(other, name)]

    altered(path, replace)

    assert named(faults(path, target)) == ["blk.3"]


@pytest.mark.parametrize(
    ("made", "layers", "group", "said"),
    [
        ({"extra_tensors": ["rope_factors_long.weight"]}, (1, 3), "'rope_factors_long.weight'", 1),
        ({"extra_tensors": ["blk.2.attn_q.bias"]}, (1, 3), "blk.2", 0),
        ({"without_tensors": ["blk.2.attn_q.weight"]}, (1, 3), "blk.2", 0),
        ({"without_tensors": ["output_norm.weight"]}, (2, 5), "output_norm.weight", -1),
        ({"without_tensors": ["rope_freqs.weight"]}, (1, 3), "rope_freqs.weight", -1),
    ],
)
def test_a_tensor_too_many_or_one_too_few_is_named(
    tmp_path, model, path, made, layers, group, said
):
    target = locked([model])
    foreign_cut(tmp_path, model, path, layers, **made)

    found = faults(path, target)

    assert named(found) == [group]
    assert ("expected none" in found[0]) == (said == 1)
    assert ("found none" in found[0]) == (said == -1)


def test_a_tied_head_beside_a_target_without_a_tie_is_one_too_many_and_one_too_few(
    tmp_path, model, path
):
    target = locked([model])
    foreign_cut(tmp_path, model, path, (3, 5), tied=True)

    found = faults(path, target)

    assert named(found) == ["output.weight", "token_embd.weight"]
    assert "found none" in found[0]
    assert "expected none" in found[1]


def test_a_shape_or_a_type_alone_is_seen(model, path):
    target = locked([model])
    cut([model], layers=(1, 2), destination=path)
    name = b"blk.1.ffn_up.weight"

    def turn(data):
        at = data.index(name) + len(name) + 4
        data[at : at + 16] = data[at + 8 : at + 16] + data[at : at + 8]

    altered(path, turn)

    assert named(faults(path, target)) == ["blk.1"]


def test_many_groups_that_differ_are_counted(tmp_path, path):
    (model,) = write_model(tmp_path / "model.gguf", layers=9)
    target = locked([model])
    (other,) = write_model(tmp_path / "other.gguf", layers=9, seed=2)
    cut([other], layers=(0, 9), destination=tmp_path / "forged.gguf")
    under_the_source_of(model, tmp_path / "forged.gguf", path)

    found = faults(path, target)

    assert len(named(found)) == 5
    assert found[-2] == "and 9 more tensor groups"
    assert len("; ".join(found)) < 1024


def test_a_name_that_only_the_file_knows_cannot_steer_a_terminal(tmp_path, model, path):
    target = locked([model])
    name = "rope_freqs.\x1b]0;owned\7"
    foreign_cut(tmp_path, model, path, (1, 3), extra_tensors=[name])

    found = faults(path, target)

    assert len(named(found)) == 1
    assert all(fault.isprintable() for fault in found)


def test_another_tokenizer_or_quantization_under_the_right_source_digest_is_named(
    tmp_path, model, path
):
    target = locked([model])
    foreign_cut(tmp_path, model, path, (1, 3), pre="other-bpe")

    (fault,) = faults(path, target)

    assert fault.startswith("tokenizer_revision: found ")
    assert target.recipe["tokenizer_revision"] in fault


# What the doctor makes of it


def test_the_doctor_computes_with_no_layers_that_are_not_those_of_the_target(
    require, tmp_path, path
):
    require("numpy")
    from meshnet_node.backends.reference.tiny import write_tiny_llama

    source = write_tiny_llama(tmp_path / "tiny.gguf")
    target = locked([source])
    write_locked_target(targets.target_directory() / "tiny.json", target)
    cut([source], layers=(0, 2), destination=path)
    manifest = tmp_path / "recipes.toml"
    write_manifest(manifest, [observed_recipe([path], "reference-numpy", labels=("t", "1", "1"))])
    question = ShardQuestion(files=(path,), manifest=manifest, target="tiny")

    sound = examine_shard(question)
    where = tensor(path, "blk.1.ffn_down.weight")
    altered(path, lambda data: data.__setitem__(where.start, data[where.start] ^ 1))
    corrupted = examine_shard(question)

    assert sound.verdict == "passed", sound.findings
    assert sound.findings[0].found.endswith(", as target tiny says")
    assert corrupted.verdict.startswith("failed: files")
    assert "blk.1: found " in corrupted.findings[0].found
    assert corrupted.report is None


def test_a_target_without_digests_of_tensors_takes_a_cut_at_its_word_and_says_so(
    tmp_path, model, path
):
    target = locked([model])
    older = msgspec.structs.replace(target, tensors={})
    foreign_cut(tmp_path, model, path, (1, 3), seed=2)

    assert faults(path, older) == ()
    own, whole = pin([path]), pin([model])
    known_before = Expected(own.artifact, own.files)
    assert "no digests of tensors: this cut is taken at its word" in label(own, older, None)
    assert label(own, None, None) == " (this cut is taken at its word)"
    assert label(whole, None, None) == ""
    for pinned, known in ((own, target), (whole, target), (whole, older)):
        assert label(pinned, known, None) == ", as target tiny says"
    # what it was before knows a cut's own bytes
    assert label(own, None, known_before) == ", as the identity says"
    assert label(own, older, known_before) == ", as target tiny and the identity says"


@pytest.mark.parametrize("tensors", [None, False, True])
def test_a_cut_that_nobody_vouches_for_is_a_warning_and_a_changed_byte_passes_with_it(
    require, tmp_path, path, tensors
):
    """Nothing here knows what its layers must hold. `tensors`: whether the target has their digests."""
    require("numpy")
    from meshnet_node.backends.reference.tiny import write_tiny_llama

    source = write_tiny_llama(tmp_path / "tiny.gguf")
    cut([source], layers=(0, 2), destination=path)
    manifest = tmp_path / "recipes.toml"
    write_manifest(manifest, [observed_recipe([path], "reference-numpy", labels=("t", "1", "1"))])
    if tensors is not None:
        target = locked([source])
        if not tensors:
            target = msgspec.structs.replace(target, tensors={})
        write_locked_target(targets.target_directory() / "tiny.json", target)
    question = ShardQuestion(
        files=(path,), manifest=manifest, target=None if tensors is None else "tiny"
    )
    where = tensor(path, "blk.1.ffn_down.weight")
    altered(path, lambda data: data.__setitem__(where.start, data[where.start] ^ 1))

    diagnosis = examine_shard(question)

    files = diagnosis.findings[0]
    if tensors:
        assert files.status == "failed"
        return
    assert diagnosis.verdict == "passed, with a warning: files"
    assert files.status == "warning"
    assert files.found.endswith("this cut is taken at its word)")
    assert files.fix.startswith("get a locked target from whoever has the whole model")
    assert diagnosis.report.status == "passed"


def test_a_whole_file_is_held_against_its_own_digest_whatever_the_target_has(tmp_path, model):
    target = locked([model])
    copy = shutil.copy(model, tmp_path / "copy.gguf")

    assert faults(copy, target) == ()
    altered(copy, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    (fault,) = faults(copy, target)
    assert fault.startswith("copy.gguf: found sha256 "), "of one length, the length says nothing"
    altered(copy, lambda data: data.extend(bytes(32)))
    size = model.stat().st_size
    (fault,) = faults(copy, target)
    assert fault.startswith(f"copy.gguf: found {size + 32:,} bytes, sha256 ")
    assert f"expected {size:,} bytes, " in fault


@pytest.mark.parametrize(
    "content",
    [
        b'{"artifact":' + b'{"x":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"files":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"colour":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_an_expectation_nested_too_deep_is_refused(tmp_path, content):
    path = tmp_path / "expected.json"
    path.write_bytes(content)

    with pytest.raises(ExpectedError, match=r"expected\.json is no identity"):
        read_expected(path)
