"""Who may state which fact, and what the chain does when somebody may not."""

import pytest

from kit import R, Scenario, digest
from meshnet_events import facts
from meshnet_events.envelope import ChainHead
from meshnet_events.facts import NODE_FACTS, OPERATOR_FACTS

STRANGERS_WORD = {
    "realm.created": lambda lab: lab.creation(),
    "realm.continued": lambda lab: facts.RealmContinued(
        last_sequence=lab.state.sequence, log_root=digest("root"), realm="lab", stream_created="now"
    ),
    "operators.changed": lambda lab: facts.OperatorsChanged(
        operators=(lab.public("stranger"),), reason="mine now"
    ),
    "policy.changed": lambda lab: facts.PolicyChanged(policy=facts.DEFAULT_POLICY, reason="mine"),
    "node.enrolled": lambda lab: facts.NodeEnrolled(
        chain_from=None, group="", label="", node=lab.public("stranger")
    ),
    "node.suspended": lambda lab: facts.NodeSuspended(node=lab.public("n1"), reason="mine"),
    "node.reinstated": lambda lab: facts.NodeReinstated(node=lab.public("n1"), reason="mine"),
    "recipe.revoked": lambda lab: facts.RecipeRevoked(recipe_key=R.key, reason="mine"),
    "recipe.reinstated": lambda lab: facts.RecipeReinstated(recipe_key=R.key, reason="mine"),
}
NODES_WORD = {
    "shard.registered": lambda lab: lab.registration("n9[0,14)"),
    "shard.withdrawn": lambda lab: facts.ShardWithdrawn(
        boot_id=lab.registration("n9[0,14)").boot_id, reason="over", shard_id="main"
    ),
    "handshake.completed": lambda lab: facts.HandshakeCompleted(
        accepted=True,
        boot_id=lab.registration("n9[0,14)").boot_id,
        local=facts.Fingerprint(
            catalogue_version="1",
            model_artifact_digest=R.artifact,
            recipe_id="dense",
            recipe_version="1",
            runtime_recipe_digest=R.recipe,
        ),
        mismatches=(),
        peer=lab.public("n1"),
        peer_boot_id=lab.registration("n1[0,14)").boot_id,
        presented=facts.PresentedFingerprint(
            catalogue_version="1",
            model_artifact_digest=R.artifact,
            recipe_id="dense",
            recipe_version="1",
            runtime_recipe_digest=R.recipe,
        ),
        role="initiator",
        route_epoch=0,
        route_session_id="s",
    ),
    "forward.attested": lambda lab: facts.ForwardAttested(
        evidence=lab.evidence("n9[0,14)", "n1[14,28)"),
        hop=0,
        in_digest=digest("in"),
        out_digest=digest("out"),
    ),
}


def test_the_tables_of_this_module_name_every_fact():
    assert set(STRANGERS_WORD) == {fact.NAME for fact in OPERATOR_FACTS}
    assert set(NODES_WORD) == {fact.NAME for fact in NODE_FACTS}


@pytest.mark.parametrize("name", STRANGERS_WORD)
@pytest.mark.parametrize("who", ["stranger", "n1"])
def test_an_operator_fact_from_another_key_is_not_operator(name, who):
    lab = Scenario()
    lab.register("n1[0,14)")
    with lab.unchanged():
        assert lab.publish(who, STRANGERS_WORD[name](lab)).outcome == "not-operator"


@pytest.mark.parametrize("name", NODES_WORD)
def test_a_node_fact_of_a_node_that_is_not_enrolled_is_not_enrolled(name):
    lab = Scenario()
    lab.register("n1[14,28)")
    with lab.unchanged():
        assert lab.publish("n9", NODES_WORD[name](lab)).outcome == "not-enrolled"


@pytest.mark.parametrize("name", NODES_WORD)
def test_a_node_fact_of_a_suspended_node_is_suspended(name):
    lab = Scenario()
    lab.register("n1[14,28)")
    lab.enrol("n9")
    lab.suspend("n9")
    with lab.unchanged():
        assert lab.publish("n9", NODES_WORD[name](lab)).outcome == "suspended"


def test_an_operator_is_no_node_by_that():
    lab = Scenario()
    assert lab.publish("operator", lab.registration("operator[0,14)")).outcome == "not-enrolled"


def test_an_operator_whose_key_is_suspended_as_a_node_still_states_operator_facts():
    lab = Scenario()
    assert lab.suspend("operator").outcome == "applied", "it issued a record: it is known"
    assert lab.enrol("n1").outcome == "applied"
    assert lab.reinstate("operator").outcome == "applied"


def test_under_open_enrolment_any_key_may_speak():
    lab = Scenario(enrols=False)
    lab.policy(enrolment="open")
    then = lab.register("n1[0,14)")
    assert then.outcome == "applied"
    assert lab.node("n1").status == "not-enrolled"
    assert lab.claim("n1").status == "live"


def test_under_open_enrolment_a_suspended_key_may_not():
    lab = Scenario(enrols=False)
    lab.policy(enrolment="open")
    lab.register("n1[0,14)")
    lab.suspend("n1")
    assert lab.register("n1[0,14)").outcome == "suspended"


def test_what_an_open_realm_let_in_is_not_enrolled_once_enrolment_is_required():
    lab = Scenario(enrols=False)
    lab.policy(enrolment="open")
    lab.register("n1[0,14)")
    lab.policy(enrolment="required")
    assert lab.claim("n1").status == "live", "nobody took it back"
    assert lab.register("n1[0,14)").outcome == "not-enrolled"


def test_not_enrolled_comes_before_suspended():
    lab = Scenario(enrols=False)
    lab.policy(enrolment="open")
    lab.register("n1[0,14)")
    lab.suspend("n1")
    lab.policy(enrolment="required")
    assert lab.register("n1[0,14)").outcome == "not-enrolled"


def test_bad_shape_comes_before_who_may_speak():
    lab = Scenario()
    fact = lab.registration("stranger[0,14)")
    signed = lab.sign("stranger", _with_a_member_too_many(fact))
    assert lab.deliver(signed.body, "stranger").outcome == "bad-shape"


def test_a_new_operator_may_speak_from_the_next_record_on_and_an_old_one_no_more():
    lab = Scenario()
    assert lab.enrol("n1", by="second").outcome == "not-operator"
    assert lab.operators("second").outcome == "applied"
    assert lab.enrol("n1", by="second").outcome == "applied"
    assert lab.enrol("n2").outcome == "not-operator"


# -- the chain advances from step 7 on, whatever is decided after ----------------------------------


def test_a_refused_fact_does_not_lock_its_issuer_out():
    lab = Scenario(enrols=False)
    refused = lab.register("n1[0,14)")
    assert refused.outcome == "not-enrolled"
    chain = lab.state.chain_of(lab.public("n1"))
    assert (chain.issuerseq, chain.sequence) == (1, refused.record.sequence)
    lab.enrol("n1")
    assert lab.register("n1[0,14)").outcome == "applied"
    assert lab.state.chain_of(lab.public("n1")).issuerseq == 2


def test_a_fact_of_bad_shape_or_unknown_type_takes_its_place_in_the_chain():
    lab = Scenario()
    lab.enrol("n1")
    signed = lab.sign("n1", _with_a_member_too_many(lab.registration("n1[0,14)")))
    assert lab.deliver(signed.body, "n1").outcome == "bad-shape"
    lab.heads["n1"] = signed.head
    assert lab.register("n1[0,14)").outcome == "applied"


def test_the_same_bytes_again_are_replayed_and_change_nothing():
    lab = Scenario()
    body = lab.register("n1[0,14)").record.body
    lab.withdraw("n1")
    head = lab.state.chain_of(lab.public("n1"))
    with lab.unchanged():
        assert lab.deliver(body, "n1").outcome == "replayed"
    assert lab.state.chain_of(lab.public("n1")) == head


def test_a_fork_of_the_chain_is_broken_chain_and_does_not_advance_it():
    lab = Scenario()
    lab.register("n1[0,14)")
    head = lab.state.chain_of(lab.public("n1"))
    fork = lab.sign("n1", lab.registration("n1[0,14)"), after=ChainHead(1, digest("another")))
    skip = lab.sign("n1", lab.registration("n1[0,14)"), after=ChainHead(2, head.digest))
    with lab.unchanged():
        assert lab.deliver(fork.body, "n1").outcome == "broken-chain"
        assert lab.deliver(skip.body, "n1").outcome == "broken-chain"
    assert lab.state.chain_of(lab.public("n1")) == head


def test_bytes_with_another_keys_signature_change_nothing_at_all():
    lab = Scenario()
    lab.register("n1[0,14)")
    good = lab.sign("n1", lab.registration("n1[0,14)"))
    forged = good.body[:-88] + lab.sign("n2", lab.registration("n2[0,14)")).body[-88:]
    head = lab.state.chain_of(lab.public("n1"))
    with lab.unchanged():
        assert lab.deliver(forged, "n1").outcome == "bad-signature"
    assert lab.state.chain_of(lab.public("n1")) == head


def _with_a_member_too_many(fact: facts.ShardRegistered) -> facts.Fact:
    """The same fact with one more member, as no version of it has."""

    class ShardRegisteredToo(facts.ShardRegistered, frozen=True, kw_only=True):
        zeal: int

    members = {name: getattr(fact, name) for name in fact.__struct_fields__}
    return ShardRegisteredToo(zeal=1, **members)
