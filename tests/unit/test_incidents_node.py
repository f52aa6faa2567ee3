"""Failures that users of comparable systems reported, where the node is what judges them.

As in `registry/test_incidents.py`, the scenarios are those of `incidents.json`, played on real files.
"""

import json
from pathlib import Path

import msgspec
import pytest

from meshnet_node.doctor import ShardQuestion, examine_shard
from meshnet_node.doctor.declare import observed_recipe
from meshnet_node.pin import pin
from meshnet_node.recipe_identity import RuntimeRecipe, ShardIdentity, explain_mismatch
from meshnet_node.recipe_manifest import write_manifest

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[1] / "data" / "incidents.json").read_text())[
        "cases"
    ]
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_version_was_asked_of_a_binary_that_was_not_the_one_running(
    acme_toy, tmp_path, monkeypatch
):
    case = CASES["version-of-another-binary"]
    (step,), (verdict,) = case["given_when"], case["then"]
    from acme_toy.make_model import write

    model, manifest = tmp_path / "toy.gguf", tmp_path / "recipes.toml"
    write(model)
    # the running code says what it is; what was declared came from somewhere else
    monkeypatch.setattr(acme_toy, "VERSION", step["doctor"]["running_runtime_version"])
    monkeypatch.setattr(acme_toy.ToyBackend, "runtime_version", acme_toy.VERSION)
    recipe = observed_recipe([model], "acme-toy", labels=("r", "1", "1"), tokenizer_revision="none")
    declared = step["doctor"]["declared_runtime_version"]
    write_manifest(manifest, [msgspec.structs.replace(recipe, runtime_version=declared)])

    diagnosis = examine_shard(ShardQuestion(files=(model,), manifest=manifest))

    (failed,) = [finding for finding in diagnosis.findings if finding.status == "failed"]
    assert diagnosis.report.status == verdict["doctor"]
    assert verdict["because"] in failed.found
    for version in step["doctor"].values():
        assert repr(version) in failed.found
    assert verdict["fix"] == "named"
    assert f"install acme-toy {declared}" in failed.fix


def test_one_conversion_mapped_to_another_pre_tokenizer(tmp_path, require):
    require("gguf")
    from gguf_files import write_model

    case = CASES["same-weights-other-pretokenizer"]
    pins = []
    for number, step in enumerate(case["given_when"]):
        (path,) = write_model(tmp_path / f"{number}.gguf", pre=step["pin"]["tokenizer.ggml.pre"])
        pins.append(pin([path], artifact_id="acme/m"))
    differs, reasons = case["then"]
    assert differs == {"tokenizer_revision": "differs"}
    assert len({one.recipe_fields["tokenizer_revision"] for one in pins}) == 2

    def identity(pinned):
        stated = {
            "activation_dtype": "float32", "compute_dtype": "float32", "kv_dtype": "float32",
            "kv_layout": "flat", "backend_id": "b", "runtime_version": "1",
        }  # fmt: skip
        # the weights are the same: whoever compares by them alone sees one model
        return ShardIdentity(
            pins[0].artifact, RuntimeRecipe(**pinned.recipe_fields, **stated), 0, 2
        )

    left, right = map(identity, pins)
    assert [one.reason for one in explain_mismatch(left, right)] == reasons["reasons"]
