"""Rules of identity beyond the vectors: construction, registry, messages, canonical form."""

import hashlib
import math

import msgspec
import pytest

from meshnet_node.recipe_identity import (
    AXIS_REASONS,
    MIN_CERTIFYING_NODES,
    RECIPE_AXES,
    ArtifactIdentity,
    CompatibilityFingerprint,
    DerivativeBinding,
    DistributedForwardEvidence,
    RecipeIdentityError,
    RecipeNotCertified,
    RecipeRegistry,
    RecipeStatus,
    RouteIncompatible,
    RouteMismatch,
    RuntimeRecipe,
    ShardIdentity,
    canonical_sha256,
    check_handshake,
    check_route,
    explain_mismatch,
    handshake_error,
    require_route,
)
from meshnet_node.recipe_identity._checks import MAX_TEXT
from meshnet_proto import BUNDLE_VERSION, SCHEMA_VERSION, shard_runtime_pb2

CONTENT, ARCHITECTURE, OTHER = "c" * 64, "a" * 64, "d" * 64
LAYERS = 12
TOO_LONG = "k" * 500


def artifact(**changes):
    stated = {
        "artifact_id": "acme/model",
        "revision": "0f" * 20,
        "content_digest": CONTENT,
        "architecture": "llama",
        "architecture_digest": ARCHITECTURE,
        "layer_count": LAYERS,
    }
    return ArtifactIdentity(**{**stated, **changes})


def recipe(**changes):
    stated = {
        "weight_quantization": "Q4_K_M",
        "activation_dtype": "float16",
        "compute_dtype": "float32",
        "kv_dtype": "f16",
        "kv_layout": "paged-16/NHD",
        "tokenizer_revision": "1e" * 20,
        "architecture_adapter": "llama",
        "backend_id": "llama.cpp",
        "runtime_version": "b7421",
    }
    return RuntimeRecipe(**{**stated, **changes})


def shard(start=0, end=LAYERS, *, of=None, under=None):
    return ShardIdentity(of or artifact(), under or recipe(), start, end)


def block(**changes):
    return {**shard().to_dict(), **changes}


def evidence(**changes):
    stated = {
        "route_session_id": "s",
        "route_epoch": 0,
        "node_ids": ("n1", "n2"),
        "shard_ranges": ((0, 5), (5, LAYERS)),
        "tokens_generated": 4,
        "layer_count": LAYERS,
    }
    return DistributedForwardEvidence(**{**stated, **changes})


# Construction


def test_a_recipe_built_in_code_takes_the_protocols_versions_and_empty_labels():
    built = recipe()
    assert (built.boundary_schema_version, built.protocol_schema_version) == (
        BUNDLE_VERSION,
        SCHEMA_VERSION,
    )
    assert (built.recipe_id, built.recipe_version, built.catalogue_version) == ("unnamed", "0", "0")


def test_there_are_eleven_axes_in_their_order_each_with_a_reason():
    assert RECIPE_AXES == (
        "weight_quantization",
        "activation_dtype",
        "compute_dtype",
        "kv_dtype",
        "kv_layout",
        "tokenizer_revision",
        "architecture_adapter",
        "backend_id",
        "runtime_version",
        "boundary_schema_version",
        "protocol_schema_version",
    )
    assert tuple(recipe().axes) == tuple(AXIS_REASONS) == RECIPE_AXES


@pytest.mark.parametrize("axis", RECIPE_AXES)
def test_every_axis_moves_the_recipe_digest(axis):
    value = 2 if axis.endswith("schema_version") else "other"
    assert recipe(**{axis: value}).runtime_recipe_digest != recipe().runtime_recipe_digest


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: artifact(artifact_id=" "), "artifact.artifact_id"),
        (lambda: artifact(revision="main"), "artifact.revision"),
        (lambda: artifact(content_digest=CONTENT + "\n"), "artifact.content_digest"),
        (lambda: artifact(architecture_digest=CONTENT.upper()), "artifact.architecture_digest"),
        (lambda: artifact(layer_count=True), "artifact.layer_count"),
        (lambda: artifact(layer_count=2**53), "artifact.layer_count"),
        (lambda: artifact(derived_from={"shard_start": 0}), "artifact.derived_from"),
        (lambda: recipe(kv_dtype="\ud800"), "recipe.kv_dtype"),
        (lambda: recipe(tokenizer_revision=" REFS/heads/x"), "recipe.tokenizer_revision"),
        (lambda: recipe(protocol_schema_version=1.0), "recipe.protocol_schema_version"),
        (lambda: recipe(boundary_schema_version=float("nan")), "recipe.boundary_schema_version"),
        (lambda: recipe(recipe_id=""), "recipe.recipe_id"),
        (lambda: ShardIdentity({}, recipe(), 0, 1), "artifact"),
        (lambda: ShardIdentity(artifact(), {}, 0, 1), "recipe"),
        (lambda: shard(0, 1.0), "shard_end"),
        (lambda: CompatibilityFingerprint("x", OTHER, "r", "1", "1"), "model_artifact_digest"),
        (lambda: CompatibilityFingerprint(CONTENT, OTHER, "r", "", "1"), "recipe_version"),
        (lambda: evidence(synthetic=1), "evidence.synthetic"),
        (lambda: evidence(layer_count=0), "evidence.layer_count"),
        (lambda: evidence(node_ids="n1n2"), "evidence.node_ids"),
        (lambda: evidence(shard_ranges=[[0]]), "evidence.shard_ranges[0]"),
        (lambda: evidence(shard_ranges=[[0, 1], [1, "2"]]), "evidence.shard_ranges[1]"),
        (lambda: RecipeStatus("fine", shard().fingerprint, ""), "status"),
    ],
)
def test_nothing_unsound_can_be_constructed(make, field):
    with pytest.raises(RecipeIdentityError) as refusal:
        make()
    assert field in str(refusal.value)


def test_values_are_frozen():
    for value in (artifact(), recipe(), shard(), shard().fingerprint, evidence()):
        with pytest.raises(AttributeError):
            setattr(value, value.__struct_fields__[0], "other")


# Blocks


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        (block(colour="red"), "identity: found 1 unknown member"),
        (block(artifact={**artifact().to_dict(), "colour": "red"}), "artifact: found 1 unknown"),
        (block(recipe={**recipe().to_dict(), "rope_scaling": "yarn"}), "recipe: found 1 unknown"),
        (block(schema_version=True), "schema_version"),
        (block(schema_version=1.0), "schema_version"),
        (block(schema_version="1"), "schema_version"),
        (block(fingerprint=None), "fingerprint"),
        (block(fingerprint={**shard().fingerprint.to_dict(), "kind": 1}), "fingerprint"),
        (
            block(fingerprint={**shard().fingerprint.to_dict(), "runtime_recipe_digest": "0"}),
            "fingerprint.runtime_recipe_digest",
        ),
        (
            block(artifact={**artifact().to_dict(), "derived_from": []}),
            "artifact.derived_from",
        ),
        ([], "identity"),
        (None, "identity"),
    ],
)
def test_a_block_with_anything_unknown_or_mistyped_is_refused(changed, field):
    with pytest.raises(RecipeIdentityError) as refusal:
        ShardIdentity.from_dict(changed)
    assert field in str(refusal.value)


def test_labels_of_a_declared_fingerprint_are_not_compared():
    declared = {**shard().fingerprint.to_dict(), "recipe_id": "renamed", "recipe_version": "9"}
    assert ShardIdentity.from_dict(block(fingerprint=declared)) == shard()


@pytest.mark.parametrize("digest", ["model_artifact_digest", "runtime_recipe_digest"])
def test_a_declared_fingerprint_that_does_not_follow_is_a_mismatch(digest):
    declared = {**shard().fingerprint.to_dict(), digest: OTHER}
    with pytest.raises(RouteIncompatible) as refusal:
        ShardIdentity.from_dict(block(fingerprint=declared))
    assert [each.reason for each in refusal.value.mismatches] == ["fingerprint"]
    assert digest in str(refusal.value)


def test_a_block_may_leave_out_that_it_is_not_a_derivative():
    stated = artifact().to_dict()
    del stated["derived_from"]
    assert ArtifactIdentity.from_dict(stated) == artifact()


# Derivatives


def test_a_cut_routes_with_the_whole_it_was_cut_from():
    cut = artifact(content_digest=OTHER, derived_from=DerivativeBinding(CONTENT, 5, LAYERS))
    assert (cut.is_derivative, artifact().is_derivative) == (True, False)
    assert cut.source_digest == CONTENT
    assert check_route([shard(0, 5), shard(5, LAYERS, of=cut)]) == ()


@pytest.mark.parametrize(
    ("start", "end", "held"), [(5, 9, True), (6, 8, True), (4, 9, False), (5, 10, False)]
)
def test_a_cut_serves_only_layers_it_holds(start, end, held):
    binding = DerivativeBinding(CONTENT, 5, 9)
    cut = artifact(content_digest=OTHER, derived_from=binding)
    assert binding.covers(start, end) is held
    if held:
        shard(start, end, of=cut)
    else:
        with pytest.raises(RecipeIdentityError, match="shard_start"):
            shard(start, end, of=cut)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: DerivativeBinding("", 0, 1), "derived_from.source_artifact_digest"),
        (lambda: DerivativeBinding(CONTENT, -1, 1), "derived_from.shard_start"),
        (lambda: DerivativeBinding(CONTENT, 3, 3), "derived_from.shard_end"),
        (
            lambda: artifact(derived_from=DerivativeBinding(CONTENT, 0, 1)),
            "derived_from.source_artifact_digest",
        ),
        (
            lambda: artifact(derived_from=DerivativeBinding(OTHER, 0, LAYERS + 1)),
            "derived_from.shard_end",
        ),
    ],
)
def test_a_derivative_that_cannot_be_is_refused(make, field):
    with pytest.raises(RecipeIdentityError, match=field):
        make()


# Messages


def test_a_message_says_what_was_found_and_expected():
    with pytest.raises(
        RecipeIdentityError, match=r"found a text of 2 characters, expected an integer"
    ):
        artifact(layer_count="12")
    with pytest.raises(RecipeIdentityError, match=r"found 63, expected at most .* 12"):
        shard(0, 63)


@pytest.mark.parametrize(
    "make",
    [
        lambda: artifact(content_digest=TOO_LONG),
        lambda: artifact(content_digest="kkkk"),
        lambda: artifact(layer_count=TOO_LONG),
        lambda: artifact(revision="refs/" + TOO_LONG),
        lambda: ShardIdentity.from_dict(block(recipe=TOO_LONG)),
        lambda: ShardIdentity.from_dict(block(schema_version=TOO_LONG)),
        lambda: ShardIdentity.from_dict(block(**{TOO_LONG: 1})),
        lambda: ShardIdentity.from_dict(block(artifact=[TOO_LONG])),
        lambda: evidence(synthetic=TOO_LONG),
        lambda: canonical_sha256({"a": {TOO_LONG}}),
    ],
)
def test_a_message_never_repeats_a_payload(make):
    with pytest.raises(RecipeIdentityError) as refusal:
        make()
    assert "kkkk" not in str(refusal.value)
    assert len(str(refusal.value)) < 200


SECRET = "sk-live-51Hq"


def with_a_secret(value):
    """`value` with the secret in the place of each part, and as the name of one more member."""
    yield from (SECRET, [SECRET], {SECRET: 1}, f"refs/{SECRET}")
    if isinstance(value, dict):
        yield {**value, SECRET: SECRET}
        for name, member in value.items():
            yield from ({**value, name: changed} for changed in with_a_secret(member))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            for changed in with_a_secret(member):
                yield [*value[:index], changed, *value[index + 1 :]]


def declared_cut():
    """A block with every member that a block can have."""
    cut = artifact(derived_from=DerivativeBinding(OTHER, 0, LAYERS))
    return ShardIdentity(cut, recipe(), 0, LAYERS).to_dict(with_fingerprint=True)


@pytest.mark.parametrize(
    ("parse", "sound"),
    [
        (ShardIdentity.from_dict, declared_cut()),
        (DistributedForwardEvidence.from_dict, {**evidence().to_dict(), "certified_at": 1.5}),
        (CompatibilityFingerprint.from_dict, shard().fingerprint.to_dict()),
        (lambda status: RecipeStatus(status, shard().fingerprint, ""), "dark"),
        (lambda moment: RecipeStatus("dark", shard().fingerprint, "", moment), 1.5),
    ],
    ids=["block", "evidence", "fingerprint", "status", "time"],
)
def test_a_secret_in_any_place_is_not_repeated(parse, sound):
    parse(sound)
    refusals = []
    for changed in with_a_secret(sound):
        try:
            parse(changed)
        except RecipeIdentityError as refusal:
            refusals.append(str(refusal))
    assert len(refusals) >= 2
    assert not [text for text in refusals if SECRET in text]


def test_a_secret_that_a_peer_presents_is_not_repeated():
    presented = shard().fingerprint.to_proto()
    presented.model_artifact_digest = SECRET
    (mismatch,) = check_handshake(shard(), presented)
    assert SECRET not in mismatch.describe()


def test_of_a_moving_reference_only_one_that_everybody_knows_is_shown():
    with pytest.raises(RecipeIdentityError, match=r"artifact\.revision: found 'main'"):
        artifact(revision=" Main ")
    with pytest.raises(RecipeIdentityError, match=r"found 'refs/…'"):
        artifact(revision="refs/heads/main")


@pytest.mark.parametrize(
    "moment",
    [math.nan, math.inf, True, 2**53, -(2**53), 10**400, 1e300, "", "\ud800", [], b"now"],
)
def test_a_time_of_certification_that_no_reader_agrees_on_is_refused(moment):
    with pytest.raises(RecipeIdentityError, match=r"^evidence\.certified_at: "):
        evidence(certified_at=moment)
    with pytest.raises(RecipeIdentityError, match=r"^certified_at: "):
        RecipeStatus("certified", shard().fingerprint, "", moment)


@pytest.mark.parametrize("moment", [None, 0, 1.5, 2**53 - 1, "2026-11-30T13:30:00Z"])
def test_a_time_of_certification_is_carried_as_it_was_given(moment):
    assert evidence(certified_at=moment).certified_at == moment
    assert RecipeStatus("certified", shard().fingerprint, "", moment).certified_at == moment


def test_a_huge_integer_is_described_by_its_size():
    with pytest.raises(RecipeIdentityError, match="an integer of 33220 bits"):
        artifact(layer_count=10**10_000)


def test_the_detail_of_a_mismatch_fits_in_an_event():
    left, right = (
        shard(under=recipe(kv_layout="a" * MAX_TEXT)),
        shard(under=recipe(kv_layout="b" * MAX_TEXT)),
    )
    (mismatch,) = explain_mismatch(left, right)
    assert len(mismatch.detail) <= 1024
    assert f"{MAX_TEXT} characters" in mismatch.detail


# Routes


def test_a_mismatch_describes_itself_in_one_line():
    other = shard(under=recipe(kv_dtype="q8_0"))
    (mismatch,) = explain_mismatch(shard(), other, shard_index=2)
    assert mismatch.describe() == "shard 2: cache-layout: kv_dtype is 'q8_0', expected 'f16'"
    assert RouteMismatch("range", "no layers").describe() == "range: no layers"
    assert mismatch.to_dict() == {
        "reason": "cache-layout",
        "detail": "kv_dtype is 'q8_0', expected 'f16'",
        "shard_index": 2,
    }


def test_every_axis_that_differs_is_reported_even_under_one_reason():
    other = shard(under=recipe(kv_dtype="q8_0", kv_layout="contiguous"))
    assert [each.reason for each in explain_mismatch(shard(), other)] == ["cache-layout"] * 2


@pytest.mark.parametrize(
    ("ranges", "named"),
    [
        ([(1, 12)], ["[0, 1)"]),
        ([(0, 11)], ["[11, 12)"]),
        ([(0, 3), (5, 12)], ["[3, 5)"]),
        ([(1, 3), (5, 9)], ["[0, 1)", "[3, 5)", "[9, 12)"]),
        ([(0, 9), (2, 4), (10, 12)], ["[9, 10)"]),
    ],
)
def test_uncovered_layers_are_all_named_in_one_reason(ranges, named):
    (reason,) = check_route([shard(*each) for each in ranges])
    assert (reason.reason, reason.shard_index) == ("range", None)
    assert reason.detail.count("[") == len(named)
    assert all(each in reason.detail for each in named)


def test_a_long_list_of_holes_is_cut():
    wide = artifact(layer_count=1000)
    (reason,) = check_route([shard(layer, layer + 1, of=wide) for layer in range(0, 1000, 2)])
    assert "and 492 more" in reason.detail
    assert len(reason.detail) <= 1024


def test_a_shard_beyond_the_first_ones_last_layer_is_a_range_reason_too():
    longer = shard(5, LAYERS + 3, of=artifact(layer_count=LAYERS + 3))
    verdict = check_route([shard(0, 5), longer])
    assert [(each.reason, each.shard_index) for each in verdict] == [
        ("artifact", 1),
        ("range", None),
    ]
    assert "beyond the last of 12 layers" in verdict[1].detail


def test_require_route_raises_with_every_reason():
    require_route([shard()])
    with pytest.raises(RouteIncompatible) as refusal:
        require_route(
            [shard(0, 5), shard(6, LAYERS, under=recipe(backend_id="vllm"))],
            registry=RecipeRegistry(),
        )
    assert [each.reason for each in refusal.value.mismatches] == [
        "backend",
        "range",
        "uncertified",
    ]
    assert all(each.describe() in str(refusal.value) for each in refusal.value.mismatches)


def test_a_block_that_was_not_parsed_is_not_a_shard():
    with pytest.raises(RecipeIdentityError, match=r"shards\[1\]"):
        check_route([shard(), block()])


# Handshake


def test_a_fingerprint_survives_the_wire():
    ours = shard().fingerprint
    sent = ours.to_proto().SerializeToString()
    assert (
        CompatibilityFingerprint.from_proto(shard_runtime_pb2.Fingerprint.FromString(sent)) == ours
    )
    assert check_handshake(shard(), ours.to_proto()) == ()
    assert handshake_error(()) is None


@pytest.mark.parametrize(
    "presented",
    [
        None,
        shard_runtime_pb2.Fingerprint(),
        shard_runtime_pb2.ShardError(),
        shard().fingerprint.to_dict(),
    ],
)
def test_whatever_is_no_fingerprint_is_refused_alone(presented):
    assert [each.reason for each in check_handshake(shard(), presented)] == ["fingerprint"]


def test_a_fingerprint_with_members_unknown_here_is_refused():
    # Field 15, length-delimited: what a newer peer might add.
    sent = shard().fingerprint.to_proto().SerializeToString() + b"\x7a\x01x"
    (mismatch,) = check_handshake(shard(), shard_runtime_pb2.Fingerprint.FromString(sent))
    assert mismatch.reason == "fingerprint"
    assert "newer" in mismatch.detail


def test_a_refusal_does_not_echo_what_the_peer_sent():
    presented = shard().fingerprint.to_proto()
    presented.model_artifact_digest = TOO_LONG
    error = handshake_error(check_handshake(shard(), presented))
    assert "kkkk" not in error.detail
    assert "500 characters" in error.detail


# Evidence and registry


def test_evidence_names_the_layers_it_leaves_out():
    rejection = evidence(shard_ranges=((0, 5), (6, LAYERS))).rejection()
    assert rejection.code == "coverage"
    assert "[5, 6)" in rejection.text


@pytest.mark.parametrize("ranges", [(), ((5, 0), (0, 12)), ((-1, 12),), ((0, 0), (0, 12))])
def test_ranges_that_are_none_do_not_cover(ranges):
    assert evidence(shard_ranges=ranges).rejection().code == "coverage"


def test_a_negative_count_of_tokens_is_no_token():
    assert evidence(tokens_generated=-1).rejection().code == "no-tokens"
    assert MIN_CERTIFYING_NODES == 2


def test_evidence_keeps_the_time_it_was_given():
    timed = evidence(certified_at=1_790_000_000.5)
    assert timed.to_dict()["certified_at"] == 1_790_000_000.5
    assert DistributedForwardEvidence.from_dict(timed.to_dict()) == timed


def test_a_recipe_goes_from_unknown_to_dark_to_certified():
    registry = RecipeRegistry()
    seen = [registry.status(shard()), registry.register(shard())]
    seen.append(registry.certify(shard(), evidence(certified_at=7.0)))
    assert [(each.status, each.may_serve, each.may_certify) for each in seen] == [
        ("unknown", False, False),
        ("dark", False, True),
        ("certified", True, True),
    ]
    assert [each.certified_at for each in seen] == [None, None, 7.0]
    assert registry.status(shard()) == registry.require_serving(shard()) == seen[2]


def test_a_revoked_recipe_may_neither_serve_nor_certify():
    status = RecipeStatus("revoked", shard().fingerprint, "by an operator")
    assert (status.may_serve, status.may_certify) == (False, False)


def test_registering_again_changes_nothing():
    registry = RecipeRegistry()
    registry.register(shard())
    certified = registry.certify(shard(), evidence())
    renamed = shard(under=recipe(recipe_id="renamed"))
    assert registry.register(renamed) == certified
    assert registry.status(renamed).fingerprint.recipe_id == "unnamed"


def test_the_first_certification_stands():
    registry = RecipeRegistry()
    registry.register(shard())
    first = registry.certify(shard(), evidence(certified_at=1.0))
    assert registry.certify(shard(), evidence(route_session_id="t", certified_at=2.0)) == first


def test_a_registry_takes_a_shard_or_its_fingerprint():
    registry = RecipeRegistry()
    registry.register(shard(0, 5).fingerprint)
    registry.certify(shard(5, LAYERS).fingerprint, evidence())
    assert registry.require_serving(shard()).may_serve
    assert registry.certified_fingerprints() == (shard().fingerprint,)
    with pytest.raises(RecipeIdentityError, match="fingerprint"):
        registry.status(shard().fingerprint.key)


def test_an_unknown_recipe_cannot_be_certified():
    registry = RecipeRegistry()
    with pytest.raises(RecipeNotCertified, match="unknown"):
        registry.certify(shard(), evidence())
    assert registry.status(shard()).status == "unknown"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (evidence(synthetic=True), "synthetic"),
        (evidence(node_ids=("n1",)), "too-few-nodes"),
        (evidence(layer_count=11, shard_ranges=((0, 11),)), "evidence.layer_count"),
    ],
)
def test_evidence_that_does_not_prove_this_recipe_leaves_it_dark(given, named):
    registry = RecipeRegistry()
    registry.register(shard())
    with pytest.raises(RecipeNotCertified, match=named):
        registry.certify(shard(), given)
    assert registry.status(shard()).status == "dark"
    with pytest.raises(RecipeNotCertified, match="dark"):
        registry.require_serving(shard())


def test_a_fingerprint_alone_does_not_tell_how_many_layers_there_are():
    registry = RecipeRegistry()
    registry.register(shard())
    other = evidence(layer_count=11, shard_ranges=((0, 11),))
    assert registry.certify(shard().fingerprint, other).may_serve


def test_recipes_are_kept_apart():
    registry = RecipeRegistry()
    other = shard(under=recipe(kv_dtype="q8_0"))
    for each in (shard(), other):
        registry.register(each)
    registry.certify(other, evidence(certified_at=3.0))
    assert registry.certified_fingerprints() == (other.fingerprint,)
    assert [each["status"] for each in registry.to_dict()["recipes"]] == ["dark", "certified"]
    assert registry.to_dict()["recipes"][1] == registry.status(other).to_dict()


# Canonical form


def test_canonical_form_is_sorted_compact_and_unescaped():
    expected = hashlib.sha256('{"a":["é",null,true,-1],"b":"\\n\\"\\u001f"}'.encode()).hexdigest()
    assert canonical_sha256({"b": '\n"\x1f', "a": ["é", None, True, -1]}) == expected


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"a": {"b": 1.0}}, "a.b"),
        ({"a": [0, float("nan")]}, "a[1]"),
        ({"a": float("inf")}, "a"),
        ({"a": 2**53}, "a"),
        ({"a": -(2**53)}, "a"),
        ({"a": "x\udfff"}, "a"),
        ({"a": {"\ud800": 1}}, "a key of a"),
        ({"a": {1: 1}}, "a"),
        ({"a": b"x"}, "a"),
        (1.5, "value"),
    ],
)
def test_what_has_no_canonical_form_is_refused_by_the_name_of_its_member(value, field):
    with pytest.raises(RecipeIdentityError) as refusal:
        canonical_sha256(value)
    assert str(refusal.value).startswith(f"{field}: ")


def test_integers_up_to_what_json_readers_agree_on_have_a_canonical_form():
    assert canonical_sha256(2**53 - 1) != canonical_sha256(-(2**53 - 1))


def test_a_value_without_an_end_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(RecipeIdentityError, match="nested deeper"):
        canonical_sha256(endless)


def test_replacing_a_member_checks_the_whole_again():
    with pytest.raises(RecipeIdentityError, match=r"artifact\.revision"):
        msgspec.structs.replace(artifact(), revision="latest")
