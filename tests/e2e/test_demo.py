"""`meshnet demo`, as a stranger runs it."""

import json
import os
import re
import subprocess
import sys

import pytest


def meshnet(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "meshnet_cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """One run, its output, what it exported, and what was in the temporary folder after."""
    folder = tmp_path_factory.mktemp("demo")
    history = folder / "history.ndjson"
    temporary = folder / "tmp"
    temporary.mkdir()
    done = meshnet("demo", "--export", str(history), TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    return done.stdout, history, list(temporary.iterdir())


def test_it_tells_the_whole_story(told):
    text, _, _ = told
    for part in (
        "is dark",
        "cache-layout: kv_layout",
        "capability:stale",
        "no usable claim holds layers [14, 28)",
        "evidence:policy-hosts: 1 distinct host, policy asks for 2",
        "is certified",
        "hop 0: ada computes layers [0, 14)",
        "hop 1: dee computes layers [14, 28)",
        "no route: revoked",
        "at sequence 16: certified",
        "at sequence 17: revoked",
        "Try next",
    ):
        assert part in text, part
    assert "\nno model is run" in text


def test_a_place_to_export_to_that_is_none_is_told_before_anything_starts(tmp_path):
    for path in (tmp_path / "nowhere" / "h.ndjson", tmp_path):
        done = meshnet("demo", "--export", str(path))
        assert done.returncode == 2
        assert str(path) in done.stderr
        assert "starting" not in done.stderr
        assert done.stdout == ""


def test_it_names_the_operator_on_one_line(told):
    assert re.search(r"^operator key U[A-Z2-7]{55}$", told[0], re.MULTILINE)


def test_lines_fit_80_columns_but_for_what_one_copies(told):
    long = [line for line in told[0].splitlines() if len(line) > 80]
    assert all("│" in line or line.startswith("  meshnet ") for line in long), long


def test_it_leaves_nothing_behind(told):
    _, _, left = told
    assert left == []


def test_what_it_exports_replays_to_the_same_answers_without_any_server(told):
    text, history, _ = told
    operator = re.search(r"^operator key (U\w+)$", text, re.MULTILINE)[1]
    for to, status in ((16, "certified"), (17, "revoked")):
        done = meshnet(
            "audit", "replay", "--from", str(history), "--operator", operator,
            "--to", str(to), "-o", "json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert sorted(r["status"] for r in said["recipes"]) == sorted(["dark", status])


def test_commands_that_it_offers_run(told):
    _, history, _ = told
    done = meshnet("recipe", "list", "--from", str(history))
    assert done.returncode == 0, done.stderr
    assert "revoked" in done.stdout


@pytest.mark.parametrize("is_found", [True, False])
def test_what_to_try_next_says_how_meshnet_is_found_only_where_it_is_not(
    is_found, tmp_path, monkeypatch
):
    from meshnet_cli.demo.command import _try_next
    from meshnet_cli.output import console

    monkeypatch.setenv("PATH", str(tmp_path))
    if is_found:
        (tmp_path / "meshnet").touch(mode=0o755)
    screen = console()
    with screen.capture() as said:
        _try_next(screen, None, "U")
    assert ("/bin/activate" in said.get()) != is_found
