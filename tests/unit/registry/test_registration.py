"""`shard.registered` and `shard.withdrawn`: what is checked, in order, and what each row does."""

import msgspec
import pytest

from kit import AXES, LABELS, R, Scenario, digest, identity_block
from meshnet_events.admission import CAPABILITY_REASONS
from meshnet_events.envelope import canonical

OTHER = {"runtime_version": "next"}

# -- admitted --------------------------------------------------------------------------------------


def test_an_admitted_registration_is_a_live_claim_and_makes_its_recipe_dark():
    lab = Scenario()
    then = lab.register("n1@h1[0,14)")
    assert then.outcome == "applied"
    assert then.moves == ["shard n1/main unknown->live", "recipe R unknown->dark"]
    claim = lab.claim("n1")
    assert (claim.status, claim.refusal, claim.ended_sequence) == ("live", None, None)
    assert (claim.sequence, claim.time_ms) == (then.record.sequence, then.record.time_ms)
    assert (claim.host.id, claim.endpoint) == (digest("host h1"), "grpc://n1.example:7001")
    assert (claim.identity.shard_start, claim.identity.shard_end) == (0, 14)
    assert claim.recipe_key == R.key
    recipe = lab.recipe()
    assert (recipe.status, recipe.layer_count, recipe.sequence) == ("dark", 28, claim.sequence)
    assert (recipe.model_artifact_digest, recipe.runtime_recipe_digest) == R
    assert set(lab.state.live_claims[R.key]) == {(lab.public("n1"), "main")}


def test_only_the_first_admitted_claim_makes_the_recipe_known():
    lab = Scenario()
    lab.register("n1[0,14)")
    first = lab.recipe().sequence
    assert lab.register("n2[14,28)").moves == ["shard n2/main unknown->live"]
    assert lab.recipe().sequence == first


def test_a_refused_registration_makes_no_recipe_known():
    lab = Scenario()
    assert lab.register("n1[0,14)", capability={"status": "failed"}).kind == "rejected"
    assert lab.state.recipes == {}


def test_one_node_may_hold_several_shards_in_one_boot():
    lab = Scenario()
    lab.register("n1/a[0,7)")
    lab.register("n1/b[7,14)")
    assert lab.claims() == {"n1/a": "live", "n1/b": "live"}


def test_labels_ride_along_and_do_not_make_another_recipe():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.register(
        "n2[14,28)",
        labels={"catalogue_version": "7", "recipe_id": "sparse", "recipe_version": "2"},
        artifact={"artifact_id": "mirror/model", "revision": "c" * 40},
    )
    assert list(lab.state.recipes) == [R.key]


@pytest.mark.parametrize("axis", AXES)
def test_every_axis_makes_another_recipe(axis):
    lab = Scenario()
    lab.register("n1[0,14)")
    value = 9 if isinstance(AXES[axis], int) else "c" * 40
    assert lab.register("n2[14,28)", axes={axis: value}).outcome == "applied"
    assert len(lab.state.recipes) == 2


def test_a_derivative_is_of_its_sources_recipe():
    lab = Scenario()
    lab.register("n1[0,14)")
    cut = {
        "content_digest": digest("cut"),
        "derived_from": {
            "source_artifact_digest": digest("weights"),
            "shard_start": 10,
            "shard_end": 28,
        },
    }
    assert lab.register("n2[14,28)", artifact=cut).outcome == "applied"
    assert list(lab.state.recipes) == [R.key]


def test_a_claim_of_a_revoked_recipe_is_admitted_and_listed_and_revives_nothing():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.revoke()
    assert lab.register("n2[14,28)").outcome == "applied"
    assert lab.recipe().status == "revoked"


def test_a_synthetic_claim_is_admitted_and_marked():
    lab = Scenario()
    assert lab.register("n1[0,14)", capability={"synthetic": True}).outcome == "applied"
    assert lab.claim("n1").synthetic


# -- stale-boot: nothing at all --------------------------------------------------------------------


def test_a_superseded_boot_is_stale_and_has_no_effect_at_all():
    lab = Scenario()
    lab.register("n1@h1[0,14)", boot="b1")
    lab.register("n1@h1[0,14)", boot="b2")
    with lab.unchanged():
        same = lab.register("n1@h1[0,14)", boot="b1")
        other_host = lab.register("n1@h2[0,14)", boot="b1")
        other_range = lab.register("n1@h1[7,14)", boot="b1")
        refused = lab.register("n1@h1[0,99)", boot="b1")
    outcomes = [then.outcome for then in (same, other_host, other_range, refused)]
    assert outcomes == ["stale-boot"] * 4
    assert lab.claim("n1").status == "live"
    assert lab.node("n1").status == "enrolled", "stale words prove no copied key"


def test_a_boot_never_returns_however_many_came_between():
    lab = Scenario()
    for boot in ("b1", "b2", "b3"):
        assert lab.register("n1[0,14)", boot=boot).outcome == "applied"
    for boot in ("b2", "b1"):
        assert lab.register("n1[0,14)", boot=boot).outcome == "stale-boot"


def test_a_boot_is_superseded_even_when_the_next_one_was_refused():
    lab = Scenario()
    lab.register("n1[0,14)", boot="b1")
    assert lab.register("n1[0,99)", boot="b2").outcome == "bad-identity"
    assert lab.register("n1[0,14)", boot="b1").outcome == "stale-boot"


def test_boots_of_one_node_are_no_business_of_another():
    lab = Scenario()
    lab.register("n1[0,14)", boot="b1")
    lab.register("n1[0,14)", boot="b2")
    lab.enrol("n2")
    fact = lab.registration("n1[0,14)", boot="b1")
    assert lab.publish("n2", fact).outcome == "applied"


@pytest.mark.parametrize("how", ["withdrawn", "attested", "shaken"])
def test_only_a_registration_introduces_a_boot(how):
    lab = Scenario()
    lab.register("n1[0,14)", boot="b1")
    lab.register("n2[14,28)")
    match how:
        case "withdrawn":
            lab.withdraw("n1", boot="b2")
        case "attested":
            lab.attest("n1", lab.evidence("n1[0,14)", "n2[14,28)", boots={"n1": "b2"}))
        case "shaken":
            lab.handshake("n1", "n2", boot="b2")
    assert lab.register("n1[0,14)", boot="b1").outcome == "applied"


# -- conflict --------------------------------------------------------------------------------------


@pytest.mark.parametrize("boot", ["b1", "b2"])
@pytest.mark.parametrize("shard", ["n1@h2[0,14)", "n1/other@h2[14,28)"])
def test_another_host_while_a_claim_is_live_is_a_conflict(boot, shard):
    lab = Scenario()
    lab.register("n1@h1[0,14)", boot="b1")
    then = lab.register(shard, boot=boot)
    assert then.outcome == "applied", "it is no refusal"
    assert then.moves[0] == "node n1 enrolled->conflict"
    assert lab.node("n1").status == "conflict"
    assert "live" in lab.claims().values(), "claims stay listed"


def test_a_conflict_is_found_though_the_registration_is_refused():
    lab = Scenario()
    lab.register("n1@h1[0,14)", boot="b1")
    then = lab.register("n1@h2[0,14)", boot="b2", capability={"status": "error"})
    assert then.outcome == "capability:not-passed"
    assert lab.node("n1").status == "conflict"


def test_a_conflict_is_found_though_the_identity_has_a_fault():
    lab = Scenario()
    lab.register("n1@h1[0,14)", boot="b1")
    assert lab.register("n1@h2[0,99)", boot="b1").outcome == "bad-identity"
    assert lab.node("n1").status == "conflict"


def test_the_host_of_any_live_claim_counts_not_just_of_the_same_shard_id():
    lab = Scenario()
    lab.register("n1/a@h1[0,14)")
    lab.register("n1/b@h1[14,28)")
    lab.withdraw("n1", "a")
    lab.register("n1/a@h2[0,14)")
    assert lab.node("n1").status == "conflict"


def test_a_graceful_move_withdraws_all_shards_first_and_is_no_conflict():
    lab = Scenario()
    lab.register("n1/a@h1[0,14)", boot="b1")
    lab.register("n1/b@h1[14,28)")
    lab.withdraw("n1", "a")
    lab.withdraw("n1", "b")
    assert lab.register("n1/a@h2[0,14)", boot="b2").outcome == "applied"
    assert lab.node("n1").status == "enrolled"


def test_a_refused_claim_on_another_host_was_never_live_and_is_no_conflict():
    lab = Scenario()
    lab.register("n1@h1[0,99)", boot="b1")
    assert lab.register("n1@h2[0,14)", boot="b2").outcome == "applied"
    assert lab.node("n1").status == "enrolled"


def test_the_same_host_by_another_word_is_the_same_host():
    lab = Scenario()
    lab.register("n1@h1[0,14)")
    lab.register("n1@h1[0,14)", host_source="declared")
    assert lab.node("n1").status == "enrolled"
    assert lab.claim("n1").host.source == "declared"


def test_two_nodes_on_one_host_are_no_conflict():
    lab = Scenario()
    lab.register("n1@h1[0,14)")
    lab.register("n2@h1[14,28)")
    assert lab.node("n1").status == lab.node("n2").status == "enrolled"


def test_a_node_in_conflict_goes_on_registering_and_stays_in_conflict():
    lab = Scenario()
    lab.register("n1@h1[0,14)", boot="b1")
    lab.register("n1@h2[0,14)", boot="b2")
    then = lab.register("n1@h1[0,14)", boot="b3")
    assert then.outcome == "applied"
    assert "node" not in " ".join(then.moves)
    lab.withdraw("n1")
    lab.register("n1@h1[0,14)")
    assert lab.node("n1").status == "conflict", "until it is reinstated"


# -- a new boot ends the claims of older ones ------------------------------------------------------


@pytest.mark.parametrize("refused", [False, True])
def test_a_new_boot_ends_every_claim_of_older_boots_admitted_or_refused(refused):
    lab = Scenario()
    lab.register("n1/a[0,14)", boot="b1")
    lab.register("n1/b[14,28)", boot="b1")
    proof = {"status": "failed"} if refused else {}
    then = lab.register("n1/c[0,28)", boot="b2", capability=proof)
    assert then.kind == ("rejected" if refused else "applied")
    expected = {"n1/a": "superseded", "n1/b": "superseded", "n1/c": "live"}
    if refused:
        expected["n1/c"] = "refused"
    assert lab.claims() == expected
    assert lab.claim("n1", "a").ended_sequence == then.record.sequence
    assert lab.claim("n1", "a").ended_time_ms == then.record.time_ms


def test_claims_end_by_shard_id_in_whatever_order_they_came():
    """Rows that were read back have no order, and the transitions must be the same ones."""
    lab = Scenario()
    for shard_id in ("c", "a", "b"):
        lab.register(f"n1/{shard_id}[0,14)", boot="b1")
    lab.register("n1/a[0,14)")
    assert lab.register("n1/d[0,14)", boot="b2").moves == [
        "shard n1/a live->superseded",
        "shard n1/b live->superseded",
        "shard n1/c live->superseded",
        "shard n1/d unknown->live",
    ]


def test_a_new_boot_forgets_what_named_the_old_one():
    lab = Scenario()
    for shard in ("n1[0,14)", "n2[14,28)", "n3[14,28)"):
        lab.register(shard)
    lab.handshake("n1", "n2", accepted=False)
    lab.handshake("n2", "n1", accepted=False)
    lab.handshake("n2", "n3", accepted=False)
    lab.attest("n2", lab.evidence("n1[0,14)", "n2[14,28)", session="gone"))
    lab.attest("n1", lab.evidence("n1[0,14)", "n3[14,28)", session="gone too"))
    lab.register("n1[0,14)", boot="b2")
    assert lab.void() == {}
    n1, n2, n3 = (lab.public(name) for name in ("n1", "n2", "n3"))
    assert [key[:2] for key in lab.state.handshakes] == [(n2, n3)]
    assert lab.state.refused_pairs[R.key] == {(n2, n3)}
    assert n1 not in lab.state.attestations
    assert lab.state.attestations[n2], "what the others said in their boots stands"


# -- the earlier claim of the shard id -------------------------------------------------------------


REFUSALS = {
    "a fault in identity": {"artifact": {"revision": "main"}},
    "another proof": {"capability": {"device": "cpu"}},
    "a failed proof": {"capability": {"status": "failed"}},
    "a stale proof": {"capability": {"validated_at_ms": 0}},
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_refused_registration_still_ends_the_earlier_claim_of_that_shard_id_only(why):
    lab = Scenario()
    lab.register("n1/a[0,14)")
    lab.register("n1/b[14,28)")
    then = lab.register("n1/a[0,14)", **REFUSALS[why])
    assert then.kind == "rejected"
    assert then.moves == ["shard n1/a live->superseded", "shard n1/a superseded->refused"]
    assert lab.claims() == {"n1/a": "refused", "n1/b": "live"}
    claim = lab.claim("n1", "a")
    assert (claim.refusal, claim.refusal_detail) == (then.outcome, then.detail)
    assert (lab.public("n1"), "a") not in lab.state.live_claims[R.key]


def test_a_refused_first_registration_is_listed():
    lab = Scenario()
    assert lab.register("n1[0,99)").moves == ["shard n1/main unknown->refused"]
    assert lab.claim("n1").identity is None
    assert lab.claim("n1").recipe_key is None


def test_a_refusal_of_the_proof_keeps_the_identity_that_was_sound():
    lab = Scenario()
    lab.register("n1[0,14)", capability={"status": "failed"})
    assert lab.claim("n1").recipe_key == R.key
    assert not lab.state.live_claims.get(R.key)


def test_a_refused_shard_is_live_once_it_is_registered_well():
    lab = Scenario()
    lab.register("n1[0,99)")
    assert lab.register("n1[0,14)").moves[0] == "shard n1/main refused->live"


def test_a_refused_registration_voids_what_the_ended_claim_was_named_in():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.register("n2[14,28)")
    lab.attest("n2", lab.evidence("n1[0,14)", "n2[14,28)", session="s"))
    lab.register("n1[0,14)", capability={"validated_at_ms": 0})
    assert lab.void() == {"s": True}


def test_the_same_boot_shard_fingerprint_and_range_again_updates_without_ending():
    lab = Scenario()
    first = lab.register("n1[0,14)")
    lab.register("n2[14,28)")
    forward = lab.evidence("n1[0,14)", "n2[14,28)", session="s")
    lab.attest("n2", forward)
    then = lab.register(
        "n1[0,14)",
        labels={**LABELS, "recipe_id": "another label"},
        artifact={"artifact_id": "mirror/model"},
        device="cuda:1",
    )
    assert (then.outcome, then.moves) == ("applied", [])
    claim = lab.claim("n1")
    assert claim.sequence == then.record.sequence > first.record.sequence
    assert (claim.device, claim.identity.recipe_id) == ("cuda:1", "another label")
    assert lab.state.live_claims[R.key][lab.public("n1"), "main"] is claim
    assert lab.void() == {"s": False}
    assert lab.attest("n1", forward).outcome == "applied"
    assert lab.recipe().status == "certified"


@pytest.mark.parametrize(
    ("shard", "more"),
    [
        ("n1[0,13)", {}),
        ("n1[1,14)", {}),
        ("n1[0,15)", {}),
        ("n1[0,14)", {"axes": OTHER}),
        ("n1[0,14)", {"boot": "b2"}),
    ],
    ids=["shorter", "later", "wider", "other recipe", "other boot"],
)
def test_anything_else_ends_the_claim_and_voids_what_was_pending(shard, more):
    lab = Scenario()
    lab.register("n1[0,14)", boot="b1")
    lab.register("n2[14,28)")
    forward = lab.evidence("n1[0,14)", "n2[14,28)", session="s")
    lab.attest("n2", forward)
    then = lab.register(shard, **more)
    assert then.outcome == "applied"
    assert then.moves[:2] == ["shard n1/main live->superseded", "shard n1/main superseded->live"]
    assert lab.void() in ({"s": True}, {})
    assert lab.recipe().status == "dark"


def test_a_claim_that_moves_to_another_recipe_leaves_the_first_ones_list():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.register("n1[0,14)", axes=OTHER)
    other = lab.claim("n1").recipe_key
    assert (len(lab.state.live_claims[R.key]), len(lab.state.live_claims[other])) == (0, 1)
    assert lab.recipe().status == "dark", "a recipe without claims is still known"


# -- bad-identity ----------------------------------------------------------------------------------

MOVING = ["main", " Master ", "HEAD", "latest", "dev", "trunk", "refs/heads/x"]


def _without(*path):
    def broken(block):
        owner = block
        for step in path[:-1]:
            owner = owner[step]
        del owner[path[-1]]
        return block

    return broken


def _with(value, *path):
    def broken(block):
        owner = block
        for step in path[:-1]:
            owner = owner[step]
        owner[path[-1]] = value
        return block

    return broken


FAULTS = {
    "shard_end": _with(29, "shard_end"),
    "shard_start": _with(-1, "shard_start"),
    "schema_version": _with(2, "schema_version"),
    "artifact.revision": _with("main", "artifact", "revision"),
    "artifact.layer_count": _with(True, "artifact", "layer_count"),
    "artifact.content_digest": _with(digest("weights") + "\n", "artifact", "content_digest"),
    "recipe.kv_dtype": _without("recipe", "kv_dtype"),
    "recipe.tokenizer_revision": _with("latest", "recipe", "tokenizer_revision"),
    "recipe.recipe_id": _without("recipe", "recipe_id"),
    "recipe.boundary_schema_version": _with("1", "recipe", "boundary_schema_version"),
    "recipe": _with("blue", "recipe", "colour"),
    "artifact": _with({}, "artifact"),
    "fingerprint": _with(digest("lie"), "fingerprint", "runtime_recipe_digest"),
    "artifact.derived_from.shard_end": _with(
        {"source_artifact_digest": digest("source"), "shard_start": 0, "shard_end": 29},
        "artifact",
        "derived_from",
    ),
}


@pytest.mark.parametrize("field", FAULTS)
def test_any_fault_in_identity_is_bad_identity_and_names_the_field(field):
    lab = Scenario()
    lab.enrol("n1")
    sound = lab.registration("n1[0,14)")
    block = FAULTS[field](identity_block(0, 14))
    fact = _replace_identity(sound, block)
    then = lab.publish("n1", fact)
    assert then.outcome == "bad-identity"
    assert field in then.detail
    assert lab.claim("n1").status == "refused"
    assert lab.state.recipes == {}


@pytest.mark.parametrize("block", [{}, {"a": 1}, {"schema_version": 1, "artifact": []}])
def test_an_object_that_is_no_block_is_bad_identity(block):
    lab = Scenario()
    lab.enrol("n1")
    fact = _replace_identity(lab.registration("n1[0,14)"), block)
    assert lab.publish("n1", fact).outcome == "bad-identity"


def test_a_registration_must_declare_its_fingerprint():
    lab = Scenario()
    lab.enrol("n1")
    block = identity_block(0, 14)
    del block["fingerprint"]
    then = lab.publish("n1", _replace_identity(lab.registration("n1[0,14)"), block))
    assert then.outcome == "bad-identity"
    assert "fingerprint" in then.detail


@pytest.mark.parametrize("revision", MOVING)
def test_a_revision_that_moves_is_no_pin(revision):
    lab = Scenario()
    then = lab.register("n1[0,14)", artifact={"revision": revision})
    assert then.outcome == "bad-identity"
    assert "artifact.revision" in then.detail


def test_a_derivative_cannot_hold_layers_that_were_not_cut():
    lab = Scenario()
    cut = {
        "content_digest": digest("cut"),
        "derived_from": {
            "source_artifact_digest": digest("weights"),
            "shard_start": 14,
            "shard_end": 28,
        },
    }
    assert lab.register("n1[13,28)", artifact=cut).outcome == "bad-identity"


def test_bad_identity_comes_before_the_proof():
    lab = Scenario()
    then = lab.register("n1[0,99)", capability={"status": "failed", "validated_at_ms": 0})
    assert then.outcome == "bad-identity"


def _replace_identity(fact, block):
    return msgspec.structs.replace(fact, identity=msgspec.Raw(canonical(block)))


# -- capability ------------------------------------------------------------------------------------

PROOFS = {
    "model_id": ("model-mismatch", "other/model"),
    "model_artifact_digest": ("model-mismatch", digest("another artifact")),
    "shard_start": ("shard-mismatch", 1),
    "shard_end": ("shard-mismatch", 13),
    "recipe_id": ("recipe-mismatch", "sparse"),
    "recipe_version": ("recipe-mismatch", "2"),
    "runtime_recipe_digest": ("recipe-mismatch", digest("another recipe")),
    "backend_id": ("backend-mismatch", "vllm"),
    "device": ("backend-mismatch", "cpu"),
    "status": ("not-passed", "failed"),
    "validated_at_ms": ("stale", 0),
}
ORDER = list(PROOFS)


@pytest.mark.parametrize("member", PROOFS)
def test_a_proof_of_something_else_is_refused_for_that(member):
    reason, value = PROOFS[member]
    lab = Scenario()
    then = lab.register("n1[0,14)", capability={member: value})
    assert then.outcome == f"capability:{reason}"
    assert lab.claim("n1").status == "refused"


@pytest.mark.parametrize("member", PROOFS)
def test_of_several_faults_of_a_proof_the_first_in_order_names_the_code(member):
    later = {name: PROOFS[name][1] for name in ORDER[ORDER.index(member) :]}
    lab = Scenario()
    assert lab.register("n1[0,14)", capability=later).outcome == f"capability:{PROOFS[member][0]}"


def test_the_proofs_above_cover_every_reason_that_a_report_in_an_event_can_have():
    assert {reason for reason, _ in PROOFS.values()} == set(CAPABILITY_REASONS) - {"no-report"}


@pytest.mark.parametrize("status", ["failed", "error"])
def test_a_proof_that_did_not_pass_says_its_diagnostics(status):
    lab = Scenario()
    proof = {"status": status, "diagnostics": ("kernel exploded",)}
    then = lab.register("n1[0,14)", capability=proof)
    assert then.outcome == "capability:not-passed"
    assert "kernel exploded" in then.detail


@pytest.mark.parametrize(
    ("age_ms", "outcome"),
    [
        (900_000, "applied"),
        (900_001, "capability:stale"),
        (0, "applied"),
        (-60_000, "applied"),
        (-60_001, "capability:stale"),
    ],
)
def test_a_proof_is_fresh_within_report_age_and_skew_of_the_records_time(age_ms, outcome):
    lab = Scenario()
    lab.enrol("n1")
    proof = {"validated_at_ms": lab.now_ms - age_ms}
    assert lab.register("n1[0,14)", capability=proof).outcome == outcome


def test_freshness_is_judged_under_the_policy_in_force():
    lab = Scenario()
    lab.enrol("n1")
    lab.policy(max_report_age_ms=1_000, max_clock_skew_ms=0)
    for age_ms, outcome in (
        (1_001, "capability:stale"),
        (1_000, "applied"),
        (-1, "capability:stale"),
    ):
        proof = {"validated_at_ms": lab.now_ms - age_ms}
        assert lab.register("n1[0,14)", capability=proof).outcome == outcome


def test_freshness_is_judged_once_and_nothing_expires():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.wait(10 * 24 * 3_600_000)
    lab.register("n2[14,28)")
    assert lab.claim("n1").status == "live"


# -- shard.withdrawn -------------------------------------------------------------------------------


def test_shard_withdrawn_ends_that_claim_alone():
    lab = Scenario()
    lab.register("n1/a[0,14)")
    lab.register("n1/b[14,28)")
    lab.register("n2/a[0,14)")
    then = lab.withdraw("n1", "a")
    assert (then.outcome, then.moves) == ("applied", ["shard n1/a live->withdrawn"])
    assert lab.claims() == {"n1/a": "withdrawn", "n1/b": "live", "n2/a": "live"}
    assert lab.claim("n1", "a").ended_sequence == then.record.sequence
    assert (lab.public("n1"), "a") not in lab.state.live_claims[R.key]


def test_withdrawing_voids_pending_evidence_that_names_the_claim_and_no_other():
    lab = Scenario()
    for shard in ("n1/a[0,14)", "n1/b[0,14)", "n2[14,28)"):
        lab.register(shard)
    for shard_id in ("a", "b"):
        hops = (f"n1/{shard_id}[0,14)", "n2[14,28)")
        lab.attest("n2", lab.evidence(*hops, session=shard_id))
    lab.withdraw("n1", "a")
    assert lab.void() == {"a": True, "b": False}


@pytest.mark.parametrize(
    "case", ["never registered", "withdrawn before", "refused", "another boot", "another shard id"]
)
def test_no_live_claim_of_that_shard_and_boot_is_a_noop(case):
    lab = Scenario()
    lab.enrol("n1")
    shard_id, boot = "main", "b1"
    match case:
        case "withdrawn before":
            lab.register("n1[0,14)", boot="b1")
            lab.withdraw("n1")
        case "refused":
            lab.register("n1[0,99)", boot="b1")
        case "another boot":
            lab.register("n1[0,14)", boot="b1")
            lab.register("n1[0,14)", boot="b2")
        case "another shard id":
            lab.register("n1[0,14)", boot="b1")
            shard_id = "other"
    with lab.unchanged():
        assert lab.withdraw("n1", shard_id, boot=boot).outcome == "noop"


def test_a_withdrawn_shard_may_be_registered_again_in_the_same_boot():
    lab = Scenario()
    lab.register("n1[0,14)")
    lab.withdraw("n1")
    assert lab.register("n1[0,14)").moves == ["shard n1/main withdrawn->live"]
