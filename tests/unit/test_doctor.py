"""The doctor: every failure that a node can have, made for real, named, and told what to do about.

Files are real GGUF files, loaded and computed by a third party's backend and by our own; disks are
filled, sockets listen, clocks are asked. Nothing is found by a mock.
"""

import asyncio
import json
import math
import os
import shutil
import struct
import subprocess
import time
from contextlib import contextmanager

import anyio
import msgspec
import pytest
import trustme

from cli_kit import free_port
from meshnet_events.answers import ClockAnswer, NodeAnswer
from meshnet_events.keys import EventKey
from meshnet_node import targets
from meshnet_node.admission import AdmissionRequirement, CapabilityAdmissionError, admit
from meshnet_node.backends import BackendError, available_backends, find_backend
from meshnet_node.challenge import token_ids
from meshnet_node.directory import NodeDirectory
from meshnet_node.doctor import (
    Expected,
    ExpectedError,
    MachineCase,
    RealmCase,
    ShardQuestion,
    examine_machine,
    examine_realm,
    examine_shard,
    examined_shard,
    joined,
    read_expected,
)
from meshnet_node.doctor.asking import asking
from meshnet_node.doctor.check import Check, Silent, make_checks
from meshnet_node.doctor.declare import CannotDeclare, observed_recipe
from meshnet_node.doctor.finding import Diagnosis, failed, ok, skipped, warning
from meshnet_node.doctor.machine import TRIAL_BYTES
from meshnet_node.host import NoHostName, NoMachineId, host_of
from meshnet_node.pin import cut, pin
from meshnet_node.probe import PROMPT
from meshnet_node.recipe_manifest import write_manifest
from meshnet_node.session.transport import Tls
from meshnet_node.targets import with_forward, write_locked_target

LABELS = ("toy", "1", "1")
KEY = EventKey(bytes(range(32)))
OTHER = EventKey(bytes(32))
REVISION = "0f" * 20
NOW = 1_790_000_000.0


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Nothing of the user's own: neither digests that were seen before nor targets."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def model(acme_toy, tmp_path):
    from acme_toy.make_model import write

    path = tmp_path / "toy.gguf"
    write(path)
    return path


@pytest.fixture
def tiny(require, tmp_path):
    """A small llama model, which the reference backend computes."""
    require("numpy")
    from meshnet_node.backends.reference.tiny import write_tiny_llama

    return write_tiny_llama(tmp_path / "tiny.gguf")


def declare(model, backend="acme-toy", **changes):
    tokenizer = "none-1.0" if backend == "acme-toy" else None
    recipe = observed_recipe([model], backend, labels=LABELS, tokenizer_revision=tokenizer)
    path = model.with_suffix(".toml")
    write_manifest(path, [msgspec.structs.replace(recipe, **changes)])
    return path


def examine(model, *, backend="acme-toy", manifest=None, declared=(), **asked):
    manifest = manifest or declare(model, backend, **dict(declared))
    question = ShardQuestion(files=(model,), manifest=manifest, **asked)
    return examine_shard(question, now=lambda: NOW)


def finding(diagnosis, name):
    (found,) = [one for one in diagnosis.findings if one.name == name]
    return found


def the_failure(diagnosis):
    """The one check that failed; it says what to do."""
    (found,) = [one for one in diagnosis.findings if one.status == "failed"]
    assert found.fix
    assert found.name in diagnosis.verdict
    assert not diagnosis.passed
    return found


# -- the shard ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [None, (0, 2), (0, 1), (1, 2)])
def test_a_sound_shard_passes_every_check_and_may_be_registered(model, layers):
    diagnosis = examine(model, layers=layers)
    seen = {one.name: one.status for one in diagnosis.findings}
    assert len(seen) == 8
    assert seen.pop("text") == "warning"  # a toy has no tokenizer
    assert set(seen.values()) == {"ok"}
    assert diagnosis.verdict == "passed, with a warning: text"
    requirement = AdmissionRequirement.for_identity(diagnosis.identity, device="cpu")
    assert admit(requirement, diagnosis.report, now=NOW) is diagnosis.report
    assert diagnosis.report.tokens == 12


def test_the_reference_backend_passes_on_a_whole_model_and_on_a_cut_of_it(tiny, tmp_path):
    whole = examine(tiny, backend="reference-numpy")
    assert whole.verdict == "passed", whole.findings
    cut([tiny], layers=(1, 3), destination=tmp_path / "cut.gguf")
    part = examine(tmp_path / "cut.gguf", backend="reference-numpy")
    assert part.verdict == "passed, with a warning: files", part.findings
    assert part.identity.fingerprint.key == whole.identity.fingerprint.key
    assert (part.report.shard.start, part.report.shard.end) == (1, 3)
    within = examine(tiny, backend="reference-numpy", layers=(1, 3))
    assert within.report.output_digest == part.report.output_digest


def test_the_version_that_runs_is_held_against_the_declared_one(model):
    diagnosis = examine(model, declared={"runtime_version": "0.9"})
    found = the_failure(diagnosis)
    assert found.name == "version"
    assert found.found == "runtime_version: declared '0.9', running '1.0'"
    assert "install acme-toy 0.9" in found.fix
    assert diagnosis.report.status == "failed"
    assert diagnosis.report.diagnostics == (f"version: {found.found}",)
    requirement = AdmissionRequirement.for_identity(diagnosis.identity, device="cpu")
    with pytest.raises(CapabilityAdmissionError, match=r"not-passed.*runtime_version"):
        admit(requirement, diagnosis.report, now=NOW)


def test_a_layout_that_the_backend_settled_otherwise_is_found_after_loading(model):
    diagnosis = examine(model, declared={"kv_layout": "paged-16/HND", "kv_dtype": "fp8_e4m3"})
    found = the_failure(diagnosis)
    assert found.name == "layout"
    assert "kv_layout: declared 'paged-16/HND', running 'mean'" in found.found
    assert "kv_dtype: declared 'fp8_e4m3', running 'float64'" in found.found
    assert finding(diagnosis, "forward").status == "ok"
    assert diagnosis.report.status == "failed"


def test_a_weight_that_is_no_number_fails_the_forward(acme_toy, tmp_path):
    from acme_toy.make_model import write

    path = tmp_path / "nan.gguf"
    write(path, spoil=lambda tensors: tensors["blk.0.mix.weight"].__setitem__((1, 1), math.nan))
    diagnosis = examine(path)
    found = the_failure(diagnosis)
    assert found.name == "forward"
    assert "finite" in found.found
    assert diagnosis.report.status == "failed"


def test_a_weight_that_no_challenge_touches_fails_the_load(tiny):
    """The reference backend looks at every weight: a forward of a few tokens reads a few rows."""
    manifest = declare(tiny, "reference-numpy")
    token = spoil_an_embedding(tiny)
    assert token not in token_ids(497, 0, PROMPT)
    diagnosis = examine(tiny, backend="reference-numpy", manifest=manifest, layers=(0, 2))
    found = the_failure(diagnosis)
    assert found.name == "load"
    assert "'token_embd.weight'" in found.found
    assert f"in row {token} at 0" in found.found
    assert diagnosis.report.status == "error"


def spoil_an_embedding(path):
    """Make the first scale of one token's embedding a NaN, in place; returns the token's id."""
    from gguf import GGUFReader

    (rows,) = [one for one in GGUFReader(path).tensors if one.name == "token_embd.weight"]
    token = 400
    data = bytearray(path.read_bytes())
    at = rows.data_offset + token * rows.n_bytes // 497
    data[at : at + 2] = struct.pack("<e", math.nan)
    path.write_bytes(data)
    return token


def written_to(path):
    """Other weights in the same file, and the time put back."""
    flip_a_byte(path)


def replaced(path):
    """Another file under the same name, of the same size and time."""
    other = path.with_suffix(".other")
    shutil.copy2(path, other)
    other.replace(path)


def removed(path):
    path.unlink()


def after(call, change, path):
    """`call`, and `change` done to the file before it returns."""

    def changing(*given, **how):
        result = call(*given, **how)
        change(path)
        return result

    return changing


@pytest.mark.parametrize("change", [written_to, replaced, removed])
def test_a_file_that_changes_while_it_loads_is_not_taken_for_what_was_hashed(
    acme_toy, model, monkeypatch, change
):
    manifest = declare(model)
    load = after(acme_toy.ToyBackend.load, change, model)
    monkeypatch.setattr(acme_toy.ToyBackend, "load", load)
    diagnosis = examine(model, manifest=manifest)
    found = the_failure(diagnosis)
    assert (found.name, found.found) == ("load", f"{model} changed while it was being proven")
    assert "run this again" in found.fix
    assert finding(diagnosis, "files").status == "ok"
    assert diagnosis.report.status == "error"
    requirement = AdmissionRequirement.for_identity(diagnosis.identity, device="cpu")
    with pytest.raises(CapabilityAdmissionError, match="not-passed"):
        admit(requirement, diagnosis.report, now=NOW)


@pytest.mark.parametrize("way", ["straight", "over a link", "through a folder"])
def test_a_link_that_points_elsewhere_while_it_loads_and_back_after_is_found_out(
    acme_toy, model, tmp_path, monkeypatch, way
):
    other = tmp_path / "other" / model.name
    other.parent.mkdir()
    shutil.copy(model, other)
    link = tmp_path / "link"
    is_folder = way == "through a folder"
    targets = (model.parent, other.parent) if is_folder else (model, other)
    link.symlink_to(targets[0])
    named = link / model.name if is_folder else link
    if way == "over a link":
        named = tmp_path / "over"
        named.symlink_to(link.name)

    def point_at(target):
        link.unlink()
        link.symlink_to(target)

    manifest, load = declare(model), acme_toy.ToyBackend.load

    def loaded_from_elsewhere(*given, **how):
        point_at(targets[1])
        try:
            return load(*given, **how)
        finally:
            point_at(targets[0])

    assert examine(named, manifest=manifest).passed
    monkeypatch.setattr(acme_toy.ToyBackend, "load", loaded_from_elsewhere)
    found = the_failure(examine(named, manifest=manifest))
    assert (found.name, found.found) == ("load", f"{named} changed while it was being proven")


def test_a_file_that_changes_between_hashing_and_loading_is_found_also_by_who_serves(model):
    @contextmanager
    def watched():
        yield None
        written_to(model)

    question = ShardQuestion(files=(model,), manifest=declare(model), watched=watched)
    with examined_shard(question) as examined:
        assert the_failure(examined.diagnosis).name == "load"
        assert not examined.diagnosis.report.passed
    assert the_failure(examine_shard(question)).name == "load"


def test_a_file_that_changes_while_a_backend_may_still_read_it_fails_the_forward(
    acme_toy, model, monkeypatch
):
    manifest = declare(model)
    close = after(acme_toy.ToySlot.close, written_to, model)
    monkeypatch.setattr(acme_toy.ToySlot, "close", close)
    diagnosis = examine(model, manifest=manifest)
    found = the_failure(diagnosis)
    assert (found.name, found.found) == ("forward", f"{model} changed while it was being proven")
    assert diagnosis.report.status == "failed"


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (None, "prompts are encoded and tokens spelled out"),
        ((0, 2), "prompts are encoded"),
        ((2, 4), "tokens spelled out"),
        ((1, 3), "layers in the middle meet none"),
    ],
)
def test_text_is_tried_where_a_route_takes_and_gives_it(tiny, layers, said):
    found = finding(examine(tiny, backend="reference-numpy", layers=layers), "text")
    assert (found.status, found.found) == ("ok", said)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (None, "`meshnet generate` and `certify --prompt` fail over this shard"),
        ((0, 1), "`meshnet generate` and `certify --prompt` fail over this shard"),
        ((1, 2), "tokens come back all the same, without their text"),
    ],
)
def test_without_a_tokenizer_a_shard_is_sound_and_what_fails_over_it_is_told(model, layers, said):
    diagnosis = examine(model, layers=layers)
    found = finding(diagnosis, "text")
    assert (found.status, found.found) == ("warning", "no tokenizer here: a toy has no tokenizer")
    assert said in found.fix
    assert diagnosis.passed
    assert diagnosis.report.passed


def test_a_tokenizer_that_breaks_fails(acme_toy, model, monkeypatch):
    manifest = declare(model)
    monkeypatch.setattr(acme_toy.ToyShard, "encode", lambda *_: 1 / 0)
    diagnosis = examine(model, manifest=manifest)
    assert the_failure(diagnosis).name == "text"
    assert diagnosis.report.diagnostics == ("text: ZeroDivisionError: division by zero",)


@pytest.mark.parametrize(
    ("method", "gives", "said"),
    [
        ("encode", None, "encode gave nothing"),
        ("encode", (), "encode gave a tuple"),
        ("encode", b"", "encode gave a bytes"),
        ("encode", ("1",), "encode gave a tuple"),
        ("encode", (True,), "encode gave a tuple"),
        ("encode", (-1,), "encode gave a tuple"),
        ("encode", (2**31,), "encode gave a tuple"),
        ("decode", 7, "decode gave a int, expected bytes"),
        ("decode", "text", "decode gave a str, expected bytes"),
    ],
)
def test_a_tokenizer_that_gives_what_is_no_text_and_no_tokens_fails(
    acme_toy, model, monkeypatch, method, gives, said
):
    manifest = declare(model)
    honest = {"encode": lambda *_: (1, 2), "decode": lambda *_: b" a"} | {method: lambda *_: gives}
    for name, call in honest.items():
        monkeypatch.setattr(acme_toy.ToyShard, name, call)
    found = the_failure(examine(model, manifest=manifest))
    assert (found.name, found.found[: len(said)]) == ("text", said)


def test_who_encodes_and_does_not_decode_is_told_what_fails_then(acme_toy, model, monkeypatch):
    monkeypatch.setattr(acme_toy.ToyShard, "encode", lambda *_: (1, 2))
    found = finding(examine(model), "text")
    assert found.status == "warning"
    assert found.fix.startswith("tokens come back all the same")


def flip_a_byte(path):
    """Corrupt a weight, and put back the time: a disk that lies changes neither size nor mtime."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size - 5)
        byte = file.read(1)[0]
        file.seek(status.st_size - 5)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def lock(path, model, name="toy", **changes):
    """Lock a target to the files of `model` in the user's folder."""
    pinned = pin([model], artifact_id="acme/toy", revision=REVISION)
    target = msgspec.structs.replace(pinned.lock(pinned.target_facts(name)), **changes)
    write_locked_target(targets.target_directory() / f"{name}.json", target)
    return target


def test_a_corrupted_file_is_named_with_both_digests_and_not_computed_with(model):
    manifest = declare(model)
    pinned = pin([model], artifact_id="acme/toy", revision=REVISION)
    before = Expected(pinned.artifact, pinned.files)
    assert examine(model, manifest=manifest, expected=before, cache=False).passed
    flip_a_byte(model)
    diagnosis = examine(model, manifest=manifest, expected=before, cache=False)
    found = the_failure(diagnosis)
    assert found.name == "files"
    assert "toy.gguf" in found.found
    assert pinned.files[0].sha256 in found.found
    assert pin([model], cache=False).files[0].sha256 in found.found
    assert diagnosis.report is None
    assert [one.status for one in diagnosis.findings[1:]] == ["skipped"] * 7


def test_a_part_that_is_corrupted_is_named_among_its_set(acme_toy, tmp_path, require):
    from gguf_files import write_model

    parts = tuple(write_model(tmp_path / "m.gguf", parts_of_tensors=8))
    pinned = pin(parts)
    flip_a_byte(parts[1])
    manifest = tmp_path / "absent.toml"
    question = ShardQuestion(
        files=parts,
        manifest=manifest,
        expected=Expected(pinned.artifact, pinned.files),
        cache=False,
    )
    found = finding(examine_shard(question), "files").found
    assert parts[1].name in found
    assert parts[0].name not in found


def test_files_are_held_against_the_target_and_take_its_labels(model):
    target = lock(None, model)
    diagnosis = examine(model, target="toy")
    assert diagnosis.passed
    assert diagnosis.identity.artifact == target.artifact
    assert "target toy" in finding(diagnosis, "files").found


def test_a_target_whose_digest_is_another_fails(model, tmp_path):
    from acme_toy.make_model import write

    other = tmp_path / "other.gguf"
    write(other, spoil=lambda tensors: tensors["output.weight"].__setitem__((0, 0), 9.0))
    target = lock(None, other)
    found = the_failure(examine(model, target="toy"))
    assert found.name == "files"
    assert target.artifact.content_digest in found.found
    assert "--target" in found.fix


def test_a_cut_is_held_against_what_its_target_says_it_was_cut_from(tiny, tmp_path):
    from meshnet_node.backends.reference.tiny import write_tiny_llama

    target = lock(None, tiny)
    path = tmp_path / "cut.gguf"
    pinned = cut([tiny], layers=(0, 2), destination=path)
    good = examine(path, backend="reference-numpy", target="toy")
    assert good.passed, good.findings
    assert good.identity.artifact == target.cut(
        pinned.artifact.derived_from, content_digest=pinned.artifact.content_digest
    )
    foreign = write_tiny_llama(tmp_path / "foreign.gguf", seed=7)
    cut([foreign], layers=(0, 2), destination=path, overwrite=True)
    found = the_failure(examine(path, backend="reference-numpy", target="toy"))
    assert found.found.startswith("cut from ")
    assert target.artifact.content_digest in found.found


def test_a_target_that_is_not_there_says_where_the_lock_goes_and_who_makes_it(model):
    found = the_failure(examine(model, target="nobody"))
    assert str(targets.target_directory()) in found.found
    assert "meshnet node pin MODEL --target" in found.fix
    assert "name its path" in found.fix


@pytest.mark.parametrize("nextn", [0, 1])
def test_layers_that_are_not_held_are_counted_as_a_route_does_where_that_makes_a_difference(
    tmp_path, nextn
):
    from gguf_files import write_model

    (path,) = write_model(tmp_path / "model.gguf", nextn_layers=nextn)
    question = ShardQuestion(files=(path,), manifest=tmp_path / "absent.toml", layers=(0, 9))
    found = the_failure(examine_shard(question)).found
    assert "the files hold [0, 2) of 2" in found
    assert ("next-token-prediction" in found) == bool(nextn)


def test_a_target_that_is_not_locked_says_how_to_lock_it(model):
    found = the_failure(examine(model, target="glm_alpha"))
    assert found.name == "files"
    assert "meshnet node pin FILE… --target glm_alpha" in found.found


def test_the_whole_model_must_put_out_what_the_target_records(model):
    recipe = observed_recipe([model], "acme-toy", labels=LABELS, tokenizer_revision="none-1.0")
    digest = examine(model).report.output_digest
    target = lock(None, model)
    path = targets.target_directory() / "toy.json"
    write_locked_target(path, with_forward(target, recipe, digest))
    assert "as the target records" in finding(examine(model, target="toy"), "forward").found
    write_locked_target(path, with_forward(target, recipe, "ab" * 32))
    diagnosis = examine(model, target="toy")
    assert the_failure(diagnosis).name == "forward"
    assert "ab" * 32 in the_failure(diagnosis).found
    # a part of the layers puts out something else, and nothing is recorded of it
    assert examine(model, target="toy", layers=(0, 1)).passed
    # neither is of a recipe that computes otherwise
    other = msgspec.structs.replace(recipe, compute_dtype="float16")
    write_locked_target(path, with_forward(target, other, "ab" * 32))
    assert examine(model, target="toy").passed


@pytest.mark.parametrize("layers", [(0, 3), (2, 3), (1, 1), (5, 9)])
def test_layers_that_the_files_do_not_hold_are_refused_with_those_they_do(model, layers):
    found = the_failure(examine(model, layers=layers))
    assert f"[{layers[0]}, {layers[1]})" in found.found
    assert "[0, 2) of 2" in found.found


def test_a_recipe_that_does_not_fit_the_files_is_found_before_anything_is_loaded(model):
    diagnosis = examine(model, declared={"weight_quantization": "Q4_K:4"})
    found = the_failure(diagnosis)
    assert found.name == "recipe"
    assert "declared 'Q4_K:4', the files hold 'F32:4'" in found.found
    assert diagnosis.report is None


def test_a_manifest_that_is_not_there_is_told_how_to_be_made(model, tmp_path):
    found = the_failure(examine(model, manifest=tmp_path / "absent.toml"))
    assert "meshnet node manifest" in found.fix


def test_a_recipe_that_is_not_declared_is_answered_with_those_that_are(model):
    found = the_failure(examine(model, recipe_id="sparse"))
    assert "'toy' version '1' on 'acme-toy'" in found.found


def test_a_backend_that_is_not_installed_is_answered_with_those_that_are(model):
    found = the_failure(examine(model, declared={"backend_id": "acme-cuda"}))
    assert found.name == "backend"
    assert "acme-cuda" in found.found
    assert "acme-toy" in found.found


def test_a_device_that_the_backend_has_not_is_answered_with_those_it_has(model):
    found = the_failure(examine(model, device="cuda:0"))
    assert "'cuda:0'" in found.found
    assert "cpu" in found.found


def test_a_file_that_is_no_model_is_named(model, tmp_path):
    manifest = declare(model)
    model.write_bytes(b"GGUF" + bytes(100))
    found = the_failure(examine(model, manifest=manifest))
    assert found.name == "files"
    assert str(model) in found.found


def test_a_backend_that_cannot_load_gives_a_report_of_an_error(acme_toy, model, monkeypatch):
    def full(*_):
        raise MemoryError("no 700 GiB here")

    manifest = declare(model)
    monkeypatch.setattr(acme_toy, "GGUFReader", full)
    diagnosis = examine(model, manifest=manifest)
    assert the_failure(diagnosis).name == "load"
    assert diagnosis.report.status == "error"
    assert diagnosis.report.diagnostics == ("load: MemoryError: no 700 GiB here",)
    assert [one.status for one in diagnosis.findings[4:]] == ["skipped"] * 4


@pytest.mark.parametrize("method", ["open", "close"])
def test_what_a_backend_raises_sends_its_maker_to_the_page_and_its_traceback_to_the_log(
    acme_toy, model, monkeypatch, caplog, method
):
    manifest = declare(model)
    monkeypatch.setattr(acme_toy.ToyShard, method, lambda *_, **__: 1 / 0)
    with caplog.at_level("DEBUG", "meshnet_node"):
        found = the_failure(examine(model, manifest=manifest))
    assert found.fix.endswith("docs/how-to/add-a-backend.md, under 'When the doctor objects'")
    assert "ZeroDivisionError" in caplog.text
    assert "lambda *_, **__: 1 / 0" in caplog.text


def test_a_backend_that_does_not_say_what_runs_is_not_taken_to_run_as_declared(model, monkeypatch):
    import acme_toy

    manifest = declare(model)
    monkeypatch.setattr(acme_toy.ToyBackend, "runtime_version", property(lambda _: 1 / 0))
    diagnosis = examine(model, manifest=manifest)
    assert finding(diagnosis, "version").status == "failed"
    assert finding(diagnosis, "layout").status == "skipped"
    assert not diagnosis.report.passed


def test_a_shard_that_will_not_go_is_a_finding_too(acme_toy, model, monkeypatch):
    manifest = declare(model)
    monkeypatch.setattr(acme_toy.ToyShard, "close", lambda _: 1 / 0)
    diagnosis = examine(model, manifest=manifest)
    assert the_failure(diagnosis).name == "close"
    assert diagnosis.report.status == "failed"


def test_ctrl_c_in_a_forward_ends_the_doctor_and_gives_the_layers_back(
    acme_toy, model, monkeypatch
):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    manifest, closed = declare(model), []
    monkeypatch.setattr(acme_toy.ToySlot, "forward_tokens", interrupt)
    monkeypatch.setattr(acme_toy.ToyShard, "close", lambda shard: closed.append(shard.end))
    with pytest.raises(KeyboardInterrupt):
        examine(model, manifest=manifest)
    assert closed == [2]


def test_who_goes_on_to_serve_keeps_the_shard_that_was_proven(model):
    question = ShardQuestion(files=(model,), manifest=declare(model))
    with examined_shard(question) as examined:
        assert examined.diagnosis.passed
        with_slot = examined.shard.open(0, 2).forward_tokens([1], sample=True)
        assert with_slot.token is not None
    assert examined.shard.layers == {}


def test_nothing_is_changed_on_the_machine(model, tmp_path):
    manifest = declare(model)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert examine(model, manifest=manifest, cache=False).passed
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_expectation_is_read_from_a_pin_or_a_block(model, tmp_path):
    pinned, path = pin([model]), tmp_path / "expected.json"
    path.write_bytes(msgspec.json.encode(pinned.to_dict()))
    assert read_expected(path) == Expected(pinned.artifact, pinned.files)
    path.write_text(json.dumps(examine(model).identity.to_dict()))
    assert read_expected(path) == Expected(pinned.artifact)
    for content in ("{", "[]", '{"artifact":{}}'):
        path.write_text(content)
        with pytest.raises(ExpectedError, match=r"expected\.json"):
            read_expected(path)
    path.write_bytes(b" " * (1 << 21))
    with pytest.raises(OSError, match="no identity"):
        read_expected(path)


# -- backends -------------------------------------------------------------------------------------


def test_a_third_partys_backend_is_found_by_its_entry_point(acme_toy):
    assert "acme-toy" in available_backends()
    assert find_backend("acme-toy").backend_id == "acme-toy"


def test_a_backend_that_is_another_than_its_entry_point_says_is_refused(acme_toy, monkeypatch):
    monkeypatch.setattr(acme_toy.ToyBackend, "backend_id", "acme-cuda")
    with pytest.raises(BackendError, match="name both the same"):
        find_backend("acme-toy")


@pytest.mark.parametrize("raised", [AttributeError("no driver"), SystemExit("no driver")])
def test_a_backend_that_cannot_be_made_says_whose_fault_that_is(acme_toy, monkeypatch, raised):
    def fail(_):
        raise raised

    said = rf"acme_toy:ToyBackend\) cannot be made: {type(raised).__name__}: no driver"
    monkeypatch.setattr(acme_toy.ToyBackend, "__init__", fail)
    with pytest.raises(BackendError, match=said):
        find_backend("acme-toy")


def test_a_backend_that_will_not_say_who_it_is_is_at_fault(acme_toy, monkeypatch):
    def leave(_):
        raise SystemExit(0)

    monkeypatch.setattr(acme_toy.ToyBackend, "backend_id", property(leave))
    with pytest.raises(BackendError, match="cannot be made: SystemExit: 0"):
        find_backend("acme-toy")


@pytest.mark.parametrize("said", ["SystemExit(0)", "ImportError('no driver')"])
def test_a_module_that_cannot_be_imported_is_named(tmp_path, monkeypatch, said):
    site = offering(tmp_path, "acme-leaves", "acme-leaves = acme_leaves:Backend")
    (site / "acme_leaves.py").write_text(f"raise {said}\n")
    monkeypatch.syspath_prepend(site)
    with pytest.raises(BackendError, match=r"'acme-leaves' \(acme_leaves:Backend\) cannot be"):
        find_backend("acme-leaves")


def offering(folder, distribution, line, version="1.0"):
    """A folder for the path, in which `distribution` is installed and offers a backend."""
    metadata = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    (metadata / "entry_points.txt").write_text(f"[meshnet.backends]\n{line}\n")
    return folder


@pytest.mark.parametrize("value", ["rival_toy:Backend", "acme_toy:ToyBackend"])
def test_an_id_that_two_distributions_offer_is_nobodys(acme_toy, tmp_path, monkeypatch, value):
    monkeypatch.syspath_prepend(offering(tmp_path, "rival-toy", f"acme-toy = {value}", "2.0"))
    with pytest.raises(BackendError, match="offered more than once") as refused:
        find_backend("acme-toy")
    assert f"rival-toy 2.0 ({value})" in str(refused.value)
    assert "acme-toy 1.0 (acme_toy:ToyBackend)" in str(refused.value)
    assert "pip uninstall" in str(refused.value)


@pytest.mark.parametrize("version", ["1.0", "0.9"])
def test_one_distribution_in_two_places_is_one(acme_toy, tmp_path, monkeypatch, version):
    """As a checkout that is installed and on PYTHONPATH too."""
    again = offering(tmp_path, "acme-toy", "acme-toy = acme_toy:ToyBackend", version)
    monkeypatch.syspath_prepend(again)
    assert find_backend("acme-toy").backend_id == "acme-toy"


def test_an_entry_point_that_names_nothing_is_the_backends_fault(acme_toy, monkeypatch):
    monkeypatch.delattr(acme_toy, "ToyBackend")
    with pytest.raises(BackendError, match="cannot be made: AttributeError"):
        find_backend("acme-toy")


def test_a_synthetic_backend_is_a_warning_and_the_report_says_so(acme_toy, model, monkeypatch):
    monkeypatch.setattr(acme_toy.ToyBackend, "synthetic", True)
    diagnosis = examine(model)
    assert finding(diagnosis, "backend").status == "warning"
    assert diagnosis.verdict == "passed, with a warning: backend, text"
    assert diagnosis.report.passed
    assert diagnosis.report.synthetic


# -- a recipe to start from -----------------------------------------------------------------------


def test_a_recipe_follows_from_the_files_and_what_the_backend_reports(tiny):
    recipe = observed_recipe([tiny], "reference-numpy", labels=LABELS)
    fields = pin([tiny]).recipe_fields
    assert recipe.weight_quantization == fields["weight_quantization"]
    assert recipe.tokenizer_revision == fields["tokenizer_revision"]
    assert recipe.runtime_version == find_backend("reference-numpy").runtime_version
    assert (recipe.recipe_id, recipe.recipe_version) == ("toy", "1")


def test_what_neither_says_is_named_and_a_contradiction_refused(acme_toy, model, tiny, monkeypatch):
    with pytest.raises(CannotDeclare, match=r"^tokenizer_revision: neither .*-revision$"):
        observed_recipe([model], "acme-toy", labels=LABELS)
    with pytest.raises(CannotDeclare, match="tokenizer_revision: found"):
        observed_recipe([tiny], "reference-numpy", labels=LABELS, tokenizer_revision="ab" * 20)
    monkeypatch.setattr(acme_toy.ToyBackend, "runtime_version", "1.1")
    with pytest.raises(CannotDeclare, match=r"runtime_version: acme-toy reports '1\.0'"):
        observed_recipe([model], "acme-toy", labels=LABELS, tokenizer_revision="none-1.0")


@pytest.mark.parametrize("raised", [SystemExit(0), TypeError("no such kernel")])
@pytest.mark.parametrize("part", ["load", "close", "axes", "devices", "runtime_version"])
def test_whatever_a_backend_raises_where_a_recipe_is_asked_for_is_its_own_fault(
    acme_toy, model, monkeypatch, part, raised
):
    def fail(*_, **__):
        raise raised

    of = acme_toy.ToyShard if part in {"axes", "close"} else acme_toy.ToyBackend
    is_method = part in {"load", "close"}
    # a shard sets its own axes, and a property without a setter would be in its way
    monkeypatch.setattr(of, part, fail if is_method else property(fail, fail), raising=False)
    with pytest.raises(CannotDeclare, match=f"acme-toy cannot .*{type(raised).__name__}: ") as told:
        observed_recipe([model], "acme-toy", labels=LABELS, tokenizer_revision="none-1.0")
    assert "docs/how-to/add-a-backend.md" in str(told.value)


def test_what_a_backend_says_itself_of_a_file_is_left_as_it_is(acme_toy, model):
    with pytest.raises(BackendError, match=r"^expected one file, and the device cpu$"):
        observed_recipe([model], "acme-toy", labels=LABELS, device="cuda:0")


# -- the machine ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A node's directory with its key."""
    made = tmp_path / "node"
    made.mkdir()
    key = made / "node.key"
    key.write_text(f"{KEY.seed_text()}\n")
    key.chmod(0o600)
    return made


@pytest.fixture
def machine_id(tmp_path):
    path = tmp_path / "machine-id"
    path.write_text("0123456789abcdef" * 2 + "\n")
    return path


def machine(folder, machine_id, **case):
    return examine_machine(
        MachineCase(directory=NodeDirectory(folder), machine_id=machine_id, **case)
    )


def test_a_sound_machine_passes_and_keeps_nothing_of_the_trial(folder, machine_id):
    diagnosis = machine(folder, machine_id)
    assert diagnosis.passed
    assert finding(diagnosis, "credentials").found.startswith(KEY.public)
    assert [path.name for path in folder.iterdir()] == ["node.key"]


def test_a_key_that_others_may_read_is_told_how_to_be_closed(folder, machine_id):
    (folder / "node.key").chmod(0o640)
    found = the_failure(machine(folder, machine_id))
    assert "0640" in found.found
    assert "chmod 600" in found.fix


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no node key"),
        ("", "seed"),
        ("SU" + "A" * 56, "seed"),
        ("x" * 9_000, "seed"),
    ],
)
def test_a_key_that_is_none_is_told_and_never_shown(folder, machine_id, content, said):
    path = folder / "node.key"
    path.unlink()
    if content is not None:
        path.write_text(content)
        path.chmod(0o600)
    found = the_failure(machine(folder, machine_id))
    assert found.name == "credentials"
    assert said in found.found
    assert not content or content not in found.found + found.fix


@pytest.mark.parametrize(
    "content",
    [None, "", "\n", "uninitialized\n", "0" * 32, "f" * 32, "XYZ", b"\xff" * 32, "0123ABCD" * 4],
)
def test_a_machine_id_that_is_none_or_a_placeholder_is_refused(folder, machine_id, content):
    machine_id.unlink()
    if content is not None:
        machine_id.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(NoMachineId, match="--declared-host"):
        host_of("lab", machine_id=machine_id)
    found = the_failure(machine(folder, machine_id))
    assert found.name == "host"
    assert str(machine_id) in found.found
    assert "--declared-host" in found.fix
    assert host_of("lab", "rack-2", machine_id=machine_id).source == "declared"


def test_a_declared_host_is_no_fault_and_what_it_depends_on_is_said(folder, machine_id):
    diagnosis = machine(folder, machine_id, declared_host="rack-2")
    found = finding(diagnosis, "host")
    assert (found.status, diagnosis.verdict) == ("ok", "passed")
    assert "'rack-2'" in found.found
    assert "where the realm's policy accepts" in found.found


@pytest.mark.parametrize("name", ["", "  ", "\udcff"])
def test_a_declared_host_that_is_no_name_is_refused_wherever_it_is_named(folder, machine_id, name):
    with pytest.raises(NoHostName):
        host_of("lab", name, machine_id=machine_id)
    found = the_failure(machine(folder, machine_id, declared_host=name))
    assert found.name == "host"
    assert "--declared-host" in found.fix


@pytest.fixture
def small_disk(tmp_path, require):
    """A file system of 1 MiB, really mounted."""
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", where], capture_output=True
    )
    if mounted.returncode:
        if os.environ.get("MESHNET_REQUIRE_ALL") == "1":
            pytest.fail(f"a file system cannot be mounted here: {mounted.stderr.decode()}")
        pytest.skip("only root can mount the small file system that is to be filled")
    yield where
    subprocess.run(["umount", where], check=True)


def test_a_full_disk_is_found_by_writing_to_it(small_disk, machine_id):
    shutil.copy(machine_id, small_disk / "filler")
    with (small_disk / "node.key").open("w") as file:
        file.write(KEY.seed_text())
    (small_disk / "node.key").chmod(0o600)
    found = the_failure(machine(small_disk, machine_id))
    assert found.name == "disk"
    assert f"writing {TRIAL_BYTES:,} bytes failed: No space left on device" in found.found
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "node.key"]


def test_a_disk_with_little_room_is_a_warning(folder, machine_id, monkeypatch):
    # the room of a disk cannot be made scarce without filling it, so what is scarce is moved instead
    monkeypatch.setattr("meshnet_node.doctor.machine.SCARCE_BYTES", 1 << 60)
    found = finding(machine(folder, machine_id), "disk")
    assert (found.status, found.fix) == ("warning", "make room soon")


def test_a_directory_that_is_not_there_yet_is_not_made(tmp_path, machine_id):
    diagnosis = machine(tmp_path / "not" / "yet", machine_id)
    assert finding(diagnosis, "disk").status in {"ok", "warning"}
    assert finding(diagnosis, "credentials").status == "failed"
    assert not (tmp_path / "not").exists()


# -- the realm ------------------------------------------------------------------------------------


def broker(skew_s=0.0, after_s=0.0, most_ms=60_000):
    """A broker whose clock differs by `skew_s` from ours, and who takes its time."""

    async def ask_clock():
        await anyio.sleep(after_s / 2)
        now = time.time_ns() + int(skew_s * 1e9)
        await anyio.sleep(after_s / 2)
        return ClockAnswer(now, most_ms, 900_000)

    return ask_clock


async def examined_clock(**how):
    case = RealmCase(node=KEY.public, ask_clock=broker(**how))
    return finding(await examine_realm(case), "clock")


@pytest.mark.parametrize(
    ("skew_s", "status", "said"),
    [
        (0, "ok", "at most 60,000 ms"),
        (5, "ok", "behind the broker's"),
        (-5.5, "ok", "ahead of the broker's"),
        (7, "warning", "behind"),
        (-59, "warning", "ahead of"),
        (61, "failed", "behind"),
        (-3_600.5, "failed", "clock is 3,600,"),
        (1e9, "failed", "behind"),
    ],
)
async def test_a_clock_is_held_against_the_brokers(skew_s, status, said):
    found = await examined_clock(skew_s=skew_s)
    assert found.status == status
    assert said in found.found
    assert ("NTP" in found.fix) is (status != "ok")


async def test_how_far_off_a_clock_may_be_the_policy_in_force_says():
    found = await examined_clock(skew_s=-5, most_ms=1_000)
    assert found.found.endswith("; at most 1,000 ms are allowed")
    assert found.status == "failed"
    found = await examined_clock(skew_s=-5, most_ms=None)
    assert found.found.endswith("; at most 60,000 ms are allowed by the default policy")
    assert found.status == "ok"


async def test_a_slow_answer_is_no_skew_and_is_told_with_its_uncertainty():
    found = await examined_clock(after_s=0.4)
    assert found.status == "ok"
    apart_ms, half_ms = (
        int(found.found.split(" ms")[0].split()[-1].replace(",", "")),
        int(found.found.partition("± ")[2].partition(" ms")[0]),
    )
    assert apart_ms < 100
    assert 190 <= half_ms < 1_000


async def test_a_broker_that_does_not_answer_is_a_failure_and_not_a_wait(monkeypatch):
    monkeypatch.setattr("meshnet_node.doctor.realm.ASK_TIMEOUT_S", 0.05)
    case = RealmCase(node=KEY.public, ask_clock=broker(after_s=60), ask_node=silent)
    with anyio.fail_after(5):
        diagnosis = await examine_realm(case)
    for name in ("clock", "tracker"):
        assert finding(diagnosis, name).status == "failed"
        assert "TimeoutError" in finding(diagnosis, name).found
        assert finding(diagnosis, name).fix


async def silent(node):
    await anyio.sleep_forever()


def answering(**changes):
    answer = NodeAnswer(
        boot_id=None,
        group="",
        head_digest="0" * 64,
        head_issuerseq=0,
        label="rack-2",
        may_speak=True,
        node=KEY.public,
        status="enrolled",
    )

    async def ask_node(node):
        return msgspec.structs.replace(answer, **changes)

    return ask_node


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "ok", "enrolled, as 'rack-2'"),
        ({"status": "not-enrolled", "may_speak": True}, "ok", "not-enrolled"),
        ({"status": "not-enrolled", "may_speak": False}, "failed", "meshnet admin node enrol"),
        ({"status": "unknown", "may_speak": False}, "failed", "meshnet admin node enrol"),
        ({"status": "suspended", "may_speak": False}, "failed", "reinstate"),
        ({"status": "conflict"}, "failed", "two machines"),
        ({"node": OTHER.public}, "failed", OTHER.public),
    ],
)
async def test_the_standing_of_the_node_is_asked_and_explained(changes, status, said):
    case = RealmCase(node=KEY.public, ask_node=answering(**changes))
    found = finding(await examine_realm(case), "tracker")
    assert found.status == status
    assert said in found.found + found.fix


async def ask_over_tcp(endpoint):
    """A peer in miniature: connects, and reads who answers."""
    host, _, port = endpoint.removeprefix("grpc://").rpartition(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        return (await stream.receive()).decode()


async def examined_endpoint(endpoint, key=KEY):
    """The finding about `endpoint` while something listens there that says it is `key`."""

    async def greet(_, writer):
        writer.write(key.public.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        case = RealmCase(
            node=KEY.public, endpoint=endpoint.replace("PORT", str(port)), reach=ask_over_tcp
        )
        return finding(await examine_realm(case), "endpoint")


@pytest.mark.parametrize(
    ("endpoint", "key", "status", "said"),
    [
        ("grpc://127.0.0.1:PORT", KEY, "warning", "only this machine"),
        ("grpc://localhost:PORT", KEY, "warning", "only this machine"),
        ("grpc://127.0.0.1:PORT", OTHER, "failed", OTHER.public),
        ("grpc://0.0.0.0:PORT", KEY, "failed", "none that peers could reach"),
        ("grpc://[::]:PORT", KEY, "failed", "none that peers could reach"),
        ("http://127.0.0.1:PORT", KEY, "failed", "not an endpoint"),
        ("grpc://127.0.0.1:0", KEY, "failed", "not an endpoint"),
        ("grpc://127.0.0.1:70000", KEY, "failed", "not an endpoint"),
        ("grpc://127.0.0.1:1", KEY, "failed", "OSError"),
    ],
)
async def test_the_own_endpoint_is_reached_as_a_peer_would(endpoint, key, status, said):
    found = await examined_endpoint(endpoint, key)
    assert found.status == status
    assert said in found.found
    assert found.fix


async def test_an_endpoint_of_mutual_tls_needs_a_certificate_to_show_and_no_open_port():
    case = RealmCase(node=KEY.public, endpoint="grpcs://10.0.0.7:7001", reach=ask_over_tcp)
    found = finding(await examine_realm(case), "endpoint")
    assert (found.status, "no certificate" in found.found) == ("failed", True)
    assert "--tls-certificate" in found.fix
    assert "firewall" not in found.fix


@pytest.mark.parametrize("scheme", ["grpc", "grpcs"])
async def test_certificates_are_shown_at_an_endpoint_that_asks_for_them_and_at_no_other(scheme):
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    tls = Tls(
        authority=authority.cert_pem.bytes(),
        certificate=made.cert_chain_pems[0].bytes(),
        key=made.private_key_pem.bytes(),
    )
    endpoint = f"{scheme}://127.0.0.1:{free_port()}"
    case = RealmCase(node=None, endpoint=endpoint)
    async with asking(case, server=None, realm=None, key=KEY, tls=tls) as case:
        found = finding(await examine_realm(case), "endpoint")
    assert found.found.startswith(f"{endpoint} answers with this node's key")


async def test_what_cannot_be_asked_is_skipped_and_the_verdict_says_so():
    diagnosis = await examine_realm(RealmCase(node=None, endpoint="grpc://10.0.0.7:7001"))
    assert [one.status for one in diagnosis.findings] == ["skipped"] * 3
    assert diagnosis.passed
    assert diagnosis.verdict == "passed; not checked: clock, tracker, endpoint"
    assert "no server is named" in finding(diagnosis, "clock").found


async def test_cancelling_a_check_cancels_the_doctor():
    with anyio.move_on_after(0.05) as scope:
        await examine_realm(RealmCase(node=KEY.public, ask_node=silent))
    assert scope.cancelled_caught


# -- checks and verdicts --------------------------------------------------------------------------


def test_a_check_that_breaks_is_a_finding_with_its_remedy_and_those_that_need_it_are_skipped():
    seen = []
    checks = (
        Check("one", lambda _: 1 / 0, "look there"),
        Check("two", lambda _: ok("two", "fine"), "", needs=("one",)),
        Check("three", lambda _: ok("three", "fine"), "", needs=("two",)),
        Check("four", lambda _: warning("four", "so so", "see to it"), ""),
        Check("five", lambda _: ok("five", "fine"), "", needs=("four",)),
    )

    class Following(Silent):
        def begins(self, name):
            seen.append(name)

        def finds(self, finding):
            seen.append(finding.status)

    found = make_checks(checks, None, Following())
    assert found[0] == failed("one", "ZeroDivisionError: division by zero", "look there")
    assert found[1] == skipped("two", "it needs one to be in order first")
    assert [one.status for one in found] == ["failed", "skipped", "skipped", "warning", "ok"]
    assert seen[:4] == ["one", "failed", "two", "skipped"]


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        ([ok("a", ""), ok("b", "")], "passed"),
        ([ok("a", ""), warning("b", "", "")], "passed, with a warning: b"),
        ([ok("a", ""), skipped("b", "")], "passed; not checked: b"),
        (
            [failed("a", "", ""), skipped("b", ""), failed("c", "", "")],
            "failed: a, c (2 of 3 checks); not checked: b",
        ),
    ],
)
def test_the_verdict_is_one_line_that_leaves_nothing_out(findings, verdict):
    assert joined(*(Diagnosis((one,)) for one in findings)).verdict == verdict


def test_a_finding_is_bounded_and_has_a_utf8_form():
    found = failed("a", "\ud800" + "x" * 5_000, "")
    assert len(found.found) == 1_024
    found.found.encode()
