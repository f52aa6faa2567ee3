"""`meshnet up`: what it leaves behind, and what it refuses to go on with."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from cli_kit import MESHNET, end, free_port
from meshnet_bus.asker import Asker
from meshnet_bus.client import closing, connect
from meshnet_events.queries import ClockQuery, NodeQuery


@pytest.fixture(autouse=True)
def _server(require):
    require("nats-server")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_was_stated_before_it_was_stopped_is_there_when_it_is_up_again(meshnet, how):
    said, process = meshnet.up("--realm", "lab")
    try:
        assert said["is_new"]
        key = meshnet("node", "init", "--dir", "a", "--label", "alpha", "-o", "json").json["node"]
        meshnet("admin", "node", "enrol", "a")
    finally:
        assert end(process, how) == 0
    assert "down at sequence 2" in (meshnet.home / "up.err").read_text()

    again, process = meshnet.up()
    try:
        same = ("realm", "operator", "server", "profile", "views")
        assert [again[name] for name in same] == [said[name] for name in same]
        assert (again["is_new"], again["sequence"]) == (False, 2)
        nodes = meshnet("audit", "replay", "-o", "json").json["nodes"]
        assert [(node["node"], node["label"]) for node in nodes] == [(key, "alpha")]
    finally:
        assert end(process, how) == 0


def test_the_operators_seed_is_readable_by_its_owner_alone_and_the_profile_does_not_hold_it(
    meshnet,
):
    said, process = meshnet.up()
    end(process)
    key_file = meshnet.home / "realm" / "operator.key"
    assert key_file.stat().st_mode & 0o777 == 0o600
    profile = (meshnet.home / "realm" / "profile.toml").read_text()
    assert key_file.read_text().strip() not in profile
    assert tomllib.loads(profile)["operator"] == said["operator"]


def told_by_up(meshnet, directory):
    """What `meshnet up` tells a person until it is ready; then it is ended."""
    process = meshnet.start("up", "--dir", directory)
    out = meshnet.home / "up.out"
    try:
        for _ in range(1000):
            if "Ctrl-C stops it" in out.read_text():
                break
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        end(process)
    return out.read_text()


def test_a_person_is_told_the_operator_key_on_one_line_and_what_to_try_next(meshnet):
    told = told_by_up(meshnet, "a-realm-in-a-folder-with-a-rather-long-name")
    (line,) = [line for line in told.splitlines() if line.startswith("operator key ")]
    assert len(line) == len("operator key ") + 56
    assert "meshnet node init" in told


def test_a_second_one_in_the_same_directory_is_refused_while_the_first_is_up(meshnet):
    _, process = meshnet.up()
    try:
        refused = meshnet("up", "--dir", "realm", code=1)
        assert "another process runs a server" in refused.err
    finally:
        assert end(process) == 0


def test_a_lost_stream_ends_it_with_a_verification_failure_instead_of_a_new_realm(meshnet):
    _, process = meshnet.up()
    end(process)
    shutil.rmtree(meshnet.home / "realm" / "nats" / "jetstream")
    refused = meshnet("up", "--dir", "realm", code=3)
    assert "there is no stream" in refused.err
    assert str(meshnet.home / "realm" / "views.db") in refused.err


def test_a_directory_is_one_realms_and_a_profile_is_not_written_over(meshnet):
    _, process = meshnet.up("--realm", "lab")
    end(process)
    assert (
        "holds the realm 'lab'" in meshnet("up", "--dir", "realm", "--realm", "other", code=2).err
    )
    profile = meshnet.env["MESHNET_PROFILE"]
    refused = meshnet("up", "--dir", "elsewhere", "--profile", profile, code=1)
    assert "not written over" in refused.err
    assert not (meshnet.home / "elsewhere").exists()


def test_a_bad_policy_or_name_makes_nothing(meshnet):
    refused = meshnet("up", "--dir", "realm", "--min-certifying-nodes", 1, code=2)
    assert "min_certifying_nodes" in refused.err
    assert "'Lab'" in meshnet("up", "--dir", "realm", "--realm", "Lab", code=2).err
    assert not (meshnet.home / "realm").exists()


def test_a_realm_without_views_is_read_from_its_stream(meshnet):
    said, process = meshnet.up()
    try:
        meshnet.env.pop("MESHNET_PROFILE")
        where = ("--realm", said["realm"], "--server", said["server"])
        shown = meshnet("recipe", "list", *where).out
        assert "folded from nats://" in shown
        other = ("--operator", "UBXWRLTRLWV6NZAAANGQJX35J3BVOVSHHGW2PJVNVW7T7QXTW5HBP4T2")
        assert said["operator"] in meshnet("recipe", "list", *where, *other, code=3).err
    finally:
        assert end(process) == 0


def test_it_does_not_stay_up_without_its_server(meshnet):
    said, process = meshnet.up()
    port = said["server"].rpartition(":")[2]
    servers = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and _parent(entry) == process.pid
    ]
    assert len(servers) == 1, f"one child listens on {port}"
    os.kill(servers[0], signal.SIGKILL)
    assert process.wait(timeout=20) == 1
    assert "nats-server ended by itself" in (meshnet.home / "up.err").read_text()


def _parent(entry):
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended meanwhile
        return None


def test_a_file_is_no_directory(meshnet):
    (meshnet.home / "README.md").write_text("words")
    refused = meshnet("up", "--dir", "README.md", code=2)
    assert "README.md is not a directory" in refused.err


@pytest.mark.parametrize("port", ["-1", "0", "65536"])
def test_a_port_that_is_none_is_a_usage_error_and_makes_nothing(meshnet, port):
    assert "--port" in meshnet("up", "--dir", "realm", "--port", port, code=2).err
    assert not (meshnet.home / "realm").exists()


def test_a_port_that_is_taken_is_said_so(meshnet):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = meshnet("up", "--dir", "realm", "--port", port, code=1)
    assert refused.err == f"meshnet: port {port} is taken\n  name another with --port\n"


def test_another_profile_of_the_same_directory_does_not_move_the_port(meshnet):
    said, process = meshnet.up()
    end(process)
    again, process = meshnet.up("--profile", "second.toml")
    end(process)
    assert again["server"] == said["server"]


def test_up_again_proposes_to_look_and_not_to_begin_anew(meshnet):
    _, process = meshnet.up()
    end(process)
    told = told_by_up(meshnet, "realm")
    assert "meshnet log" in told
    assert "node init" not in told


async def test_a_realm_that_is_up_answers_what_nodes_ask(meshnet):
    said, process = meshnet.up()
    try:
        async with closing(await connect(said["server"], name="test")) as nc:
            asker = Asker(nc, said["realm"])
            operator = await asker.ask(NodeQuery(node=said["operator"], min_sequence=1))
            assert (operator.head_issuerseq, operator.may_speak) == (1, False)
            told = (await asker.ask(ClockQuery())).time_ns
            assert abs(told - time.time_ns()) < 5_000_000_000
    finally:
        assert end(process) == 0


def test_a_profile_of_another_realm_is_not_written_over_and_the_variable_that_names_it_is_told(
    meshnet,
):
    said, process = meshnet.up("--realm", "lab")
    try:
        before = Path(said["profile"]).read_text()
        err = meshnet("up", "--dir", "realm2", "--realm", "hup", code=1).err  # it is still exported
        assert "is the profile of another realm (lab)" in err
        assert "unset MESHNET_PROFILE, which names this one" in err
        err = meshnet(
            "up", "--dir", "realm2", "--profile", "realm/profile.toml", code=1, MESHNET_PROFILE=""
        ).err
        assert "MESHNET_PROFILE" not in err
        named = {"MESHNET_REALM": "other"}
        assert "unset MESHNET_REALM" in meshnet("up", "--dir", "realm", code=2, **named).err
        assert Path(said["profile"]).read_text() == before
    finally:
        assert end(process) == 0


def test_what_it_says_to_try_next_leads_to_text_over_a_certified_recipe(meshnet, require):
    for part in ("numpy", "gguf", "sentencepiece"):
        require(part)
    from meshnet_node.backends.reference.tiny import write_tiny_llama

    write_tiny_llama(meshnet.home / "model.gguf", layers=6)
    process, served = meshnet.start("up", "--dir", "realm"), []
    out = meshnet.home / "up.out"
    try:
        while "Ctrl-C stops it" not in (told := out.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        told = told.partition("Try next")[2]
        assert all(len(line) <= 80 for line in told.splitlines() if "export" not in line), told
        lines = told.replace(" \\\n   ", "").splitlines()
        steps = [line.split("    ")[0].strip() for line in lines if line.startswith("  ")]
        steps = [shlex.split(" ".join(step.split())) for step in steps]
        (_, profile), *steps = steps
        meshnet.env["MESHNET_PROFILE"] = profile.partition("=")[2]
        each = [step for step in steps if {"init", "enrol", "serve"} & set(step)]
        once = [step for step in steps if step not in each]
        accept, manifest, *after = once

        def run(step, **words):
            words = {"MODEL": "model.gguf"} | words
            known = [words.get(word, word) for word in step[1:]]
            known = [word.replace("PORT", str(free_port())) for word in known]
            if "serve" not in step:
                return meshnet(*known)
            served.append(
                subprocess.Popen(
                    [*MESHNET, *known, "--ask-every", "1"],
                    cwd=meshnet.home,
                    env=meshnet.env,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert any("may certify" in line for line in served[-1].stdout)
            return None

        run(accept)
        run(manifest)
        for name, layers in (("ada", "0:3"), ("bob", "3:6")):
            for step in each:
                run(step, **{"NAME": name, "A:B": layers})
        (recipe,) = meshnet("recipe", "list", "-o", "json").json["recipes"]
        certify, generate = after
        run(certify, NAME="ada", KEY=recipe["recipe_key"])
        assert run(generate, KEY=recipe["recipe_key"]).out.strip()
    finally:
        for one in served:
            end(one)
            one.stdout.close()
        assert end(process) == 0
