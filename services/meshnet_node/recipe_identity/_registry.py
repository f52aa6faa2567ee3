"""The in-memory model of how a recipe comes to serve: unknown, dark, certified.

A recipe arrives *dark* when its first shard registers and serves once real evidence of a
distributed forward has certified it. What certified it first stands. The log-backed registry agrees
with this model on every history that both can express; revoking is in the log only.
"""

from typing import Any

from msgspec import Struct

from meshnet_node.recipe_identity._checks import (
    RecipeIdentityError,
    brief,
    check_moment,
    check_type,
    found,
)
from meshnet_node.recipe_identity._evidence import DistributedForwardEvidence
from meshnet_node.recipe_identity._identity import CompatibilityFingerprint, ShardIdentity

STATUS_UNKNOWN = "unknown"
STATUS_DARK = "dark"
STATUS_CERTIFIED = "certified"
STATUS_REVOKED = "revoked"
RECIPE_STATUSES = (STATUS_UNKNOWN, STATUS_DARK, STATUS_CERTIFIED, STATUS_REVOKED)


class RecipeNotCertified(RecipeIdentityError):
    """The recipe may not serve, or may not be certified by what was given."""


class RecipeStatus(Struct, frozen=True):
    """What a recipe may do now, and the sentence that says why.

    `certified_at` is as the evidence gave it, and None before.
    """

    status: str
    fingerprint: CompatibilityFingerprint
    detail: str
    certified_at: float | str | None = None

    def __post_init__(self) -> None:
        if self.status not in RECIPE_STATUSES:
            raise RecipeIdentityError(
                f"status: found {found(self.status)}, expected one of {', '.join(RECIPE_STATUSES)}"
            )
        check_moment(self.certified_at, "certified_at")

    @property
    def may_serve(self) -> bool:
        """Whether users may be served: certified only."""
        return self.status == STATUS_CERTIFIED

    @property
    def may_certify(self) -> bool:
        """Whether a certifying forward may be run: dark or certified."""
        return self.status in {STATUS_DARK, STATUS_CERTIFIED}

    def to_dict(self) -> dict[str, Any]:
        """The members as JSON values."""
        return {
            "status": self.status,
            "fingerprint": self.fingerprint.to_dict(),
            "detail": self.detail,
            "certified_at": self.certified_at,
        }


class RecipeRegistry:
    """Statuses by fingerprint key. Labels of the first registration are kept."""

    def __init__(self) -> None:
        self._statuses: dict[tuple[str, str], RecipeStatus] = {}

    def register(self, subject: ShardIdentity | CompatibilityFingerprint) -> RecipeStatus:
        """Make a recipe known; it is dark until certified. One that is known stays as it is."""
        fingerprint = _fingerprint(subject)
        dark = RecipeStatus(
            STATUS_DARK, fingerprint, "registered; no distributed forward has certified it yet"
        )
        return self._statuses.setdefault(fingerprint.key, dark)

    def status(self, subject: ShardIdentity | CompatibilityFingerprint) -> RecipeStatus:
        """The status of a recipe, `unknown` when it was never registered."""
        fingerprint = _fingerprint(subject)
        known = self._statuses.get(fingerprint.key)
        return known or RecipeStatus(
            STATUS_UNKNOWN, fingerprint, "no shard has registered this recipe"
        )

    def certify(
        self,
        subject: ShardIdentity | CompatibilityFingerprint,
        evidence: DistributedForwardEvidence,
    ) -> RecipeStatus:
        """Certify a registered recipe; one certified before keeps its first certification.

        Raises RecipeNotCertified when the recipe is unknown, when the evidence proves nothing, or
        when its `layer_count` is not that of the artifact (which only a ShardIdentity tells).
        """
        check_type(evidence, DistributedForwardEvidence, "evidence")
        status = self.status(subject)
        if not status.may_certify:
            raise RecipeNotCertified(
                f"status: found {status.status} ({status.detail}), expected a registered recipe"
            )
        rejection = evidence.rejection()
        if rejection is not None:
            raise RecipeNotCertified(f"evidence: {rejection.code}: {rejection.text}")
        if (
            isinstance(subject, ShardIdentity)
            and evidence.layer_count != subject.artifact.layer_count
        ):
            raise RecipeNotCertified(
                f"evidence.layer_count: found {evidence.layer_count}, expected "
                f"artifact.layer_count, {subject.artifact.layer_count}"
            )
        if status.may_serve:
            return status
        certified = RecipeStatus(
            STATUS_CERTIFIED,
            status.fingerprint,
            f"certified by session {brief(evidence.route_session_id)}, epoch "
            f"{evidence.route_epoch}, over {len(evidence.node_ids)} nodes",
            evidence.certified_at,
        )
        self._statuses[status.fingerprint.key] = certified
        return certified

    def require_serving(self, subject: ShardIdentity | CompatibilityFingerprint) -> RecipeStatus:
        """The status of a recipe that may serve; raises RecipeNotCertified for any other."""
        status = self.status(subject)
        if not status.may_serve:
            raise RecipeNotCertified(
                f"status: found {status.status} ({status.detail}), expected {STATUS_CERTIFIED}; "
                "run a distributed forward over at least two hosts to certify the recipe"
            )
        return status

    def certified_fingerprints(self) -> tuple[CompatibilityFingerprint, ...]:
        """The fingerprints that may serve, in the order of their registration."""
        return tuple(known.fingerprint for known in self._statuses.values() if known.may_serve)

    def to_dict(self) -> dict[str, Any]:
        """Every known recipe, in the order of registration, as JSON values."""
        return {"recipes": [known.to_dict() for known in self._statuses.values()]}


def _fingerprint(
    subject: ShardIdentity | CompatibilityFingerprint,
) -> CompatibilityFingerprint:
    if isinstance(subject, ShardIdentity):
        return subject.fingerprint
    check_type(subject, CompatibilityFingerprint, "fingerprint")
    return subject
