"""The outbox's file: a piece of one issuer's chain in SQLite, signed and ready to send.

    outbox   one row: form, realm, issuer, and the origin (the place before the first event kept) with
             the sequence where it was stored; none is noted by files of before there was the column
    events   a row for each event kept, without gaps: number, digest, body, when it was handed; once
             it is acknowledged also when, at which sequence, and whether as a duplicate

Acknowledged events are a prefix of `events`, and are pruned from the front.

- What `append` wrote survives a power cut once it returns: `journal_mode=WAL` with
  `synchronous=FULL` syncs the log at every commit, and its folder when the log is made.
- One process at a time: `locking_mode=EXCLUSIVE` keeps SQLite's own lock until the file is closed
  or the process is gone, however it ends.
- Mode 0600. It holds no secret, and yet whoever can write here chooses what is sent.
- A transaction either happens or leaves nothing behind; a disk that is full is `OutboxFull`.
- A file of no bytes is what a crash before the first commit leaves: it is begun like a new one.

Whether a piece is the right one is not asked here: `place` judges, `outbox` acts.
"""

import os
import sqlite3
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Self

import aiosqlite
import anyio
import anyio.to_thread
from msgspec import Struct

from meshnet_bus.place import Standing
from meshnet_events.envelope import ChainHead, SignedEvent

FORM = 1
"""Raised when the tables change."""

_BUSY_TIMEOUT_S = 1.0  # a process that is just ending still has the lock
_SCHEMA = (
    """create table outbox (
        id integer primary key check (id = 1),
        form integer not null,
        realm text not null,
        issuer text not null,
        origin_issuerseq integer,
        origin_digest text,
        origin_sequence integer
    ) strict""",
    """create table events (
        issuerseq integer primary key,
        digest text not null,
        handed_ms integer not null,
        acknowledged_ms integer,
        sequence integer,
        duplicate integer,
        body blob not null
    ) strict""",
    "create index pending on events (issuerseq) where acknowledged_ms is null",
)
_ADDED = "alter table outbox add column origin_sequence integer"  # to files of before: same form


class OutboxError(Exception):
    """The outbox cannot be used as it is; the message says what to do."""


class OutboxInUse(OutboxError):
    """Another process has the outbox open."""


class OutboxFull(OutboxError):
    """The disk did not take it, and nothing of it was written."""


class Acknowledged(Struct, frozen=True):
    """Where an event was stored, and whether that was found out by looking instead of being told."""

    sequence: int
    duplicate: bool


class OutboxFile:
    """One open file. Calls from several tasks go one after the other; none is ended halfway."""

    def __init__(self, db: aiosqlite.Connection, path: Path) -> None:
        """Use `OutboxFile.open`."""
        self._db = db
        self._lock = anyio.Lock()
        self.path = path

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path, realm: str, issuer: str) -> AsyncIterator[Self]:
        """Open the file of `issuer`, making it if there is none. Raises `OutboxError`."""
        try:
            # aiosqlite's thread outlives a connect that fails, and then trips over a closed loop
            await anyio.to_thread.run_sync(_make_private, path)
            db = await aiosqlite.connect(path, isolation_level=None, timeout=_BUSY_TIMEOUT_S)
        except (OSError, sqlite3.Error) as error:
            raise OutboxError(
                f"cannot open the outbox {path}: {error}. Its folder must exist and be ours to write"
            ) from error
        try:
            file = cls(db, path)
            await file._prepare(realm, issuer)
            yield file
        finally:
            with anyio.CancelScope(shield=True):
                await db.close()

    async def _prepare(self, realm: str, issuer: str) -> None:
        async with self._exclusive():
            # before anything is read: then no memory is shared, and the lock is kept
            await self._db.execute("pragma locking_mode = exclusive")
            await self._db.execute("pragma journal_mode = wal")
            await self._db.execute("pragma synchronous = full")
        async with self._transaction():
            tables = [name for (name,) in await self._rows("select name from sqlite_schema")]
            if not tables:
                for statement in _SCHEMA:
                    await self._db.execute(statement)
                await self._db.execute(
                    "insert into outbox values (1, ?, ?, ?, null, null, null)",
                    (FORM, realm, issuer),
                )
            elif "outbox" not in tables:
                raise OutboxError(f"{self.path} is a database of something else. Name another file")
            faults = await self._rows("pragma quick_check(1)")
            if faults != [("ok",)]:
                raise OutboxError(corrupted(self.path, faults[0][0]))
            found = await self._rows("select form, realm, issuer from outbox")
        if found != [(FORM, realm, issuer)]:
            form, of_realm, of_issuer = found[0] if found else (None, None, None)
            raise OutboxError(
                f"{self.path} is the outbox of {of_issuer} in realm {of_realm!r} (form {form}); "
                f"expected {issuer} in {realm!r} (form {FORM}). Name another file"
            )
        async with self._transaction():
            columns = await self._rows("select name from pragma_table_info('outbox')")
            if ("origin_sequence",) not in columns:
                await self._db.execute(_ADDED)

    async def standing(self) -> Standing | None:
        """How far the piece reaches; None when its origin is not known yet. Raises `OutboxError`."""
        async with self._exclusive():
            ((issuerseq, digest),) = await self._rows(
                "select origin_issuerseq, origin_digest from outbox"
            )
            ((first, last, count),) = await self._rows(
                "select min(issuerseq), max(issuerseq), count(*) from events"
            )
            ((pending,),) = await self._rows(
                "select min(issuerseq) from events where acknowledged_ms is null"
            )
            if issuerseq is None:
                return None
            origin = ChainHead(issuerseq, digest)
            if not count:
                return Standing(origin, origin, origin)
            if (first, last) != (issuerseq + 1, issuerseq + count):
                raise OutboxError(
                    corrupted(self.path, f"events {first} to {last} are {count} after {issuerseq}")
                )
            stored = last if pending is None else pending - 1
            heads = dict(
                await self._rows(
                    "select issuerseq, digest from events where issuerseq in (?, ?)", stored, last
                )
            )
        return Standing(
            origin,
            ChainHead(stored, heads[stored]) if stored in heads else origin,
            ChainHead(last, heads[last]),
        )

    async def begin_at(self, origin: ChainHead, sequence: int | None) -> None:
        """Begin anew after `origin`, which lies at `sequence` (None: not known); drop what was kept."""
        async with self._transaction():
            await self._db.execute("delete from events")
            await self._move_origin(origin, sequence)

    async def append(self, events: Sequence[SignedEvent], now_ms: int) -> None:
        """Keep `events`, the chain's next ones: all or, when it raises, none."""
        # one statement is a transaction of its own, and one turn of the file's thread
        places = ", ".join(["(?, ?, ?, ?)"] * len(events))
        rows = ((e.head.issuerseq, e.head.digest, now_ms, e.body) for e in events)
        async with self._exclusive():
            await self._db.execute(
                f"insert into events (issuerseq, digest, handed_ms, body) values {places}",  # noqa: S608 - places
                tuple(chain.from_iterable(rows)),
            )

    async def acknowledge(self, stored: Mapping[int, Acknowledged], now_ms: int) -> None:
        """Note where events were stored, by their numbers."""
        async with self._transaction():
            await self._db.executemany(
                "update events set acknowledged_ms = ?, sequence = ?, duplicate = ? "
                "where issuerseq = ?",
                [(now_ms, at.sequence, at.duplicate, number) for number, at in stored.items()],
            )

    async def take_back(self, after: int) -> None:
        """Events behind number `after` are pending again."""
        async with self._transaction():
            await self._db.execute(
                "update events set acknowledged_ms = null, sequence = null, duplicate = null "
                "where issuerseq > ?",
                (after,),
            )

    async def events(self, after: int, limit: int) -> list[SignedEvent]:
        """The events that follow number `after`, at most `limit` of them."""
        async with self._exclusive():
            rows = await self._rows(
                "select body, issuerseq, digest from events where issuerseq > ? "
                "order by issuerseq limit ?",
                after,
                limit,
            )
        return [SignedEvent(body, ChainHead(number, digest)) for body, number, digest in rows]

    async def digest_at(self, number: int) -> str | None:
        """The digest of the event with that number, or of the origin; None when it is not kept."""
        async with self._exclusive():
            rows = await self._rows(
                "select digest from events where issuerseq = ? "
                "union all select origin_digest from outbox where origin_issuerseq = ?",
                number,
                number,
            )
        return rows[0][0] if rows else None

    async def acknowledged(self, number: int) -> Acknowledged | None:
        """Where the event with that number, or the origin, was stored; None when that is not noted."""
        async with self._exclusive():
            rows = await self._rows(
                "select sequence, duplicate from events "
                "where issuerseq = ? and acknowledged_ms is not null "
                "union all select origin_sequence, 0 from outbox "
                "where origin_issuerseq = ? and origin_sequence is not null",
                number,
                number,
            )
        return Acknowledged(rows[0][0], bool(rows[0][1])) if rows else None

    async def prune(self, *, before_ms: int, limit: int) -> ChainHead | None:
        """Drop at most `limit` events that were acknowledged before `before_ms`, from the front.

        Gives the new origin, if anything was dropped. The last event stays.
        """
        async with self._transaction():
            rows = await self._rows(
                "select issuerseq, digest, acknowledged_ms, sequence from events "
                "where issuerseq < (select max(issuerseq) from events) order by issuerseq limit ?",
                limit,
            )
            old = list(takewhile(lambda row: row[2] is not None and row[2] < before_ms, rows))
            if not old:
                return None
            origin = ChainHead(old[-1][0], old[-1][1])
            await self._db.execute("delete from events where issuerseq <= ?", (origin.issuerseq,))
            await self._move_origin(origin, old[-1][3])
        return origin

    async def _move_origin(self, origin: ChainHead, sequence: int | None) -> None:
        await self._db.execute(
            "update outbox set origin_issuerseq = ?, origin_digest = ?, origin_sequence = ?",
            (origin.issuerseq, origin.digest, sequence),
        )

    async def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        rows: Iterable[Any] = await self._db.execute_fetchall(query, values)
        return [tuple(row) for row in rows]

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Have the connection alone, to the end. Turns SQLite's errors into ours."""
        async with self._lock:
            with anyio.CancelScope(shield=True):
                try:
                    yield
                except sqlite3.Error as error:
                    raise _explained(self.path, error) from error

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        async with self._exclusive():
            try:
                await self._db.execute("begin immediate")
                yield
                await self._db.execute("commit")
            except BaseException:
                # waits its turn behind a statement that asyncio's own cancellation left running
                await self._db.rollback()
                raise


def _make_private(path: Path) -> None:
    """Make an empty file that only we may read, or see that the one there is so and opens."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        # by name: closing a descriptor of its own would drop the locks of an outbox that is open
        path.chmod(0o600)
    sqlite3.connect(path).close()


def corrupted(path: Path, detail: object) -> str:
    """What to tell of a file whose content is not to be used."""
    return (
        f"{path} is not the outbox that was written: {detail}. Move {path}* away: the place in the "
        "chain is then taken from the stream, and events that were not acknowledged are given up"
    )


def _explained(path: Path, error: sqlite3.Error) -> OutboxError:
    """What SQLite's error means here. Its extended codes hold the primary one in the low byte."""
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return OutboxInUse(
                f"another process has the outbox {path} open: one node, one process. Stop it, or "
                "name another file for another key"
            )
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return OutboxFull(
                f"cannot write the outbox {path}: {error}. Nothing was written; make room on its "
                "disk (or see to the disk), then try again"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return OutboxError(corrupted(path, error))
    return OutboxError(f"cannot use the outbox {path}: {error}")
