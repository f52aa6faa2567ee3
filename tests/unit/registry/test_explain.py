"""The sentences that people read, over histories of real events."""

import pytest

from kit import R, Scenario, Shard, boot_of, identity_block
from meshnet_events import facts
from meshnet_events.envelope import rfc3339
from meshnet_tracker.registry.eligibility import judge
from meshnet_tracker.registry.explain import why_claim, why_different, why_recipe
from rows_kit import Presence

HALVES = ("n1[0,14)", "n2[14,28)")


@pytest.fixture
def lab():
    """A realm whose nodes n1 to n3 are enrolled under labels."""
    scenario = Scenario()
    for name in ("n1", "n2", "n3"):
        scenario.enrol(name, label=f"{name} of Ada")
    return scenario


def register(lab, *shards, **more):
    for shard in shards:
        assert lab.register(shard, **more).outcome == "applied"


def why(lab, name="n1", liveness=None):
    """The one sentence about the claim `main` of a node."""
    (sentence,) = why_claim(lab.state, lab.claim(name), liveness)
    return sentence


# -- recipes ---------------------------------------------------------------------------------------


def test_a_recipe_that_nobody_offered_is_unknown(lab):
    assert why_recipe(lab.state, R.key) == f"unknown: no admitted claim has offered {R.key}"


def test_a_dark_recipe_says_over_whom_it_could_be_certified(lab):
    register(lab, *HALVES)
    known = lab.recipe().sequence
    assert why_recipe(lab.state, R.key) == (
        f"dark since sequence {known}: no distributed forward has certified it yet; "
        "a certifying route exists over n1 of Ada and n2 of Ada, and `meshnet node certify` runs one"
    )


def test_a_dark_recipe_without_a_certifying_route_says_what_is_in_the_way(lab):
    then = lab.register("n1[0,14)")
    assert why_recipe(lab.state, R.key) == (
        f"dark since sequence {then.record.sequence}: "
        "no distributed forward has certified it yet; "
        "no certifying route exists: no usable claim holds layers [14, 28)"
    )


def test_a_certified_recipe_says_when_by_which_session_and_over_whom(lab):
    lab.certify(*HALVES)
    proof = lab.recipe().certification
    assert proof is not None
    assert why_recipe(lab.state, R.key) == (
        f"certified at {rfc3339(proof.time_ms)} (sequence {proof.sequence}) "
        f"by session {proof.route_session_id} over 2 nodes: n1 of Ada and n2 of Ada; "
        "a serving route exists over n1 of Ada and n2 of Ada"
    )


def test_a_certified_recipe_that_nobody_can_serve_says_so(lab):
    lab.certify(*HALVES)
    lab.withdraw("n2")
    said = why_recipe(lab.state, R.key)
    assert said.startswith("certified at ")
    assert said.endswith("; no serving route exists: no usable claim holds layers [14, 28)")


def test_with_an_overlay_the_outlook_is_that_of_what_is_live(lab):
    register(lab, *HALVES)
    live = Presence({(lab.public("n1"), "main")})
    assert "a certifying route exists" in why_recipe(lab.state, R.key)
    assert why_recipe(lab.state, R.key, live).endswith("no usable claim holds layers [14, 28)")


def test_a_revoked_recipe_gives_the_operators_reason_and_the_way_back(lab):
    lab.certify(*HALVES)
    revoked = lab.revoke().record.sequence
    assert why_recipe(lab.state, R.key) == (
        f"revoked by an operator at sequence {revoked}: a test; "
        "it can be reinstated, and must then be certified anew"
    )
    back = lab.reinstate_recipe().record.sequence
    assert why_recipe(lab.state, R.key).startswith(f"dark since sequence {back}: ")


def test_a_node_without_a_label_is_called_by_the_beginning_of_its_key():
    lab = Scenario()
    register(lab, "n1[0,14)", "n2[14,28)")
    assert why_recipe(lab.state, R.key).count(f"{lab.public('n1')[:12]}…") == 1


# -- claims ----------------------------------------------------------------------------------------


def test_an_eligible_claim_needs_no_sentence(lab):
    lab.certify(*HALVES)
    assert why_claim(lab.state, lab.claim("n1")) == ()


def test_a_refused_claim_gives_code_detail_and_sequence(lab):
    then = lab.register("n1[0,14)", capability={"status": "failed", "diagnostics": ("OOM",)})
    assert why(lab) == (
        f"refused at sequence {then.record.sequence}: capability:not-passed: {then.detail}. "
        "The node can register the shard again once that is mended."
    )
    assert "OOM" in why(lab)


def test_a_withdrawn_claim_says_since_when(lab):
    lab.certify(*HALVES)
    then = lab.withdraw("n1")
    assert why(lab) == (
        f"withdrawn at sequence {then.record.sequence}: the node took the shard back. "
        "The node can register it again."
    )


def test_a_superseded_claim_says_since_when_and_who_must_register(lab):
    lab.certify(*HALVES)
    then = lab.register("n1/other[0,14)", boot="b2")
    assert why(lab).startswith(f"superseded at sequence {then.record.sequence}: ")
    assert why(lab).endswith("Its current process must register the shard.")


def test_a_claim_in_conflict_says_since_when_and_that_the_key_may_be_copied(lab):
    lab.certify(*HALVES)
    then = lab.register("n1/other@elsewhere[0,14)")
    lab.register("n1/other@elsewhere[0,14)")
    assert why(lab) == (
        f"conflict since sequence {then.record.sequence}: two hosts use the key of n1 of Ada, "
        "as if it were copied. An operator must reinstate the node, and its processes must restart."
    )


def test_a_suspended_claim_says_since_when_and_that_only_an_operator_lifts_it(lab):
    lab.certify(*HALVES)
    then = lab.suspend("n1")
    assert why(lab) == (
        f"suspended at sequence {then.record.sequence}: an operator suspended n1 of Ada. "
        "An operator must reinstate the node, and its processes must restart."
    )


def test_a_claim_that_ended_before_its_node_was_suspended_keeps_its_own_sequence(lab):
    lab.certify(*HALVES)
    ended = lab.withdraw("n1")
    then = lab.suspend("n1")
    withdrawn, suspended = why_claim(lab.state, lab.claim("n1"))
    assert withdrawn.startswith(f"withdrawn at sequence {ended.record.sequence}: ")
    assert suspended.startswith(
        f"suspended since sequence {then.record.sequence}: an operator suspended n1 of Ada."
    )


def test_a_conflict_behind_a_suspension_does_not_borrow_its_sequence(lab):
    lab.certify(*HALVES)
    lab.register("n1/other@elsewhere[0,14)")
    lab.suspend("n1")
    conflict, suspended = why_claim(lab.state, lab.claim("n1"))
    assert conflict.startswith("conflict: two hosts use")
    assert suspended.startswith("suspended at sequence ")


def test_a_claim_whose_node_lost_its_right_to_speak_names_the_policy_that_took_it():
    lab = Scenario(enrols=False)
    lab.policy(enrolment="open")
    register(lab, "n1[0,14)")
    then = lab.policy(enrolment="required")
    sentence = why_claim(lab.state, lab.claim("n1"))[0]
    assert sentence == (
        f"not-enrolled: the policy in force since sequence {then.record.sequence} requires "
        f"enrolment, and {lab.public('n1')[:12]}… has none. An operator can enrol it."
    )


def test_a_synthetic_claim_says_since_when(lab):
    lab.certify(*HALVES)
    then = lab.register("n3[0,14)", capability={"synthetic": True})
    assert why(lab, "n3") == (
        f"synthetic since sequence {then.record.sequence}: its backend computes no model. "
        "The node can register the shard with one that does."
    )


def test_a_claim_of_a_dark_recipe_says_what_would_certify_it(lab):
    then = lab.register("n1[0,14)")
    assert why(lab) == (
        f"dark since sequence {then.record.sequence}: no distributed forward has certified the "
        "recipe yet. `meshnet node certify` runs one, which all its nodes must attest."
    )


def test_a_claim_of_a_revoked_recipe_gives_the_operators_reason(lab):
    lab.certify(*HALVES)
    then = lab.revoke()
    assert why(lab) == (
        f"revoked at sequence {then.record.sequence}: an operator revoked the recipe: a test. "
        "An operator must reinstate it, and a forward certify it anew."
    )


def test_a_claim_that_is_not_live_names_boot_and_shard(lab):
    lab.certify(*HALVES)
    assert why(lab, liveness=Presence(set())) == (
        f"not-live: no presence within 15 s named boot {boot_of('n1', 'b1')} and shard main. "
        "n1 of Ada must run and be connected."
    )


def test_there_is_one_sentence_for_each_reason_and_in_their_order(lab):
    register(lab, "n1[0,14)", capability={"synthetic": True})
    lab.register("n1/other@elsewhere[0,14)")
    lab.suspend("n1")
    lab.revoke()
    claim, silent = lab.claim("n1"), Presence(set())
    reasons = judge(lab.state, claim, silent).reasons
    assert reasons == ("conflict", "suspended", "synthetic", "revoked", "not-live")
    sentences = why_claim(lab.state, claim, silent)
    assert len(sentences) == len(reasons)
    assert all(map(str.startswith, sentences, reasons))


# -- differences -----------------------------------------------------------------------------------


def test_claims_of_one_recipe_do_not_differ(lab):
    register(lab, *HALVES)
    assert why_different(lab.state, lab.claim("n1"), lab.claim("n2")) == ()


def test_claims_of_two_recipes_differ_in_the_axes_that_do_and_no_others(lab):
    register(lab, "n1[0,14)")
    register(lab, "n2[14,28)", axes={"kv_layout": "padded-584", "compute_dtype": "float16"})
    found = why_different(lab.state, lab.claim("n1"), lab.claim("n2"))
    assert [(one.reason, one.detail) for one in found] == [
        ("activation-recipe", "compute_dtype is 'float16', expected 'float32'"),
        ("cache-layout", "kv_layout is 'padded-584', expected 'paged-16/HND'"),
    ]


def test_a_refused_claim_can_be_compared_once_someone_was_admitted_for_its_recipe(lab):
    other = {"axes": {"kv_dtype": "f16"}}
    register(lab, "n1[0,14)")
    assert lab.register("n2[14,28)", capability={"status": "failed"}, **other).kind == "rejected"
    (unknown,) = why_different(lab.state, lab.claim("n1"), lab.claim("n2"))
    assert unknown.reason == "unknown-recipe"
    assert unknown.detail.startswith("n2 of Ada/main offers ")
    register(lab, "n3[14,28)", **other)
    (found,) = why_different(lab.state, lab.claim("n1"), lab.claim("n2"))
    assert found.reason == "cache-layout"


def test_a_claim_without_a_sound_identity_cannot_be_compared_and_its_fault_is_told(lab):
    register(lab, "n1[0,14)")
    shard = Shard.read("n2[14,28)")
    block = identity_block(shard.start, shard.end, axes={"tokenizer_revision": "main"})
    assert lab.register("n2[14,28)", block=block).outcome == "bad-identity"
    (found,) = why_different(lab.state, lab.claim("n1"), lab.claim("n2"))
    assert found.reason == "bad-identity"
    assert "recipe.tokenizer_revision" in found.detail
    both = why_different(lab.state, lab.claim("n2"), lab.claim("n2"))
    assert [one.reason for one in both] == ["bad-identity", "bad-identity"]


def test_a_revocation_without_a_reason_says_so():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.publish("operator", facts.RecipeRevoked(reason="", recipe_key=R.key))
    assert "no reason was given" in why_recipe(lab.state, R.key)
