"""The tracker's derivation against the committed vectors, which neither implementation made."""

import json
from pathlib import Path

import pytest

from meshnet_tracker.recipe import BlockError, Mismatch, derive, explain, route_reasons

DATA = Path(__file__).parents[1] / "data"


def read_vectors(name, part="cases"):
    cases = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))[part]
    assert cases, f"{name}.json holds no {part}"
    # Some ids repeat, so the position is part of the name of a test.
    return [pytest.param(case, id=f"{i}-{case['id']}") for i, case in enumerate(cases)]


def told(mismatches: tuple[Mismatch, ...]):
    return [{"reason": m.reason, "shard_index": m.shard_index} for m in mismatches]


@pytest.mark.parametrize("case", read_vectors("recipe_fingerprint_vectors"))
def test_a_sound_block_has_the_digests_of_the_vectors(case):
    expected = case["expect"]
    assert derive(case["block"]) == (
        expected["model_artifact_digest"],
        expected["runtime_recipe_digest"],
    )


@pytest.mark.parametrize("case", read_vectors("recipe_fingerprint_vectors"))
def test_a_block_that_declares_the_fingerprint_of_the_vectors_is_sound(case):
    labels = ("recipe_id", "recipe_version", "catalogue_version")
    declared = {
        "model_artifact_digest": case["expect"]["model_artifact_digest"],
        "runtime_recipe_digest": case["expect"]["runtime_recipe_digest"],
        **{label: case["block"]["recipe"][label] for label in labels},
    }
    assert derive({**case["block"], "fingerprint": declared}) == derive(case["block"])


@pytest.mark.parametrize("case", read_vectors("recipe_fingerprint_vectors", "invalid"))
def test_an_unsound_block_is_refused_at_the_field_of_the_vectors(case):
    with pytest.raises(BlockError) as refused:
        derive(case["block"])
    assert case["field"] in refused.value.field
    assert str(refused.value).startswith(f"{refused.value.field}: ")


@pytest.mark.parametrize("case", read_vectors("mismatch"))
def test_the_differences_of_two_blocks_are_those_of_the_vectors_in_order(case):
    index = 3  # the vectors tell every difference of shard 3
    assert told(explain(case["left"], case["right"], shard_index=index)) == case["expect"]


@pytest.mark.parametrize("case", read_vectors("route"))
def test_the_route_verdict_is_that_of_the_vectors(case):
    reasons = route_reasons(
        case["shards"], status=case["registry"], for_certification=case["for_certification"]
    )
    assert told(reasons) == case["expect"]
