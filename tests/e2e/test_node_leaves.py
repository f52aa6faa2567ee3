"""How a node ends, whatever ends it: its shard withdrawn, in bounded time, nothing closed early."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time

import pytest

from cli_kit import MESHNET, end, free_port
from meshnet_cli.errors import CLOSED_PIPE

HANGING = """
import os, threading, time
from pathlib import Path
from meshnet_cli import leaving
from meshnet_node.backends.reference.shard import ReferenceShard, ReferenceSlot
from meshnet_node.session import responder

responder.CALLS_TIMEOUT_S = leaving.CLOSE_TIMEOUT_S = 1.0
home = Path(os.environ["HOME"])

def hanging(kind, name):
    honest = getattr(kind, name)
    def call(*arguments, **more):
        (home / f"in {name}").touch()
        while (home / f"hang in {name}").exists():
            time.sleep(0.05)
        return honest(*arguments, **more)
    setattr(kind, name, call)

hanging(ReferenceSlot, "forward_tokens")
hanging(ReferenceShard, "close")
"""
PATIENCE_S = 30


@pytest.fixture
def nodes(nodes):
    """With two of them enrolled."""
    nodes.enrol("ada")
    nodes.enrol("bob")
    return nodes


@pytest.fixture
def customized(nodes, tmp_path, monkeypatch):
    """`customized(code)`: every process that starts from now on runs this first."""

    def make(code):
        site = tmp_path / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(code)
        monkeypatch.setitem(nodes.cli.env, "PYTHONPATH", str(site))
        monkeypatch.setitem(nodes.cli.env, "HOME", str(tmp_path))

    return make


@pytest.fixture
def hanging(nodes, customized, tmp_path):
    """`hanging(call)`: whoever calls the backend for this from now on does not come back."""
    customized(HANGING)

    def start(name):
        (tmp_path / f"in {name}").unlink(missing_ok=True)
        (tmp_path / f"hang in {name}").touch()

        def is_in():
            return (tmp_path / f"in {name}").exists()

        return is_in

    return start


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def kinds(served):
    return [notice["kind"] for notice in served.notices]


# -- a backend that does not come back ---------------------------------------------------------------


@pytest.mark.parametrize("how", ["told to stop", "a newer process"])
def test_a_node_whose_backend_hangs_in_a_call_ends_all_the_same(nodes, hanging, tmp_path, how):
    ada = nodes.serve("ada", "0:3", host="h1")
    nodes.serve("bob", "3:6", host="h2")
    is_in_forward, is_in_close = hanging("forward_tokens"), hanging("close")
    certify = subprocess.Popen(
        [*MESHNET, "node", "certify", "--recipe", nodes.recipe["recipe_key"],
         "--dir", nodes.home / "bob"],
        env=nodes.cli.env, cwd=nodes.home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(is_in_forward)
    if how == "told to stop":
        assert ada.kill(signal.SIGTERM) == 0
        assert kinds(ada)[-2:] == ["withdrawn", "abandoned"]
        assert nodes.shard("ada")["status"] == "withdrawn"
    else:
        nodes.cli("admin", "node", "suspend", nodes.label("ada"))
        nodes.cli("admin", "node", "reinstate", nodes.label("ada"))
        code, words = ada.ended()
        assert code == 1
        assert "must be started again" in words
        assert kinds(ada)[-1] == "abandoned"
    assert "did not return" in ada.notices[-1]["text"]
    assert not is_in_close(), "the layers were closed under a call"
    _, words = certify.communicate(timeout=PATIENCE_S)
    assert certify.returncode == 1
    assert "hop" in words


def test_a_backend_that_does_not_give_its_layers_back_keeps_no_process(nodes, hanging):
    ada = nodes.serve("ada", "0:3", host="h1")
    is_in_close = hanging("close")
    assert ada.kill(signal.SIGTERM) == 0
    assert is_in_close()
    assert "did not give its layers back" in ada.err.read_text()
    assert nodes.shard("ada")["status"] == "withdrawn"


# -- a terminal that is closed, and an output that nobody reads ----------------------------------------


@pytest.fixture
def started(nodes):
    """`started(**how)`: ada's process as somebody else starts it, and where its output can be read."""
    made = []

    def start(**how):
        made.append(
            subprocess.Popen(
                [*MESHNET, "node", "serve", nodes.model, "--manifest", nodes.manifest,
                 "--dir", nodes.home / "ada", "--declared-host", "h1", "--ask-every", "1",
                 "--endpoint", f"grpc://127.0.0.1:{free_port()}"],
                env=nodes.cli.env, cwd=nodes.home, start_new_session=True, **how,
            )
        )  # fmt: skip
        return made[-1]

    yield start
    for process in made:
        end(process, signal.SIGKILL)


def read_until(output, words):
    """Read what a process says until it has said this."""
    said = b""
    deadline = time.monotonic() + PATIENCE_S
    while words not in said:
        assert select.select([output], [], [], deadline - time.monotonic())[0], said
        said += os.read(output, 65_536)


def on_a_terminal(started):
    """A node that certifies, and the terminal that it runs on."""
    ours, its = pty.openpty()
    process = started(
        stdin=its, stdout=its, stderr=its,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(its)
    read_until(ours, b"may certify")
    return process, ours


def test_a_node_whose_terminal_is_closed_withdraws_its_shard(nodes, started):
    process, terminal = on_a_terminal(started)
    os.close(terminal)
    assert process.wait(PATIENCE_S) == CLOSED_PIPE
    assert nodes.shard("ada")["status"] == "withdrawn"


def test_a_closed_terminal_and_a_backend_that_hangs_keep_no_process(nodes, hanging, started):
    process, terminal = on_a_terminal(started)
    hanging("close")
    os.close(terminal)
    assert process.wait(PATIENCE_S) == CLOSED_PIPE
    assert nodes.shard("ada")["status"] == "withdrawn"


def test_a_node_that_was_started_not_to_mind_goes_on_when_its_terminal_is_closed(nodes, started):
    process = started(
        stdout=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    read_until(process.stdout.fileno(), b"may certify")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    assert nodes.shard("ada")["status"] == "live"
    assert end(process) == 0
    process.stdout.close()


def test_a_node_whose_output_nobody_reads_withdraws_its_shard_and_says_so_by_its_exit_code(
    nodes, started
):
    process = started(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read_until(process.stdout.fileno(), b"may certify")
    process.stdout.close()
    nodes.cli("admin", "recipe", "revoke", nodes.recipe["recipe_key"], "--reason", "a word to tell")
    assert process.wait(PATIENCE_S) == CLOSED_PIPE
    assert b"Traceback" not in process.stderr.read()
    assert nodes.shard("ada")["status"] == "withdrawn"
    process.stderr.close()
