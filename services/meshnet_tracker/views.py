"""The views: the registry's rows in one SQLite file, and how far they were folded.

    position      one row: stream, sequence, time and digest of the last record, counts, realm
    chains nodes boots claims recipes handshakes attestations evidence      the rows of the state
    transitions refusals                                                    appended, for people

Views and position are written in one transaction, the position by compare-and-set on the old one:
of two projectors on one file the second finds another position and stops. What is committed is a
prefix of the log, always. The file may be deleted at any time and comes back the same, so losing the
newest commits to a power cut (`synchronous=NORMAL`) costs folding them again and nothing else.

A file of another fold version is not read: its verdicts may be other ones. Delete it, or fold into
a new file beside it.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiosqlite
import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from meshnet_bus.history import FoldedPosition
from meshnet_tracker.registry.rows import RefusedRecord, Transition
from meshnet_tracker.registry.state import State
from meshnet_tracker.snapshot import TABLES, Batch, Table, TableBatch, restore

FOLD_VERSION = 2
"""Raised whenever the same log would fold into other rows."""

_POSITION = """
create table position (
    id integer primary key check (id = 1),
    fold_version integer not null,
    realm text not null,
    created text not null,
    sequence integer not null,
    time_ns integer not null,
    digest text not null,
    counts text not null,
    realm_row text not null
) strict;
create table transitions (id integer primary key, row text not null) strict;
create table refusals (sequence integer primary key, row text not null) strict;
"""


class ViewsError(Exception):
    """The views cannot be used as they are; the message says what to do."""


class AnotherProjector(ViewsError):
    """The position is not the one that we left: another process writes to this file."""


class Loaded(Struct, frozen=True):
    """A state read back, and the position that it was folded to; None before the first commit."""

    state: State
    position: FoldedPosition | None


class Peek(Struct, frozen=True):
    """What a file of views holds, and up to which sequence."""

    realm: str
    sequence: int


def peek(path: Path) -> Peek | None:
    """Look at the position in `path`, beside whoever writes it; None when it holds no views."""
    try:
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            row = db.execute("select realm, sequence from position").fetchone()
        finally:
            db.close()
    except sqlite3.Error:
        return None
    return None if row is None else Peek(*row)


class Views:
    """One tracker's SQLite file for one realm."""

    def __init__(self, db: aiosqlite.Connection, path: Path, realm: str) -> None:
        """Use `Views.open`."""
        self._db = db
        self.path = path
        self.realm = realm

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path, realm: str) -> AsyncIterator[Self]:
        """Open the file, making it if there is none. Raises `ViewsError`."""
        try:
            # aiosqlite's thread outlives a connect that fails, and then trips over a closed loop
            await anyio.to_thread.run_sync(_probe, path)
            db = await aiosqlite.connect(path, isolation_level=None)
        except sqlite3.Error as error:
            raise ViewsError(f"cannot open {path}: {error}") from error
        try:
            views = cls(db, path, realm)
            await views._prepare()
            yield views
        finally:
            with anyio.CancelScope(shield=True):
                await db.close()

    async def _prepare(self) -> None:
        try:
            await self._db.execute("pragma journal_mode = wal")
            await self._db.execute("pragma synchronous = normal")
            async with self._transaction():
                if not await self._one("select 1 from sqlite_schema where name = 'position'"):
                    await self._create()
                version, realm = await self._one("select fold_version, realm from position") or ()
        except (sqlite3.Error, ValueError) as error:
            raise ViewsError(
                f"{self.path} holds no views: {error}. Delete it: views are rebuilt from the log"
            ) from error
        if version != FOLD_VERSION:
            raise ViewsError(
                f"{self.path} was folded by version {version}, this is {FOLD_VERSION}. "
                "Delete it, or name another file: views are rebuilt from the log"
            )
        if realm != self.realm:
            raise ViewsError(
                f"{self.path} holds the realm {realm!r}; expected {self.realm!r}. Name another file"
            )

    async def _create(self) -> None:
        for statement in filter(str.strip, _POSITION.split(";")):
            await self._db.execute(statement)
        for table in TABLES:
            await self._db.execute(_create(table))
        await self._db.execute(
            "insert into position values (1, ?, ?, '', 0, 0, '', '{}', 'null')",
            (FOLD_VERSION, self.realm),
        )

    async def load(self) -> Loaded:
        """The state and position of the last commit."""
        async with self._transaction("begin"):
            row = await self._one(
                "select created, sequence, time_ns, digest, counts, realm_row from position"
            )
            if row is None:
                raise ViewsError(f"{self.path} has no position. Delete it: views are rebuilt")
            created, sequence, time_ns, digest, counts, realm_row = row
            tables = {
                table.name: await self._rows(f"select row from {table.name}")  # noqa: S608 - ours
                for table in TABLES
            }
        state = restore(
            self.realm,
            sequence=sequence,
            time_ns=time_ns,
            counts=counts,
            realm=realm_row,
            rows=lambda table: tables[table.name],
        )
        return Loaded(state, FoldedPosition(created, sequence, digest) if created else None)

    async def refusal(self, sequence: int) -> RefusedRecord | None:
        """Why the record at `sequence` was rejected; None when it was not (or not yet folded)."""
        row = await self._one("select row from refusals where sequence = ?", sequence)
        return None if row is None else msgspec.json.decode(row[0], type=RefusedRecord)

    async def transitions(self, *, after: int = 0) -> list[Transition]:
        """Every change of status caused by records behind sequence `after`, in order."""
        rows = await self._rows(
            "select row from transitions where row ->> 'sequence' > ? order by id", after
        )
        return [msgspec.json.decode(row, type=Transition) for row in rows]

    async def commit(self, batch: Batch, *, before: int, position: FoldedPosition) -> None:
        """Write `batch` and move the position from sequence `before` to `position`, or neither.

        Raises `AnotherProjector` when the position is not `before`, and `ViewsError` when SQLite
        cannot write (a full disk, a read-only file). Not interrupted by cancellation: it is short.
        """
        with anyio.CancelScope(shield=True):
            try:
                async with self._transaction():
                    await self._commit(batch, before, position)
            except sqlite3.Error as error:
                raise ViewsError(f"cannot write {self.path}: {error}") from error

    async def _commit(self, batch: Batch, before: int, position: FoldedPosition) -> None:
        moved = await self._db.execute(
            "update position set created = ?, sequence = ?, time_ns = ?, digest = ?, counts = ?, "
            "realm_row = ? where sequence = ? and created in ('', ?)",
            (
                position.created,
                position.sequence,
                batch.time_ns,
                position.digest,
                batch.counts,
                batch.realm,
                before,
                position.created,
            ),
        )
        if moved.rowcount != 1:
            raise AnotherProjector(
                f"the position in {self.path} is not {before} any more: another process writes to "
                "this file. Stop one of them"
            )
        for changed in batch.tables:
            await self._write(changed)
        if batch.transitions is not None:
            last = await self._one("select coalesce(max(id), 0) from transitions") or (0,)
            await self._db.execute(
                "insert into transitions select ? + 1 + key, value from json_each(?)",
                (*last, batch.transitions),
            )
        if batch.refusals is not None:
            await self._db.execute(
                "insert into refusals select value ->> 'sequence', value from json_each(?)",
                (batch.refusals,),
            )

    async def _write(self, changed: TableBatch) -> None:
        name, key = changed.table.name, changed.table.key
        if changed.gone is not None:
            parts = ", ".join(f"value ->> {index}" for index in range(len(key)))
            await self._db.execute(
                f"delete from {name} where ({', '.join(key)}) in "  # noqa: S608 - names are ours
                f"(select {parts} from json_each(?))",
                (changed.gone,),
            )
        if changed.rows is not None:
            parts = ", ".join(f"value ->> '{member}'" for member in key)
            await self._db.execute(
                f"insert or replace into {name} ({', '.join(key)}, row) "  # noqa: S608 - as above
                f"select {parts}, value from json_each(?)",
                (changed.rows,),
            )

    @asynccontextmanager
    async def _transaction(self, begin: str = "begin immediate") -> AsyncIterator[None]:
        await self._db.execute(begin)
        try:
            yield
            await self._db.execute("commit")
        except BaseException:
            with anyio.CancelScope(shield=True):
                if self._db.in_transaction:  # SQLite may have rolled back by itself
                    await self._db.execute("rollback")
            raise

    async def _one(self, query: str, *values: object) -> tuple[Any, ...] | None:
        async with self._db.execute(query, values) as cursor:
            row = await cursor.fetchone()
        return None if row is None else tuple(row)

    async def _rows(self, query: str, *values: object) -> list[str]:
        async with self._db.execute(query, values) as cursor:
            return [row[0] for row in await cursor.fetchall()]


def _probe(path: Path) -> None:
    """Raise sqlite3.Error when the file cannot be opened."""
    sqlite3.connect(path).close()


def _create(table: Table) -> str:
    """The statement that makes `table`: key, row, and columns that SQLite reads off the row."""
    columns: Iterable[str] = (
        *(f'"{member}" not null' for member in table.key),
        "row text not null",
        *(f"\"{name}\" generated always as (row ->> '{name}') virtual" for name in table.columns),
        f"primary key ({', '.join(table.key)})",
    )
    return f"create table {table.name} ({', '.join(columns)}) without rowid"
