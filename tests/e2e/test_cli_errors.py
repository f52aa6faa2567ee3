"""What a person is told when several things went wrong at once, and a script when it stops reading."""

import os
import subprocess
from pathlib import Path

import pytest

from cli_kit import MESHNET
from meshnet_bus.asker import QueryRefused
from meshnet_bus.outbox import OutboxStopped
from meshnet_bus.place import KeyInUse
from meshnet_cli.errors import (
    CLOSED_PIPE,
    FAILED,
    INTERRUPTED,
    UNREACHABLE,
    explain,
    is_closed_pipe,
    is_interrupted,
)
from meshnet_events.envelope import MAX_BODY


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


def test_an_error_that_is_its_own_cause_or_goes_round_is_told_and_not_followed_for_ever():
    alone = KeyInUse("once")
    alone.__cause__ = alone
    assert explain(BaseExceptionGroup("", [alone]))[0] == "once"
    one, other = raised_from(KeyInUse("one"), KeyInUse("other")), None
    other = one.__cause__
    other.__cause__ = one
    assert not is_interrupted(one)
    other.__cause__ = KeyboardInterrupt()
    assert is_interrupted(one)


CTRL_C = """
import os, signal, sys

def press():
    os.kill(os.getpid(), signal.SIGINT)

class Named:
    def __set_name__(self, owner, name):
        press()

class WhileImporting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["MODULE"]:
            if os.environ["IN"] == "a class":  # before Python 3.12 another error comes of it
                type("Holder", (), {"member": Named()})
            press()

sys.meta_path.insert(0, WhileImporting())
"""


@pytest.mark.parametrize("within", ["a module", "a class"])
@pytest.mark.parametrize(
    "module", ["meshnet_cli.app", "cyclopts", "meshnet_cli.commands.log", "anyio", "rich.console"]
)
def test_ctrl_c_while_a_command_is_still_imported_ends_it_without_a_word(meshnet, module, within):
    (meshnet.home / "sitecustomize.py").write_text(CTRL_C)
    env = {"PYTHONPATH": str(meshnet.home), "MODULE": module, "IN": within}
    history = Path(__file__).parents[1] / "data" / "history.ndjson"
    ran = meshnet("log", "--from", history, code=INTERRUPTED, **env)
    assert (ran.out, ran.err) == ("", "")


# -- files that are not what they are named for ---------------------------------------------------------


REPORT = """
{"model": {"model_id": "acme/model", "model_artifact_digest": ""}, "shard": {"start": 0, "end": 9},
 "recipe": {"recipe_id": "dense", "recipe_version": "1", "runtime_recipe_digest": ""},
 "backend": {"backend_id": "llama.cpp", "device": "cpu"}, "status": "passed",
 "validated_at": 1790000000.5, "tokens": 4, "duration_ms": 812}
"""


@pytest.fixture
def registering(meshnet):
    """`registering(identity=…, report=…)`: how a shard is registered with these files."""
    meshnet("node", "init", "--dir", "node")
    report = meshnet.home / "report.json"
    report.write_text(REPORT)

    def words(**files):
        files = {"identity": report, "report": report} | files
        named = [word for name, path in files.items() for word in (f"--{name}", path)]
        return (
            "node", "register", "--dir", "node", "--realm", "lab", "--server", "nats://127.0.0.1:1",
            "--endpoint", "grpc://127.0.0.1:7001", *map(str, named),
        )  # fmt: skip

    return words


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"artifact":' * 5_000, '{"artifact":' * 900 + "1" + "}" * 900]
)
def test_an_identity_that_nests_too_deep_is_named_and_is_no_error_of_ours(
    meshnet, registering, content
):
    deep = meshnet.home / "deep.json"
    deep.write_text(content)
    err = meshnet(*registering(identity=deep), code=FAILED).err
    assert err.startswith(f"meshnet: {deep}")
    assert "of meshnet's own" not in err


@pytest.mark.parametrize("which", ["identity", "report"])
def test_of_a_file_without_end_no_more_is_read_than_could_be_meant(meshnet, registering, which):
    asked = subprocess.Popen(
        [*MESHNET, *registering(**{which: "/dev/stdin"})],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=meshnet.env, cwd=meshnet.home,
    )  # fmt: skip
    try:
        asked.stdin.write(b" " * (MAX_BODY + 1))
        asked.stdin.flush()  # and it stays open: whoever waits for its end waits for ever
        asked.wait(20)
        assert asked.returncode == FAILED
        assert b"/dev/stdin: larger than" in asked.stderr.read()
    finally:
        asked.kill()
        asked.communicate()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_a_stream_that_was_closed_before_it_began_is_no_reason_to_fail(meshnet, closed):
    words = " ".join([*MESHNET, "--version"])
    ran = subprocess.run(
        f"{words} {closed}", shell=True, env=meshnet.env, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")


WITHOUT_END = "/dev/zero"


@pytest.mark.parametrize(
    "words",
    [
        ("up", "--dir", "realm", "--policy", WITHOUT_END),
        ("recipe", "list", "--profile", WITHOUT_END),
        (
            *("generate", "--recipe", "0" * 8, "x", "--server", "nats://127.0.0.1:1"),
            *("--realm", "lab", "--tls-authority", WITHOUT_END),
            *("--tls-certificate", WITHOUT_END, "--tls-key", WITHOUT_END),
        ),
    ],
    ids=["policy", "profile", "certificate"],
)
def test_whatever_file_is_named_no_more_of_it_is_read_than_could_be_meant(meshnet, words):
    refused = meshnet(*words, code=FAILED).err
    assert refused.startswith(f"meshnet: {WITHOUT_END}: larger than ")
    assert not (meshnet.home / "realm").exists()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (f"realm = {'[' * 50_000}", "is no profile"),
        (f"realm = {'9' * 5_000}", "is no profile"),
    ],
)
def test_a_profile_that_no_profile_could_be_is_no_error_of_ours(meshnet, content, named):
    path = meshnet.home / "deep.toml"
    path.write_text(content)
    err = meshnet("recipe", "list", "--profile", path, code=FAILED).err
    assert err.startswith(f"meshnet: {path} {named}")


def test_records_that_nest_too_deep_are_named_by_their_line(meshnet):
    path = meshnet.home / "deep.ndjson"
    path.write_text('{"x":' + "[" * 60_000)
    err = meshnet("log", "--from", path, code=FAILED).err
    assert err.startswith(f"meshnet: {path}, line 1: no record")


# -- what was typed ---------------------------------------------------------------------------------


def test_a_text_without_its_quotes_is_told_so_and_does_not_come_back_whole(meshnet):
    words = ["world", *map(str, range(2_000))]
    err = meshnet("generate", "--recipe", "0" * 8, "hello", *words, code=2).err
    assert err.startswith("meshnet: more words than it takes: 'world' '0' '1' and 1,998 more")
    assert "quotes" in err
    assert len(err) < 300


@pytest.mark.parametrize("words", [("bogus",), ("node", "bogus")])
def test_a_command_that_is_none_is_told_without_a_list_that_breaks_off(meshnet, words):
    err = meshnet(*words, code=2).err
    assert 'Unknown command "bogus"' in err
    assert "..." not in err
    assert "--help" in err


# -- the environment --------------------------------------------------------------------------------


def test_a_variable_that_is_set_to_nothing_counts_as_not_set(meshnet):
    history = Path(__file__).parents[1] / "data" / "history.ndjson"
    names = ("PROFILE", "FORMAT", "REALM", "SERVER", "OPERATOR", "VIEWS", "DEBUG", "NODE_DIR")
    empty = {f"MESHNET_{name}": "" for name in names}
    command = ("recipe", "list", "--from", history)
    assert meshnet(*command, **empty).out == meshnet(*command).out
    missing = ("node", "status")
    assert meshnet(*missing, code=5, **empty).err == meshnet(*missing, code=5).err


def test_a_profile_that_is_not_there_is_told_with_the_variable_that_names_it(meshnet):
    for named, is_told in (({"MESHNET_PROFILE": "realm/p.toml"}, True), ({}, False)):
        option = () if named else ("--profile", "realm/p.toml")
        err = meshnet("node", "status", *option, code=5, **named).err
        assert "there is no profile realm/p.toml" in err
        assert ("MESHNET_PROFILE names this one" in err) == is_told


def test_what_is_no_key_is_told_with_what_mends_it(meshnet):
    meshnet("node", "init", "--dir", "node")
    key = meshnet.home / "node" / "node.key"
    status = ("node", "status", "--dir", "node", "--realm", "lab", "--server", "nats://127.0.0.1:1")
    key.chmod(0o644)
    assert f"chmod 600 {key.relative_to(meshnet.home)}" in meshnet(*status, code=1).err
    key.chmod(0o600)
    key.write_text("junk")
    for command in (status, ("node", "doctor", "absent.gguf", "--dir", "node")):
        ran = meshnet(*command, code=1)
        assert "not an NKey seed" in ran.out + ran.err
        assert "the seed and nothing else" in " ".join((ran.out + ran.err).split())
        assert "chmod" not in ran.out + ran.err


def test_what_the_system_says_is_told_in_its_words_alone():
    assert explain(OSError(28, "No space left on device"))[0] == "No space left on device"
