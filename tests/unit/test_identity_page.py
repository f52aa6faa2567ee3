"""The page on identity is true: its example is sound, and both implementations derive its digests."""

import hashlib
import json
import re
from pathlib import Path

from meshnet_node.recipe_identity import RECIPE_AXES, ShardIdentity
from meshnet_tracker.recipe import derive

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "identity.md").read_text()
EXAMPLE = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1])


def canonical_sha256(value):
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_example_has_the_digests_that_it_declares():
    declared = EXAMPLE["fingerprint"]
    assert derive(EXAMPLE) == (
        declared["model_artifact_digest"],
        declared["runtime_recipe_digest"],
    )
    identity = ShardIdentity.from_dict(EXAMPLE)
    assert identity.to_dict(with_fingerprint=True) == EXAMPLE


def test_the_digests_are_those_of_the_page_by_hand():
    artifact, recipe = EXAMPLE["artifact"], EXAMPLE["recipe"]
    body = {
        "source_digest": artifact["content_digest"],
        **{name: artifact[name] for name in ("architecture", "architecture_digest", "layer_count")},
    }
    axes = {name: recipe[name] for name in RECIPE_AXES}
    declared = EXAMPLE["fingerprint"]
    assert declared["model_artifact_digest"] == canonical_sha256(
        {"domain": "meshnet.model-artifact.v1", "body": body}
    )
    assert declared["runtime_recipe_digest"] == canonical_sha256(
        {"domain": "meshnet.runtime-recipe.v1", "body": axes}
    )


def test_every_member_of_the_example_is_in_the_table():
    members = [
        *(f"artifact.{name}" for name in EXAMPLE["artifact"]),
        *EXAMPLE["recipe"],
        *(name for name in EXAMPLE if name not in {"artifact", "recipe"}),
    ]
    for member in members:
        assert re.search(rf"`(recipe)?\.?{re.escape(member)}`", PAGE), member
