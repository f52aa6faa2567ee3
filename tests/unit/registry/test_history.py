"""The signed history that was made from neither of our implementations, record by record."""

import base64
import json
from pathlib import Path

import pytest

from meshnet_events.record import Record
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.state import State

DATA = Path(__file__).parents[2] / "data"
EXPECTED = json.loads((DATA / "history.expect.json").read_text())
RECORDS = [
    Record(line["sequence"], line["time_ns"], line["subject"], base64.b64decode(line["body"]))
    for line in map(json.loads, (DATA / "history.ndjson").read_text().splitlines())
]


def test_every_record_has_the_outcome_that_is_expected_of_it():
    fold = Fold(State(EXPECTED["realm"]), operator=EXPECTED["operator"])
    found = []
    for record in RECORDS:
        outcome = fold.apply(record).outcome
        said = {"outcome": outcome.kind, "sequence": record.sequence}
        found.append(said if outcome.code is None else {"code": outcome.code, **said})

    expected = [{k: v for k, v in one.items() if k != "note"} for one in EXPECTED["records"]]
    assert found == expected


def test_the_accounts_are_the_expected_ones_by_code():
    state = folded(len(RECORDS))
    counts = dict(state.counts)
    assert counts.pop("applied") == EXPECTED["outcomes"]["applied"]
    assert counts.pop("noop") == EXPECTED["outcomes"]["noop"]
    assert counts == EXPECTED["outcomes"]["rejected"]
    assert state.sequence == len(RECORDS)


@pytest.mark.parametrize("sequence", sorted(map(int, EXPECTED["digests"])))
def test_the_event_digests_are_the_expected_ones(sequence):
    record = RECORDS[sequence - 1]
    event = Fold(State(EXPECTED["realm"])).screen(record).verified()
    assert event.digest == EXPECTED["digests"][str(sequence)]
    assert folded(sequence).chain_of(event.issuer).digest == event.digest


@pytest.mark.parametrize("sequence", sorted(map(int, EXPECTED["status_at"])))
def test_the_recipes_had_the_expected_status_along_the_way(sequence):
    statuses = {key: recipe.status for key, recipe in folded(sequence).recipes.items()}
    expected = EXPECTED["status_at"][str(sequence)]
    assert {key: statuses[key] for key in expected} == expected


def test_recipes_and_nodes_end_as_expected():
    state = folded(len(RECORDS))
    assert {key: recipe.status for key, recipe in state.recipes.items()} == EXPECTED["recipes"]
    found = {node: state.nodes[node].status for node in EXPECTED["node_status"]}
    assert found == EXPECTED["node_status"]
    assert EXPECTED["nodes"]["delta"] not in state.nodes, "it was never enrolled"


def test_the_certification_names_the_expected_evidence():
    sequence = next(
        int(at)
        for at, statuses in EXPECTED["status_at"].items()
        if "certified" in statuses.values()
    )
    certified = [
        one.certification for one in folded(sequence).recipes.values() if one.certification
    ]
    assert [one.evidence_digest for one in certified] == [EXPECTED["evidence_digest"]]
    assert [one.sequence for one in certified] == [sequence]


def folded(sequence: int) -> State:
    """The state after the first `sequence` records."""
    state = State(EXPECTED["realm"])
    fold = Fold(state, operator=EXPECTED["operator"])
    for record in RECORDS[:sequence]:
        fold.apply(record)
    return state
