"""The benches run for real on small sizes. Their figures are never asserted: machines are noisy."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from meshnet_cli.bench.mix import REALM, Mix
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.state import State

MEMBERS = {"bench", "measured", "limit", "ratio", "unit", "limit_is", "config"}


def bench(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "meshnet_cli", "bench", *arguments, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ("fold", "--records", "1500", "--nodes", "200"),
        ("fold", "--no-verify", "--records", "1500", "--nodes", "200"),
        ("replay", "--records", "1500", "--nodes", "200", "--rounds", "1"),
        ("replay", "--verify", "--records", "1500", "--nodes", "200", "--rounds", "1"),
        ("route", "--claims", "1000", "--recipes", "10", "--plans", "50"),
        ("route", "--purpose", "certify", "--claims", "1000", "--recipes", "10", "--plans", "20"),
        ("publish", "--records", "50", "--sync", "2m"),
        ("forward", "--tokens", "8"),
        ("memory", "--records", "5000", "--nodes", "200"),
    ],
    ids=" ".join,
)
def test_a_bench_prints_one_object_with_its_limit_beside_it(arguments):
    result = bench(*arguments)
    assert set(result) == MEMBERS
    assert result["bench"] == arguments[0]
    assert result["measured"] > 0
    assert result["limit"] > 0
    assert result["limit_is"]


def test_the_mix_is_what_it_says():
    mix = Mix(nodes=200)
    opening = 1 + 2 * 200
    records = list(mix.records(opening + 8_000))
    fold = Fold(State(REALM))
    kinds = Counter()
    for record in records:
        fold.apply(record, verify=record.sequence % 50 == 0)
        if record.sequence > opening:
            kinds[record.body.rsplit(b'"type":"io.meshnet.', 1)[1].split(b".v1")[0].decode()] += 1
    share = {kind: count / 8_000 for kind, count in kinds.items()}
    assert share["handshake.completed"] == pytest.approx(0.40, abs=0.015)
    assert share["shard.registered"] == pytest.approx(0.30, abs=0.015)
    assert share["forward.attested"] == pytest.approx(0.20, abs=0.015)
    assert share["shard.withdrawn"] + share["node.enrolled"] == pytest.approx(0.10, abs=0.015)
    assert fold.state.counts["applied"] > 0.95 * len(records)
    assert any(recipe.status == "certified" for recipe in fold.state.recipes.values())


def test_the_mix_repeats_itself_byte_for_byte():
    one, other = (list(Mix(nodes=200, seed=5).events(600)) for _ in range(2))
    assert one == other
    assert list(Mix(nodes=200, seed=6).events(600)) != one


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("name", ["publish", "replay", "memory"])
def test_one_that_is_told_to_stop_leaves_no_process_and_no_file(name, how, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "meshnet_cli", "bench", name, "--records", "10000000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    try:
        wait_until(lambda: any(tmp_path.iterdir()))
        time.sleep(0.5)  # until it has begun: that changes nothing that is asked here
        os.killpg(process.pid, how)  # as a terminal does that is closed
        said = process.communicate(timeout=30)[1]
    finally:
        process.kill()
        process.wait()
    assert b"Traceback" not in said
    assert process.returncode in {128 + how, -how}
    wait_until(lambda: not any(tmp_path.iterdir()))
    assert (
        str(tmp_path)
        not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    )


def wait_until(holds):
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
