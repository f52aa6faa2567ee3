"""Checks: small named things that each give one finding, and the two ways to make a row of them.

A check looks at one thing of its *case* (the shard, the machine, the realm) and says what it found. It
names the checks that it `needs`: where one of those did not let on, it is skipped and says so. An
exception out of a check is a finding of that check, with its `remedy`; it never ends the doctor. What
is no `Exception` (Ctrl-C, cancellation) goes through.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from meshnet_node.doctor.finding import Finding, failed, skipped
from meshnet_node.foreign import fault_text

_Case = TypeVar("_Case")


class Telling(Protocol):
    """Whoever follows the checks while they are made."""

    def begins(self, name: str) -> None:
        """A check is about to be made."""

    def finds(self, finding: Finding) -> None:
        """It was made, or skipped."""


class Silent:
    """Tells nobody."""

    def begins(self, name: str) -> None:
        """As `Telling`."""

    def finds(self, finding: Finding) -> None:
        """As `Telling`."""


class Check(Struct, Generic[_Case], frozen=True):
    """A check that blocks. `look` is given the case, and what it learnt there it may leave there."""

    name: str
    look: Callable[[_Case], Finding]
    remedy: str
    needs: tuple[str, ...] = ()


class WaitingCheck(Struct, Generic[_Case], frozen=True):
    """A check that waits for others, and bounds that itself."""

    name: str
    look: Callable[[_Case], Awaitable[Finding]]
    remedy: str
    needs: tuple[str, ...] = ()


def make_checks(
    checks: Sequence[Check[_Case]], case: _Case, telling: Telling
) -> tuple[Finding, ...]:
    """Make every check, in order."""
    findings: dict[str, Finding] = {}
    for check in checks:
        telling.begins(check.name)
        finding = _unmet(check, findings)
        if finding is None:
            try:
                finding = check.look(case)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - see the module
                finding = _broken(check, error)
        findings[check.name] = finding
        telling.finds(finding)
    return tuple(findings.values())


async def make_waiting_checks(
    checks: Sequence[WaitingCheck[_Case]], case: _Case, telling: Telling
) -> tuple[Finding, ...]:
    """Make every check, one after the other."""
    findings: dict[str, Finding] = {}
    for check in checks:
        telling.begins(check.name)
        finding = _unmet(check, findings)
        if finding is None:
            try:
                finding = await check.look(case)
            except Exception as error:  # noqa: BLE001 - see the module
                finding = _broken(check, error)
        findings[check.name] = finding
        telling.finds(finding)
    return tuple(findings.values())


def _unmet(
    check: Check[_Case] | WaitingCheck[_Case], findings: dict[str, Finding]
) -> Finding | None:
    missing = [name for name in check.needs if not findings[name].lets_on]
    if not missing:
        return None
    return skipped(check.name, f"it needs {', '.join(missing)} to be in order first")


def _broken(check: Check[_Case] | WaitingCheck[_Case], error: BaseException) -> Finding:
    return failed(check.name, fault_text(error), check.remedy)
