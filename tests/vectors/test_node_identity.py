"""The node's derivation agrees with the committed identity, mismatch and route vectors."""

import json
from pathlib import Path

import pytest

from meshnet_node import recipe_identity
from meshnet_node.recipe_identity import (
    DistributedForwardEvidence,
    RecipeIdentityError,
    RecipeRegistry,
    ShardIdentity,
    check_route,
    explain_mismatch,
)

DATA = Path(__file__).parent.parent / "data"
IDENTITY = json.loads((DATA / "recipe_fingerprint_vectors.json").read_text("utf-8"))
MISMATCH = json.loads((DATA / "mismatch.json").read_text("utf-8"))["cases"]
ROUTE = json.loads((DATA / "route.json").read_text("utf-8"))["cases"]


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["id"])


def reasons(mismatches):
    return [{"reason": each.reason, "shard_index": each.shard_index} for each in mismatches]


def registry_of(status, shards):
    if status is None:
        return None
    registry = RecipeRegistry()
    if not shards or status == "unknown":
        return registry
    registry.register(shards[0])
    if status == "certified":
        layers = shards[0].artifact.layer_count
        evidence = DistributedForwardEvidence("s", 0, ("a", "b"), ((0, layers),), 1, layers)
        registry.certify(shards[0], evidence)
    return registry


def test_the_vectors_are_all_there():
    assert [len(cases) for cases in (IDENTITY["cases"], IDENTITY["invalid"], MISMATCH, ROUTE)] == [
        44,
        87,
        51,
        90,
    ]


@named(IDENTITY["cases"])
def test_a_block_has_the_digests_of_its_vector(case):
    identity = ShardIdentity.from_dict(case["block"])
    assert {
        "model_artifact_digest": identity.fingerprint.model_artifact_digest,
        "runtime_recipe_digest": identity.fingerprint.runtime_recipe_digest,
        "source_digest": identity.artifact.source_digest,
    } == case["expect"]


@named(IDENTITY["cases"])
def test_a_block_survives_parsing_and_writing(case):
    identity = ShardIdentity.from_dict(case["block"])
    assert identity.to_dict() == case["block"]
    declared = identity.to_dict(with_fingerprint=True)
    assert declared == {**case["block"], "fingerprint": identity.fingerprint.to_dict()}
    assert ShardIdentity.from_dict(json.loads(json.dumps(declared))) == identity


def test_swapping_two_axis_values_changes_the_digest():
    swapped = [case for case in IDENTITY["cases"] if case["id"].startswith("swap-")]
    digests = {
        ShardIdentity.from_dict(case["block"]).fingerprint.runtime_recipe_digest for case in swapped
    }
    assert len(digests) == len(swapped) == 2


@named(IDENTITY["invalid"])
def test_an_invalid_block_is_refused_by_the_name_of_its_field(case):
    with pytest.raises(RecipeIdentityError) as refusal:
        ShardIdentity.from_dict(case["block"])
    assert type(refusal.value) is getattr(recipe_identity, case["error"])
    assert case["field"] in str(refusal.value)


@named(MISMATCH)
def test_every_difference_is_reported_in_order(case):
    left, right = (ShardIdentity.from_dict(case[side]) for side in ("left", "right"))
    assert reasons(explain_mismatch(left, right, shard_index=3)) == case["expect"]
    assert left.fingerprint.matches(right.fingerprint) is (case["expect"] == [])


@named(ROUTE)
def test_a_route_is_judged_as_its_vector_says(case):
    shards = [ShardIdentity.from_dict(block) for block in case["shards"]]
    verdict = check_route(
        shards,
        registry=registry_of(case["registry"], shards),
        for_certification=case["for_certification"],
    )
    assert reasons(verdict) == case["expect"]
