"""What the fold did with one record: every record has exactly one outcome, or faults."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from meshnet_events.reasons import Refusal


class Outcome(Struct, frozen=True, gc=False):
    """`applied`, `noop`, or `rejected` with one code. `detail` is for people."""

    kind: Literal["applied", "noop", "rejected"]
    code: str | None = None
    detail: str = ""

    @property
    def name(self) -> str:
        """How the outcome is counted: its code if it was rejected, else its kind."""
        return self.code or self.kind


APPLIED = Outcome("applied")
NOOP = Outcome("noop")


def rejected(code: str, detail: str = "") -> Outcome:
    """The record is rejected for `code`."""
    return Outcome("rejected", code, detail)


def refused(refusal: Refusal) -> Outcome:
    """The record is rejected for what the gate or a rule said."""
    return Outcome("rejected", refusal.code, refusal.detail)


class FoldFaultReason(StrEnum):
    """Why a record cannot stand where it does."""

    GAP = "gap"
    BAD_REALM = "bad-realm"
    WRONG_ROOT = "wrong-root"


class FoldFault(Exception):
    """This record cannot stand here in a history of this realm: nothing more may be folded.

    `detail` says what was found and expected.
    """

    def __init__(self, reason: FoldFaultReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
