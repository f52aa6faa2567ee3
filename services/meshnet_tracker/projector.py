"""The projector: reads records in order, folds them, commits views and position together.

    reader -> screen -> verify (worker threads) -> fold -> rows that changed
                                                             |  taken when the writer is free
                                                             v
                                                        commit: one transaction

Folding goes on while a commit is under way; whatever changed meanwhile is written by the next one,
each row once, however often it changed. What arrives live is committed at once. While catching up
there is no one to see the steps between, so commits are made far apart: after `COMMIT_EVERY` records
or a second. Not more than `MAX_AHEAD` records, nor `MAX_AHEAD_BYTES` of them, are folded beyond what
is committed, so memory is bounded, and so is what one statement hands to SQLite.

Killed at any point, a projector goes on from the last commit.
"""

from collections.abc import Callable

import anyio
import anyio.lowlevel

from meshnet_bus.client import SafeClient
from meshnet_bus.groups import sole
from meshnet_bus.history import FoldedPosition
from meshnet_bus.reader import Reader
from meshnet_events.record import Record
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.state import Changes, State
from meshnet_tracker.snapshot import batch_of
from meshnet_tracker.verification import Verifier
from meshnet_tracker.views import Views

COMMIT_EVERY = 32_768
COMMIT_EVERY_BYTES = 128 * 2**20
MAX_AHEAD = 2 * COMMIT_EVERY
MAX_AHEAD_BYTES = 2 * COMMIT_EVERY_BYTES
_COMMIT_AFTER_S = 1.0
_LOOK_EVERY_S = 0.02

OnCommit = Callable[[Changes], None]
"""Is told what changed between two commits, each once. It is quick and does not raise."""


class Projector:
    """Keeps one file of views up with one realm's stream."""

    def __init__(
        self,
        views: Views,
        nc: SafeClient,
        *,
        operator: str | None = None,
        verify: bool = True,
        until: int | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        """`operator` is the root of trust that we were told; `until` ends at that sequence.

        `on_commit` is given what each commit wrote, once it is done. `verify=False` leaves
        signatures unchecked: for measuring, and for a log that was verified.
        """
        self._views = views
        self._nc = nc
        self._operator = operator
        self._verifier = Verifier() if verify else None
        self._until = until
        self._on_commit = on_commit
        self._fold: Fold | None = None
        self._reader: Reader | None = None
        self._folded: FoldedPosition | None = None
        self._work = anyio.Event()
        self._committed_more = anyio.Event()
        self._folded_bytes = self._taken_bytes = self._committed_bytes = 0
        self._taken = 0
        self.committed = 0
        """Sequence of the last record whose effects are committed."""
        self.is_running = False
        """Whether `run` has begun to read and has not ended, by a fault or otherwise."""

    @property
    def folded(self) -> int:
        """Sequence of the last record that was folded, committed or not; 0 before `run` has begun."""
        return self._fold.state.sequence if self._fold else 0

    @property
    def state(self) -> State:
        """The state, as far as it was folded. Read it between awaits only, and change nothing."""
        if self._fold is None:
            raise LookupError("the projector has not been started")
        return self._fold.state

    @property
    def last_known(self) -> int:
        """The highest sequence that the stream was heard to hold."""
        return self._reader.last_known if self._reader else 0

    async def reached(self, sequence: int) -> None:
        """Wait until the effects of the record at `sequence` are committed. Bound it yourself."""
        while self.committed < sequence:
            await self._committed_more.wait()

    async def caught_up(self) -> None:
        """Wait until all that the stream was heard to hold is committed. Bound it yourself.

        Whether the history has been looked at is asked now and then: a reader tells nobody.
        """
        while not self.last_known:  # noqa: ASYNC110
            await anyio.sleep(_LOOK_EVERY_S)
        await self.reached(self.last_known)

    async def run(self) -> None:
        """Project until `until`, or for ever.

        Raises `HistoryFault` or `FoldFault` when the history is not the one that was folded,
        `ViewsError` when the views cannot be written, `Unreachable` when the client was closed.
        """
        loaded = await self._views.load()
        fold = self._fold = Fold(loaded.state, operator=self._operator)
        self.committed = self._taken = fold.state.sequence
        try:
            async with (
                Reader(
                    self._nc, self._views.realm, expect=loaded.position, until=self._until
                ) as reader,
                anyio.create_task_group() as tasks,
            ):
                self._reader = reader
                self.is_running = True
                tasks.start_soon(self._write)
                async for batch in reader.large_batches():
                    if (folded := reader.folded) is not None:
                        await self._apply(fold, batch, folded)
                    self._folded_bytes += sum([len(record.body) for record in batch])
                    if reader.caught_up or self._is_due():
                        self._work.set()
                    while self._is_too_far_ahead():
                        await self._committed_more.wait()
                    await anyio.lowlevel.checkpoint()
                self._work.set()
                await self.reached(fold.state.sequence)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise sole(group) from None
        finally:
            self.is_running = False

    def _is_due(self) -> bool:
        """Whether, while catching up, it is time for another commit."""
        return (
            self.state.sequence - self._taken >= COMMIT_EVERY
            or self._folded_bytes - self._taken_bytes >= COMMIT_EVERY_BYTES
        )

    def _is_too_far_ahead(self) -> bool:
        """Whether as much as may be is folded and not committed."""
        return (
            self.state.sequence - self.committed >= MAX_AHEAD
            or self._folded_bytes - self._committed_bytes >= MAX_AHEAD_BYTES
        )

    async def _apply(self, fold: Fold, batch: list[Record], folded: FoldedPosition) -> None:
        """Fold `batch`, which ends at `folded`.

        Whenever this waits, position and state agree: a commit may come in between.
        """
        if self._verifier is None:
            fold.apply_all(batch, verify=False)
        else:
            results = await self._verifier.verify([fold.screen(record) for record in batch])
            for record, result in zip(batch, results, strict=True):
                fold.apply_screened(record, result)
        self._folded = folded

    async def _write(self) -> None:
        """Commit what has changed when told to, and once a second."""
        while True:
            with anyio.move_on_after(_COMMIT_AFTER_S):
                await self._work.wait()
            self._work = anyio.Event()
            position = self._folded
            if position is None or position.sequence == self.committed:
                continue
            self._taken, self._taken_bytes = position.sequence, self._folded_bytes
            changes = self.state.take_changes()
            batch = batch_of(self.state, changes)
            await self._views.commit(batch, before=self.committed, position=position)
            if self._on_commit is not None:
                self._on_commit(changes)
            self.committed, self._committed_bytes = self._taken, self._taken_bytes
            self._committed_more.set()
            self._committed_more = anyio.Event()
