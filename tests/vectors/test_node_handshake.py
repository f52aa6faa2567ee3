"""The handshake compares what a peer presents as the committed vectors say."""

import json
from pathlib import Path

import pytest

from meshnet_node.recipe_identity import (
    CompatibilityFingerprint,
    ShardIdentity,
    check_handshake,
    handshake_error,
)
from meshnet_proto import shard_runtime_pb2

DATA = Path(__file__).parent.parent / "data"
CASES = json.loads((DATA / "handshake.json").read_text("utf-8"))["cases"]


def test_the_vectors_are_all_there():
    assert len(CASES) == 40


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_peer_is_accepted_or_refused_as_its_vector_says(case):
    local = ShardIdentity.from_dict(case["local"])
    sent = shard_runtime_pb2.Fingerprint(**case["presented"]).SerializeToString()
    presented = shard_runtime_pb2.Fingerprint.FromString(sent)

    mismatches = check_handshake(local, presented)

    assert [
        {"reason": each.reason, "shard_index": each.shard_index} for each in mismatches
    ] == case["expect"]
    assert check_handshake(local.fingerprint, presented) == mismatches
    error = handshake_error(mismatches)
    assert (error is not None) is case["refused"]
    if error is None:
        assert (case["error_code"], case["retryable"]) == (None, None)
        assert CompatibilityFingerprint.from_proto(presented).matches(local.fingerprint)
    else:
        assert shard_runtime_pb2.ErrorCode.Name(error.code) == case["error_code"]
        assert error.retryable is case["retryable"]
        assert all(each.describe() in error.detail for each in mismatches)
