"""Operator facts about recipes: revoked and reinstated."""

import pytest

from kit import R, Scenario, digest


@pytest.fixture
def lab():
    lab = Scenario()
    lab.certify("n1@h1[0,14)", "n2@h2[14,28)")
    return lab


@pytest.mark.parametrize("verb", ["revoke", "reinstate_recipe"])
def test_a_recipe_that_no_admitted_claim_offered_is_unknown_recipe(verb):
    lab = Scenario()
    lab.register("n1[0,14)", capability={"status": "failed"})
    with lab.unchanged():
        assert getattr(lab, verb)(R.key).outcome == "unknown-recipe"
        assert getattr(lab, verb)(digest("any")).outcome == "unknown-recipe"


def test_revoking_takes_certification_and_proven_seams(lab):
    assert lab.recipe().proven_seams == (14,)
    then = lab.revoke()
    assert (then.outcome, then.moves) == ("applied", ["recipe R certified->revoked"])
    recipe = lab.recipe()
    assert (recipe.status, recipe.proven_seams, recipe.certification) == ("revoked", (), None)
    assert recipe.revoked_reason == "a test"


def test_revoking_ends_no_claim(lab):
    lab.revoke()
    assert lab.claims() == {"n1/main": "live", "n2/main": "live"}


def test_revoking_again_is_a_noop(lab):
    lab.revoke()
    with lab.unchanged():
        assert lab.revoke().outcome == "noop"


def test_a_dark_recipe_may_be_revoked():
    lab = Scenario()
    lab.register("n1[0,14)")
    assert lab.revoke().moves == ["recipe R dark->revoked"]


def test_revoking_voids_pending_evidence_of_that_recipe_alone(lab):
    next_axes = {"runtime_version": "next"}
    for shard in ("n3[0,14)", "n4[14,28)"):
        lab.register(shard, axes=next_axes)
    other = lab.claim("n3").identity
    of = type(R)(other.model_artifact_digest, other.runtime_recipe_digest)
    lab.attest("n1", lab.evidence("n1[0,14)", "n2[14,28)", session="R"))
    lab.attest("n3", lab.evidence("n3[0,14)", "n4[14,28)", of=of, session="other"))
    lab.revoke()
    assert lab.void() == {"R": True, "other": False}


def test_evidence_for_a_revoked_recipe_is_refused_and_not_remembered(lab):
    lab.revoke()
    forward = lab.evidence("n1[0,14)", "n2[14,28)")
    with lab.unchanged():
        assert lab.attest("n1", forward).outcome == "revoked"


@pytest.mark.parametrize("status", ["dark", "certified"])
def test_reinstating_a_recipe_that_is_not_revoked_is_a_noop(status):
    lab = Scenario()
    if status == "dark":
        lab.register("n1[0,14)")
    else:
        lab.certify("n1[0,14)", "n2[14,28)")
    with lab.unchanged():
        assert lab.reinstate_recipe().outcome == "noop"


def test_a_reinstated_recipe_is_dark_and_must_be_certified_anew(lab):
    first = lab.recipe().certification
    lab.revoke()
    then = lab.reinstate_recipe()
    assert (then.outcome, then.moves) == ("applied", ["recipe R revoked->dark"])
    recipe = lab.recipe()
    assert (recipe.certification, recipe.proven_seams, recipe.revoked_reason) == (None, (), None)

    then = lab.attest_all(lab.evidence("n1[0,14)", "n2[14,28)"))
    assert then.moves == ["recipe R dark->certified"]
    assert lab.recipe().certification.evidence_digest != first.evidence_digest
    assert lab.recipe().certification.sequence == then.record.sequence


def test_what_certified_it_before_does_not_certify_it_again():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.register("n2[14,28)")
    forward = lab.evidence("n1[0,14)", "n2[14,28)")
    lab.attest_all(forward)
    lab.revoke()
    lab.reinstate_recipe()
    with lab.unchanged():
        assert [lab.attest(node, forward).outcome for node in ("n1", "n2")] == ["noop", "noop"]
    assert lab.recipe().status == "dark"


def test_what_was_pending_at_the_revocation_stays_void_after_it(lab):
    forward = lab.evidence("n1[0,14)", "n2[14,28)")
    lab.attest("n1", forward)
    lab.revoke()
    lab.reinstate_recipe()
    assert lab.attest("n2", forward).outcome == "noop"
    with lab.unchanged():
        assert lab.attest("n1", forward).outcome == "noop"
    assert lab.recipe().status == "dark"


def test_a_forward_that_ran_before_the_revocation_but_was_first_attested_after_it_counts(lab):
    forward = lab.evidence("n1[0,14)", "n2[14,28)")
    lab.revoke()
    lab.reinstate_recipe()
    assert lab.attest_all(forward).moves == ["recipe R dark->certified"]
