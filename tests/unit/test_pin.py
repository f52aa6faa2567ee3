"""Pinning model files: what the identity is made of, and what is refused."""

import hashlib
import json
import os
import struct
import sys
import time
from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFValueType

from gguf_files import (
    SOUND_KEYS,
    key,
    raw_gguf,
    rewrite_keys,
    tensor,
    text,
    write_model,
)
from meshnet_node.pin import PinError, cut, gguf_file, identity, pin, tensors
from meshnet_node.pin.digest import cache_path
from meshnet_node.recipe_identity import (
    RuntimeRecipe,
    ShardIdentity,
    canonical_sha256,
    explain_mismatch,
)
from meshnet_node.targets import LockedTargetError, read_locked_target, write_locked_target

RECENT_NS = 50_000_000
"""For how long a file counts as written just now; in the field it is longer than a test should wait."""
INCIDENTS = {
    incident["id"]: incident
    for incident in json.loads((Path(__file__).parents[1] / "data" / "incidents.json").read_text())[
        "cases"
    ]
}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("meshnet_node.pin.digest._RECENT_NS", RECENT_NS)
    return cache_path()


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model.gguf")[0]


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pinned_bytes(tmp_path, data, name="raw.gguf"):
    path = tmp_path / name
    path.write_bytes(data)
    return pin([path])


def make_old(path):
    """A file written just now is not remembered; let it be as old as it must be."""
    os.utime(path, ns=(0, time.time_ns() - 10_000_000_000))
    time.sleep(1.1 * RECENT_NS / 1e9)  # nobody can set its ctime


def flip_last_byte(path):
    """Alter a file in place and put its mtime back."""
    stamp = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def reader_digest(path, wanted):
    """The metadata digest again, through the gguf package's own reader."""
    fields = GGUFReader(path).fields
    digest = hashlib.sha256()
    for name in sorted(filter(wanted, fields)):
        # The parts of a field: length of the key, key, value type, then the value.
        _, _, kind, *value = fields[name].parts
        digest.update(struct.pack("<I", len(name.encode())) + name.encode())
        digest.update(kind.tobytes() + b"".join(part.tobytes() for part in value))
    return digest.hexdigest()


# Identity


def test_content_digest_of_one_file_is_the_sha256_of_its_bytes(model):
    pinned = pin([model])

    assert pinned.artifact.content_digest == sha256(model)
    assert [(file.name, file.size_bytes, file.sha256) for file in pinned.files] == [
        ("model.gguf", model.stat().st_size, sha256(model))
    ]


def test_architecture_digest_is_that_of_the_worked_example(tmp_path):
    example = (
        "14000000 67656e6572616c2e617263686974656374757265 08000000 0500000000000000 6c6c616d61"
        "11000000 6c6c616d612e626c6f636b5f636f756e74 04000000 02000000"
    )
    expected = hashlib.sha256(bytes.fromhex(example)).hexdigest()
    path = tmp_path / "example.gguf"
    path.write_bytes(
        raw_gguf(
            [
                # Another order, and keys that are not of the architecture.
                key("llama.block_count", GGUFValueType.UINT32, struct.pack("<I", 2)),
                key("general.name", GGUFValueType.STRING, text("x")),
                key("llamafile.x", GGUFValueType.BOOL, b"\1"),
                key("general.architecture", GGUFValueType.STRING, text("llama")),
            ],
            [
                tensor("blk.0.a"),
                tensor("blk.1.a", offset=32),
            ],
        )
    )

    assert pin([path]).artifact.architecture_digest == expected
    assert expected in identity.__doc__


def test_metadata_digests_equal_those_made_from_the_gguf_packages_own_reader(model):
    pinned = pin([model])

    assert pinned.artifact.architecture_digest == reader_digest(
        model, lambda name: name == "general.architecture" or name.startswith("llama.")
    )
    assert pinned.recipe_fields["tokenizer_revision"] == reader_digest(
        model, lambda name: name.startswith("tokenizer.")
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (GGUFValueType.UINT64, struct.pack("<Q", 1)),  # the same number, another type
        (GGUFValueType.FLOAT32, bytes.fromhex("000080ff")),  # an infinity
        (GGUFValueType.FLOAT32, bytes.fromhex("0000c07f")),  # a NaN
        (GGUFValueType.FLOAT32, bytes.fromhex("0100c07f")),  # another NaN, printed alike
        (GGUFValueType.ARRAY, struct.pack("<IQ", GGUFValueType.UINT32, 0)),  # empty
    ],
)
def test_architecture_digest_sees_types_and_bits_not_printed_values(tmp_path, kind, value):
    seen = set()
    for number, (other_kind, other) in enumerate(
        [(GGUFValueType.UINT32, struct.pack("<I", 1)), (kind, value)]
    ):
        keys = [*SOUND_KEYS, key("llama.x", other_kind, other)]
        pinned = pinned_bytes(tmp_path, raw_gguf(keys), f"{number}.gguf")
        seen.add(pinned.artifact.architecture_digest)

    assert len(seen) == 2


def test_keys_outside_architecture_and_tokenizer_move_neither_digest(tmp_path, model):
    (other,) = write_model(tmp_path / "other.gguf", name="Another name")

    left, right = pin([model]), pin([other])

    assert left.artifact.content_digest != right.artifact.content_digest
    assert left.artifact.architecture_digest == right.artifact.architecture_digest
    assert left.recipe_fields == right.recipe_fields


def test_weight_quantization_counts_tensors_by_type_over_the_whole_artifact(tmp_path, model):
    parts = write_model(tmp_path / "set.gguf", parts_of_tensors=5)

    assert pin([model]).recipe_fields["weight_quantization"] == "F32:6,Q4_0:6,Q8_0:10"
    assert pin(parts).recipe_fields["weight_quantization"] == "F32:6,Q4_0:6,Q8_0:10"


def test_a_model_without_tokenizer_decides_no_tokenizer_revision(tmp_path):
    (path,) = write_model(tmp_path / "model.gguf", tokenizer=False)

    assert set(pin([path]).recipe_fields) == {"weight_quantization", "architecture_adapter"}


def test_labels_default_to_the_models_name_and_its_digest(tmp_path, model):
    (unnamed,) = write_model(tmp_path / "some-file.gguf", name=None)
    unnamed_parts = write_model(tmp_path / "some-set.gguf", name=None, parts_of_tensors=9)

    assert pin([model]).artifact.artifact_id == "Tiny Llama"
    assert pin([model]).artifact.revision == f"sha256:{sha256(model)}"
    assert pin([unnamed]).artifact.artifact_id == "some-file"
    assert pin(unnamed_parts).artifact.artifact_id == "some-set"


def test_a_name_that_cannot_be_a_label_is_not_used_as_one(tmp_path):
    (path,) = write_model(tmp_path / "plain.gguf", name="Tiny\x1b[2J")

    assert pin([path]).artifact.artifact_id == "plain"


def test_a_moving_revision_is_refused_before_anything_is_hashed(model):
    steps = []

    with pytest.raises(PinError, match=r"artifact\.revision"):
        pin([model], revision="main", progress=lambda *step: steps.append(step))

    assert not steps


def test_given_labels_are_used_and_leave_the_artifact_the_same(model):
    named = pin([model], artifact_id="org/model", revision="0123abcd")

    assert (named.artifact.artifact_id, named.artifact.revision) == ("org/model", "0123abcd")
    assert named.artifact.model_artifact_digest == pin([model]).artifact.model_artifact_digest


def test_a_pin_as_json_holds_the_block_that_parses_back(model):
    pinned = pin([model])

    shown = json.loads(json.dumps(pinned.to_dict()))

    assert pinned.artifact.from_dict(shown["artifact"]) == pinned.artifact
    assert shown["model_artifact_digest"] == pinned.artifact.model_artifact_digest
    assert shown["recipe"]["architecture_adapter"] == "llama"
    assert shown["files"][0]["size_bytes"] == model.stat().st_size


def test_a_new_target_is_locked_to_the_files_and_loads_again(tmp_path):
    (model,) = write_model(tmp_path / "model.gguf", layers=2, nextn_layers=1)
    pinned = pin([model], artifact_id="org/model-gguf", revision="0123abcd")

    target = pinned.lock(pinned.target_facts("tiny"))
    write_locked_target(tmp_path / "tiny.json", target)

    loaded = read_locked_target(tmp_path / "tiny.json")
    assert loaded == target
    assert (loaded.artifact, loaded.files, loaded.recipe) == (
        pinned.artifact,
        pinned.files,
        pinned.recipe_fields,
    )
    assert loaded.facts.repository == "org/model-gguf"
    assert loaded.facts.architecture.num_hidden_layers == 2
    assert loaded.facts.architecture.total_artifact_layers == 3


def test_files_are_not_locked_to_a_target_of_another_repository(model):
    facts = pin([model], artifact_id="org/model-gguf").target_facts("tiny")

    with pytest.raises(LockedTargetError, match=r"artifact\.artifact_id"):
        pin([model], artifact_id="org/other-gguf").lock(facts)


def test_without_the_gguf_package_the_error_says_what_to_install(model, monkeypatch):
    gguf_file._tensor_types.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf.constants", None)

    with pytest.raises(PinError, match=r"in the checkout: pip install -e '\.\[reference\]'"):
        pin([model])


# Layers


def test_next_token_layers_are_not_counted_and_may_be_absent(tmp_path):
    (held,) = write_model(tmp_path / "held.gguf", layers=3, nextn_layers=1)
    (dropped,) = write_model(
        tmp_path / "dropped.gguf", layers=3, nextn_layers=1, nextn_tensors=False
    )

    assert pin([held]).artifact.layer_count == 3
    assert pin([dropped]).artifact.layer_count == 3


@pytest.mark.parametrize(
    ("model_arguments", "complaint"),
    [
        ({"layers": 2, "integers": {"llama.block_count": 3}}, "layer 2"),
        ({"layers": 3, "integers": {"llama.block_count": 2}}, "block 2 has tensors"),
        # The converter dropped the MTP layer and counted without it, but left its key.
        ({"layers": 3, "integers": {"llama.nextn_predict_layers": 1}}, "block 2 has no nextn"),
        (
            {"layers": 2, "nextn_layers": 1, "integers": {"llama.nextn_predict_layers": 0}},
            "block 2 has nextn tensors",
        ),
        ({"layers": 2, "integers": {"llama.nextn_predict_layers": 2}}, "leaves no layer"),
        ({"integers": {"llama.block_count": 4_000_000_000}}, "at most"),
        ({"extra_tensors": ["blk.01.attn_norm.weight"]}, "no tensor name"),
    ],
)
def test_keys_and_tensors_that_disagree_on_the_layers_are_refused(
    tmp_path, model_arguments, complaint
):
    (path,) = write_model(tmp_path / "model.gguf", **model_arguments)

    with pytest.raises(PinError, match=complaint) as refusal:
        pin([path])

    assert str(path) in str(refusal.value)


def test_a_file_that_is_not_a_language_model_is_refused(tmp_path):
    (path,) = write_model(tmp_path / "model.gguf", texts={"general.architecture": "clip"})

    with pytest.raises(PinError, match=r"no key clip\.block_count"):
        pin([path])


# Incidents


def test_same_weights_other_pretokenizer(tmp_path):
    incident = INCIDENTS["same-weights-other-pretokenizer"]
    pre = [step["pin"]["tokenizer.ggml.pre"] for step in incident["given_when"]]
    (left, right) = (pin(write_model(tmp_path / f"{name}.gguf", pre=name)) for name in pre)

    assert incident["then"][0] == {"tokenizer_revision": "differs"}
    assert left.recipe_fields["tokenizer_revision"] != right.recipe_fields["tokenizer_revision"]
    assert left.artifact.architecture_digest == right.artifact.architecture_digest
    # Both served the weights of one artifact; the tokenizer alone tells them apart.
    shards = [
        ShardIdentity(left.artifact, recipe(pinned.recipe_fields), 0, 2) for pinned in (left, right)
    ]
    reasons = [mismatch.reason for mismatch in explain_mismatch(*shards)]
    assert incident["then"][1] == {"reasons": reasons}


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


def test_next_token_layer_counted(tmp_path):
    incident = INCIDENTS["next-token-layer-counted"]
    asked = incident["given_when"][1]["register"]
    (path,) = write_model(tmp_path / "glm.gguf", layers=asked["layers"], nextn_layers=1)
    pinned = pin([path])

    assert pinned.artifact.layer_count == asked["layers"] == 78
    field = incident["then"][0]["field"]
    with pytest.raises(ValueError, match=field):
        ShardIdentity(pinned.artifact, recipe(pinned.recipe_fields), *asked["range"])


# Split sets


@pytest.fixture
def parts(tmp_path):
    (tmp_path / "set").mkdir()
    parts = write_model(tmp_path / "set" / "model.gguf", parts_of_tensors=8)
    assert [part.name for part in parts] == [
        f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)
    ]
    return parts


def test_content_digest_of_a_set_is_over_its_parts_digests_in_order(parts, model):
    pinned = pin(parts)

    assert pinned.artifact.content_digest == canonical_sha256(
        {
            "domain": "meshnet.artifact-set.v1",
            "body": {"files": [sha256(part) for part in parts]},
        }
    )
    assert [file.name for file in pinned.files] == [part.name for part in parts]
    assert pinned.artifact.architecture_digest == pin([model]).artifact.architecture_digest
    assert pinned.recipe_fields == pin([model]).recipe_fields


def test_parts_may_be_given_in_any_order(parts):
    assert pin(parts[::-1]) == pin(parts)


def test_a_missing_part_is_named(parts):
    with pytest.raises(PinError, match=r"set: missing model-00002-of-00003\.gguf\. Give"):
        pin([parts[0], parts[2]])
    with pytest.raises(PinError, match=r"missing model-00001-of-00003\.gguf, model-00003"):
        pin([parts[1]])


def test_a_foreign_part_is_named(tmp_path, parts, model):
    foreign = write_model(tmp_path / "other.gguf", parts_of_tensors=8)

    with pytest.raises(PinError, match=r"other-00002-of-00003\.gguf is foreign"):
        pin([parts[0], foreign[1], parts[2]])
    with pytest.raises(PinError, match=r"model\.gguf is foreign"):
        pin([*parts, model])


def test_files_that_are_parts_of_nothing_are_told_to_be_named_one_at_a_time(tmp_path, model):
    halves = [tmp_path / "first.gguf", tmp_path / "last.gguf"]
    for layers, path in zip([(0, 1), (1, 2)], halves, strict=True):
        cut([model], layers=layers, destination=path)

    with pytest.raises(
        PinError, match=r"first\.gguf, last\.gguf: each is a file by itself.*one of"
    ):
        pin(halves)


def test_a_foreign_part_under_the_right_name_is_found_by_what_it_holds(tmp_path, parts):
    other = write_model(tmp_path / "model.gguf", layers=3, parts_of_tensors=11)
    assert other[1].name == parts[1].name

    with pytest.raises(PinError, match=r"model-00002-of-00003\.gguf is foreign"):
        pin([parts[0], other[1], parts[2]])


def test_a_part_given_twice_is_named(parts):
    with pytest.raises(PinError, match=r"both say split\.no 1"):
        pin([*parts, parts[1]])


def test_a_renamed_part_is_named(parts):
    swapped = parts[1].rename(parts[1].with_name("swap"))
    parts[2].rename(parts[1])
    swapped.rename(parts[2])

    with pytest.raises(PinError, match=r"model-00002-of-00003\.gguf has split\.no 2"):
        pin(parts)


def test_a_merged_file_with_a_stale_split_count_is_refused_and_a_cleared_one_is_not(tmp_path):
    model_arguments = {"split.no": 0, "split.count": 3, "split.tensors.count": 22}
    (stale,) = write_model(tmp_path / "merged.gguf", integers=model_arguments)
    cleared = tmp_path / "cleared.gguf"
    rewrite_keys(stale, cleared, {"split.count": struct.pack("<I", 0)})

    with pytest.raises(PinError, match=r"merged\.gguf .*stale split\.count"):
        pin([stale])
    assert pin([cleared]).artifact.layer_count == 2


def test_a_whole_file_named_like_a_part_is_refused(tmp_path, model):
    misnamed = model.rename(tmp_path / "model-00001-of-00002.gguf")

    with pytest.raises(PinError, match="part 1 of 2"):
        pin([misnamed])


def test_a_set_whose_tensor_total_is_wrong_is_refused(parts):
    for part in parts:
        rewrite_keys(part, part, {"split.tensors.count": struct.pack("<i", 23)})

    with pytest.raises(PinError, match=r"split\.tensors\.count is 23, the parts hold 22"):
        pin(parts)


def test_parts_that_count_differently_are_refused(parts):
    rewrite_keys(parts[2], parts[2], {"split.count": struct.pack("<H", 4)})

    with pytest.raises(PinError, match=r"model-00003-of-00003\.gguf has a stale split\.count: 4"):
        pin(parts)


def test_a_part_that_contradicts_a_key_of_the_first_is_refused(parts):
    part = raw_gguf(
        [
            key("split.no", GGUFValueType.UINT16, struct.pack("<H", 2)),
            key("split.count", GGUFValueType.UINT16, struct.pack("<H", 3)),
            key("split.tensors.count", GGUFValueType.INT32, struct.pack("<i", 22)),
            key("general.architecture", GGUFValueType.STRING, text("gemma")),
        ],
        [tensor(f"blk.1.{index}.nothing", offset=32 * index) for index in range(6)],
        data=bytes(192),
    )
    parts[2].write_bytes(part)

    with pytest.raises(PinError, match=r"00003-of-00003\.gguf is foreign.*general\.architecture"):
        pin(parts)


# Digests of tensors


def reader_groups(path):
    """The digests of groups again, through the gguf package's own reader."""
    groups = {}
    for held in GGUFReader(path).tensors:
        block = held.name.split(".")[:2]
        group = ".".join(block) if block[0] == "blk" else held.name
        groups.setdefault(group, []).append(held)
    digests = {}
    for group, members in groups.items():
        digest = hashlib.sha256()
        for held in sorted(members, key=lambda each: each.name.encode()):
            name, sizes, data = held.name.encode(), held.shape.tolist(), held.data.tobytes()
            digest.update(struct.pack("<I", len(name)) + name)
            digest.update(struct.pack(f"<II{len(sizes)}Q", held.tensor_type, len(sizes), *sizes))
            digest.update(struct.pack("<Q", len(data)) + data)
        digests[group] = digest.hexdigest()
    return digests


def test_digests_of_tensors_are_those_of_the_worked_example(tmp_path):
    example = (
        "13000000 626c6b2e302e6174746e5f6b2e776569676874"
        "01000000 02000000 0200000000000000 0100000000000000 0400000000000000 003c00bc"
        "16000000 626c6b2e302e6174746e5f6e6f726d2e776569676874"
        "00000000 01000000 0200000000000000 0800000000000000 0000803f00000040"
    )
    expected = hashlib.sha256(bytes.fromhex(example)).hexdigest()
    norm = tensor("blk.0.attn_norm.weight", (2,))
    k = tensor("blk.0.attn_k.weight", (2, 1), kind=1, offset=32)
    data = struct.pack("<2f24x2e28x", 1, 2, 1, -1)
    path = tmp_path / "example.gguf"
    path.write_bytes(raw_gguf(SOUND_KEYS, [norm, k], data=data))

    assert pin([path], tensors=True).tensors == {"blk.0": expected}
    assert expected in tensors.__doc__


@pytest.mark.parametrize("parts_of_tensors", [0, 4])
def test_digests_of_tensors_equal_those_made_by_the_gguf_packages_own_reader(
    tmp_path, model, parts_of_tensors
):
    files = write_model(tmp_path / "again.gguf", parts_of_tensors=parts_of_tensors)

    assert pin(files, tensors=True).tensors == reader_groups(model)
    assert pin(files).tensors == {}


def test_next_token_layers_have_no_digest(tmp_path, model):
    with_nextn = write_model(tmp_path / "mtp.gguf", nextn_layers=1)

    assert pin(with_nextn, tensors=True).tensors.keys() == reader_groups(model).keys()


def test_known_digests_of_tensors_are_not_made_again_unless_asked_to(model, cache_folder):
    make_old(model)
    pin([model])
    digests = pin([model], tensors=True).tensors
    remembered = cache_folder.read_text()
    cache_folder.write_text(remembered.replace(digests["blk.1"], "0" * 64))
    steps = []

    again = pin([model], tensors=True, progress=lambda *step: steps.append(step)).tensors
    assert again == {**digests, "blk.1": "0" * 64}
    assert len(steps) == 2
    assert steps[-1][0] == steps[-1][1]
    assert pin([model], tensors=True, cache=False).tensors == digests
    flip_last_byte(model)
    make_old(model)
    assert pin([model], tensors=True).tensors == reader_groups(model) != digests
    flip_last_byte(model)
    model.touch()  # written a moment ago: what is remembered is still of the bytes before
    assert pin([model], tensors=True).tensors == digests


def test_a_file_that_changes_while_its_tensors_are_digested_is_refused(model):
    size = model.stat().st_size

    def write_to_it(done, total):
        if done > size:
            os.utime(model, ns=(0, 0))

    with pytest.raises(PinError, match="changed while it was read"):
        pin([model], tensors=True, progress=write_to_it)


def test_progress_covers_the_tensors_digested(parts):
    steps = []

    pin(parts, tensors=True, progress=lambda *step: steps.append(step))

    read = sum(held.n_bytes for part in parts for held in GGUFReader(part).tensors)
    total = sum(part.stat().st_size for part in parts) + int(read)
    assert steps[-1] == (total, total)
    assert steps == sorted(steps)


# Hashing


def test_progress_rises_to_the_size_of_all_files(parts):
    steps = []

    pin(parts, progress=lambda done, total: steps.append((done, total)))

    size = sum(part.stat().st_size for part in parts)
    assert steps[-1] == (size, size)
    assert steps == sorted(steps)
    assert len(steps) >= len(parts)


def test_a_known_file_is_not_hashed_again_unless_asked_to(model, cache_folder):
    make_old(model)
    digest = pin([model]).artifact.content_digest
    remembered = cache_folder.read_text()
    assert digest in remembered
    cache_folder.write_text(
        remembered.replace(digest, "0" * 64)
    )  # to see which of the two is asked

    assert pin([model]).artifact.content_digest == "0" * 64
    assert pin([model], cache=False).artifact.content_digest == digest == sha256(model)


def test_a_file_altered_in_place_is_hashed_again_though_its_mtime_was_put_back(model):
    make_old(model)
    before = pin([model])
    flip_last_byte(model)

    assert pin([model]).artifact.content_digest == sha256(model)
    assert pin([model]) != before


def test_without_cache_nothing_is_remembered(model, cache_folder):
    make_old(model)

    pin([model], cache=False)

    assert not cache_folder.exists()


@pytest.mark.parametrize("change", ["mtime", "size", "inode"])
def test_a_file_whose_stamp_changed_is_hashed_again(tmp_path, model, change):
    make_old(model)
    pin([model])
    stamp = model.stat()
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    if change == "size":
        data += bytes(1)
    if change == "inode":
        (tmp_path / "new").write_bytes(data)
        (tmp_path / "new").replace(model)
    else:
        model.write_bytes(data)
    later = 1 if change == "mtime" else 0
    os.utime(model, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + later))

    assert pin([model]).artifact.content_digest == sha256(model)


@pytest.mark.parametrize("is_put_back", [False, True])
def test_a_file_written_a_moment_ago_is_not_remembered_whatever_mtime_it_was_given(
    model, cache_folder, monkeypatch, is_put_back
):
    monkeypatch.setattr("meshnet_node.pin.digest._RECENT_NS", 60_000_000_000)
    if is_put_back:
        os.utime(model, (1_700_000_000, 1_700_000_000))
    pin([model])

    assert not cache_folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"version":2,"digests":{}}',
        b'{"version":1,"digests":{"/x":{"stamp":[1,2],"sha256":3}}}',
        b'{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_damaged_cache_is_ignored_and_written_anew(model, cache_folder, damage):
    make_old(model)
    cache_folder.parent.mkdir(parents=True)
    cache_folder.write_bytes(damage)

    assert pin([model]).artifact.content_digest == sha256(model)
    assert sha256(model) in cache_folder.read_text()


def test_a_cache_that_cannot_be_written_costs_only_the_saving(model, cache_folder):
    make_old(model)
    cache_folder.parent.parent.mkdir(parents=True)
    cache_folder.parent.write_bytes(b"a file where the folder should be")

    assert pin([model]).artifact.content_digest == sha256(model)


def test_a_file_with_a_name_that_is_not_utf8_can_be_pinned_and_remembered(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf"))
    write_model(path)
    make_old(path)

    assert pin([path]) == pin([path])
    assert cache_path().exists()
    json.dumps(pin([path]).to_dict()).encode()


def test_a_file_that_changes_while_it_is_hashed_is_refused(model):
    def write_to_it(done, total):
        os.utime(model, ns=(0, 0))

    with pytest.raises(PinError, match="changed while it was read"):
        pin([model], progress=write_to_it)
