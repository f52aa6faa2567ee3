"""The wire: committed code is what the compiler writes, and the contract keeps its promises."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import meshnet_proto
from meshnet_proto import generate, shard_runtime_pb2


def test_committed_code_is_what_the_compiler_writes(require, tmp_path):
    require("grpc_tools.protoc")
    require("mypy_protobuf.main")
    assert generate.drifted(generate.generate(tmp_path)) == []


def test_drift_is_named_and_mended_by_the_command(require, tmp_path, monkeypatch, capsys):
    require("grpc_tools.protoc")
    require("mypy_protobuf.main")
    package = tmp_path / "meshnet_proto"
    shutil.copytree(generate._PACKAGE, package)
    monkeypatch.setattr(generate, "_PACKAGE", package)
    proto = package / "shard_runtime.proto"
    proto.write_text(proto.read_text("utf-8").replace("retryable = 3", "may_retry = 3"), "utf-8")

    assert generate.main(["--check"]) == 1
    assert "shard_runtime_pb2.py differs" in capsys.readouterr().err
    assert "may_retry" not in (package / "shard_runtime_pb2.pyi").read_text("utf-8")
    assert generate.main([]) == 0
    assert "may_retry" in (package / "shard_runtime_pb2.pyi").read_text("utf-8")
    assert generate.main(["--check"]) == 0


def test_generated_code_imports_without_a_warning():
    subprocess.run(
        [sys.executable, "-W", "error", "-c", "import meshnet_proto.shard_runtime_pb2"], check=True
    )


def test_messages_are_those_of_the_contract():
    descriptor = shard_runtime_pb2.DESCRIPTOR
    assert (descriptor.name, descriptor.package) == (
        "meshnet_proto/shard_runtime.proto",
        "meshnet.shard.v1",
    )
    shapes = {
        name: [field.name for field in message.fields]
        for name, message in descriptor.message_types_by_name.items()
    }
    assert shapes["Fingerprint"] == [
        "model_artifact_digest",
        "runtime_recipe_digest",
        "recipe_id",
        "recipe_version",
        "catalogue_version",
    ]
    assert shapes["ShardRange"] == ["start", "end"]
    assert shapes["ShardError"] == ["code", "detail", "retryable", "responder", "hop"]


def test_an_error_code_that_was_not_set_is_unspecified():
    assert shard_runtime_pb2.ShardError().code == shard_runtime_pb2.ERROR_CODE_UNSPECIFIED
    assert all(name.startswith("ERROR_CODE_") for name, _ in shard_runtime_pb2.ErrorCode.items())


def test_versions_are_integers_from_one_on():
    assert (meshnet_proto.BUNDLE_VERSION, meshnet_proto.SCHEMA_VERSION) == (1, 1)


@pytest.mark.parametrize("command", ["build", "lint"])
def test_the_contract_is_clean_to_buf(command, require):
    require("buf")
    buf = Path(sys.executable).with_name("buf")
    done = subprocess.run(
        [buf, command], cwd=generate._PACKAGE.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
