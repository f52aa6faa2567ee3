"""A history folded to a point, and the report of what held there."""

import json
from pathlib import Path

import msgspec
import pytest

from kit import Scenario
from meshnet_auditor.replay import replay, report
from meshnet_auditor.source import RecordFile
from meshnet_tracker.registry.outcome import FoldFault

DATA = Path(__file__).parents[1] / "data"
EXPECTED = json.loads((DATA / "history.expect.json").read_text())


@pytest.fixture
def source():
    return RecordFile(DATA / "history.ndjson")


def told(state):
    return json.loads(msgspec.json.encode(report(state)))


def test_the_signed_history_gives_what_is_expected(source):
    said = told(replay(source, source.realm, operator=EXPECTED["operator"]))
    assert said["sequence"] == 38
    assert said["outcomes"] == EXPECTED["outcomes"]
    assert {r["recipe_key"]: r["status"] for r in said["recipes"]} == EXPECTED["recipes"]
    assert {n["node"]: n["status"] for n in said["nodes"]} == EXPECTED["node_status"]


def test_an_earlier_point_gives_the_earlier_answer(source):
    for sequence, statuses in EXPECTED["status_at"].items():
        said = told(replay(source, "lab", to=int(sequence)))
        assert said["sequence"] == int(sequence)
        for key, status in statuses.items():
            recipe = next(r for r in said["recipes"] if r["recipe_key"] == key)
            assert recipe["status"] == status
            assert (recipe["certified_at"] is not None) == (status == "certified")


def test_certified_at_is_the_brokers_time_of_the_certifying_record(source):
    recipe = told(replay(source, "lab", to=19))["recipes"][0]
    assert recipe["certified_at"] == "2026-09-21T14:13:39.000Z"
    assert recipe["certified_sequence"] == 19


def test_claims_are_listed_with_every_reason_ended_and_refused_ones_included(source):
    claims = {c["node"]: c for c in told(replay(source, "lab"))["claims"]}
    nodes = EXPECTED["nodes"]
    assert claims[nodes["alpha"]]["reasons"] == ["withdrawn", "revoked"]
    assert claims[nodes["beta"]]["reasons"] == ["conflict", "revoked"]
    assert claims[nodes["gamma"]]["reasons"] == ["suspended", "dark"]
    assert nodes["delta"] not in claims
    assert not any(c["eligible_to_serve"] or c["eligible_to_certify"] for c in claims.values())

    refused = {c["node"]: c for c in told(replay(source, "lab", to=10))["claims"]}
    unsound = refused[nodes["gamma"]]
    assert (unsound["reasons"], unsound["refusal"]) == (["refused"], "bad-identity")
    assert (unsound["start"], unsound["end"], unsound["recipe_key"]) == (None, None, None)


def test_another_root_of_trust_is_refused(source):
    with pytest.raises(FoldFault, match="expected U"):
        replay(source, "lab", operator=EXPECTED["nodes"]["alpha"])


def test_the_root_of_trust_stays_the_creator_after_operators_changed():
    lab = Scenario()
    creator = lab.public("operator")
    lab.operators("other")
    assert replay(lab.records, lab.state.name, operator=creator).sequence == lab.state.sequence


def test_a_missing_record_is_a_gap_and_not_a_shorter_history(source):
    records = list(source)
    with pytest.raises(FoldFault, match="sequence 8 arrived; expected 7"):
        replay(records[:6] + records[7:], "lab")


def test_records_of_another_realm_are_refused(source):
    with pytest.raises(FoldFault, match="sequence 1"):
        replay(source, "elsewhere")


def test_progress_is_told_now_and_then():
    lab = Scenario()
    for number in range(1_100):
        lab.enrol(f"n{number % 3}", label=f"{number}")
    heard = []
    replay(lab.records, lab.state.name, progress=heard.append)
    assert heard == [1_024]
