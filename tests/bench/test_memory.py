"""The one figure of the benches that does not depend on how fast a machine is."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_ten_thousand_registered_shards_fit_into_150_mb_and_a_replay_does_not_grow():
    done = subprocess.run(
        [sys.executable, "-m", "meshnet_cli", "bench", "memory",
         "--nodes", "10000", "--records", "200000", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["config"]["registered_shards"] == 10_000
    assert result["measured"] < 150
    assert result["config"]["at_the_end_mb"] < 150
    assert result["ratio"] < 1.25
