"""Checks: small named things that each give one finding, and the two ways to make a row of them.

A check looks at one thing of its *case* (the shard, the machine, the realm) and says what it found. It
names the checks that it `needs`: where one of those did not let on, it is skipped and says so. An
exception out of a check is a finding of that check, with its `remedy`; it never ends the doctor. What
is no `Exception` (Ctrl-C, cancellation) goes through.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from meshnet_node.doctor.finding import Finding, failed, skipped
from meshnet_node.foreign import fault_text

_log = logging.getLogger(__name__)
_Case = TypeVar("_Case")
_Found = TypeVar("_Found")
_Value = TypeVar("_Value")


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


class Noting:
    """Keeps the findings, and passes everything on."""

    def __init__(self, telling: Telling) -> None:
        self.findings: list[Finding] = []
        self._telling = telling

    def begins(self, name: str) -> None:
        """As `Telling`."""
        self._telling.begins(name)

    def finds(self, finding: Finding) -> None:
        """As `Telling`."""
        self.findings.append(finding)
        self._telling.finds(finding)


class Check(Struct, Generic[_Case, _Found], frozen=True):
    """A named look at a case, which gives a `Finding`, or awaits one: then it bounds that itself.

    What it learnt of the case it may leave there for those that need it.
    """

    name: str
    look: Callable[[_Case], _Found]
    remedy: str
    needs: tuple[str, ...] = ()


def make_checks(
    checks: Sequence[Check[_Case, Finding]], case: _Case, telling: Telling
) -> tuple[Finding, ...]:
    """Make every check, in order. Blocks."""
    findings: dict[str, Finding] = {}
    for check in _possible(checks, findings, telling):
        try:
            findings[check.name] = check.look(case)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - see the module
            _log.debug("the check of %s", check.name, exc_info=error)
            findings[check.name] = failed(check.name, fault_text(error), check.remedy)
    return tuple(findings.values())


def skip_checks(
    checks: Sequence[Check[_Case, _Found]], why: str, telling: Telling
) -> tuple[Finding, ...]:
    """Make none of them, and say why."""
    findings = tuple(skipped(check.name, why) for check in checks)
    for finding in findings:
        telling.finds(finding)
    return findings


def had(value: _Value | None) -> _Value:
    """What an earlier check left; `needs` says which one that is."""
    if value is None:
        raise LookupError("a check was made before those that it needs")
    return value


async def make_waiting_checks(
    checks: Sequence[Check[_Case, Awaitable[Finding]]], case: _Case, telling: Telling
) -> tuple[Finding, ...]:
    """Make every check, one after the other."""
    findings: dict[str, Finding] = {}
    for check in _possible(checks, findings, telling):
        try:
            findings[check.name] = await check.look(case)
        except Exception as error:  # noqa: BLE001 - see the module
            findings[check.name] = failed(check.name, fault_text(error), check.remedy)
    return tuple(findings.values())


def _possible(
    checks: Sequence[Check[_Case, _Found]], findings: dict[str, Finding], telling: Telling
) -> Iterator[Check[_Case, _Found]]:
    """Each check that can be made, for whom iterates to leave its finding; others are skipped."""
    for check in checks:
        telling.begins(check.name)
        missing = [name for name in check.needs if not findings[name].lets_on]
        if missing:
            why = f"it needs {', '.join(missing)} to be in order first"
            findings[check.name] = skipped(check.name, why)
        else:
            yield check
        telling.finds(findings[check.name])
