"""Facts about the realm itself: its creation, its operators, its policy, its later streams."""

import msgspec
import pytest

from kit import R, Scenario, digest, rows_of
from meshnet_events import facts
from meshnet_events.envelope import ChainHead
from meshnet_events.facts import DEFAULT_POLICY
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.outcome import FoldFault
from meshnet_tracker.registry.rows import Epoch, Realm
from meshnet_tracker.registry.state import State
from meshnet_tracker.snapshot import take_batch

TOO_LITTLE = {
    "max_clock_skew_ms": -1,
    "max_report_age_ms": -1,
    "min_certifying_nodes": 1,
    "min_distinct_groups": 0,
    "min_distinct_hosts": 0,
}


def policy(**changes):
    return msgspec.structs.replace(DEFAULT_POLICY, **changes)


# -- realm.created, at sequence 1 ------------------------------------------------------------------


def test_realm_created_at_sequence_1_makes_the_realm():
    lab = Scenario(policy=policy(min_certifying_nodes=3))
    realm = lab.state.realm
    assert realm.root == lab.public("operator")
    assert realm.operators == (lab.public("operator"),)
    assert realm.policy == lab.state.policy == policy(min_certifying_nodes=3)
    assert (realm.realm, realm.policy_sequence, realm.epochs) == ("lab", 1, ())
    assert lab.state.counts == {"applied": 1}
    chain = lab.state.chain_of(realm.root)
    assert (chain.issuerseq, chain.digest, chain.sequence) == (1, lab.heads["operator"].digest, 1)


def first(fact, **sign):
    """The body of a first record, the fact of which is made in a scenario without one."""

    def body(lab):
        made = fact(lab) if callable(fact) else fact
        return lab.sign("operator", made, **sign).body

    return body


FAULTS = {
    "the gate refuses it: not JSON": lambda _: b"\xff",
    "the gate refuses it: too large": lambda _: b"x" * 70_000,
    "the gate refuses it: another realm's": first(lambda lab: lab.creation(), realm="other"),
    "the gate refuses it: a forged signature": lambda lab: (
        first(lambda lab: lab.creation())(lab)[:-88] + lab.sign("n1", lab.creation()).body[-88:]
    ),
    "it is not its issuer's first": first(
        lambda lab: lab.creation(), after=ChainHead(1, digest("before"))
    ),
    "its prev is not 64 zeros": first(lambda lab: lab.creation(), after=ChainHead(0, digest("x"))),
    "it is another fact": first(
        lambda lab: facts.NodeEnrolled(chain_from=None, group="", label="", node=lab.public("n1"))
    ),
    "it continues another stream": first(
        facts.RealmContinued(
            last_sequence=0, log_root=digest("root"), realm="lab", stream_created="then"
        )
    ),
    "its issuer is not among the operators": first(
        lambda lab: lab.creation(operators=(lab.public("n1"),))
    ),
    "it names no operator": first(lambda lab: lab.creation(operators=())),
    "an operator is no key": first(
        lambda lab: lab.creation(operators=(lab.public("operator"), "U" * 56))
    ),
    "an operator is named twice": first(
        lambda lab: lab.creation(operators=(lab.public("operator"),) * 2)
    ),
    "it creates another realm": first(lambda lab: lab.creation(realm="other")),
    **{
        f"its policy asks too little: {member}": first(
            lambda lab, member=member, least=least: lab.creation(policy=policy(**{member: least}))
        )
        for member, least in TOO_LITTLE.items()
    },
}


@pytest.mark.parametrize("why", FAULTS)
def test_anything_but_a_valid_realm_created_at_sequence_1_faults(why):
    lab = Scenario(created=False)
    with pytest.raises(FoldFault) as fault:
        lab.deliver(FAULTS[why](lab), "operator")
    assert fault.value.reason == "bad-realm"
    assert rows_of(lab.state) == rows_of(State("lab"))
    assert (lab.state.sequence, lab.state.counts, lab.state.chains) == (0, {}, {})


def test_a_first_record_whose_data_has_a_bad_shape_faults():
    lab = Scenario(created=False)
    good = lab.sign("operator", lab.creation()).body
    event = msgspec.json.decode(good)["event"]

    class Half(facts.Fact, frozen=True, kw_only=True):
        NAME = "realm.created"
        realm: str

    body = lab.sign("operator", Half(realm="lab")).body
    assert msgspec.json.decode(body)["event"]["type"] == event["type"]
    with pytest.raises(FoldFault, match="bad-realm"):
        lab.deliver(body, "operator")


def test_whoever_was_told_an_operator_key_refuses_a_realm_created_by_another():
    lab = Scenario()
    told = Fold(State("lab"), operator=lab.public("somebody else"))
    with pytest.raises(FoldFault) as fault:
        told.apply(lab.records[0])
    assert fault.value.reason == "wrong-root"
    assert told.state.realm is None

    same = Fold(State("lab"), operator=lab.public("operator"))
    assert same.apply(lab.records[0]).outcome.name == "applied"


def test_the_root_of_trust_is_the_creator_not_just_any_operator_it_named():
    lab = Scenario(created=False)
    both = (lab.public("operator"), lab.public("second"))
    told = Fold(lab.state, operator=lab.public("second"))
    lab.fold = told
    with pytest.raises(FoldFault, match="wrong-root"):
        lab.publish("operator", lab.creation(operators=both))


def test_nothing_can_be_asked_of_a_realm_before_its_first_record():
    with pytest.raises(LookupError, match="lab"):
        State("lab").expect_realm()


# -- realm.created, later --------------------------------------------------------------------------


def test_realm_created_later_is_out_of_place():
    lab = Scenario()
    with lab.unchanged():
        assert lab.publish("operator", lab.creation()).outcome == "out-of-place"
        asking_more = lab.creation(policy=policy(min_certifying_nodes=3))
        assert lab.publish("operator", asking_more).outcome == "out-of-place"


# -- realm.continued -------------------------------------------------------------------------------


def continued(lab, **changes):
    members = {
        "last_sequence": lab.state.sequence,
        "log_root": digest("root"),
        "realm": "lab",
        "stream_created": "2026-11-30T13:30:00.123456789Z",
        **changes,
    }
    return facts.RealmContinued(**members)


def test_realm_continued_at_our_position_records_the_epoch():
    lab = Scenario()
    lab.enrol("n1")
    then = lab.publish("operator", continued(lab))
    assert then.outcome == "applied"
    assert lab.state.realm.epochs == (
        Epoch(
            last_sequence=2,
            log_root=digest("root"),
            stream_created="2026-11-30T13:30:00.123456789Z",
        ),
    )


def test_a_second_continuation_is_kept_beside_the_first():
    lab = Scenario()
    lab.publish("operator", continued(lab))
    lab.publish("operator", continued(lab, log_root=digest("later root")))
    assert [epoch.last_sequence for epoch in lab.state.realm.epochs] == [1, 2]


@pytest.mark.parametrize("off", [-1, 1, 1000])
def test_realm_continued_from_another_position_is_out_of_place(off):
    lab = Scenario()
    lab.enrol("n1")
    fact = continued(lab, last_sequence=lab.state.sequence + off)
    with lab.unchanged():
        assert lab.publish("operator", fact).outcome == "out-of-place"


def test_realm_continued_of_another_realm_is_out_of_place():
    lab = Scenario()
    with lab.unchanged():
        assert lab.publish("operator", continued(lab, realm="other")).outcome == "out-of-place"


def test_what_was_known_before_a_continuation_stays_known():
    lab = Scenario()
    lab.certify("n1[0,14)", "n2[14,28)")
    lab.publish("operator", continued(lab))
    assert lab.recipe().status == "certified"
    assert lab.register("n1[0,14)").outcome == "applied", "chains go on too"


# -- operators.changed -----------------------------------------------------------------------------


def test_operators_changed_is_in_force_for_later_records_only():
    lab = Scenario()
    then = lab.operators("second", "third")
    assert then.outcome == "applied", "its own issuer was still one"
    assert set(lab.state.realm.operators) == {lab.public("second"), lab.public("third")}
    assert lab.state.realm.root == lab.public("operator"), "the root stays the root"
    assert lab.operators("operator").outcome == "not-operator"


@pytest.mark.parametrize(
    "names",
    [(), ("",), ("operator",), ("U" * 56,)],
    ids=["empty", "no text", "a name", "a wrong checksum"],
)
def test_operators_that_are_none_are_bad_operators(names):
    lab = Scenario()
    fact = facts.OperatorsChanged(operators=names, reason="a test")
    with lab.unchanged():
        assert lab.publish("operator", fact).outcome == "bad-operators"


def test_an_operator_named_twice_is_bad_operators():
    lab = Scenario()
    with lab.unchanged():
        assert lab.operators("operator", "second", "second").outcome == "bad-operators"


def test_the_same_operators_in_any_order_are_a_noop():
    lab = Scenario()
    lab.operators("operator", "second")
    with lab.unchanged():
        assert lab.operators("second", "operator").outcome == "noop"
        assert lab.operators("operator", "second", by="second").outcome == "noop"


# -- policy.changed --------------------------------------------------------------------------------


def test_policy_changed_is_in_force_and_says_since_when():
    lab = Scenario()
    then = lab.policy(min_distinct_hosts=3)
    assert then.outcome == "applied"
    assert lab.state.policy == policy(min_distinct_hosts=3)
    assert lab.state.realm.policy_sequence == then.record.sequence


@pytest.mark.parametrize("member", TOO_LITTLE)
def test_a_policy_that_asks_too_little_is_bad_policy(member):
    lab = Scenario()
    with lab.unchanged():
        assert lab.policy(**{member: TOO_LITTLE[member]}).outcome == "bad-policy"
        assert lab.policy(**{member: -(2**53 - 1)}).outcome == "bad-policy"


@pytest.mark.parametrize(
    ("member", "least"),
    [
        ("max_clock_skew_ms", 0),
        ("max_report_age_ms", 0),
        ("min_certifying_nodes", 3),
        ("min_distinct_groups", 2),
        ("min_distinct_hosts", 1),
    ],
)
def test_a_policy_may_ask_for_the_least(member, least):
    lab = Scenario()
    assert lab.policy(**{member: least}).outcome == "applied"


def test_an_equal_policy_is_a_noop():
    lab = Scenario()
    with lab.unchanged():
        assert lab.policy().outcome == "noop"


def test_the_realms_row_goes_with_every_batch_as_it_is_then():
    lab = Scenario()
    for step in (
        lambda: lab.publish("operator", continued(lab)),
        lambda: lab.operators("operator", "second"),
        lambda: lab.policy(certify="seams"),
        lambda: lab.enrol("n1"),
    ):
        step()
        row = msgspec.json.decode(take_batch(lab.state).realm, type=Realm)
        assert row == lab.state.realm


def test_a_policy_judges_no_earlier_record_again():
    lab = Scenario()
    lab.certify("n1@h1[0,14)", "n2@h2[14,28)")
    lab.policy(min_certifying_nodes=3, min_distinct_hosts=3, max_report_age_ms=0)
    assert lab.recipe().status == "certified"
    assert lab.claim("n1").status == "live"
    assert lab.register("n3[0,14)").outcome == "capability:stale"


def test_a_policy_judges_evidence_that_is_complete_only_after_it():
    lab = Scenario()
    for shard in ("n1@h1[0,14)", "n2@h1[14,28)"):
        lab.register(shard)
    forward = lab.evidence("n1[0,14)", "n2[14,28)")
    lab.attest("n1", forward)
    lab.policy(min_distinct_hosts=1)
    assert lab.attest("n2", forward).outcome == "applied"
    assert lab.recipe(R.key).status == "certified"
