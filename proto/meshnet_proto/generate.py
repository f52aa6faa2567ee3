"""Generate the messages of `shard_runtime.proto`, and their stub.

    python -m meshnet_proto.generate          write it beside the .proto file
    python -m meshnet_proto.generate --check  exit 1 and name the files that differ; write nothing

It needs the `dev` extra: grpcio-tools carries the compiler, mypy-protobuf writes the stub. The code
goes through protoc with the directory above this package as its root, so that the descriptor is
called `meshnet_proto/shard_runtime.proto` and generated code imports as `meshnet_proto.…`.
"""

import argparse
import importlib
import sys
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

PROTO = "meshnet_proto/shard_runtime.proto"
GENERATED = ("shard_runtime_pb2.py", "shard_runtime_pb2.pyi")

_PACKAGE = Path(__file__).resolve().parent


def generate(directory: Path) -> dict[str, str]:
    """Compile into `directory` and return the text of each generated file by its name.

    Raises ImportError without grpcio-tools and RuntimeError when the compiler refuses.
    """
    protoc = importlib.import_module("grpc_tools.protoc")  # it has no type information
    stubs = Path(sys.executable).with_name("protoc-gen-mypy")
    arguments = [
        "protoc",
        f"--proto_path={_PACKAGE.parent}",
        f"--proto_path={resources.files('grpc_tools') / '_proto'}",
        f"--plugin=protoc-gen-mypy={stubs}",
        f"--python_out={directory}",
        f"--mypy_out=quiet:{directory}",
        PROTO,
    ]
    status = protoc.main(arguments)
    if status != 0:
        raise RuntimeError(f"protoc refused {PROTO} (exit {status}); its message is above")
    written = directory / _PACKAGE.name
    return {name: (written / name).read_text("utf-8") for name in GENERATED}


def drifted(fresh: dict[str, str]) -> list[str]:
    """Names of committed files that differ from what the compiler writes now."""
    return [
        name
        for name, text in fresh.items()
        if not (_PACKAGE / name).is_file() or (_PACKAGE / name).read_text("utf-8") != text
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the result is its exit status."""
    parser = argparse.ArgumentParser(prog="python -m meshnet_proto.generate")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on drift")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        fresh = generate(Path(directory))
    stale = drifted(fresh)
    if options.check:
        for name in stale:
            sys.stderr.write(f"{name} differs; run `python -m meshnet_proto.generate`\n")
        return 1 if stale else 0
    for name in stale:
        (_PACKAGE / name).write_text(fresh[name], "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
