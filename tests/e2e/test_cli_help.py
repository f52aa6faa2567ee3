"""What `--help` teaches, and what it costs."""

import inspect
import json
import re
import subprocess
import sys

import pytest
from cyclopts import App

from meshnet_cli import errors
from meshnet_cli.__main__ import run
from meshnet_cli.app import make_app

HEAVY = (
    *(
        "aiosqlite",
        "anyio",
        "asyncio",
        "google",
        "gguf",
        "grpc",
        "msgspec",
        "nacl",
        "nats",
        "nkeys",
    ),
    *("numpy", "platformdirs", "sqlite3", "meshnet_auditor", "meshnet_bus", "meshnet_events"),
    *("meshnet_node", "meshnet_tracker"),
)


def commands(app: App, path: tuple[str, ...] = ()):
    """Every command that can be run, as its words."""
    for name in app:
        if name.startswith("-"):
            continue
        command = app[name]
        if command.default_command is not None:
            yield (*path, name)
        yield from commands(command, (*path, name))


ALL = sorted(commands(make_app()))


def test_the_help_of_all_imports_nothing_heavier_than_the_command_line_library():
    code = (
        "import sys, json\n"
        "from meshnet_cli.__main__ import run\n"
        "run(['--help'])\n"
        f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert json.loads(done.stderr) == []
    assert "audit" in done.stdout


def test_the_tree_has_the_commands_that_were_asked_for():
    found = {" ".join(words) for words in ALL}
    assert found >= {
        "demo",
        "up",
        "log",
        "admin node enrol",
        "node init",
        "node pin",
        "node register",
        "node withdraw",
        "recipe list",
        "recipe show",
        "recipe explain",
        "shard list",
        "shard why-not",
        "shard diff",
        "route plan",
        "route why-not",
        "audit replay",
        "schema export",
    }


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_explains_itself_and_gives_an_example(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*words, "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    usage, summary, *rest = [line.strip() for line in shown.out.splitlines() if line.strip()]
    assert usage.startswith(f"Usage: meshnet {' '.join(words)}")
    assert summary.endswith((".", ",", ";", ":")) or rest, "no summary"
    example = f"meshnet {' '.join(words)}"
    assert any(line.startswith(example) for line in rest), "no example"
    assert all(len(line) <= 80 for line in shown.out.splitlines())


def test_a_single_commands_help_is_its_own_and_not_the_line_that_lists_it(capsys):
    run(["up", "--help"])
    assert "On the first start" in capsys.readouterr().out


def test_the_help_of_all_names_every_exit_code(capsys):
    run(["--help"])
    said = capsys.readouterr().out.partition("Exit codes:")[2].partition("Commands")[0]
    codes = {
        value
        for name, value in vars(errors).items()
        if re.match("[A-Z]", name) and isinstance(value, int)
    }
    assert {int(word) for word in re.findall(r"\b\d+\b", said)} == codes


def groups(app: App, path: tuple[str, ...] = ()):
    """Every group of commands, as its words."""
    for name in app:
        if not name.startswith("-") and app[name].default_command is None:
            yield (*path, name)
            yield from groups(app[name], (*path, name))


@pytest.mark.parametrize("words", sorted(groups(make_app())), ids=" ".join)
def test_every_group_explains_itself_and_gives_an_example(words, meshnet):
    shown = [line.strip() for line in meshnet(*words, "--help").out.splitlines()]
    assert any(line.startswith(f"meshnet {' '.join(words)} ") for line in shown)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_no_example_is_wrapped(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    app = make_app()
    for word in words:
        app = app[word]
    blocks = inspect.cleandoc(app.default_command.__doc__).split("```")[1::2]
    run([*words, "--help"])
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for example in "".join(blocks).splitlines():
        assert example.strip() in shown
