"""Explicit validators for tests. Production code does not import this module.

The admission gate has no lenient mode, so a test that wants a shard admitted says so by passing a
validator that claims a pass. None of them runs a forward: they answer about exactly what they were
asked, at a time the test chooses (seconds since the epoch).
"""

import hashlib

from msgspec import Struct

from meshnet_node.capability import (
    CapabilityContext,
    CapabilityReport,
    CapabilityStatus,
    CapabilityValidator,
    report_for,
)

TEST_OUTPUT_DIGEST = hashlib.sha256(b"meshnet_node.testing").hexdigest()


class SyntheticBackend(Struct, frozen=True):
    """A backend that computes nothing and says so."""

    backend_id: str = "synthetic"
    synthetic: bool = True


def passing_validator(*, validated_at: float) -> CapabilityValidator:
    """Claim a pass for whatever is asked."""

    def validate(context: CapabilityContext) -> CapabilityReport:
        return report_for(
            context,
            status="passed",
            validated_at=validated_at,
            tokens=1,
            duration_ms=1,
            output_digest=TEST_OUTPUT_DIGEST,
        )

    return validate


def failing_validator(
    *diagnostics: str, validated_at: float, status: CapabilityStatus = "failed"
) -> CapabilityValidator:
    """Claim that the forward failed (or, with `error`, did not run), with these diagnostics."""

    def validate(context: CapabilityContext) -> CapabilityReport:
        return report_for(
            context,
            status=status,
            validated_at=validated_at,
            tokens=0,
            duration_ms=0,
            diagnostics=diagnostics,
        )

    return validate


def fixed_validator(report: CapabilityReport) -> CapabilityValidator:
    """Give one report whatever is asked, as a stale or foreign report would be."""

    def validate(_context: CapabilityContext) -> CapabilityReport:
        return report

    return validate
