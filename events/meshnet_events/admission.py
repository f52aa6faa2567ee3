"""The admission rule: does this proof cover what is about to be advertised, and is it fresh?

It is applied twice: by the node just before it registers, and by the fold when the event arrives,
with the broker's timestamp as *now*. Both call `capability_refusal`; neither can be more lenient.

Rules
- What the proof is about is checked before how good it is: an operator should hear that a report is
  about the wrong thing before hearing that it is old. The order is that of `CAPABILITY_REASONS`.
- Identity fields are opaque labels. They are compared, never interpreted.
- Two labels can agree while what ran differs, so whoever knows the digests states them; both sides
  leave them empty where they are not known. An empty one never equals a stated one.
- Times have one unit per call, which the caller picks (`per_second` tells it to the message): the
  node counts seconds as floats, the fold whole milliseconds. A time that is no number is stale.

No clock is read. The message of a refusal says what was proven, what would be served and what to
do, and is only made when there is one: the fold asks at every registration.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from meshnet_events.facts import Capability

NO_REPORT = "no-report"
MODEL_MISMATCH = "model-mismatch"
SHARD_MISMATCH = "shard-mismatch"
RECIPE_MISMATCH = "recipe-mismatch"
BACKEND_MISMATCH = "backend-mismatch"
NOT_PASSED = "not-passed"
STALE = "stale"

CAPABILITY_REASONS: dict[str, str] = {
    NO_REPORT: "There is no capability report.",
    MODEL_MISMATCH: "The report is about another model, or another artifact of that name.",
    SHARD_MISMATCH: "The report is about other layers.",
    RECIPE_MISMATCH: "The report is about another recipe, or another content of that recipe.",
    BACKEND_MISMATCH: "The report is about another backend or device.",
    NOT_PASSED: "The doctor did not pass.",
    STALE: "The report is too old, too far in the future, or has no time.",
}
"""Every reason and its meaning, in the order of the checks."""

STATUS_PASSED = "passed"

_SHOWN = 80
_SHOWN_DIAGNOSTICS = 5
_REMEDY = "run `meshnet node doctor` for what is to be served"


class Selection(Struct, frozen=True, gc=False):
    """What would be served: layers `[shard_start, shard_end)` of a model under a recipe.

    The digests are 64 hex, or both empty where only labels are known.
    """

    model_id: str
    shard_start: int
    shard_end: int
    recipe_id: str
    recipe_version: str
    backend_id: str
    device: str
    model_artifact_digest: str = ""
    runtime_recipe_digest: str = ""


class CapabilityRefusal(NamedTuple):
    """Why a proof does not admit: a key of `CAPABILITY_REASONS`, and a text for people."""

    reason: str
    message: str


def capability_refusal(
    required: Selection,
    proven: Selection | Capability,
    *,
    status: str,
    diagnostics: Sequence[str],
    validated_at: float,
    now: float,
    max_age: float,
    max_skew: float,
    per_second: int,
) -> CapabilityRefusal | None:
    """Return the first reason why `proven` does not admit `required`, or None when it does.

    The five times are in one unit, `per_second` of which make a second (1, or 1000 for ms).
    """
    if (
        proven.model_id != required.model_id
        or proven.model_artifact_digest != required.model_artifact_digest
    ):
        return _mismatch(MODEL_MISMATCH, required, proven, "model_id", "model_artifact_digest")
    if proven.shard_start != required.shard_start or proven.shard_end != required.shard_end:
        return _mismatch(SHARD_MISMATCH, required, proven, "shard_start", "shard_end")
    if (
        proven.recipe_id != required.recipe_id
        or proven.recipe_version != required.recipe_version
        or proven.runtime_recipe_digest != required.runtime_recipe_digest
    ):
        return _mismatch(
            RECIPE_MISMATCH,
            required,
            proven,
            "recipe_id",
            "recipe_version",
            "runtime_recipe_digest",
        )
    if proven.backend_id != required.backend_id or proven.device != required.device:
        return _mismatch(BACKEND_MISMATCH, required, proven, "backend_id", "device")
    if status != STATUS_PASSED:
        return _not_passed(status, diagnostics)
    # Written so that a time that is not a number fails: it compares as neither.
    if not now - max_age <= validated_at <= now + max_skew:
        return _stale(
            (now - validated_at) / per_second, max_age / per_second, max_skew / per_second
        )
    return None


def missing_report(required: Selection) -> CapabilityRefusal:
    """Refuse because there is no report at all; this is the first of the checks."""
    return CapabilityRefusal(
        NO_REPORT,
        f"no capability report was given, and {_shown(required.model_id)} "
        f"[{required.shard_start}, {required.shard_end}) would be served; {_REMEDY}",
    )


def _mismatch(
    reason: str, required: Selection, proven: Selection | Capability, *members: str
) -> CapabilityRefusal:
    differences = [
        f"{member} {_shown(getattr(proven, member))} was proven, "
        f"{_shown(getattr(required, member))} would be served"
        for member in members
        if getattr(proven, member) != getattr(required, member)
    ]
    return CapabilityRefusal(reason, f"{'; '.join(differences)}; {_REMEDY}")


def _not_passed(status: str, diagnostics: Sequence[str]) -> CapabilityRefusal:
    said = "; ".join(_shown(text) for text in diagnostics[:_SHOWN_DIAGNOSTICS])
    if len(diagnostics) > _SHOWN_DIAGNOSTICS:
        said += f"; and {len(diagnostics) - _SHOWN_DIAGNOSTICS} more"
    return CapabilityRefusal(
        NOT_PASSED,
        f"the report's status is {_shown(status)}, only {STATUS_PASSED!r} may be served: "
        f"{said or 'it gives no diagnostics'}; mend that and run `meshnet node doctor` again",
    )


def _stale(age_s: float, max_age_s: float, max_skew_s: float) -> CapabilityRefusal:
    if age_s > max_age_s:
        age, most = _apart(age_s, max_age_s)
        said = (
            f"the report is {age} s old, at most {most} s may be; run `meshnet node doctor` again"
        )
    elif age_s < -max_skew_s:
        ahead, most = _apart(-age_s, max_skew_s)
        said = (
            f"the report lies {ahead} s in the future, at most {most} s may be "
            "put down to clocks; check this host's clock and run `meshnet node doctor` again"
        )
    else:
        said = "the report's time is not a finite number; run `meshnet node doctor` again"
    return CapabilityRefusal(STALE, said)


def _apart(value_s: float, limit_s: float) -> tuple[str, str]:
    """Both as texts, with as many decimals as tell them apart, or all they have."""
    for digits in range(1, 10):
        value, limit = f"{value_s:.{digits}f}", f"{limit_s:.{digits}f}"
        if value != limit:
            return value, limit
    return repr(value_s), repr(limit_s)


def _shown(value: str | int) -> str:
    if isinstance(value, str) and len(value) > _SHOWN:
        return f"{value[:_SHOWN]!r}… ({len(value)} characters)"
    return repr(value)
