"""Every record has exactly one outcome, and the accounts add up at any time and by code."""

from collections import Counter

import pytest

from kit import START_MS, R, Scenario, rows_of
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.outcome import FoldFault
from meshnet_tracker.registry.state import State


def an_eventful_day() -> tuple[Scenario, Counter[str]]:
    lab = Scenario()
    thens = [
        lab.enrol("n1"),
        lab.enrol("n1"),
        lab.register("n1@h1[0,14)"),
        lab.enrol("n2"),
        lab.register("n2@h2[14,28)"),
        lab.register("n1@h1[0,29)", layers=28),
        lab.register("n1@h1[0,14)"),
        lab.deliver(b"\xff", "n1"),
        lab.withdraw("n2", "other"),
        lab.revoke(by="n1"),
        lab.attest("n1", lab.evidence("n1[0,14)", "n2[14,28)", tokens_generated=0)),
        lab.revoke(),
        lab.revoke(),
    ]
    return lab, Counter(["applied", *(then.outcome for then in thens)])


def test_applied_noop_and_rejected_add_up_to_the_records_seen_by_code():
    lab, expected = an_eventful_day()
    assert lab.state.counts == expected
    assert lab.state.counts == {
        "applied": 7,
        "noop": 3,
        "bad-identity": 1,
        "not-json": 1,
        "not-operator": 1,
        "evidence:no-tokens": 1,
    }
    assert sum(lab.state.counts.values()) == lab.state.sequence == len(lab.records)


def test_the_accounts_add_up_after_every_single_record():
    lab, _ = an_eventful_day()
    state = State("lab")
    fold = Fold(state)
    for record in lab.records:
        fold.apply(record)
        assert sum(state.counts.values()) == state.sequence == record.sequence


def test_every_rejected_record_is_listed_with_its_code_and_issuer_and_no_other_is():
    lab, _ = an_eventful_day()
    listed = [
        (refusal.sequence, refusal.code, refusal.issuer, refusal.type)
        for refusal in lab.state.changes.refusals
    ]
    n1 = lab.public("n1")
    assert listed == [
        (7, "bad-identity", n1, "io.meshnet.shard.registered.v1"),
        (9, "not-json", n1, ""),
        (11, "not-operator", n1, "io.meshnet.recipe.revoked.v1"),
        (12, "evidence:no-tokens", n1, "io.meshnet.forward.attested.v1"),
    ]


def test_a_transition_names_the_record_that_caused_it():
    lab = Scenario()
    lab.enrol("n1")
    then = lab.register("n1[0,14)")
    assert then.moves == ["shard n1/main unknown->live", "recipe R unknown->dark"]
    assert {move.sequence for move in then.transitions} == {then.record.sequence}
    assert {move.time_ms for move in then.transitions} == {then.record.time_ms}
    assert {move.cause for move in then.transitions} == {"io.meshnet.shard.registered.v1"}


def test_a_gap_in_the_sequence_faults_and_folds_nothing():
    lab = Scenario()
    signed = lab.sign("operator", lab.creation())
    for wrong in (3, 1, 100):
        before = rows_of(lab.state)
        with pytest.raises(FoldFault, match="gap") as fault:
            lab.deliver(signed.body, "operator", sequence=wrong)
        assert fault.value.reason == "gap"
        assert rows_of(lab.state) == before
        assert lab.state.sequence == sum(lab.state.counts.values()) == 1


def test_a_history_that_starts_past_one_faults():
    lab = Scenario(created=False)
    with pytest.raises(FoldFault, match="expected 1"):
        lab.deliver(lab.sign("operator", lab.creation()).body, "operator", sequence=2)


def test_the_brokers_clock_may_step_back_and_is_data_never_an_order():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.wait(-3_600_000)
    then = lab.register("n2[14,28)")
    assert then.outcome == "applied"
    assert then.record.time_ms < START_MS
    assert lab.claim("n2").time_ms == then.record.time_ms == lab.state.time_ns // 1_000_000
    assert lab.claim("n1").status == "live"


def test_a_proof_is_judged_by_the_records_own_time_even_after_a_step_back():
    lab = Scenario()
    lab.enrol("n1")
    lab.wait(-120_000)
    proven = {"validated_at_ms": START_MS}
    assert lab.register("n1[0,14)", capability=proven).outcome == "capability:stale"


def test_the_time_of_a_record_is_cut_to_whole_milliseconds_for_every_rule():
    lab = Scenario()
    lab.enrol("n1")
    fact = lab.registration("n1[0,14)", capability={"validated_at_ms": lab.now_ms - 900_000})
    signed = lab.sign("n1", fact)
    record = lab.records[-1]
    late = type(record)(
        record.sequence + 1,
        lab.now_ms * 1_000_000 + 999_999,
        f"mesh.lab.evt.{lab.public('n1')}",
        signed.body,
    )
    assert lab.fold.apply(late).outcome.name == "applied"


def test_folding_the_same_records_again_gives_the_same_rows():
    lab, _ = an_eventful_day()
    again = lab.refold()
    assert rows_of(again) == rows_of(lab.state)
    assert again.chains == lab.state.chains
    assert again.counts == lab.state.counts
    assert again.recipes[R.key].status == "revoked"
