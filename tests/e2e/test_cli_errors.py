"""What a person is told when several things went wrong at once, and a script when it stops reading."""

import os
import subprocess
from pathlib import Path

import pytest

from cli_kit import MESHNET
from meshnet_bus.asker import QueryRefused
from meshnet_bus.outbox import OutboxStopped
from meshnet_bus.place import KeyInUse
from meshnet_cli.errors import CLOSED_PIPE, FAILED, UNREACHABLE, explain, is_closed_pipe


def raised_from(error, cause):
    error.__cause__ = cause
    return error


def test_of_a_group_the_cause_is_told_and_not_what_it_brought_about():
    cause = KeyInUse("another process has this key")
    stopped = [raised_from(OutboxStopped(f"nothing is sent ({n})"), cause) for n in range(2)]
    group = BaseExceptionGroup("", [stopped[0], BaseExceptionGroup("", [cause, stopped[1]])])
    assert explain(group) == ("another process has this key", "", FAILED)
    assert explain(cause) == explain(BaseExceptionGroup("", [BaseExceptionGroup("", [cause])]))


def test_errors_that_have_nothing_to_do_with_each_other_are_told_as_nobodys():
    group = BaseExceptionGroup("two", [KeyInUse("one"), OutboxStopped("other")])
    assert "of meshnet's own" in explain(group)[0]


def test_a_trackers_refusal_is_no_fault_of_ours():
    message, advice, code = explain(QueryRefused("unavailable", "it is catching up"))
    assert message == "unavailable: it is catching up"
    assert "ask again" in advice
    assert code == UNREACHABLE


@pytest.mark.parametrize("form", ["table", "ndjson", "json"])
@pytest.mark.parametrize("command", [("log",), ("recipe", "list")])
def test_whoever_reads_no_more_ends_every_command_in_the_same_way(command, form, meshnet):
    history = Path(__file__).parents[1] / "data" / "history.ndjson"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*MESHNET, *command, "--from", history, "-o", form],
        stdout=writer, stderr=subprocess.PIPE, env=meshnet.env,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (CLOSED_PIPE, b"")


def test_a_closed_pipe_is_one_in_a_group_of_tasks_too():
    group = BaseExceptionGroup("", [BrokenPipeError()])
    assert is_closed_pipe(group)
    assert not is_closed_pipe(BaseExceptionGroup("", [BrokenPipeError(), KeyInUse("one")]))
