"""The node rejects evidence by the code, and in the order, of the committed vectors."""

import json
from pathlib import Path

import pytest

from meshnet_node.recipe_identity import DistributedForwardEvidence

DATA = Path(__file__).parent.parent / "data"
CASES = json.loads((DATA / "evidence.json").read_text("utf-8"))["cases"]


def test_the_vectors_are_all_there_and_reach_every_code():
    assert len(CASES) == 80
    assert {case["expect"] for case in CASES} == {
        None,
        "synthetic",
        "too-few-nodes",
        "duplicate-node",
        "no-tokens",
        "coverage",
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_evidence_is_rejected_by_the_code_of_its_vector(case):
    rejection = DistributedForwardEvidence(**case["evidence"]).rejection()
    assert (rejection and rejection.code) == case["expect"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_evidence_survives_parsing_and_writing(case):
    evidence = DistributedForwardEvidence.from_dict(case["evidence"])
    assert evidence.to_dict() == case["evidence"]
    assert evidence == DistributedForwardEvidence(**case["evidence"])
