"""The node's gate: what it reads, what it says, and that nothing makes it lenient."""

import json
import math
import time
from types import SimpleNamespace

import msgspec
import pytest

from meshnet_events.admission import Selection, capability_refusal
from meshnet_events.facts import Capability
from meshnet_node import admission
from meshnet_node.admission import AdmissionRequirement, CapabilityAdmissionError, admit
from meshnet_node.capability import (
    NO_OUTPUT_DIGEST,
    CapabilityContext,
    CapabilityReport,
    CapabilityReportError,
    ShardSelection,
)
from meshnet_node.recipe_identity import ArtifactIdentity, RecipeIdentityError, RuntimeRecipe
from meshnet_node.testing import (
    SyntheticBackend,
    failing_validator,
    fixed_validator,
    passing_validator,
)

NOW = 1_790_000_000.0
LIMITS = {"now": 1000, "max_age": 900, "max_skew": 60, "per_second": 1}


def context(start=0, end=9, device="cpu"):
    return CapabilityContext(
        backend=SyntheticBackend(),
        selection=ShardSelection(
            ArtifactIdentity("acme/model", "0f" * 20, "c" * 64, "llama", "a" * 64, 12), start, end
        ),
        recipe=RuntimeRecipe(
            weight_quantization="Q4_K_M",
            activation_dtype="float16",
            compute_dtype="float32",
            kv_dtype="f16",
            kv_layout="contiguous",
            tokenizer_revision="1e" * 20,
            architecture_adapter="llama",
            backend_id="synthetic",
            runtime_version="1",
            recipe_id="dense",
            recipe_version="3",
        ),
        manifest=None,
        device=device,
    )


def requirement(**changes):
    return msgspec.structs.replace(AdmissionRequirement.for_context(context()), **changes)


def report(**changes):
    made = passing_validator(validated_at=NOW)(context())
    return msgspec.structs.replace(made, **changes)


def refusal(required, given, now=NOW):
    with pytest.raises(CapabilityAdmissionError) as raised:
        admit(required, given, now=now)
    return raised.value


def selection(**changes):
    stated = Selection("m", 0, 9, "r", "1", "b", "cpu", "a" * 64, "b" * 64)
    return msgspec.structs.replace(stated, **changes)


def test_a_validator_that_claims_a_pass_admits_what_it_was_asked_for():
    given = passing_validator(validated_at=NOW)(context())
    assert admit(requirement(), given, now=NOW) is given
    assert given.synthetic


def test_a_failed_doctor_is_refused_with_its_diagnostics():
    for status in ("failed", "error"):
        given = failing_validator("nan in logits", validated_at=NOW, status=status)(context())
        raised = refusal(requirement(), given)
        assert raised.reason == "not-passed"
        assert status in raised.message
        assert "nan in logits" in raised.message


def test_a_report_that_contradicts_itself_has_not_passed():
    def claiming(**claims):
        given = report()
        parts = {name: getattr(given, name) for name in given.__struct_fields__}
        return SimpleNamespace(**{**parts, "passed": True, **claims})

    assert admit(requirement(), claiming(), now=NOW).status == "passed"
    for claims in ({"passed": False}, {"status": "failed"}, {"passed": "yes"}, {"passed": 1}):
        assert refusal(requirement(), claiming(**claims)).reason == "not-passed"


def test_only_what_the_gate_names_is_read_of_a_report():
    bare = SimpleNamespace(
        model=SimpleNamespace(model_id="acme/model"),
        shard=SimpleNamespace(start=0, end=9),
        recipe=SimpleNamespace(recipe_id="dense", recipe_version="3"),
        backend=SimpleNamespace(backend_id="synthetic", device="cpu"),
        passed=True,
        status="passed",
        validated_at=NOW,
        diagnostics=(),
    )
    by_labels = requirement(model_artifact_digest="", runtime_recipe_digest="")
    assert admit(by_labels, bare, now=NOW) is bare
    assert refusal(requirement(), bare).reason == "model-mismatch"
    assert refusal(requirement(model_artifact_digest=""), bare).reason == "recipe-mismatch"


def test_a_report_about_the_wrong_thing_is_said_so_before_it_is_said_to_be_old():
    old = fixed_validator(report(validated_at=0.0))(context(start=3))
    assert refusal(requirement(), old).reason == "stale"
    assert refusal(requirement(shard_start=3), old).reason == "shard-mismatch"


def test_a_refusal_says_what_was_proven_what_would_be_served_and_what_to_do():
    raised = refusal(requirement(device="cuda:0"), report())
    assert raised.message == (
        "device 'cpu' was proven, 'cuda:0' would be served; "
        "run `meshnet node doctor` for what is to be served"
    )
    assert str(raised) == f"backend-mismatch: {raised.message}"


def test_a_report_from_the_future_sends_the_operator_to_the_clock():
    assert admit(requirement(), report(validated_at=NOW + 60), now=NOW)
    assert (
        "check this host's clock" in refusal(requirement(), report(validated_at=NOW + 61)).message
    )
    assert "901.0 s old" in refusal(requirement(), report(validated_at=NOW - 901)).message


@pytest.mark.parametrize("stated", [math.nan, math.inf, -math.inf, None, "now", True, 10**400])
def test_a_time_that_is_no_finite_number_is_stale(stated):
    raised = refusal(requirement(), report(validated_at=stated))
    assert raised.reason == "stale"
    assert "not a finite number" in raised.message


def test_a_clock_that_is_no_number_admits_nothing():
    assert refusal(requirement(), report(), now=math.nan).reason == "stale"


def test_without_a_time_the_hosts_clock_is_read():
    assert admit(requirement(), report(validated_at=time.time()))
    with pytest.raises(CapabilityAdmissionError, match="stale"):
        admit(requirement(), report(validated_at=time.time() - 1000))


@pytest.mark.parametrize(
    "lenient",
    [
        {"max_age_seconds": math.inf},
        {"max_age_seconds": math.nan},
        {"max_age_seconds": -1.0},
        {"max_age_seconds": True},
        {"max_clock_skew_seconds": math.inf},
        {"model_id": ""},
        {"device": " "},
        {"recipe_version": None},
        {"shard_start": False},
        {"model_artifact_digest": "f" * 63},
        {"runtime_recipe_digest": None},
    ],
)
def test_a_requirement_cannot_be_made_lenient(lenient):
    with pytest.raises(ValueError, match=next(iter(lenient))):
        requirement(**lenient)


def test_a_requirement_asks_for_what_the_context_would_serve():
    assert AdmissionRequirement.for_context(
        context(2, 7, "cuda:1"), max_age_seconds=60.0
    ) == AdmissionRequirement(
        "acme/model",
        2,
        7,
        "dense",
        "3",
        "synthetic",
        "cuda:1",
        max_age_seconds=60.0,
        model_artifact_digest=context().identity.fingerprint.model_artifact_digest,
        runtime_recipe_digest=context().identity.fingerprint.runtime_recipe_digest,
    )


def test_a_proof_of_other_bytes_under_equal_labels_is_refused():
    given = report()
    for part, digest, reason in (
        ("model", "model_artifact_digest", "model-mismatch"),
        ("recipe", "runtime_recipe_digest", "recipe-mismatch"),
    ):
        other = msgspec.structs.replace(getattr(given, part), **{digest: "f" * 64})
        raised = refusal(requirement(), msgspec.structs.replace(given, **{part: other}))
        assert raised.reason == reason
        assert f"{digest} '{'f' * 64}' was proven" in raised.message
        assert admit(requirement(**{digest: ""}), given, now=NOW) is given


def test_the_gate_offers_all_that_a_caller_needs():
    assert set(admission.__all__) >= {
        "CapabilityReport",
        "CapabilityValidator",
        "CapabilityContext",
        "AdmissionRequirement",
        "CapabilityAdmissionError",
        "admit",
    }
    assert all(hasattr(admission, name) for name in admission.__all__)


@pytest.mark.parametrize(
    ("diagnostics", "said"),
    [
        (None, "it gives no diagnostics"),
        ((), "it gives no diagnostics"),
        (iter(["nan in logits", "late"]), "'nan in logits'; 'late'"),
        ("nan in logits", "'nan in logits'"),
    ],
)
def test_diagnostics_of_any_make_are_told(diagnostics, said):
    message = refusal(requirement(), report(status="failed", diagnostics=diagnostics)).message
    assert message.endswith(f": {said}; mend that and run `meshnet node doctor` again")


def test_a_failed_report_is_said_to_have_failed_and_nothing_else():
    assert "status is 'failed'," in refusal(requirement(), report(status="failed")).message
    lying = SimpleNamespace(
        **{name: getattr(report(), name) for name in report().__struct_fields__}, passed=False
    )
    assert "status is 'passed, not passed'," in refusal(requirement(), lying).message


@pytest.mark.parametrize("start", [False, 0.0, -0.0, "0", None])
def test_what_is_no_integer_is_not_layer_0(start):
    given = msgspec.structs.replace(
        report(), shard=msgspec.structs.replace(report().shard, start=start)
    )
    assert refusal(requirement(), given).reason == "shard-mismatch"
    with pytest.raises(ValueError, match="shard_start"):
        requirement(shard_start=start)


@pytest.mark.parametrize(
    ("age", "said"),
    [
        (900.001, "900.001 s old, at most 900.000 s"),
        (900.5, "900.5 s old, at most 900.0 s"),
        (-60.002, "60.002 s in the future, at most 60.000 s"),
    ],
)
def test_a_refused_age_is_never_shown_equal_to_its_limit(age, said):
    assert said in refusal(requirement(), report(validated_at=1e6), now=1e6 + age).message


def test_a_context_that_nothing_could_prove_is_refused():
    with pytest.raises(ValueError, match="backend"):
        msgspec.structs.replace(context(), backend=SyntheticBackend("other"))
    with pytest.raises(RecipeIdentityError, match="shard_end"):
        context(0, 13)


def test_a_long_label_is_cut_in_a_message():
    message = refusal(requirement(model_id="k" * 5000), report()).message
    assert "5000 characters" in message
    assert len(message) < 300


def test_a_flood_of_diagnostics_is_cut():
    given = report(status="failed", diagnostics=tuple(f"d{i}" for i in range(100)))
    message = refusal(requirement(), given).message
    assert "'d4'" in message
    assert "d5'" not in message
    assert "95 more" in message


def test_a_report_survives_being_kept_as_json():
    assert CapabilityReport.from_json(report().to_json()) == report()
    for content in (
        b"",
        b"{}",
        b'{"passed":true}',
        report().to_json().replace(b"tokens", b"token"),
    ):
        with pytest.raises(CapabilityReportError, match="not a capability report"):
            CapabilityReport.from_json(content)


def with_passed(stated, **changes):
    return json.dumps({**json.loads(report(**changes).to_json()), "passed": stated}).encode()


def test_a_report_may_state_that_it_passed_as_long_as_its_status_agrees():
    assert CapabilityReport.from_json(with_passed(True)) == report()
    assert CapabilityReport.from_json(with_passed(True)).passed is True
    failed = CapabilityReport.from_json(with_passed(False, status="failed"))
    assert failed == report(status="failed")
    assert msgspec.structs.replace(failed, status="passed").passed


@pytest.mark.parametrize(
    "content", [with_passed(True, status="error"), with_passed(False), with_passed(1)]
)
def test_a_report_whose_passed_and_status_disagree_is_none(content):
    with pytest.raises(CapabilityReportError, match="passed"):
        CapabilityReport.from_json(content)


def test_a_report_becomes_the_capability_of_the_event():
    given = report(validated_at=NOW + 0.9999, diagnostics=("warm",))
    fingerprint = context().identity.fingerprint
    assert given.to_fact() == Capability(
        backend_id="synthetic",
        device="cpu",
        diagnostics=("warm",),
        duration_ms=1,
        model_artifact_digest=fingerprint.model_artifact_digest,
        model_id="acme/model",
        output_digest=given.output_digest,
        recipe_id="dense",
        recipe_version="3",
        runtime_recipe_digest=fingerprint.runtime_recipe_digest,
        shard_end=9,
        shard_start=0,
        status="passed",
        synthetic=True,
        tokens=1,
        validated_at_ms=1_790_000_000_999,
    )


def test_a_failed_report_has_the_digest_of_no_output():
    given = failing_validator("no", validated_at=NOW)(context())
    assert given.to_fact().output_digest == NO_OUTPUT_DIGEST


def test_a_report_the_contract_has_no_form_for_does_not_become_a_fact():
    for changes in ({"diagnostics": ("x" * 1025,)}, {"validated_at": math.nan}):
        with pytest.raises(ValueError, match=r"diagnostics|NaN"):
            report(**changes).to_fact()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_artifact_digest": "f" * 64}, "model-mismatch"),
        ({"runtime_recipe_digest": "f" * 64}, "recipe-mismatch"),
        ({"model_artifact_digest": ""}, "model-mismatch"),
        ({"runtime_recipe_digest": ""}, "recipe-mismatch"),
        ({}, None),
    ],
)
def test_equal_labels_do_not_hide_other_digests(changes, reason):
    decided = capability_refusal(
        selection(),
        selection(**changes),
        status="passed",
        diagnostics=(),
        validated_at=1000,
        **LIMITS,
    )
    assert (decided and decided.reason) == reason


@pytest.mark.parametrize(
    ("validated_at", "reason"), [(99, "stale"), (100, None), (1060, None), (1061, "stale")]
)
def test_the_limits_themselves_are_still_fresh(validated_at, reason):
    decided = capability_refusal(
        selection(),
        selection(),
        status="passed",
        diagnostics=(),
        validated_at=validated_at,
        **LIMITS,
    )
    assert (decided and decided.reason) == reason
