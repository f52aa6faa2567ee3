"""Every row of the eligibility table, alone and together with the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_tracker.registry.eligibility import judge, usable_claims
from meshnet_tracker.registry.rows import Node
from rows_kit import KEY, Presence, claim, identity, policy, registry

SILENT = Presence(live=set())
REASONS = (
    "refused",
    "withdrawn",
    "superseded",
    "conflict",
    "suspended",
    "not-enrolled",
    "synthetic",
    "dark",
    "revoked",
    "not-live",
)


def verdict(one, liveness=None, *, node=None, **asked):
    """The verdict on a claim of n1 in a registry that has nothing else."""
    nodes = [Node("n1", enrolled=True, group="g") if node is None else node]
    return judge(registry(one, nodes=nodes, **asked), one, liveness)


def test_a_live_claim_of_a_certified_recipe_may_serve_and_certify():
    found = verdict(claim("n1[0,28)"))
    assert (found.to_serve, found.to_certify, found.reasons) == (True, True, ())


@pytest.mark.parametrize("status", ["refused", "withdrawn", "superseded", "suspended"])
def test_a_claim_that_is_not_live_is_barred_by_the_word_for_it(status):
    found = verdict(claim("n1[0,28)", status=status))
    assert (found.to_serve, found.to_certify, found.reasons) == (False, False, (status,))


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (Node("n1", enrolled=True, conflict=True), "conflict"),
        (Node("n1", enrolled=True, suspended=True), "suspended"),
        (Node("n1", enrolled=False), "not-enrolled"),
    ],
)
def test_what_bars_a_node_bars_its_claims(node, reason):
    found = verdict(claim("n1[0,28)"), node=node)
    assert (found.to_serve, found.to_certify, found.reasons) == (False, False, (reason,))


def test_a_synthetic_claim_neither_serves_nor_certifies():
    found = verdict(claim("n1[0,28)", synthetic=True))
    assert (found.to_serve, found.to_certify, found.reasons) == (False, False, ("synthetic",))


def test_a_claim_of_a_dark_recipe_may_certify_it_and_not_serve():
    found = verdict(claim("n1[0,28)"), status="dark")
    assert (found.to_serve, found.to_certify, found.reasons) == (False, True, ("dark",))


def test_a_claim_of_a_revoked_recipe_neither_serves_nor_certifies():
    found = verdict(claim("n1[0,28)"), status="revoked")
    assert (found.to_serve, found.to_certify, found.reasons) == (False, False, ("revoked",))


def test_a_claim_that_no_presence_names_is_not_live_where_the_overlay_is_asked():
    one = claim("n1[0,28)")
    found = verdict(one, SILENT)
    assert (found.to_serve, found.to_certify, found.reasons) == (False, False, ("not-live",))
    assert verdict(one, Presence(live={("n1", "main")})).reasons == ()
    assert verdict(one).reasons == ()


def test_a_node_that_is_not_enrolled_is_barred_only_while_the_policy_requires_enrolment():
    one = claim("n1[0,28)")
    state = registry(one, nodes=[Node("n1")], enrolment="open")
    assert judge(state, one).to_serve
    assert usable_claims(state, KEY) == [one]
    state.put_policy(state.expect_realm(), policy(enrolment="required"))
    assert judge(state, one).reasons == ("not-enrolled",)
    assert usable_claims(state, KEY) == []


def test_all_reasons_come_at_once_and_in_the_order_of_the_table():
    one = claim("n1[0,28)", status="withdrawn", synthetic=True)
    node = Node("n1", conflict=True, suspended=True)
    assert verdict(one, SILENT, node=node, status="dark").reasons == (
        "withdrawn",
        "conflict",
        "suspended",
        "not-enrolled",
        "synthetic",
        "dark",
        "not-live",
    )
    assert verdict(one, SILENT, node=node, status="revoked").reasons[-2:] == ("revoked", "not-live")


def test_a_dark_recipe_excuses_no_other_reason_not_to_certify():
    found = verdict(claim("n1[0,28)"), SILENT, status="dark")
    assert (found.to_certify, found.reasons) == (False, ("dark", "not-live"))


def test_a_suspended_claim_of_a_suspended_node_says_so_once():
    one = claim("n1[0,28)", status="suspended")
    node = Node("n1", enrolled=True, suspended=True)
    assert verdict(one, node=node).reasons == ("suspended",)


def test_a_refused_claim_whose_identity_has_a_fault_offers_no_recipe_to_be_dark():
    one = claim("n1[0,28)", status="refused", refusal="bad-identity")
    one.identity = None
    assert verdict(one, status="dark").reasons == ("refused",)


def test_a_refused_claim_of_a_recipe_that_nobody_was_admitted_for_is_refused_alone():
    one = claim("n1[0,28)", status="refused", refusal="capability:stale", recipe="f" * 64)
    assert verdict(one, status="dark").reasons == ("refused",)
    assert one.identity == identity(0, 28, recipe="f" * 64)


@given(
    status=st.sampled_from(["live", "refused", "withdrawn", "superseded", "suspended"]),
    synthetic=st.booleans(),
    enrolled=st.booleans(),
    conflict=st.booleans(),
    suspended=st.booleans(),
    enrolment=st.sampled_from(["required", "open"]),
    recipe=st.sampled_from(["dark", "certified", "revoked"]),
    is_live=st.sampled_from([None, True, False]),
)
def test_any_mixture_gives_just_the_reasons_that_hold(
    status, synthetic, enrolled, conflict, suspended, enrolment, recipe, is_live
):
    one = claim("n1[0,28)", status=status, synthetic=synthetic)
    node = Node("n1", enrolled=enrolled, conflict=conflict, suspended=suspended)
    state = registry(one, nodes=[node], status=recipe, enrolment=enrolment)
    liveness = None if is_live is None else Presence(live={("n1", "main")} if is_live else set())
    holds = {
        "refused": status == "refused",
        "withdrawn": status == "withdrawn",
        "superseded": status == "superseded",
        "conflict": conflict,
        "suspended": suspended or status == "suspended",
        "not-enrolled": enrolment == "required" and not enrolled,
        "synthetic": synthetic,
        "dark": recipe == "dark",
        "revoked": recipe == "revoked",
        "not-live": is_live is False,
    }
    found = judge(state, one, liveness)
    assert found.reasons == tuple(reason for reason in REASONS if holds[reason])
    assert found.to_serve is (not found.reasons)
    assert found.to_certify is (set(found.reasons) <= {"dark"})
    # what routes ask is the same question, leaving the recipe's status to them
    usable = set(found.reasons) <= {"dark", "revoked"}
    assert usable_claims(state, KEY, liveness) == ([one] if usable else [])


def test_a_recipe_that_nobody_offers_has_no_usable_claims():
    assert usable_claims(registry(), KEY) == []
    assert usable_claims(registry(), "0" * 64) == []
