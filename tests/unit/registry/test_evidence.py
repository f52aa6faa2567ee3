"""`forward.attested`: what makes evidence count, in the order in which it is checked."""

import msgspec
import pytest

from kit import R, Scenario, boot_of, digest, fingerprint_of, identity_block

HOPS = ("n1[0,14)", "n2[14,28)")
OTHER_AXES = {"runtime_version": "next"}


@pytest.fixture
def lab():
    lab = Scenario()
    lab.register("n1@h1[0,14)", boot="b1")
    lab.register("n2@h2[14,28)", boot="b1")
    return lab


def attest_all(lab, evidence, *nodes):
    return [lab.attest(node, evidence).outcome for node in nodes]


# -- certifying ------------------------------------------------------------------------------------


def test_the_last_participants_word_certifies_a_dark_recipe(lab):
    forward = lab.evidence(*HOPS, session="s-7", route_epoch=3)
    first = lab.attest("n1", forward)
    assert (first.outcome, first.moves) == ("applied", [])
    assert lab.recipe().status == "dark"
    assert lab.void() == {"s-7": False}

    then = lab.attest("n2", forward)
    assert (then.outcome, then.moves) == ("applied", ["recipe R dark->certified"])
    recipe = lab.recipe()
    assert recipe.proven_seams == (14,)
    certification = recipe.certification
    assert (certification.route_session_id, certification.route_epoch) == ("s-7", 3)
    assert certification.nodes == (lab.public("n1"), lab.public("n2"))
    assert (certification.sequence, certification.time_ms) == (
        then.record.sequence,
        then.record.time_ms,
    )
    assert lab.void() == {}, "it is certified: nothing is pending"


def test_the_order_in_which_participants_attest_does_not_matter(lab):
    forward = lab.evidence(*HOPS)
    assert attest_all(lab, forward, "n2", "n1") == ["applied", "applied"]
    assert lab.recipe().status == "certified"


def test_the_evidence_digest_is_the_documented_one(lab):
    import hashlib
    import json

    forward = lab.evidence(*HOPS)
    lab.attest_all(forward)
    body = msgspec.to_builtins(forward)
    text = json.dumps(
        {"domain": "meshnet.forward-evidence.v1", "body": body},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    found = lab.recipe().certification.evidence_digest
    assert found == hashlib.sha256(text.encode()).hexdigest()


def test_every_seam_of_a_longer_route_is_proven(lab):
    for shard in ("n3[0,9)", "n4[5,20)", "n5[20,28)"):
        lab.register(shard)
    lab.attest_all(lab.evidence("n3[0,9)", "n4[9,20)", "n5[20,28)"))
    assert lab.recipe().proven_seams == (9, 20)


def test_a_hop_may_compute_part_of_what_its_claim_holds(lab):
    lab.register("n3[0,28)")
    assert lab.attest_all(lab.evidence("n3[0,14)", "n2[14,28)")).outcome == "applied"
    assert lab.recipe().status == "certified"


def test_a_certified_recipe_only_gains_seams_and_the_first_certification_stands(lab):
    lab.attest_all(lab.evidence(*HOPS))
    first = lab.recipe().certification
    lab.register("n3[0,20)")
    lab.register("n4[20,28)")
    lab.state.take_changes()
    then = lab.attest_all(lab.evidence("n3[0,20)", "n4[20,28)"))
    assert (then.outcome, then.moves) == ("applied", [])
    assert lab.state.take_changes().recipes == {R.key}, "its row changed all the same"
    assert lab.recipe().certification == first
    assert lab.recipe().proven_seams == (14, 20)


def test_partial_evidence_proves_no_seam(lab):
    lab.attest("n1", lab.evidence(*HOPS))
    assert lab.recipe().proven_seams == ()


def test_certified_evidence_attested_again_is_a_noop(lab):
    forward = lab.evidence(*HOPS)
    lab.attest_all(forward)
    with lab.unchanged():
        assert attest_all(lab, forward, "n1", "n2") == ["noop", "noop"]


def test_attesting_pending_evidence_twice_counts_once(lab):
    forward = lab.evidence(*HOPS)
    lab.attest("n1", forward)
    with lab.unchanged():
        assert lab.attest("n1", forward).outcome == "noop"
    assert lab.recipe().status == "dark"


def test_the_bytes_must_agree_word_by_word(lab):
    mine, theirs = (lab.evidence(*HOPS, session="s", tokens_generated=n) for n in (16, 17))
    assert lab.attest("n1", mine).outcome == "applied"
    assert lab.attest("n2", theirs).outcome == "applied"
    assert lab.recipe().status == "dark"


# -- rows 1 to 5, on the evidence alone ------------------------------------------------------------

SPOILT = {
    "evidence:synthetic": {"synthetic": True},
    "evidence:too-few-nodes": {"hops": ("n1[0,14)", "n1/b[14,28)")},
    "evidence:duplicate-node": {"hops": ("n1[0,7)", "n2[7,14)", "n1[14,28)")},
    "evidence:no-tokens": {"tokens_generated": 0},
    "evidence:coverage": {"hops": ("n1[0,14)", "n2[15,28)")},
    "unknown-recipe": {"of": fingerprint_of(identity_block(axes=OTHER_AXES))},
    "evidence:layer-count": {"layers": 30, "hops": ("n1[0,14)", "n2[14,30)")},
    "evidence:stale": {"completed_at_ms": 0},
    "evidence:hop": {"boots": {"n2": "b9"}},
    "evidence:digests": {"seams": ()},
}
CODES = list(SPOILT)


@pytest.mark.parametrize("code", SPOILT)
def test_each_fault_has_its_code_and_is_not_remembered(lab, code):
    spoilt = dict(SPOILT[code])
    hops = spoilt.pop("hops", HOPS)
    with lab.unchanged():
        assert lab.attest("n1", lab.evidence(*hops, **spoilt)).outcome == code
    assert lab.attest_all(lab.evidence(*HOPS)).moves == ["recipe R dark->certified"]


@pytest.mark.parametrize("code", CODES)
def test_of_several_faults_the_first_in_order_names_the_code(lab, code):
    """Every row, with as many of the later rows' faults in it as one evidence can have."""
    spoilt = {}
    for later in reversed(CODES[CODES.index(code) :]):
        spoilt.update(SPOILT[later])
    hops = spoilt.pop("hops", HOPS)
    assert lab.attest("n1", lab.evidence(*hops, **spoilt)).outcome == code


@pytest.mark.parametrize("nodes", [(), ("n1[0,28)",), ("n1[0,14)", "n1/b[14,28)")])
def test_fewer_than_two_distinct_nodes_are_too_few(lab, nodes):
    assert lab.attest("n1", lab.evidence(*nodes)).outcome == "evidence:too-few-nodes"


@pytest.mark.parametrize(
    "hops",
    [
        ("n1[1,14)", "n2[14,28)"),
        ("n1[0,13)", "n2[14,28)"),
        ("n1[0,14)", "n2[13,28)"),
        ("n1[0,14)", "n2[14,27)"),
        ("n1[0,14)", "n2[14,29)"),
        ("n2[14,28)", "n1[0,14)"),
        ("n1[0,28)", "n2[28,28)"),
        ("n1[0,0)", "n2[0,28)"),
    ],
    ids=["no head", "hole", "overlap", "no tail", "beyond", "order", "empty last", "empty first"],
)
def test_hops_must_tile_the_model_exactly_and_in_order(lab, hops):
    assert lab.attest("n1", lab.evidence(*hops)).outcome == "evidence:coverage"


def test_hops_that_go_backwards_do_not_tile(lab):
    forward = lab.evidence("n1[0,14)", "n2[14,28)")
    backwards = msgspec.structs.replace(forward.hops[1], end=-1)
    spoilt = msgspec.structs.replace(forward, hops=(forward.hops[0], backwards), layer_count=-1)
    assert lab.attest("n1", spoilt).outcome == "evidence:coverage"


def test_one_token_is_enough(lab):
    assert lab.attest("n1", lab.evidence(*HOPS, tokens_generated=1)).outcome == "applied"


# -- rows 6 to 8, on the recipe and the time -------------------------------------------------------


def test_a_recipe_that_only_refused_claims_offered_is_unknown(lab):
    lab.register("n3[0,14)", axes=OTHER_AXES, capability={"status": "failed"})
    of = fingerprint_of(identity_block(axes=OTHER_AXES))
    assert lab.attest("n1", lab.evidence(*HOPS, of=of)).outcome == "unknown-recipe"


def test_revoked_comes_before_layer_count(lab):
    lab.revoke()
    forward = lab.evidence("n1[0,14)", "n2[14,30)", layers=30)
    assert lab.attest("n1", forward).outcome == "revoked"


@pytest.mark.parametrize(
    ("age_ms", "outcome"),
    [
        (900_000, "applied"),
        (900_001, "evidence:stale"),
        (-60_000, "applied"),
        (-60_001, "evidence:stale"),
    ],
)
def test_evidence_is_fresh_within_report_age_and_skew_of_the_records_time(lab, age_ms, outcome):
    forward = lab.evidence(*HOPS, completed_at_ms=lab.now_ms - age_ms)
    assert lab.attest("n1", forward).outcome == outcome


def test_evidence_may_become_stale_between_two_attestations(lab):
    forward = lab.evidence(*HOPS)
    lab.attest("n1", forward)
    lab.wait(900_000)
    assert lab.attest("n2", forward).outcome == "evidence:stale"
    assert lab.recipe().status == "dark"


# -- row 9, on the hops ----------------------------------------------------------------------------


@pytest.mark.parametrize("hop", [1, 2, -1, 2**53 - 1])
def test_an_issuer_that_is_not_that_hop_is_refused(lab, hop):
    with lab.unchanged():
        assert lab.attest("n1", lab.evidence(*HOPS), hop=hop).outcome == "evidence:hop"


def test_somebody_who_took_no_part_is_refused(lab):
    lab.register("n3[0,14)")
    with lab.unchanged():
        assert lab.attest("n3", lab.evidence(*HOPS), hop=0).outcome == "evidence:hop"


def spoil_claim(lab, how):
    """Make n2's claim one that no evidence may name."""
    match how:
        case "never registered that shard":
            return "n2/other[14,28)"
        case "withdrawn":
            lab.withdraw("n2")
        case "refused":
            lab.register("n2@h2[14,28)", capability={"status": "failed"})
        case "bad identity":
            lab.register("n2@h2[14,99)")
        case "another boot":
            lab.register("n2@h2[14,28)", boot="b2")
            lab.boots["n2"] = "b1"
        case "another recipe":
            lab.register("n2@h2[14,28)", axes=OTHER_AXES)
        case "holds less":
            lab.register("n2@h2[15,28)")
        case "synthetic":
            lab.register("n2@h2[14,28)", capability={"synthetic": True})
        case "conflict":
            lab.register("n2/other@h3[0,1)")
        case "suspended":
            lab.suspend("n2")
    return "n2[14,28)"


@pytest.mark.parametrize(
    "how",
    [
        "never registered that shard",
        "withdrawn",
        "refused",
        "bad identity",
        "another boot",
        "another recipe",
        "holds less",
        "synthetic",
        "conflict",
        "suspended",
    ],
)
def test_every_hop_must_be_a_live_genuine_claim_of_an_able_node(lab, how):
    hop = spoil_claim(lab, how)
    then = lab.attest("n1", lab.evidence("n1[0,14)", hop))
    assert then.outcome == "evidence:hop"
    assert f"hop 1 ({lab.public('n2')}/" in then.detail, "it names the hop"


def test_the_issuers_own_claim_is_checked_too(lab):
    lab.withdraw("n1")
    then = lab.attest("n1", lab.evidence(*HOPS))
    assert then.outcome == "evidence:hop"
    assert "hop 0" in then.detail


def test_a_hop_that_is_not_enrolled_is_refused_where_enrolment_is_required():
    lab = Scenario(enrols=False)
    lab.policy(enrolment="open")
    for shard in ("n1@h1[0,14)", "n2@h2[14,28)"):
        lab.register(shard)
    assert lab.attest("n1", lab.evidence(*HOPS)).outcome == "applied"
    lab.policy(enrolment="required")
    lab.enrol("n1")
    then = lab.attest("n1", lab.evidence(*HOPS))
    assert then.outcome == "evidence:hop"
    assert "not-enrolled" in then.detail


def test_a_claim_may_break_between_two_attestations(lab):
    forward = lab.evidence(*HOPS)
    lab.attest("n1", forward)
    lab.register("n1/other@h9[0,1)")
    assert lab.attest("n2", forward).outcome == "evidence:hop", "n1 is in conflict"
    assert lab.recipe().status == "dark"


# -- row 10, on the digests ------------------------------------------------------------------------


@pytest.mark.parametrize("seams", [(), (digest("one"), digest("two"))])
def test_there_is_one_seam_fewer_than_hops(lab, seams):
    with lab.unchanged():
        assert lab.attest("n1", lab.evidence(*HOPS, seams=seams)).outcome == "evidence:digests"


@pytest.mark.parametrize("node", ["n1", "n2"])
@pytest.mark.parametrize("which", ["in_digest", "out_digest"])
def test_a_hop_must_have_seen_what_the_evidence_states(lab, node, which):
    with lab.unchanged():
        then = lab.attest(node, lab.evidence(*HOPS), **{which: digest("something else")})
        assert then.outcome == "evidence:digests"


def test_a_middle_hop_sees_seam_to_seam(lab):
    for shard in ("n3[0,9)", "n4[9,20)", "n5[20,28)"):
        lab.register(shard)
    forward = lab.evidence("n3[0,9)", "n4[9,20)", "n5[20,28)")
    swapped = {"in_digest": forward.seams[1], "out_digest": forward.seams[0]}
    assert lab.attest("n4", forward, **swapped).outcome == "evidence:digests"
    stated = {"in_digest": forward.seams[0], "out_digest": forward.seams[1]}
    assert lab.attest("n4", forward, **stated).outcome == "applied"


# -- row 11, equivocation --------------------------------------------------------------------------


def two_words(lab, **first):
    """Two different pieces of evidence for one session and epoch."""
    mine = lab.evidence(*HOPS, session="s", **first)
    return mine, msgspec.structs.replace(mine, tokens_generated=mine.tokens_generated + 1)


def test_other_evidence_for_the_session_is_equivocation_and_voids_both(lab):
    one, two = two_words(lab)
    lab.attest("n1", one)
    then = lab.attest("n1", two)
    assert (then.outcome, then.moves) == ("evidence:equivocation", [])
    assert lab.node("n1").equivocated
    assert not lab.node("n2").equivocated
    assert [row.void is not None for row in lab.state.evidence.values()] == [True, True]
    assert attest_all(lab, one, "n2") == ["noop"]
    with lab.unchanged():
        assert attest_all(lab, one, "n2") == ["noop"]
    assert lab.recipe().status == "dark"


def test_equivocation_voids_what_another_participant_attested_already(lab):
    one, two = two_words(lab)
    lab.attest("n1", one)
    lab.attest("n2", two)
    assert lab.attest("n1", two).outcome == "evidence:equivocation", "two is not completed by it"
    assert lab.recipe().status == "dark"
    assert all(row.void for row in lab.state.evidence.values())


def test_equivocation_after_the_certification_takes_nothing_back(lab):
    one, two = two_words(lab)
    lab.attest_all(one)
    assert lab.attest("n1", two).outcome == "evidence:equivocation"
    assert lab.node("n1").equivocated
    assert lab.recipe().status == "certified"
    assert lab.attest("n2", one).outcome == "noop"
    assert lab.attest("n2", two).outcome == "evidence:equivocation"


def test_an_equivocator_is_still_one_when_it_repeats_either_word(lab):
    one, two = two_words(lab)
    lab.attest("n1", one)
    lab.attest("n1", two)
    with lab.unchanged():
        assert lab.attest("n1", one).outcome == "noop", "attested before"
        assert lab.attest("n1", two).outcome == "evidence:equivocation"


def test_an_equivocator_attest_once_other_sessions(lab):
    for words in two_words(lab):
        lab.attest("n1", words)
    assert lab.attest_all(lab.evidence(*HOPS)).moves == ["recipe R dark->certified"]
    assert lab.node("n1").equivocated, "the flag stays"


@pytest.mark.parametrize("other", [{"session": "t"}, {"session": "s", "route_epoch": 1}])
def test_another_session_or_epoch_is_another_word(lab, other):
    assert lab.attest("n1", lab.evidence(*HOPS, session="s")).outcome == "applied"
    assert lab.attest("n1", lab.evidence(*HOPS, **other)).outcome == "applied"


def test_two_participants_that_differ_equivocate_neither(lab):
    one, two = two_words(lab)
    lab.attest("n1", one)
    lab.attest("n2", two)
    assert not lab.node("n1").equivocated
    assert not lab.node("n2").equivocated
    assert [row.void for row in lab.state.evidence.values()] == [None, None]


def test_a_new_boot_attest_once_the_session_anew(lab):
    one, two = two_words(lab)
    lab.attest("n1", one)
    lab.register("n1@h1[0,14)", boot="b2")
    moved = msgspec.structs.replace(
        two, hops=(msgspec.structs.replace(two.hops[0], boot_id=boot_of("n1", "b2")), two.hops[1])
    )
    assert lab.attest("n1", moved).outcome == "applied"
    assert not lab.node("n1").equivocated


def test_another_recipe_for_the_session_is_equivocation_too(lab):
    of = fingerprint_of(identity_block(axes=OTHER_AXES))
    lab.register("n1/other@h1[0,14)", axes=OTHER_AXES)
    lab.register("n2/other@h2[14,28)", axes=OTHER_AXES)
    lab.attest("n1", lab.evidence(*HOPS, session="s"))
    other = lab.evidence("n1/other[0,14)", "n2/other[14,28)", of=of, session="s")
    assert lab.attest("n1", other).outcome == "evidence:equivocation"


def test_a_word_that_was_refused_before_it_counted_is_no_word(lab):
    spoilt = lab.evidence(*HOPS, session="s", seams=())
    assert lab.attest("n1", spoilt).outcome == "evidence:digests"
    assert lab.attest("n1", lab.evidence(*HOPS, session="s")).outcome == "applied"


def test_a_word_on_void_evidence_is_a_word_all_the_same(lab):
    one, two = two_words(lab)
    for words in (one, two):
        lab.attest("n1", words)
    assert lab.attest("n2", one).outcome == "noop"
    lab.register("n3[0,14)")
    third = lab.evidence("n3[0,14)", "n2[14,28)", session="s")
    assert lab.attest("n2", third).outcome == "evidence:equivocation"
    assert lab.node("n2").equivocated


def test_equivocation_is_kept_in_mind_after_the_first_word_was_voided(lab):
    one, two = two_words(lab)
    lab.attest("n1", one)
    lab.register("n2@h2[15,28)")
    lab.register("n2@h2[14,28)")
    (before,) = lab.state.evidence.values()
    why = before.void
    assert lab.attest("n1", two).outcome == "evidence:equivocation"
    assert before.void == why, "it was void already, for the first reason"


# -- void evidence ---------------------------------------------------------------------------------


def test_void_evidence_is_a_noop_for_whoever_attests_it_later(lab):
    for shard in ("n3[0,9)", "n4[9,20)", "n5[20,28)"):
        lab.register(shard)
    forward = lab.evidence("n3[0,9)", "n4[9,20)", "n5[20,28)", session="s")
    lab.attest("n3", forward)
    lab.withdraw("n4")
    lab.register("n4[9,20)")
    assert lab.void() == {"s": True}
    assert attest_all(lab, forward, "n4", "n5", "n3") == ["noop", "noop", "noop"]
    assert lab.void() == {"s": True}
    with lab.unchanged():
        assert attest_all(lab, forward, "n4", "n5", "n3") == ["noop", "noop", "noop"]
    assert lab.recipe().status == "dark"


def test_void_digests_are_kept_while_their_boots_are_current_and_no_longer(lab):
    lab.attest("n1", lab.evidence(*HOPS, session="s"))
    lab.withdraw("n2")
    assert lab.void() == {"s": True}
    lab.register("n2@h2[14,28)")
    assert lab.void() == {"s": True}
    lab.register("n2@h2[14,28)", boot="b2")
    assert lab.void() == {}


# -- row 12, policy --------------------------------------------------------------------------------


def test_too_few_nodes_for_the_policy(lab):
    lab.policy(min_certifying_nodes=3)
    forward = lab.evidence(*HOPS)
    assert lab.attest("n1", forward).outcome == "applied"
    then = lab.attest("n2", forward)
    assert then.outcome == "evidence:policy-nodes"
    assert "2 distinct nodes, policy asks for 3" in then.detail


def test_three_nodes_meet_a_policy_that_asks_for_three(lab):
    lab.policy(min_certifying_nodes=3)
    for shard in ("n3[0,9)", "n4[9,20)", "n5[20,28)"):
        lab.register(shard)
    forward = lab.evidence("n3[0,9)", "n4[9,20)", "n5[20,28)")
    assert attest_all(lab, forward, "n3", "n4") == ["applied", "applied"]
    assert lab.recipe().status == "dark"
    assert lab.attest("n5", forward).moves == ["recipe R dark->certified"]


def test_one_host_is_not_two():
    lab = Scenario()
    for shard in ("n1@h1[0,14)", "n2@h1[14,28)"):
        lab.register(shard)
    then = lab.attest_all(lab.evidence(*HOPS))
    assert then.outcome == "evidence:policy-hosts"
    assert "1 distinct host, policy asks for 2" in then.detail


@pytest.mark.parametrize("declared", [("n1",), ("n1", "n2")])
@pytest.mark.parametrize("accepted", [False, True])
def test_a_declared_host_counts_only_where_the_policy_accepts_it(declared, accepted):
    lab = Scenario()
    lab.policy(accept_declared_hosts=accepted)
    for node, shard in (("n1", "n1@h1[0,14)"), ("n2", "n2@h2[14,28)")):
        source = "declared" if node in declared else "machine-id"
        lab.register(shard, host_source=source)
    then = lab.attest_all(lab.evidence(*HOPS))
    assert then.outcome == ("applied" if accepted else "evidence:policy-hosts")


def test_a_declared_host_that_repeats_a_machine_id_is_one_host():
    lab = Scenario()
    lab.policy(accept_declared_hosts=True)
    lab.register("n1@h1[0,14)")
    lab.register("n2@h1[14,28)", host_source="declared")
    assert lab.attest_all(lab.evidence(*HOPS)).outcome == "evidence:policy-hosts"


@pytest.mark.parametrize(
    ("groups", "asked", "outcome"),
    [
        (("acme", "acme"), 1, "applied"),
        (("acme", "acme"), 2, "evidence:policy-groups"),
        (("acme", "other"), 2, "applied"),
        (("acme", ""), 2, "evidence:policy-groups"),
        (("acme", ""), 1, "applied"),
        (("", ""), 1, "evidence:policy-groups"),
    ],
)
def test_a_node_without_a_group_counts_as_none(groups, asked, outcome):
    lab = Scenario()
    if asked > 1:
        lab.policy(min_distinct_groups=asked)
    for node, group in zip(("n1", "n2"), groups, strict=True):
        lab.enrol(node, group=group)
    for shard in ("n1@h1[0,14)", "n2@h2[14,28)"):
        lab.register(shard)
    assert lab.attest_all(lab.evidence(*HOPS)).outcome == outcome


def test_nodes_come_before_hosts_before_groups():
    lab = Scenario()
    lab.policy(min_certifying_nodes=3, min_distinct_hosts=3, min_distinct_groups=3)
    for shard in ("n1@h1[0,14)", "n2@h1[14,28)"):
        lab.register(shard)
    outcomes = []
    for member in ("min_certifying_nodes", "min_distinct_hosts", "min_distinct_groups"):
        outcomes.append(lab.attest_all(lab.evidence(*HOPS)).outcome)
        least = {"min_certifying_nodes": 2}.get(member, 1)
        lab.policy(**{member: least})
    assert outcomes == ["evidence:policy-nodes", "evidence:policy-hosts", "evidence:policy-groups"]
    assert lab.attest_all(lab.evidence(*HOPS)).outcome == "applied"


def test_the_policys_verdict_is_given_once_and_the_evidence_is_void_for_good():
    lab = Scenario()
    for shard in ("n1@h1[0,14)", "n2@h1[14,28)"):
        lab.register(shard)
    forward = lab.evidence(*HOPS, session="s")
    lab.attest_all(forward)
    assert lab.void() == {"s": True}
    lab.policy(min_distinct_hosts=1)
    with lab.unchanged():
        assert attest_all(lab, forward, "n1", "n2") == ["noop", "noop"]
    assert lab.recipe().status == "dark"
    assert lab.attest_all(lab.evidence(*HOPS)).moves == ["recipe R dark->certified"]


def test_the_word_that_the_policy_refused_was_given_all_the_same():
    lab = Scenario()
    for shard in ("n1@h1[0,14)", "n2@h1[14,28)"):
        lab.register(shard)
    one, two = two_words(lab)
    assert lab.attest_all(one).outcome == "evidence:policy-hosts"
    assert lab.attest("n2", two).outcome == "evidence:equivocation"


def test_the_policy_bars_new_seams_of_a_certified_recipe_too(lab):
    lab.attest_all(lab.evidence(*HOPS))
    lab.register("n3@h1[0,20)")
    lab.register("n4@h1[20,28)")
    then = lab.attest_all(lab.evidence("n3[0,20)", "n4[20,28)"))
    assert then.outcome == "evidence:policy-hosts"
    assert lab.recipe().proven_seams == (14,)


def test_equivocation_comes_before_the_noop_on_void_evidence(lab):
    one, two = two_words(lab)
    lab.attest("n1", one)
    lab.attest("n1", two)
    lab.register("n3[14,28)")
    mine = lab.evidence("n1[0,14)", "n3[14,28)", session="t")
    voided = msgspec.structs.replace(mine, tokens_generated=99)
    lab.attest("n3", voided)
    lab.withdraw("n3")
    lab.register("n3[14,28)")
    assert lab.attest("n1", mine).outcome == "applied"
    assert lab.attest("n1", voided).outcome == "evidence:equivocation"
    assert lab.recipe(R.key).status == "dark"


# -- what changed is announced ---------------------------------------------------------------------


def test_rows_that_come_and_go_with_a_boot_are_announced_both_times(lab):
    n1, n2 = lab.public("n1"), lab.public("n2")
    lab.state.take_changes()
    lab.attest("n1", lab.evidence(*HOPS, session="s"))
    lab.handshake("n2", "n1")
    came = lab.state.take_changes()
    assert set(came.attestations) == {(n1, "s", 0)}
    assert set(came.evidence) == set(lab.state.evidence)
    assert set(came.handshakes) == {(n2, n1, R.key)}

    lab.register("n1@h1[0,14)", boot="b2")
    went = lab.state.take_changes()
    assert set(went.attestations) == set(came.attestations)
    assert set(went.evidence) == set(came.evidence)
    assert set(went.handshakes) == set(came.handshakes)
    assert went.boots == [(n1, boot_of("n1", "b1"))]
    assert (lab.state.evidence, lab.state.handshakes) == ({}, {})


def test_rows_that_come_and_go_unseen_are_not_announced(lab):
    lab.state.take_changes()
    lab.attest("n1", lab.evidence(*HOPS, session="s"))
    lab.handshake("n2", "n1")
    lab.handshake("n2", "n1")
    lab.register("n1@h1[0,14)", boot="b2")
    unseen = lab.state.take_changes()
    assert (unseen.attestations, unseen.evidence, unseen.handshakes) == ({}, {}, {})


def test_a_row_that_goes_comes_back_and_goes_again_is_announced(lab):
    n1, n2 = lab.public("n1"), lab.public("n2")
    lab.attest("n1", lab.evidence(*HOPS, session="s"))
    lab.handshake("n2", "n1")
    lab.state.take_changes()
    for boot in ("b2", "b3"):
        lab.register("n1@h1[0,14)", boot=boot)
        lab.boots["n1"] = boot
        lab.handshake("n2", "n1")
        lab.attest("n1", lab.evidence(*HOPS, session="s"))
    lab.register("n1@h1[0,14)", boot="b4")
    seen = lab.state.take_changes()
    assert set(seen.attestations) == {(n1, "s", 0)}
    assert set(seen.handshakes) == {(n2, n1, R.key)}
    assert n1 not in lab.state.attestations
    assert not lab.state.handshakes
