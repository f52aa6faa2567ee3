"""Handshakes are counted once each, by result and reason, in a registry of the tracker's own."""

import pytest
from prometheus_client import REGISTRY, generate_latest

from kit import Scenario, identity_block
from meshnet_events.facts import Mismatch
from meshnet_tracker.metrics import TrackerMetrics
from meshnet_tracker.recipe import _REASONS, explain
from meshnet_tracker.registry.rules.handshakes import REASONS

NAME = "meshnet_handshakes_total"


def counted(metrics):
    """The series that are not 0: (result, reason) to count."""
    return {
        (sample.labels["result"], sample.labels["reason"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == NAME and sample.value
    }


@pytest.fixture
def lab():
    lab = Scenario()
    lab.register("n1@h1[0,14)")
    lab.register("n2@h2[14,28)")
    return lab


def refusal(reason):
    return (
        Mismatch(detail="", reason=reason, shard_index=None),
        Mismatch(detail="", reason="backend", shard_index=None),
    )


def test_each_applied_handshake_counts_once_under_its_first_reason(lab):
    metrics = TrackerMetrics()
    lab.handshake("n1", "n2")
    lab.handshake("n1", "n2", accepted=False, mismatches=refusal("cache-layout"))
    lab.handshake("n1", "n2", accepted=False, mismatches=refusal("cache-layout"))
    metrics.count(lab.state.take_changes())
    expected = {("accepted", ""): 1, ("refused", "cache-layout"): 2}
    assert counted(metrics) == expected, "two of them are one row by now"
    metrics.count(lab.state.take_changes())
    assert counted(metrics) == expected
    lab.handshake("n2", "n1", role="responder")
    metrics.count(lab.state.take_changes())
    assert counted(metrics) == {**expected, ("accepted", ""): 2}


def test_one_that_came_and_went_between_two_commits_counts_too(lab):
    metrics = TrackerMetrics()
    lab.handshake("n1", "n2")
    lab.register("n2@h2[14,28)", boot="b2")
    assert not lab.state.handshakes
    metrics.count(lab.state.take_changes())
    assert counted(metrics) == {("accepted", ""): 1}


def test_a_handshake_that_was_rejected_does_not_count(lab):
    metrics = TrackerMetrics()
    assert lab.handshake("n1", "n2", peer_boot="another").outcome == "stale-boot"
    metrics.count(lab.state.take_changes())
    assert counted(metrics) == {}


@pytest.mark.parametrize("reason", ["", "made up", "x" * 1_024, "cache-layout\n"])
def test_a_reason_that_a_node_made_up_is_other(lab, reason):
    metrics = TrackerMetrics()
    lab.handshake("n1", "n2", accepted=False, mismatches=refusal(reason))
    metrics.count(lab.state.take_changes())
    assert counted(metrics) == {("refused", "other"): 1}


def test_the_reasons_are_those_that_a_comparison_tells():
    assert set(_REASONS.values()) | {"fingerprint"} == REASONS
    told = explain(identity_block(0, 14), identity_block(0, 14, axes={"kv_dtype": "f16"}))
    assert {one.reason for one in told} <= REASONS


def test_every_series_is_there_from_the_start_and_none_is_global():
    shown = generate_latest(TrackerMetrics().registry).decode()
    assert f'{NAME}{{reason="other",result="refused"}} 0.0' in shown
    assert shown.count(f"{NAME}{{") == len(REASONS) + 2
    assert NAME not in generate_latest(REGISTRY).decode()
