"""The gate before a registration: no fresh, matching, passing proof, no advertisement.

The rule itself is `meshnet_events.admission`, which the fold applies again when the event arrives;
this module puts a node's requirement and a doctor's report to it, and is the only place that reads
the clock. There is no lenient mode: a test passes an explicit report (`meshnet_node.testing`).

    requirement = AdmissionRequirement.for_context(context)
    report = admit(requirement, validate(context))   # or CapabilityAdmissionError
"""

import math
import re
import time
from collections.abc import Iterable
from typing import Protocol, Self, TypeVar, cast

from msgspec import Struct

from meshnet_events.admission import (
    STATUS_PASSED,
    Selection,
    capability_refusal,
    missing_report,
)
from meshnet_node.capability import CapabilityContext, CapabilityReport, CapabilityValidator
from meshnet_node.recipe_identity import ShardIdentity

__all__ = [
    "MAX_AGE_SECONDS",
    "MAX_CLOCK_SKEW_SECONDS",
    "AdmissionRequirement",
    "CapabilityAdmissionError",
    "CapabilityContext",
    "CapabilityReport",
    "CapabilityValidator",
    "Report",
    "admit",
]

MAX_AGE_SECONDS = 900.0
MAX_CLOCK_SKEW_SECONDS = 60.0
_digest = re.compile("(?:[0-9a-f]{64})?").fullmatch


class _Model(Protocol):
    @property
    def model_id(self) -> str: ...


class _Shard(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class _Recipe(Protocol):
    @property
    def recipe_id(self) -> str: ...
    @property
    def recipe_version(self) -> str: ...


class _Backend(Protocol):
    @property
    def backend_id(self) -> str: ...
    @property
    def device(self) -> str: ...


class Report(Protocol):
    """What admission reads of a report; nothing else is looked at.

    But for the digests, `model.model_artifact_digest` and `recipe.runtime_recipe_digest`, where the
    requirement states them. A report that has none has not proven them.
    """

    @property
    def model(self) -> _Model:
        """What was loaded."""

    @property
    def shard(self) -> _Shard:
        """Which of its layers."""

    @property
    def recipe(self) -> _Recipe:
        """How it was executed."""

    @property
    def backend(self) -> _Backend:
        """By what, and where."""

    @property
    def passed(self) -> bool:
        """Whether the doctor passed."""

    @property
    def status(self) -> str:
        """`passed`, `failed` or `error`."""

    @property
    def validated_at(self) -> float:
        """When, in seconds since the epoch."""

    @property
    def diagnostics(self) -> Iterable[str] | None:
        """What the doctor had to say; one text alone is one diagnostic."""


_Report = TypeVar("_Report", bound=Report)


class CapabilityAdmissionError(Exception):
    """The shard may not be advertised. `reason` is a key of `CAPABILITY_REASONS`."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        self.message = message
        super().__init__(f"{reason}: {message}")


class AdmissionRequirement(Struct, frozen=True):
    """What is about to be advertised, and how fresh its proof must be (seconds).

    The digests are 64 hex; left empty, labels alone are compared. Raises ValueError for an empty
    label, a layer that is no integer, a digest that is none, or a limit that is not a finite number
    from 0 on: each would admit what nobody proved.
    """

    model_id: str
    shard_start: int
    shard_end: int
    recipe_id: str
    recipe_version: str
    backend_id: str
    device: str
    max_age_seconds: float = MAX_AGE_SECONDS
    max_clock_skew_seconds: float = MAX_CLOCK_SKEW_SECONDS
    model_artifact_digest: str = ""
    runtime_recipe_digest: str = ""

    def __post_init__(self) -> None:
        for name in ("model_id", "recipe_id", "recipe_version", "backend_id", "device"):
            label = getattr(self, name)
            if not isinstance(label, str) or not label.strip():
                raise ValueError(f"{name}: expected a non-empty text")
        for name in ("shard_start", "shard_end"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name}: expected an integer")
        for name in ("model_artifact_digest", "runtime_recipe_digest"):
            digest = getattr(self, name)
            if not isinstance(digest, str) or not _digest(digest):
                raise ValueError(f"{name}: expected 64 lowercase hex digits, or nothing")
        for name in ("max_age_seconds", "max_clock_skew_seconds"):
            if not 0 <= _seconds(getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: expected a finite number of seconds, 0 or more")

    @classmethod
    def for_context(
        cls, context: CapabilityContext, *, max_age_seconds: float = MAX_AGE_SECONDS
    ) -> Self:
        """Require a proof of exactly what the context would have served."""
        return cls.for_identity(
            context.identity, device=context.device, max_age_seconds=max_age_seconds
        )

    @classmethod
    def for_identity(
        cls, identity: ShardIdentity, *, device: str, max_age_seconds: float = MAX_AGE_SECONDS
    ) -> Self:
        """Require a proof of exactly this identity on `device`: its labels and its digests."""
        recipe, fingerprint = identity.recipe, identity.fingerprint
        return cls(
            model_id=identity.artifact.artifact_id,
            shard_start=identity.shard_start,
            shard_end=identity.shard_end,
            recipe_id=recipe.recipe_id,
            recipe_version=recipe.recipe_version,
            backend_id=recipe.backend_id,
            device=device,
            max_age_seconds=max_age_seconds,
            model_artifact_digest=fingerprint.model_artifact_digest,
            runtime_recipe_digest=fingerprint.runtime_recipe_digest,
        )


def admit(
    requirement: AdmissionRequirement, report: _Report | None, *, now: float | None = None
) -> _Report:
    """Return the report when it admits what is required, or raise CapabilityAdmissionError.

    `now` is in seconds since the epoch and defaults to this host's clock.
    """
    required = Selection(
        requirement.model_id,
        requirement.shard_start,
        requirement.shard_end,
        requirement.recipe_id,
        requirement.recipe_version,
        requirement.backend_id,
        requirement.device,
        requirement.model_artifact_digest,
        requirement.runtime_recipe_digest,
    )
    if report is None:
        raise CapabilityAdmissionError(*missing_report(required))
    refusal = capability_refusal(
        required,
        Selection(
            report.model.model_id,
            _layer(report.shard.start),
            _layer(report.shard.end),
            report.recipe.recipe_id,
            report.recipe.recipe_version,
            report.backend.backend_id,
            report.backend.device,
            required.model_artifact_digest and getattr(report.model, "model_artifact_digest", ""),
            required.runtime_recipe_digest and getattr(report.recipe, "runtime_recipe_digest", ""),
        ),
        status=_status(report),
        diagnostics=_texts(report.diagnostics),
        validated_at=_seconds(report.validated_at),
        now=time.time() if now is None else now,
        max_age=requirement.max_age_seconds,
        max_skew=requirement.max_clock_skew_seconds,
        per_second=1,
    )
    if refusal is not None:
        raise CapabilityAdmissionError(*refusal)
    return report


def _status(report: Report) -> str:
    """The status. A report that calls itself passed and did not pass contradicts itself."""
    if report.status == STATUS_PASSED and report.passed is not True:
        return f"{report.status}, not passed"
    return report.status


def _texts(diagnostics: Iterable[str] | None) -> tuple[str, ...]:
    return (diagnostics,) if isinstance(diagnostics, str) else tuple(diagnostics or ())


def _layer(value: object) -> int:
    """A layer; what is no integer is NaN, as for times: `False` and `0.0` are not layer 0."""
    return value if type(value) is int else cast("int", math.nan)


def _seconds(value: object) -> float:
    """A time as a float; what is no number is NaN, which compares with nothing and is refused."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    return math.nan
