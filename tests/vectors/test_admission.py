"""The admission gate, and the rule as the fold calls it, agree with the committed vectors."""

import json
import math
from pathlib import Path

import pytest

from meshnet_events.admission import CAPABILITY_REASONS, Selection, capability_refusal
from meshnet_node.admission import AdmissionRequirement, CapabilityAdmissionError, admit
from meshnet_node.capability import (
    CapabilityReport,
    ProvenBackend,
    ProvenModel,
    ProvenRecipe,
    ProvenShard,
)

DATA = Path(__file__).parent.parent / "data"
CASES = json.loads((DATA / "admission.json").read_text("utf-8"))["cases"]
REPORTED = [case for case in CASES if case["report"] is not None]


def report_of(stated):
    if stated is None:
        return None
    return CapabilityReport(
        model=ProvenModel(stated["model_id"], "a" * 64),
        shard=ProvenShard(*stated["shard"]),
        recipe=ProvenRecipe(stated["recipe_id"], stated["recipe_version"], "b" * 64),
        backend=ProvenBackend(stated["backend_id"], stated["device"]),
        status=stated["status"],
        validated_at=stated["validated_at"],
        tokens=1,
        duration_ms=1,
        diagnostics=tuple(stated["diagnostics"]),
    )


def test_the_vectors_are_all_there_and_reach_every_reason():
    assert len(CASES) == 60
    assert {case["expect"] for case in CASES} == {None, *CAPABILITY_REASONS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_report_is_admitted_or_refused_as_its_vector_says(case):
    requirement = AdmissionRequirement(**case["requirement"])
    report = report_of(case["report"])
    if case["expect"] is None:
        assert admit(requirement, report, now=case["now"]) is report
        return
    with pytest.raises(CapabilityAdmissionError) as refusal:
        admit(requirement, report, now=case["now"])
    assert refusal.value.reason == case["expect"]
    assert "meshnet node doctor" in refusal.value.message
    if case["expect"] == "not-passed":
        assert all(text in refusal.value.message for text in case["report"]["diagnostics"])


@pytest.mark.parametrize("case", REPORTED, ids=lambda case: case["id"])
def test_the_fold_decides_the_same_in_whole_milliseconds(case):
    asked = {**case["requirement"]}
    max_age_ms = int(asked.pop("max_age_seconds") * 1000)
    capability = report_of(case["report"]).to_fact()
    refusal = capability_refusal(
        Selection(
            **asked,
            model_artifact_digest=capability.model_artifact_digest,
            runtime_recipe_digest=capability.runtime_recipe_digest,
        ),
        capability,
        status=capability.status,
        diagnostics=capability.diagnostics,
        validated_at=capability.validated_at_ms,
        now=math.floor(case["now"] * 1000),
        max_age=max_age_ms,
        max_skew=60_000,
        per_second=1000,
    )
    assert (refusal and refusal.reason) == case["expect"]
