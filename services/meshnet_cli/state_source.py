"""Where a state comes from: a file of records, a tracker's views, or the stream itself.

    --from FILE    folded here, no server and no views
    views          the file that the profile or --views names, if it exists: as far as it was folded
    the server     the whole stream, folded here

Whichever it was, the `Known` says so and up to which sequence it goes. Presence is no history and is
left out of all of them. A root of trust that was named is checked in each.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
from msgspec import Struct

from meshnet_auditor.replay import replay
from meshnet_auditor.source import RecordFile
from meshnet_bus.api import STREAM_NOT_FOUND, ApiError
from meshnet_bus.client import closing, connect
from meshnet_bus.reader import read_until
from meshnet_cli.errors import NOT_FOUND, USAGE, VERIFICATION_FAILED, CliError, fault_advice
from meshnet_cli.options import PRESENCE_NOTE, Source, Where
from meshnet_cli.profile import Settings, settle
from meshnet_cli.progress import Meter, progress
from meshnet_events.record import Record
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.outcome import FoldFault
from meshnet_tracker.registry.rows import RefusedRecord
from meshnet_tracker.registry.state import State
from meshnet_tracker.verification import Verifier
from meshnet_tracker.views import Views, peek

CLIENT_NAME = "meshnet-cli"
_VIEWS_PATIENCE_S = 5.0
_POLL_S = 0.05


class Known(Struct, frozen=True):
    """A state, where it came from, and how the record asked about was refused, if it was.

    `operator` is the key that its root of trust was held against; None when nobody named one.
    """

    state: State
    origin: str
    operator: str | None
    refusal: RefusedRecord | None = None

    def footer(self) -> str:
        """Up to where this speaks, for people."""
        return f"as of sequence {self.state.sequence} ({self.origin}); {PRESENCE_NOTE}"


class Stop(Struct, frozen=True):
    """Where a replay ends: at a sequence, or before the first record that is later than a time."""

    to: int | None = None
    as_of_ns: int | None = None

    def passes(self, record: Record) -> bool:
        """Whether `record` still belongs to the prefix."""
        return (self.to is None or record.sequence <= self.to) and (
            self.as_of_ns is None or record.time_ns <= self.as_of_ns
        )


EVERYTHING = Stop()


def load(source: Source, *, reached: int = 0) -> Known:
    """The newest state to be had. With `reached`, one that has seen that sequence."""
    if source.from_ is not None:
        return fold_file(source.from_, source)
    settings = settle(source)
    path = source.views or settings.views
    if source.views is not None and not source.views.is_file():
        raise CliError(f"there is no file of views at {source.views}", code=NOT_FOUND)
    if path is not None and path.is_file() and _reaches(path, reached):
        return anyio.run(_load_views, path, settings, reached)
    return fold_stream(settings, refusal_at=reached)


def fold_file(path: Path, where: Where, stop: Stop = EVERYTHING) -> Known:
    """Fold the records in `path`, as far as `stop` says."""
    with history(path) as records, progress("replaying", "bytes") as meter:
        settings = settle(where, realm=records.realm)
        state = replay(
            _prefix(_metered(records, meter), stop),
            settings.need_realm(),
            operator=settings.operator,
        )
    _check_reached(state, stop)
    return Known(state, str(path), settings.operator)


@contextmanager
def history(path: Path) -> Iterator[RecordFile]:
    """The records in `path`. What a fold of them finds wrong is said as of a file."""
    if not path.exists():
        raise CliError(f"there is no file {path}", code=NOT_FOUND)
    if not path.is_file():
        raise CliError(
            f"{path} is no regular file, and a history is read more than once",
            "write what comes through a pipe to a file first, and name that",
            code=USAGE,
        )
    try:
        yield RecordFile(path)
    except FoldFault as fault:
        raise CliError(
            f"{path}: {fault}",
            fault_advice(
                fault,
                "nothing was concluded from this history: get it again from where it came, or find "
                "out who changed it",
            ),
            code=VERIFICATION_FAILED,
        ) from fault


@contextmanager
def naming_realm(realm: str) -> Iterator[None]:
    """Say which realm it is that a server does not hold."""
    try:
        yield
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        raise CliError(
            f"this server holds no such realm: {realm!r}",
            "make one with `meshnet up`, or name another with --realm or --server",
            code=NOT_FOUND,
        ) from error


def fold_stream(settings: Settings, stop: Stop = EVERYTHING, *, refusal_at: int = 0) -> Known:
    """Fold the stream as it is now, as far as `stop` says."""
    with progress("replaying", "records") as meter:
        return anyio.run(_fold_stream, settings, stop, refusal_at, meter)


def parse_time(text: str) -> int:
    """Nanoseconds since the epoch of an RFC 3339 time; one without an offset is in UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CliError(
            f"not a time: {text[:40]!r}", "expected one like 2026-11-30T13:30:00Z", code=USAGE
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime.fromtimestamp(0, UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


async def _fold_stream(settings: Settings, stop: Stop, refusal_at: int, meter: Meter) -> Known:
    realm, server = settings.need_realm(), settings.need_server()
    fold = Fold(State(realm), operator=settings.operator)
    verifier = Verifier()
    refusal = None
    async with closing(await connect(server, name=CLIENT_NAME)) as nc:
        try:
            with naming_realm(realm):
                reader = await read_until(nc, realm, until=stop.to)
        except ValueError as error:
            raise CliError(str(error), code=NOT_FOUND) from error
        async with reader:
            async for batch in reader.batches():
                kept = list(_prefix(batch, stop))
                screened = [fold.screen(record) for record in kept]
                for record, result in zip(kept, await verifier.verify(screened), strict=True):
                    fold.apply_screened(record, result)
                for refused in fold.state.take_changes().refusals:
                    if refused.sequence == refusal_at:
                        refusal = refused
                meter(fold.state.sequence, reader.last_known)
                if len(kept) < len(batch):
                    break
    return Known(fold.state, f"folded from {server}", settings.operator, refusal)


async def _load_views(path: Path, settings: Settings, sequence: int) -> Known:
    seen = peek(path)
    async with Views.open(path, settings.realm or (seen.realm if seen else "")) as views:
        state = (await views.load()).state
        refusal = await views.refusal(sequence)
    root = state.realm.root if state.realm else None
    if settings.operator is not None and root not in {None, settings.operator}:
        raise CliError(
            f"{path}: this realm was created by {root}; expected {settings.operator}",
            "these are views of another realm, or the operator key is not its creator's",
            code=VERIFICATION_FAILED,
        )
    return Known(state, f"views {path}", settings.operator, refusal)


def _reaches(path: Path, sequence: int) -> bool:
    """Whether the views have come to `sequence`, or do so while we wait for their projector."""
    deadline = time.monotonic() + _VIEWS_PATIENCE_S
    while (seen := peek(path)) is not None:
        if seen.sequence >= sequence:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return False


def _prefix(records: Iterable[Record], stop: Stop) -> Iterator[Record]:
    for record in records:
        if not stop.passes(record):
            return
        yield record


def _metered(records: RecordFile, meter: Meter) -> Iterator[Record]:
    size, done = records.size, 0
    for record in records:
        done += len(record.body) * 4 // 3 + 160  # as base64, with the members around it
        meter(min(done, size), size)
        yield record


def _check_reached(state: State, stop: Stop) -> None:
    if stop.to is not None and state.sequence < stop.to:
        raise CliError(
            f"the history ends at {state.sequence}; cannot replay up to {stop.to}", code=NOT_FOUND
        )
