r"""Is this still the history that was read? If not, a reader stops.

A realm's log is only ever appended to. A stream that was deleted and made anew, restored from an
older copy, truncated or reconfigured looks alive and would fold into a state that nobody can
explain, so it is compared with what was folded:

    created     the stream's own birth, a text from the server
    sequence    the last record folded (0: none)
    digest      SHA-256 of `<subject>\n<time in ns>\n` and the body of that record

`created` alone does not do: it survives the restoring of an older copy.
"""

import hashlib
from enum import StrEnum

from msgspec import Struct

from meshnet_bus.api import STREAM_NOT_FOUND, ApiError, StreamApi
from meshnet_bus.stream import StreamState, drift, read_state
from meshnet_events.record import Record


class FaultReason(StrEnum):
    """Why a history is not the one that was folded."""

    NO_STREAM = "no-stream"
    RECREATED = "recreated"
    TRUNCATED = "truncated"
    REWRITTEN = "rewritten"
    FIRST_SEQUENCE = "first-sequence"
    MISSING_RECORDS = "missing-records"
    DRIFT = "drift"


class HistoryFault(Exception):
    """The stream's history is not the one that was folded. Nothing more may be folded from it."""

    def __init__(self, reason: FaultReason, detail: str) -> None:
        super().__init__(f"history fault ({reason}): {detail}")
        self.reason = reason
        self.detail = detail


class FoldedPosition(Struct, frozen=True):
    """How far a stream was folded, and enough to recognise it again. `digest` is empty at 0."""

    created: str
    sequence: int
    digest: str


def record_digest(record: Record) -> str:
    """64 hex: the record's subject, time and body. Not the event's digest, which knows no broker."""
    return hashlib.sha256(
        b"%b\n%d\n%b" % (record.subject.encode(), record.time_ns, record.body)
    ).hexdigest()


async def verify(api: StreamApi, sequence: int, folded: FoldedPosition | None) -> StreamState:
    """Compare the stream, at its leader, with what was folded up to `sequence`.

    `folded` is None when nothing is known of it yet. Raises `HistoryFault`; `Unreachable` when the
    question could not be answered.
    """
    try:
        state = await read_state(api)
        _check_state(api, state, sequence, folded)
        if folded is not None and folded.sequence:
            await _check_record(api, folded)
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            raise HistoryFault(
                FaultReason.NO_STREAM, f"there is no stream {api.stream}; was the realm created?"
            ) from error
        raise
    return state


def _check_state(
    api: StreamApi, state: StreamState, sequence: int, folded: FoldedPosition | None
) -> None:
    if folded is not None and folded.created != state.created:
        raise HistoryFault(
            FaultReason.RECREATED,
            f"{api.stream} was created {state.created}; what was folded is of {folded.created}",
        )
    if differences := drift(state.config, api.realm):
        raise HistoryFault(FaultReason.DRIFT, "; ".join(differences))
    if state.last_sequence < sequence:
        raise HistoryFault(
            FaultReason.TRUNCATED,
            f"{api.stream} ends at {state.last_sequence}; {sequence} was folded",
        )
    if state.last_sequence and state.first_sequence != 1:
        raise HistoryFault(
            FaultReason.FIRST_SEQUENCE,
            f"{api.stream} begins at {state.first_sequence}; expected 1",
        )
    if state.deleted or state.lost or state.messages != state.last_sequence:
        raise HistoryFault(
            FaultReason.MISSING_RECORDS,
            f"{api.stream} holds {state.messages} records up to {state.last_sequence} "
            f"({state.deleted} deleted, {state.lost} lost)",
        )


async def _check_record(api: StreamApi, folded: FoldedPosition) -> None:
    record = await api.leader_record(folded.sequence)
    if record is None:
        raise HistoryFault(
            FaultReason.MISSING_RECORDS, f"{api.stream} has no record {folded.sequence} any more"
        )
    if record_digest(record) != folded.digest:
        raise HistoryFault(
            FaultReason.REWRITTEN,
            f"record {folded.sequence} of {api.stream} has another digest, subject or time "
            "than the one that was folded",
        )
