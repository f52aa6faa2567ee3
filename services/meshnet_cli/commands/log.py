"""`meshnet log`: records as they come, each with what the fold made of it."""

import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter
from msgspec import Struct

from meshnet_auditor.source import RecordFile
from meshnet_bus.client import closing, connect
from meshnet_bus.reader import Reader, read_until
from meshnet_cli import look
from meshnet_cli.options import OUTPUT, WHERE, Output, Where
from meshnet_cli.output import answer, console, line, write_line
from meshnet_cli.profile import Settings, settle
from meshnet_cli.state_source import CLIENT_NAME, history, naming_realm
from meshnet_events.envelope import rfc3339
from meshnet_events.facts import TYPE_PREFIX, ShardRegistered
from meshnet_events.forms import DIGEST_PATTERN, KEY_PATTERN
from meshnet_events.reasons import Refusal
from meshnet_events.record import Record
from meshnet_events.screened import Event
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.rows import Transition
from meshnet_tracker.registry.state import State

if TYPE_CHECKING:
    from rich.console import Console


class Entry(Struct, frozen=True):
    """A record and its outcome; `code` is set when it was rejected."""

    sequence: int
    time: str
    issuer: str
    type: str
    outcome: str
    code: str | None
    detail: str
    transitions: tuple[str, ...]


def log(
    *,
    follow: Annotated[bool, Parameter(help="Go on with new records until Ctrl-C.")] = False,
    from_: Annotated[
        Path | None, Parameter(name="--from", help="A history in NDJSON, instead of the stream.")
    ] = None,
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> None:
    """Show every record with its outcome, the reason if it was rejected, and what it changed.

    The log is folded here, from its first record on. With `-o ndjson`, records come one a line as
    they are folded.

    ```
    meshnet log --follow
    meshnet log --from history.ndjson -o ndjson | grep rejected
    ```
    """
    show = _Show(output)
    if from_ is not None:
        with history(from_) as records:
            settings = settle(where, realm=records.realm)
            show.all(_entries(_fold(settings), records))
    else:
        anyio.run(_from_stream, settle(where), show, follow)


class _Show:
    """Prints entries as they come; JSON, which is one document, at the end."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._screen = console() if output.format == "table" else None
        self._kept: list[Entry] = []

    def all(self, entries: Iterator[Entry]) -> None:
        for entry in entries:
            self.one(entry)
        self.end()

    def one(self, entry: Entry) -> None:
        if self._screen is not None:
            _print(self._screen, entry)
        elif self._output.format == "ndjson":
            write_line(entry)
        else:
            self._kept.append(entry)

    def end(self) -> None:
        if self._output.format == "json":
            answer(self._output, self._kept, lambda _: None)


async def _from_stream(settings: Settings, show: _Show, follow: bool) -> None:  # noqa: FBT001
    realm, server = settings.need_realm(), settings.need_server()
    fold = _fold(settings)
    async with closing(await connect(server, name=CLIENT_NAME)) as nc:
        with naming_realm(realm):
            reader = Reader(nc, realm) if follow else await read_until(nc, realm)
        async with reader:
            async for entry in _read(reader, fold):
                show.one(entry)
    show.end()


async def _read(reader: Reader, fold: Fold) -> AsyncIterator[Entry]:
    async for batch in reader.batches():
        for entry in _entries(fold, iter(batch)):
            yield entry
        sys.stdout.flush()  # the next may be long in coming


def _fold(settings: Settings) -> Fold:
    return Fold(State(settings.need_realm()), operator=settings.operator)


def _entries(fold: Fold, records: "Iterator[Record] | RecordFile") -> Iterator[Entry]:
    for record in records:
        screened = fold.screen(record).verified()
        applied = fold.apply_screened(record, screened)
        fold.state.take_changes()
        known = None if isinstance(screened, Refusal) else screened
        yield Entry(
            sequence=record.sequence,
            time=rfc3339(record.time_ms),
            issuer=known.issuer if known else record.subject.rsplit(".", 1)[-1],
            type=known.type if known else "",
            outcome=applied.outcome.kind,
            code=applied.outcome.code,
            detail=applied.outcome.detail,
            transitions=tuple(_told(each, known) for each in applied.transitions),
        )


def _told(change: Transition, event: Event | None) -> str:
    """One change in words; of a shard that came to life, in which boot."""
    boot = ""
    if change.new == "live" and event is not None and isinstance(event.data, ShardRegistered):
        boot = f" (boot {event.data.boot_id[:_SHORT_BOOT]})"
    return f"{change.kind} {change.subject} {change.old} -> {change.new}{boot}"


_SHORT_BOOT = 8


def _print(screen: "Console", entry: Entry) -> None:
    from rich.padding import Padding

    name = entry.type.removeprefix(TYPE_PREFIX) or "–"
    when = entry.time[:19].replace("T", " ")
    head = f"{entry.sequence:>6}  {when}  {look.short(entry.issuer)}  {name:<22}  "
    line(screen, head, look.status(entry.outcome))
    if entry.code:
        screen.print(Padding(look.one_line(f"{entry.code}: {entry.detail}"), (0, 0, 0, 8)))
    for change in entry.transitions:
        line(screen, f"{'':8}{_WHOLE_KEY.sub(_shortened, change)}")


def _shortened(key: "re.Match[str]") -> str:
    return look.short(key[0])


_WHOLE_KEY = re.compile(rf"\b(?:{KEY_PATTERN}|{DIGEST_PATTERN})\b")
