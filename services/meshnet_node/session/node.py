"""What all sessions of one process share: who we are, what we hold, whom we ask, where we report.

A session asks of a `Node` and never changes what it is. What does change is kept here, each in one
object: which sessions there have been (`epochs`), and the newest result of every handshake.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
from msgspec import Struct, field

from meshnet_bus.api import Published
from meshnet_bus.outbox import Handed
from meshnet_events.answers import AnswerType
from meshnet_events.facts import Fact
from meshnet_events.keys import EventKey
from meshnet_events.queries import Query
from meshnet_node.backends import (
    BackendError,
    ContextFull,
    LoadedShard,
    NotFinite,
    NoTokenizer,
    Slot,
)
from meshnet_node.foreign import fault_text, said_by
from meshnet_node.handshake import Results, Role, result
from meshnet_node.recipe_identity import ShardIdentity
from meshnet_node.session.epochs import Epochs
from meshnet_node.session.link import Caller, Link, Meeting, Request, open_link
from meshnet_node.session.transport import MAX_FRAME_DATA_BYTES, Tls
from meshnet_node.shard_facts import ShardFacts

_log = logging.getLogger("meshnet_node.session")
_T = TypeVar("_T")


class Limits(Struct, frozen=True):
    """How much sessions may ask for, and how long they may be silent (seconds)."""

    sessions: int = 32
    positions: int = 4_096
    positions_per_frame: int = 512
    prompt_characters: int = 65_536
    open_timeout_s: float = 10.0
    idle_timeout_s: float = 120.0
    step_timeout_s: float = 60.0
    attest_timeout_s: float = 15.0
    max_skew_ms: int = 60_000


class Tracker(Protocol):
    """Whom sessions ask: `meshnet_bus.asker.Asker`."""

    async def ask(self, query: Query[AnswerType], /) -> AnswerType:
        """Ask. Raises `QueryRefused` or `Unreachable`."""


class Outbox(Protocol):
    """Where facts go: `meshnet_bus.outbox.Outbox`."""

    async def hand(self, fact: Fact) -> Handed:
        """Take a fact over; it is published, whatever happens from now on.

        Raises ValueError for one that is none, and `OutboxError`.
        """

    async def stored(self, handed: Handed) -> Published:
        """Wait until it is stored. Raises `OutboxError`."""


class CallAbandoned(BackendError):
    """A call of the backend did not return, and is waited for no longer."""


class ServedShard:
    """A shard that sessions may compute with: its identity, and the layers as they are loaded.

    `loaded` is touched in `call` alone, its attributes too; what it says of itself are `facts`.
    """

    def __init__(
        self,
        shard_id: str,
        identity: ShardIdentity,
        loaded: LoadedShard,
        facts: ShardFacts,
        *,
        synthetic: bool,
    ) -> None:
        self.shard_id = shard_id
        self.identity = identity
        self.fingerprint = identity.fingerprint
        self.loaded = loaded
        self.facts = facts
        self.synthetic = synthetic
        self.turn = anyio.CapacityLimiter(1)
        """Whose turn it is: a backend is called from one thread at a time."""
        self.is_still_at_work = False
        """Whether an abandoned call may not have returned: then nobody may touch or close `loaded`."""
        # of its own: a call that hangs must not take a thread from others
        self._thread = anyio.CapacityLimiter(1)
        self._began_s: float | None = None
        self._at_work: anyio.CancelScope | None = None
        self._is_abandoned = False

    @property
    def busy_s(self) -> float:
        """For how long the call under way has been at work; 0 where there is none."""
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    async def call(self, work: Callable[[], _T]) -> _T:
        """Let the backend work, in a thread and in its turn.

        Work that has begun is waited for, also by whoever is cancelled: what it works on must not be
        closed under it, nor the turn be given away. So this must run inside a cancel scope of anyio,
        which a task that gRPC itself cancels is not (`Responder`). Only `abandon` ends the waiting:
        raises CallAbandoned, then and from then on.

        Whatever the backend raises comes as a `BackendError`, its text asked for in the thread. So one
        that asks the process to end (SystemExit, KeyboardInterrupt) has failed, and no more: let
        through, it would end the event loop and leave the process standing.
        """

        def guarded() -> _T:
            try:
                return work()
            except BaseException as error:  # noqa: BLE001 - it is raised again, as one of ours
                _log.debug("a call of the backend", exc_info=error)
                raise _as_ours(error) from None

        async with self.turn:
            if not self._is_abandoned:
                with anyio.CancelScope(shield=True) as scope:
                    self._at_work, self._began_s = scope, time.monotonic()
                    try:
                        return await anyio.to_thread.run_sync(
                            guarded, abandon_on_cancel=True, limiter=self._thread
                        )
                    finally:
                        self._at_work = self._began_s = None
                self.is_still_at_work = True
        raise CallAbandoned("a call of this shard's backend did not return, and was given up")

    def abandon(self) -> None:
        """Let nobody wait for the backend any more, and nobody call it: the process is to end.

        A thread cannot be ended from outside. One that is at work goes on, alone (`is_still_at_work`).
        """
        self._is_abandoned = True
        if self._at_work is not None:
            self._at_work.cancel()

    @asynccontextmanager
    async def slot(self, start: int, end: int, *, positions: int) -> AsyncIterator[Slot]:
        """A slot of layers `[start, end)` for as long as it is needed."""
        slot = await self.call(lambda: self.loaded.open(start, end, positions=positions))

        def close() -> None:
            slot.close()

        try:
            yield slot
        finally:
            with anyio.CancelScope(shield=True):
                await self.call(close)

    def positions_per_frame(self, most: int) -> int:
        """How many positions fit one frame, at most `most`."""
        return max(1, min(most, MAX_FRAME_DATA_BYTES // self.facts.position_bytes))


def _as_ours(error: BaseException) -> BackendError:
    """What backend code raised, as one of the errors that a backend is known to have."""
    for kind in (NoTokenizer, ContextFull, NotFinite, BackendError):
        if isinstance(error, kind):
            return kind(said_by(error))
    return BackendError(fault_text(error))


class Node(Struct, kw_only=True):
    """This process: one node in one boot."""

    realm: str
    key: EventKey
    boot_id: str
    shards: Mapping[str, ServedShard]
    tracker: Tracker
    outbox: Outbox
    tls: Tls | None = None
    limits: Limits = Limits()
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic
    results: Results = field(default_factory=Results)
    epochs: Epochs = field(default_factory=Epochs)

    @property
    def answering(self) -> tuple[str, ...]:
        """The shards whose backend answers: no call is at work for longer than a step may take."""
        most_s = self.limits.step_timeout_s
        return tuple(name for name, shard in self.shards.items() if shard.busy_s <= most_s)

    def open(self, shard: ServedShard, request: Request) -> AbstractAsyncContextManager[Link]:
        """Open a session at a neighbour with one of our shards; what came of meeting is reported."""

        async def met(meeting: Meeting) -> None:
            await self.report(meeting, "initiator", shard)

        caller = Caller(self.realm, self.key, self.boot_id, shard.fingerprint, self.tls)
        return open_link(caller, request, met=met, timeout_s=self.limits.open_timeout_s)

    async def report(self, meeting: Meeting, role: Role, shard: ServedShard) -> None:
        """Publish what came of a handshake, unless it was said before."""
        fact = result(meeting.terms, role, shard.fingerprint, meeting.presented, meeting.mismatches)
        if not self.results.take(fact, shard.shard_id, now_s=self.monotonic_s()):
            return
        try:
            await self.outbox.hand(fact)
        except BaseException:
            self.results.forget(fact)
            raise
