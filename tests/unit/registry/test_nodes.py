"""Operator facts about nodes: enrolled, suspended, reinstated."""

import pytest

from kit import R, Scenario
from meshnet_events.envelope import ChainHead

# -- node.enrolled ---------------------------------------------------------------------------------


def test_node_enrolled_lets_the_node_speak_under_its_label_and_group():
    lab = Scenario()
    then = lab.enrol("n1", group="acme", label="rack 3")
    assert then.outcome == "applied"
    assert then.moves == ["node n1 not-enrolled->enrolled"]
    row = lab.node("n1")
    assert (row.status, row.group, row.label, row.chain_from) == (
        "enrolled",
        "acme",
        "rack 3",
        None,
    )


def test_the_same_enrolment_again_is_a_noop():
    lab = Scenario()
    lab.enrol("n1", group="acme", label="rack 3")
    with lab.unchanged():
        assert lab.enrol("n1", group="acme", label="rack 3").outcome == "noop"


@pytest.mark.parametrize("change", [{"group": "other"}, {"label": "rack 4"}])
def test_another_label_or_group_is_applied_and_ends_nothing(change):
    lab = Scenario()
    lab.enrol("n1", group="acme", label="rack 3")
    lab.register("n1[0,14)")
    then = lab.enrol("n1", **{"group": "acme", "label": "rack 3", **change})
    assert (then.outcome, then.moves) == ("applied", [])
    assert lab.claim("n1").status == "live"
    assert {"group": lab.node("n1").group, "label": lab.node("n1").label}.items() >= change.items()


def test_enrolling_a_node_that_an_open_realm_let_in_keeps_its_claims():
    lab = Scenario(enrols=False)
    lab.policy(enrolment="open")
    lab.register("n1[0,14)")
    assert lab.enrol("n1").moves == ["node n1 not-enrolled->enrolled"]
    assert lab.claim("n1").status == "live"


def test_a_first_enrolment_that_states_nothing_is_no_noop():
    lab = Scenario(enrols=False)
    lab.policy(enrolment="open")
    lab.register("n1[0,14)")
    assert lab.enrol("n1", group="", label="").outcome == "applied"
    assert lab.node("n1").status == "enrolled"


@pytest.mark.parametrize("chain_from", [1, 2])
def test_chain_from_not_above_the_last_is_bad_chain(chain_from):
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.register("n1[0,14)")
    with lab.unchanged():
        assert lab.enrol("n1", label="again", chain_from=chain_from).outcome == "bad-chain"
    assert lab.state.chain_of(lab.public("n1")).digest == lab.heads["n1"].digest


def test_chain_from_restarts_the_chain_with_the_enrolment_as_the_event_before():
    lab = Scenario()
    lab.register("n1[0,14)")
    lost = lab.heads["n1"]
    then = lab.enrol("n1", chain_from=10)
    enrolment = lab.heads["operator"].digest
    assert then.outcome == "applied"
    chain = lab.state.chain_of(lab.public("n1"))
    assert (chain.issuerseq, chain.digest) == (9, enrolment)
    assert chain.sequence == then.record.sequence, (
        "the record that holds its head is the operator's"
    )

    where_it_was = lab.sign("n1", lab.registration("n1[0,14)"), after=lost)
    assert lab.deliver(where_it_was.body, "n1").outcome == "replayed"
    other_prev = lab.sign("n1", lab.registration("n1[0,14)"), after=ChainHead(9, lost.digest))
    assert lab.deliver(other_prev.body, "n1").outcome == "broken-chain"
    too_high = lab.sign("n1", lab.registration("n1[0,14)"), after=ChainHead(10, enrolment))
    assert lab.deliver(too_high.body, "n1").outcome == "broken-chain"

    anew = lab.register("n1[0,14)")
    assert anew.outcome == "applied"
    chain = lab.state.chain_of(lab.public("n1"))
    assert (chain.issuerseq, chain.sequence) == (10, anew.record.sequence)


def test_chain_from_right_above_the_last_leaves_no_hole():
    lab = Scenario()
    lab.register("n1[0,14)")
    assert lab.enrol("n1", chain_from=2).outcome == "applied"
    assert lab.register("n1[0,14)").outcome == "applied"
    assert lab.state.chain_of(lab.public("n1")).issuerseq == 2


def test_chain_from_1_on_a_first_enrolment_ties_the_first_event_to_it():
    lab = Scenario()
    assert lab.enrol("n1", chain_from=1).outcome == "applied"
    unaware = lab.sign("n1", lab.registration("n1[0,14)"), after=ChainHead())
    assert lab.deliver(unaware.body, "n1").outcome == "broken-chain"
    assert lab.register("n1[0,14)").outcome == "applied"


def test_chain_from_ends_all_claims_and_voids_what_was_pending_but_no_boot():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.register("n1/b[0,7)")
    lab.register("n2[14,28)")
    forward = lab.evidence("n1[0,14)", "n2[14,28)", session="s")
    lab.attest("n2", forward)
    then = lab.enrol("n1", chain_from=10)
    assert then.moves == ["shard n1/b live->superseded", "shard n1/main live->superseded"]
    assert lab.void() == {"s": True}
    assert lab.register("n1[0,14)").outcome == "applied", "its boot goes on"
    assert lab.attest("n1", forward).outcome == "noop"


def test_the_same_enrolment_with_chain_from_again_is_a_noop_even_when_it_was_used():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.enrol("n1", chain_from=10)
    lab.register("n1[0,14)")
    with lab.unchanged():
        assert lab.enrol("n1", chain_from=10).outcome == "noop"
    assert lab.register("n1[0,14)").outcome == "applied"


def test_a_restart_that_was_not_used_yet_may_be_stated_again():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.enrol("n1", chain_from=10)
    assert lab.enrol("n1", label="again", chain_from=10).outcome == "applied"
    assert lab.register("n1[0,14)").outcome == "applied"


def test_a_restart_cannot_be_moved_back_below_one_that_was_not_used():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.enrol("n1", chain_from=10)
    assert lab.enrol("n1", label="again", chain_from=9).outcome == "bad-chain"


@pytest.mark.parametrize("chain_from", [None, 50])
def test_enrolling_lifts_neither_suspension_nor_conflict(chain_from):
    lab = Scenario()
    for node in ("n1", "n2"):
        lab.register(f"{node}@h1[0,14)", boot="b1")
    lab.register("n1@h2[0,14)", boot="b2")
    lab.suspend("n2")
    for node in ("n1", "n2"):
        assert lab.enrol(node, label="again", chain_from=chain_from).outcome == "applied"
    assert lab.node("n1").status == "conflict"
    assert lab.node("n2").status == "suspended"
    assert lab.register("n2@h1[0,14)").outcome == "suspended"


# -- node.suspended --------------------------------------------------------------------------------


def test_node_suspended_ends_all_claims_and_nothing_comes_back_by_itself():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.register("n1/b[14,28)")
    lab.register("n2[0,14)")
    then = lab.suspend("n1")
    assert then.outcome == "applied"
    assert then.moves == [
        "shard n1/b live->suspended",
        "shard n1/main live->suspended",
        "node n1 enrolled->suspended",
    ]
    assert lab.claims() == {"n1/main": "suspended", "n1/b": "suspended", "n2/main": "live"}
    assert lab.claim("n1").ended_sequence == then.record.sequence
    lab.reinstate("n1")
    assert "live" not in {lab.claim("n1").status, lab.claim("n1", "b").status}


def test_suspending_voids_pending_evidence_that_names_the_node():
    lab = Scenario()
    for shard in ("n1[0,14)", "n2[14,28)", "n3[14,28)"):
        lab.register(shard)
    lab.attest("n1", lab.evidence("n1[0,14)", "n2[14,28)", session="with n2"))
    lab.attest("n1", lab.evidence("n1[0,14)", "n3[14,28)", session="with n3"))
    lab.suspend("n2")
    assert lab.void() == {"with n2": True, "with n3": False}


def test_suspending_an_unknown_node_is_unknown_node():
    lab = Scenario()
    with lab.unchanged():
        assert lab.suspend("n1").outcome == "unknown-node"


def test_a_node_is_known_by_a_record_that_continued_its_chain_though_it_was_refused():
    lab = Scenario(enrols=False)
    assert lab.register("n1[0,14)").outcome == "not-enrolled"
    assert lab.suspend("n1").outcome == "applied"


def test_a_node_is_not_known_by_a_record_that_did_not_continue_its_chain():
    lab = Scenario()
    forked = lab.sign("n1", lab.registration("n1[0,14)"), after=ChainHead(4, R.key))
    assert lab.deliver(forked.body, "n1").outcome == "broken-chain"
    assert lab.suspend("n1").outcome == "unknown-node"


def test_suspending_again_is_a_noop():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.suspend("n1")
    with lab.unchanged():
        assert lab.suspend("n1").outcome == "noop"


def test_suspended_outranks_conflict_and_both_are_lifted_together():
    lab = Scenario()
    lab.register("n1@h1[0,14)", boot="b1")
    lab.register("n1@h2[0,14)", boot="b2")
    assert lab.suspend("n1").moves[-1] == "node n1 conflict->suspended"
    assert lab.reinstate("n1").moves[-1] == "node n1 suspended->enrolled"


# -- node.reinstated -------------------------------------------------------------------------------


def test_reinstating_an_unknown_node_is_unknown_node():
    lab = Scenario()
    with lab.unchanged():
        assert lab.reinstate("n1").outcome == "unknown-node"


def test_reinstating_a_node_that_is_neither_suspended_nor_in_conflict_is_a_noop():
    lab = Scenario()
    lab.register("n1[0,14)")
    with lab.unchanged():
        assert lab.reinstate("n1").outcome == "noop"
    assert lab.register("n1[0,14)").outcome == "applied", "its boot was not superseded"


def test_reinstating_a_known_key_without_a_row_is_a_noop():
    lab = Scenario(enrols=False)
    lab.register("n1[0,14)")
    with lab.unchanged():
        assert lab.reinstate("n1").outcome == "noop"


def test_after_a_suspension_every_boot_seen_is_superseded_and_the_process_must_restart():
    lab = Scenario()
    lab.register("n1[0,14)", boot="b1")
    lab.register("n1[0,14)", boot="b2")
    lab.suspend("n1")
    assert lab.reinstate("n1").outcome == "applied"
    assert lab.node("n1").status == "enrolled"
    assert lab.claim("n1").status == "superseded", "it is not its node's suspension any more"
    assert lab.register("n1[0,14)", boot="b1").outcome == "stale-boot"
    assert lab.register("n1[0,14)", boot="b2").outcome == "stale-boot"
    assert lab.register("n1[0,14)", boot="b3").outcome == "applied"


def test_a_boot_that_only_spoke_while_suspended_was_never_seen():
    lab = Scenario()
    lab.register("n1[0,14)", boot="b1")
    lab.suspend("n1")
    assert lab.register("n1[0,14)", boot="b2").outcome == "suspended"
    lab.reinstate("n1")
    assert lab.register("n1[0,14)", boot="b2").outcome == "applied"


def test_after_a_conflict_all_claims_end_and_whoever_registers_first_holds_the_host():
    lab = Scenario()
    lab.register("n1@h1[0,14)", boot="b1")
    lab.register("n1@h2[0,14)", boot="b2")
    lab.register("n1/b@h2[14,28)")
    then = lab.reinstate("n1")
    assert then.moves == [
        "shard n1/b live->superseded",
        "shard n1/main live->superseded",
        "node n1 conflict->enrolled",
    ]
    assert lab.register("n1@h1[0,14)", boot="b3").outcome == "applied"
    assert lab.node("n1").status == "enrolled"
    assert lab.register("n1@h2[0,14)", boot="b4").outcome == "applied"
    assert lab.node("n1").status == "conflict", "the copy is still there"


def test_what_named_the_superseded_boot_is_forgotten():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.register("n2[14,28)")
    lab.handshake("n1", "n2", accepted=False)
    lab.handshake("n2", "n1", accepted=False)
    forward = lab.evidence("n1[0,14)", "n2[14,28)", session="s")
    lab.attest("n1", forward)
    lab.attest("n2", lab.evidence("n1[0,14)", "n2[14,28)", session="t"))
    lab.suspend("n1")
    lab.reinstate("n1")
    assert lab.state.handshakes == {}
    assert lab.void() == {}
    assert lab.attest("n2", forward).outcome == "evidence:hop"


def test_reinstating_changes_no_claim_that_had_ended_otherwise():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.register("n1/b[0,14)")
    lab.register("n1/c[0,99)")
    lab.withdraw("n1", "b")
    lab.suspend("n1")
    lab.reinstate("n1")
    assert lab.claims() == {"n1/main": "superseded", "n1/b": "withdrawn", "n1/c": "refused"}


def test_reinstating_a_node_that_never_registered_just_lifts_it():
    lab = Scenario()
    lab.enrol("n1")
    lab.suspend("n1")
    assert lab.reinstate("n1").moves == ["node n1 suspended->enrolled"]
    assert lab.register("n1[0,14)").outcome == "applied"


def test_a_claim_that_ends_does_not_uncertify_its_recipe():
    lab = Scenario()
    lab.certify("n1[0,14)", "n2[14,28)")
    lab.suspend("n1")
    lab.suspend("n2")
    assert lab.recipe().status == "certified"
