"""What the doctor says: findings, and the diagnosis that they add up to."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from meshnet_node.capability import CapabilityReport
from meshnet_node.foreign import cut
from meshnet_node.recipe_identity import ShardIdentity

FindingStatus = Literal["ok", "warning", "failed", "skipped"]


class Finding(Struct, frozen=True):
    """What one check found. `fix` says what to do; it is empty where there is nothing to do.

    `skipped` is a check that was not made, `found` being why; a warning keeps nothing from working.
    """

    name: str
    status: FindingStatus
    found: str
    fix: str = ""

    @property
    def lets_on(self) -> bool:
        """Whether checks that need this one can be made."""
        return self.status in {"ok", "warning"}


def ok(name: str, found: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", cut(found))


def warning(name: str, found: str, fix: str) -> Finding:
    """It works, and something should be known."""
    return Finding(name, "warning", cut(found), fix)


def failed(name: str, found: str, fix: str) -> Finding:
    """It does not work."""
    return Finding(name, "failed", cut(found), fix)


def skipped(name: str, why: str, fix: str = "") -> Finding:
    """The check was not made."""
    return Finding(name, "skipped", cut(why), fix)


class Diagnosis(Struct, frozen=True):
    """Every finding, in the order of the checks.

    `report` and `identity` are what the shard may be registered with; there are none where it did not
    get so far as to be loaded.
    """

    findings: tuple[Finding, ...]
    identity: ShardIdentity | None = None
    report: CapabilityReport | None = None

    @property
    def passed(self) -> bool:
        """Whether no check failed. One that was skipped has not failed: the verdict names it."""
        return not self._named("failed")

    @property
    def verdict(self) -> str:
        """One line: what holds, and what nobody looked at."""
        failing, unseen = self._named("failed"), self._named("skipped")
        warned = self._named("warning")
        if failing:
            said = f"failed: {', '.join(failing)} ({len(failing)} of {len(self.findings)} checks)"
        else:
            said = "passed" if not warned else f"passed, with a warning: {', '.join(warned)}"
        return f"{said}; not checked: {', '.join(unseen)}" if unseen else said

    def _named(self, status: FindingStatus) -> Sequence[str]:
        return [finding.name for finding in self.findings if finding.status == status]
