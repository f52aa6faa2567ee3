"""`meshnet node pin`: real model files in, identity out."""

import hashlib

import msgspec
import pytest

from meshnet_node.targets import (
    FORWARD_AXES,
    RecordedForward,
    read_locked_target,
    write_locked_target,
)


@pytest.fixture
def model(meshnet, require):
    require("gguf")
    from gguf_files import write_model

    (path,) = write_model(meshnet.home / "tiny.gguf")
    return path


def test_a_pin_is_the_part_of_an_identity_that_the_file_decides(meshnet, model):
    pinned = meshnet("node", "pin", model, "-o", "json").json
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    assert pinned["artifact"]["content_digest"] == digest
    assert pinned["artifact"]["layer_count"] == 2
    assert pinned["files"] == [
        {"name": "tiny.gguf", "size_bytes": model.stat().st_size, "sha256": digest}
    ]
    shown = meshnet("node", "pin", model, "--artifact-id", "acme/tiny", "--no-cache").out
    assert digest in shown
    assert "acme/tiny" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_cut_is_written_and_bound_to_its_source(meshnet, model):
    cut = meshnet("node", "pin", model, "--layers", "0:1", "--output", "a.gguf", "-o", "json").json
    assert cut["artifact"]["derived_from"] == {
        "source_artifact_digest": hashlib.sha256(model.read_bytes()).hexdigest(),
        "shard_start": 0,
        "shard_end": 1,
    }
    again = meshnet("node", "pin", "a.gguf", "-o", "json").json
    assert again["artifact"]["content_digest"] == cut["artifact"]["content_digest"]
    told = meshnet("node", "pin", model, "--layers", "1:2", "--output", "b.gguf").out
    assert told.splitlines()[-1].split() == ["written", "to", "b.gguf"]


def test_a_cut_without_a_destination_is_named_after_its_source_and_layers(meshnet, model):
    cut = meshnet("node", "pin", model, "--layers", "0:1", "-o", "json").json
    made = meshnet.home / "tiny.layers-0-1.gguf"
    assert hashlib.sha256(made.read_bytes()).hexdigest() == cut["artifact"]["content_digest"]
    again = meshnet("node", "pin", model, "--layers", "0:1", code=1)
    assert "it exists already" in again.err
    assert "--overwrite" in again.err
    made.write_bytes(b"old")
    meshnet("node", "pin", model, "--layers", "0:1", "--overwrite")
    assert hashlib.sha256(made.read_bytes()).hexdigest() == cut["artifact"]["content_digest"]


def test_a_cut_of_a_split_model_is_named_after_the_whole(meshnet, require):
    require("gguf")
    from gguf_files import write_model

    parts = write_model(meshnet.home / "tiny.gguf", parts_of_tensors=8)
    meshnet("node", "pin", *reversed(parts), "--layers", "1:2")
    assert (meshnet.home / "tiny.layers-1-2.gguf").is_file()


def test_a_target_of_a_new_name_is_made_and_locks_from_then_on(meshnet, model):
    revision = "a" * 40
    lock = ("--target", "mine", "--revision", revision)
    shown = meshnet("node", "pin", model, "--artifact-id", "acme/tiny", *lock).out
    (made,) = meshnet.home.rglob("mine.json")
    assert str(made) in shown
    target = read_locked_target(made)
    assert target.facts.repository == "acme/tiny"
    assert target.artifact.revision == revision
    assert target.files[0].sha256 == hashlib.sha256(model.read_bytes()).hexdigest()
    again = meshnet("node", "pin", model, *lock, "-o", "json").json
    assert again["artifact"]["artifact_id"] == "acme/tiny"
    other = meshnet("node", "pin", model, "--artifact-id", "acme/other", *lock, code=1)
    assert "acme/tiny" in other.err


def test_a_target_locks_the_tensors_and_keeps_what_is_recorded_of_the_same_files(meshnet, model):
    lock = ("--target", "mine", "--revision", "a" * 40, "--artifact-id", "acme/tiny")
    meshnet("node", "pin", model, *lock)
    (made,) = meshnet.home.rglob("mine.json")
    target = read_locked_target(made)
    assert target.tensors.keys() == {
        *("token_embd.weight", "rope_freqs.weight", "output_norm.weight", "output.weight"),
        *("blk.0", "blk.1"),
    }
    axes = dict.fromkeys(FORWARD_AXES, "float32")
    recorded = RecordedForward("meshnet.doctor-challenge.v1", axes, "ab" * 32)
    write_locked_target(made, msgspec.structs.replace(target, tensors={}, forward=recorded))
    meshnet("node", "pin", model, *lock)
    assert read_locked_target(made) == msgspec.structs.replace(target, forward=recorded)

    meshnet("node", "pin", model, "--layers", "0:1", "--output", "cut.gguf")
    refused = meshnet("node", "pin", "cut.gguf", *lock, code=1).err
    assert "meshnet node doctor CUT --target" in refused.replace("\n", " ")

    from gguf_files import write_model

    (other,) = write_model(meshnet.home / "other.gguf", seed=2)
    meshnet("node", "pin", other, *lock, "--overwrite")
    assert read_locked_target(made).forward is None


def test_a_lock_of_other_files_is_not_written_over_unasked(meshnet, model):
    from gguf_files import write_model

    (other,) = write_model(meshnet.home / "other.gguf", seed=2)
    lock = ("--target", "mine", "--artifact-id", "acme/tiny")
    meshnet("node", "pin", model, *lock)
    (made,) = meshnet.home.rglob("mine.json")
    before = made.read_bytes()

    refused = meshnet("node", "pin", other, *lock, code=1).err

    for path in (model, other):
        assert hashlib.sha256(path.read_bytes()).hexdigest() in refused
    assert "--overwrite" in refused
    assert made.read_bytes() == before
    meshnet("node", "pin", model, *lock)
    assert made.read_bytes() == before
    meshnet("node", "pin", other, *lock, "--overwrite")
    assert read_locked_target(made).files[0].name == "other.gguf"


def test_a_lock_that_does_not_add_up_is_not_written_over_unasked(meshnet, model):
    lock = ("--target", "mine", "--artifact-id", "acme/tiny")
    meshnet("node", "pin", model, *lock)
    (made,) = meshnet.home.rglob("mine.json")
    sound = made.read_text()
    broken = sound.replace('"layer_count": 2', '"layer_count": 3')
    made.write_text(broken)
    for unsound in (broken, "{"):
        made.write_text(unsound)
        assert "--overwrite" in meshnet("node", "pin", model, *lock, code=1).err
        assert made.read_text() == unsound
        meshnet("node", "pin", model, *lock, "--overwrite")
        assert made.read_text() == sound


def test_a_label_that_is_named_is_taken_also_where_the_same_files_are_locked(meshnet, model):
    meshnet("node", "pin", model, "--target", "mine", "--artifact-id", "acme/tiny")
    again = ("--target", "mine", "--artifact-id", "acme/other", "--overwrite")
    refused = meshnet("node", "pin", model, *again, code=1).err
    assert "'acme/other'" in refused


def test_a_target_of_a_local_file_has_its_digest_for_a_revision_and_keeps_a_commit(meshnet, model):
    lock = ("--target", "mine", "--artifact-id", "acme/tiny")
    meshnet("node", "pin", model, *lock)
    (made,) = meshnet.home.rglob("mine.json")
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    assert read_locked_target(made).artifact.revision == f"sha256:{digest}"
    for given in (("--revision", "a" * 40), ()):
        pinned = meshnet("node", "pin", model, *lock, *given, "-o", "json").json
        assert pinned["artifact"]["revision"] == "a" * 40
        assert read_locked_target(made).artifact.revision == "a" * 40


@pytest.mark.parametrize("path", ["../mine", "mine.json"])
def test_a_target_whose_name_is_a_path_is_refused(meshnet, model, path):
    meshnet("node", "pin", model, "--target", "mine")
    (made,) = meshnet.home.rglob("mine.json")
    made.rename(meshnet.home / "mine.json")
    assert "expected a name" in meshnet("node", "pin", model, "--target", path, code=1).err


def test_a_model_file_that_is_not_there_is_not_found(meshnet, require):
    require("gguf")
    assert "/nope.gguf" in meshnet("node", "pin", "/nope.gguf", code=5).err


def test_a_target_that_these_are_not_the_files_of_is_not_locked(meshnet, model):
    refused = meshnet("node", "pin", model, "--target", "glm_alpha", "--revision", "a" * 40, code=1)
    assert "glm_alpha" in refused.err
    assert not list(meshnet.home.rglob("glm_alpha.json"))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--output", "b.gguf"), 2, "--layers"),
        (("--overwrite",), 2, "--layers or --target"),
        (("--layers", "0:1", "--target", "mine"), 2, "whole files"),
        (("--layers", "0:1", "--revision", "a" * 40), 2, "labels"),
        (("--layers", "one", "--output", "b.gguf"), 2, "A:B"),
        (("--target", "glm_alpha"), 1, "glm_alpha"),
        (("--revision", "main"), 1, "revision"),
    ],
)
def test_what_does_not_go_together_is_refused(meshnet, model, arguments, code, said):
    assert said in meshnet("node", "pin", model, *arguments, code=code).err


def test_a_file_that_is_no_model_is_refused_by_name(meshnet, require):
    require("gguf")
    (meshnet.home / "notes.txt").write_text("not a model")
    assert "notes.txt" in meshnet("node", "pin", "notes.txt", code=1).err
