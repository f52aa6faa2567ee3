"""`handshake.completed`: one side's newest word on a neighbour."""

import pytest

from kit import R, Scenario, fingerprint_of, identity_block
from meshnet_events import facts
from meshnet_events.envelope import ChainHead


@pytest.fixture
def lab():
    lab = Scenario()
    lab.register("n1[0,14)", boot="b1")
    lab.register("n2[14,28)", boot="b1")
    return lab


def pair(lab, node, peer, recipe=R.key):
    return lab.state.handshakes[lab.public(node), lab.public(peer), recipe]


def test_a_result_is_kept_with_its_session_and_both_boots(lab):
    then = lab.handshake("n1", "n2", session="s-7", epoch=3, role="responder")
    assert (then.outcome, then.moves) == ("applied", [])
    row = pair(lab, "n1", "n2")
    assert (row.accepted, row.role, row.route_session_id, row.route_epoch) == (
        True,
        "responder",
        "s-7",
        3,
    )
    assert (row.sequence, row.time_ms) == (then.record.sequence, then.record.time_ms)
    assert row.presented is None


def test_a_refusal_makes_the_pair_unusable_and_keeps_what_was_presented(lab):
    lab.handshake("n1", "n2", accepted=False)
    row = pair(lab, "n1", "n2")
    assert row.mismatches[0].reason == "artifact"
    assert row.presented.runtime_recipe_digest == R.recipe
    assert lab.state.refused_pairs[R.key] == {(lab.public("n1"), lab.public("n2"))}


def test_each_side_speaks_for_itself(lab):
    lab.handshake("n1", "n2", accepted=False)
    lab.handshake("n2", "n1", accepted=True)
    assert not pair(lab, "n1", "n2").accepted
    assert pair(lab, "n2", "n1").accepted
    assert lab.state.refused_pairs[R.key] == {(lab.public("n1"), lab.public("n2"))}


def test_only_the_newest_result_of_a_side_counts(lab):
    for accepted in (True, False, True):
        then = lab.handshake("n1", "n2", accepted=accepted)
    assert len(lab.state.handshakes) == 1
    assert pair(lab, "n1", "n2").sequence == then.record.sequence
    assert R.key not in lab.state.refused_pairs


def test_newest_is_by_sequence_not_by_the_brokers_clock(lab):
    lab.handshake("n1", "n2", accepted=True)
    lab.wait(-3_600_000)
    lab.handshake("n1", "n2", accepted=False)
    assert not pair(lab, "n1", "n2").accepted


def test_results_are_kept_apart_by_local_fingerprint(lab):
    other = fingerprint_of(identity_block(axes={"runtime_version": "next"}))
    lab.handshake("n1", "n2", accepted=False)
    lab.handshake("n1", "n2", accepted=True, local=other)
    assert not pair(lab, "n1", "n2").accepted
    assert pair(lab, "n1", "n2", other.key).accepted
    assert not lab.state.refused_pairs.get(other.key)


def test_the_role_does_not_keep_results_apart(lab):
    lab.handshake("n1", "n2", accepted=False, role="initiator")
    lab.handshake("n1", "n2", accepted=True, role="responder")
    assert R.key not in lab.state.refused_pairs


# -- unknown-peer, then stale-boot -----------------------------------------------------------------


def test_a_peer_that_nobody_knows_is_unknown_peer_even_from_a_stale_boot(lab):
    with lab.unchanged():
        assert lab.handshake("n1", "n9").outcome == "unknown-peer"
        assert lab.handshake("n1", "n9", boot="b9").outcome == "unknown-peer"


def test_a_record_that_did_not_continue_its_chain_makes_no_peer_known(lab):
    forked = lab.sign("n9", lab.registration("n9[0,14)"), after=ChainHead(4, R.key))
    assert lab.deliver(forked.body, "n9").outcome == "broken-chain"
    assert lab.handshake("n1", "n9").outcome == "unknown-peer"


@pytest.mark.parametrize("how", ["enrolled", "refused"])
def test_a_known_peer_that_never_registered_has_no_boot_to_be_current(lab, how):
    if how == "enrolled":
        lab.enrol("n9")
    else:
        lab.publish("n9", lab.registration("n9[0,14)"))
    with lab.unchanged():
        assert lab.handshake("n1", "n9").outcome == "stale-boot"


@pytest.mark.parametrize("boots", [{"boot": "b9"}, {"peer_boot": "b9"}])
def test_a_boot_that_is_not_current_is_stale(lab, boots):
    with lab.unchanged():
        assert lab.handshake("n1", "n2", **boots).outcome == "stale-boot"


def test_a_boot_that_was_superseded_is_stale_on_either_side(lab):
    lab.register("n1[0,14)", boot="b2")
    with lab.unchanged():
        assert lab.handshake("n1", "n2", boot="b1").outcome == "stale-boot"
        assert lab.handshake("n2", "n1", peer_boot="b1").outcome == "stale-boot"
    assert lab.handshake("n1", "n2").outcome == "applied"


def test_a_node_that_never_registered_has_no_current_boot_itself(lab):
    lab.enrol("n9")
    assert lab.handshake("n9", "n1").outcome == "stale-boot"


def test_neither_has_one_that_an_open_realm_knows_by_its_handshakes_alone(lab):
    lab.policy(enrolment="open")
    with lab.unchanged():
        assert lab.handshake("n9", "n1").outcome == "stale-boot"
        assert lab.handshake("n1", "n9").outcome == "stale-boot"


def test_a_refused_registration_makes_its_boot_current_all_the_same(lab):
    lab.register("n3[0,99)", boot="b1")
    assert lab.handshake("n3", "n1").outcome == "applied"


def test_a_suspended_peer_may_be_reported_on_until_it_is_reinstated(lab):
    lab.suspend("n2")
    assert lab.handshake("n1", "n2", accepted=False).outcome == "applied"
    lab.reinstate("n2")
    assert lab.handshake("n1", "n2", accepted=False).outcome == "stale-boot"
    assert lab.state.handshakes == {}


def test_a_restart_wipes_refusals_of_either_side(lab):
    lab.handshake("n1", "n2", accepted=False)
    lab.handshake("n2", "n1", accepted=False)
    lab.register("n2[14,28)", boot="b2")
    assert lab.state.handshakes == {}
    assert R.key not in lab.state.refused_pairs


def test_a_row_keeps_sixteen_mismatches_however_many_were_sent(lab):
    many = tuple(
        facts.Mismatch(detail="x" * 1_024, reason=f"r{n}", shard_index=n) for n in range(40)
    )
    lab.handshake("n1", "n2", accepted=False, mismatches=many)
    (row,) = lab.state.handshakes.values()
    assert [one.reason for one in row.mismatches] == [f"r{n}" for n in range(16)]
    assert {len(one.detail) for one in row.mismatches} == {256}
