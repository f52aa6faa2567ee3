"""The page that teaches how to add a backend: its files are the package, and its commands work."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import third_party

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "add-a-backend.md").read_text()
FILES = dict(re.findall(r"\n`([\w./]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"^\$ (.+)$", PAGE, re.MULTILINE)
SHOWN = re.search(r"```text\n(✓ files.*?)```", PAGE, re.DOTALL)[1]
VARIES = {r"in \d+ ms": "in N ms", r"U(…|[A-Z2-7]{55})": "KEY", r"\S+/node:": "DIR:",
          r"[\d.,]+ GiB": "N GiB"}  # fmt: skip
"""What differs from machine to machine and from run to run."""


def test_the_files_on_the_page_are_the_package_whole():
    package = third_party.PACKAGE
    there = {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert set(FILES) == there
    for name, content in FILES.items():
        assert content == (package / name).read_text(), name


@pytest.mark.slow
def test_the_package_is_what_the_interface_asks_for_by_its_types(tmp_path):
    """Judged by mypy: the toy, given where a `Backend` is asked for."""
    (tmp_path / "use.py").write_text(
        "from acme_toy import ToyBackend, ToyShard, ToySlot\n"
        "from meshnet_node.backends import Backend, LoadedShard, Slot\n"
        "def take(backend: Backend, shard: LoadedShard, slot: Slot) -> None: ...\n"
        "def give(shard: ToyShard, slot: ToySlot) -> None:\n"
        "    take(ToyBackend(), shard, slot)\n"
    )
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--check-untyped-defs",
            "--ignore-missing-imports",
            "use.py",
        ],
        cwd=tmp_path,
        env={"MYPYPATH": ":".join(map(str, (third_party.PACKAGE, *_sources()))), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout


def _sources():
    return (ROOT / name for name in ("events", "proto", "services"))


def as_on_every_machine(text):
    for pattern, name in VARIES.items():
        text = re.sub(pattern, name, text)
    return text.split()  # the page is narrower than the run


def test_the_commands_on_the_page_do_what_it_says(meshnet, require, tmp_path):
    require("gguf")
    meshnet.env["COLUMNS"] = "500"
    out = {}
    for command in COMMANDS:
        program, *arguments = command.split()
        if program == "pip":
            assert arguments == ["install", "./acme-toy"]
            meshnet.env["PYTHONPATH"] = str(third_party.install(tmp_path / "site"))
        elif program == "python":
            subprocess.run(
                [sys.executable, *arguments], cwd=meshnet.home, env=meshnet.env, check=True
            )
        else:
            assert program == "meshnet"
            out[command] = meshnet(*arguments).out
    whole, part, cut = (text for command, text in out.items() if " doctor " in command)
    assert as_on_every_machine(whole) == as_on_every_machine(SHOWN)
    assert whole.splitlines()[-1] == part.splitlines()[-1]
    assert "! files       layers [1, 2) of 2" in cut
    assert (meshnet.home / "report.json").is_file()
    assert (meshnet.home / "last.json").is_file()
