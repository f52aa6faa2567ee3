"""A node over its life: restarted, killed, stopped, replaced, copied. What the registry makes of it."""

import shutil
import signal

import pytest


@pytest.fixture
def nodes(nodes):
    """With one of them enrolled."""
    nodes.enrol("ada")
    return nodes


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_node_that_is_told_to_stop_withdraws_its_shard(nodes, how):
    served = nodes.serve("ada", "0:3", host="h1")
    assert nodes.shard("ada")["status"] == "live"
    assert served.kill(how) == 0
    assert [notice["kind"] for notice in served.notices][-1] == "withdrawn"
    assert nodes.shard("ada")["status"] == "withdrawn"


def test_a_node_that_was_killed_registers_anew_in_a_new_boot(nodes):
    served = nodes.serve("ada", "0:3", host="h1")
    first = nodes.shard("ada")
    served.kill()
    assert nodes.shard("ada")["status"] == "live"
    nodes.serve("ada", "3:6", host="h1")
    second = nodes.shard("ada")
    assert second["boot_id"] != first["boot_id"]
    assert (second["start"], second["end"], second["status"]) == (3, 6, "live")
    assert [record["outcome"] for record in nodes.log()] == ["applied"] * len(nodes.log())


def test_a_newer_process_of_the_same_key_takes_the_place_of_the_older_which_stops(nodes):
    elder = nodes.serve("ada", "0:3", host="h1")
    copy = nodes.home / "ada-too"
    copy.mkdir(mode=0o700)
    shutil.copy2(nodes.home / "ada" / "node.key", copy / "node.key")
    nodes.serve("ada", "0:3", host="h1", directory=copy)
    code, words = elder.ended()
    assert code == 1
    assert "another process has this key" in words or "has taken the place" in words


def test_one_directory_serves_one_process(nodes):
    nodes.serve("ada", "0:3", host="h1")
    second = nodes.start("ada", "0:3", host="h1")
    code, words = second.ended()
    assert code == 1
    assert "outbox.db" in words


def clone_of(nodes, name):
    """A copy of a node's key in a directory of its own, as a cloned installation has it."""
    copy = nodes.home / "clone"
    copy.mkdir(mode=0o700)
    shutil.copy2(nodes.home / name / "node.key", copy / "node.key")
    return copy


def test_a_copied_key_on_another_host_ends_in_conflict(nodes):
    elder = nodes.serve("ada", "0:3", host="h1")
    clone = clone_of(nodes, "ada")
    files = ("--identity", clone / "identity.json", "--report", clone / "report.json")
    nodes.cli(
        "node", "doctor", nodes.model, "--manifest", nodes.manifest, "--layers", "0:3",
        "--dir", clone, "--declared-host", "h2", *files,
    )  # fmt: skip
    nodes.cli(
        "node", "register", *files, "--dir", clone, "--declared-host", "h2", "--new-boot",
        "--endpoint", "grpc://127.0.0.1:7009",
    )  # fmt: skip
    shard = nodes.shard("ada")
    assert "conflict" in shard["reasons"]
    assert not shard["eligible_to_certify"]
    # the elder process hears of it, one way or the other, and does not go on as if nothing were
    code, words = elder.ended()
    assert code == 1
    assert "has taken the place" in words or "another process has this key" in words


def test_a_node_that_would_look_like_a_copy_of_itself_is_told_before_it_registers(nodes):
    nodes.serve("ada", "0:3", host="h1").kill()
    for host in ("h2", None):  # another machine, or the name of this one forgotten
        served = nodes.start("ada", "0:3", host=host)
        code, words = served.ended()
        assert code == 1
        assert "is live on another host" in words
        assert "meshnet node withdraw" in words
    assert nodes.shard("ada")["reasons"] == ["dark"]
    nodes.serve("ada", "0:3", host="h1")


def test_a_node_that_nobody_enrolled_is_told_so(nodes):
    nodes.cli("node", "init", "--dir", nodes.home / "eve", "-o", "json")
    served = nodes.start("eve", "0:3", host="h1")
    code, words = served.ended()
    assert code == 1
    assert "not-enrolled" in words
    assert "meshnet admin node enrol" in words


def test_a_suspended_node_hears_of_it_and_a_reinstated_one_must_start_anew(nodes):
    served = nodes.serve("ada", "0:3", host="h1")
    nodes.cli("admin", "node", "suspend", nodes.label("ada"), "--reason", "maintenance")
    assert "suspended" in served.told("verdict", "suspended")["text"]
    nodes.cli("admin", "node", "reinstate", nodes.label("ada"))
    code, words = served.ended()
    assert code == 1
    assert "started again" in words
    nodes.serve("ada", "0:3", host="h1")
    assert nodes.shard("ada")["status"] == "live"


WRONG_CLOCK = """
import time

def ahead(real, by):
    return lambda: real() + by

time.time, time.time_ns = ahead(time.time, 7_200), ahead(time.time_ns, 7_200 * 10**9)
"""


def test_a_node_whose_clock_is_wrong_is_told_by_how_much_and_nothing_is_registered(
    nodes, tmp_path, monkeypatch
):
    site, folder = tmp_path / "site", nodes.home / "ada"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WRONG_CLOCK)
    monkeypatch.setitem(nodes.cli.env, "PYTHONPATH", str(site))

    code, words = nodes.start("ada", "0:3", host="h1").ended()
    assert code == 1
    assert "7,200 s ahead of the broker's" in words
    files = ("--identity", folder / "identity.json", "--report", folder / "report.json")
    nodes.cli(
        "node", "doctor", nodes.model, "--manifest", nodes.manifest, "--dir", folder,
        "--declared-host", "h1", *files, code=1,
    )  # fmt: skip
    refused = nodes.cli(
        "node", "register", *files, "--dir", folder, "--declared-host", "h1", "--new-boot",
        "--endpoint", "grpc://127.0.0.1:7009", code=1,
    )  # fmt: skip
    assert "7,200 s ahead of the broker's" in refused.err
    assert "nothing was published" in refused.err
    assert nodes.log() == []


def test_a_port_that_is_taken_is_told_before_anything_is_registered(nodes):
    first = nodes.serve("ada", "0:3", host="h1")
    nodes.enrol("bob")
    second = nodes.start("bob", "3:6", host="h2", port=first.port)
    code, words = second.ended()
    assert code == 1
    assert str(first.port) in words
    assert [record["type"] for record in nodes.log()].count("io.meshnet.shard.registered.v1") == 1
