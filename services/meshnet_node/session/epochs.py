"""Which epoch each session has come to at this node, what runs in it, and what was attested.

A session's id and epoch are good for one forward: an epoch below the newest one is refused, and so is a
hop that was opened before. A newer epoch ends what still runs in an older one, if the same caller opens
it: then it is the driver that goes on anew. The id of a session stands in the log as soon as two
neighbours have shaken hands, so anyone could name it; for another caller what runs is therefore waited
for, a moment, and never ended.

The sessions of long ago are forgotten, those that were attested are not: each of them stands in the log
for good, and a second word on one would be taken for a lie.
"""

import anyio

from meshnet_node.session.failure import SessionFailed
from meshnet_proto import shard_runtime_pb2 as pb

GRACE_S = 2.0
"""How long what another caller opened may still run: its end may be on its way along the route."""


class Seat:
    """A hop of a session that runs at this node."""

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.superseded = anyio.Event()
        """Set when a newer epoch takes it."""
        self.left = anyio.Event()
        """Set when it is over."""


class _Known:
    """What is remembered of a session: its newest epoch, the hops opened in it, those that run."""

    __slots__ = ("epoch", "opened", "running")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.opened: tuple[int, ...] = ()
        self.running: tuple[Seat, ...] = ()


class Epochs:
    """The sessions of one process."""

    MAX_REMEMBERED = 16_384

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._attested: set[tuple[str, int]] = set()

    def attest_once(self, session_id: str, epoch: int) -> bool:
        """Whether this is the first word on a session: it is given once, whichever hop it was there."""
        session = (session_id, epoch)
        is_first = session not in self._attested
        self._attested.add(session)
        return is_first

    async def enter(self, session_id: str, epoch: int, hop: int, caller: str) -> Seat:
        """Enter a session; `leave` says when it is over. Raises SessionFailed (`STALE_EPOCH`)."""
        with anyio.move_on_after(GRACE_S):
            for seat in self._in_the_way(session_id, epoch, caller):
                await seat.left.wait()
        if self._in_the_way(session_id, epoch, caller):
            raise SessionFailed(
                pb.ERROR_CODE_STALE_EPOCH,
                "this session still runs in an older epoch that another caller opened",
                retryable=True,
            )
        known = self._known.pop(session_id, None) or _Known(epoch)
        self._known[session_id] = known  # the newest is behind all others
        if len(self._known) > self.MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        if epoch < known.epoch or (epoch == known.epoch and hop in known.opened):
            why = "a newer one has been" if epoch < known.epoch else "it was"
            raise SessionFailed(
                pb.ERROR_CODE_STALE_EPOCH,
                f"epoch {epoch} of this session, expected above {known.epoch}: {why} opened before",
            )
        if epoch > known.epoch:
            for seat in known.running:
                seat.superseded.set()
            known.epoch, known.opened = epoch, ()
        seat = Seat(caller)
        known.opened += (hop,)
        known.running += (seat,)
        return seat

    def leave(self, session_id: str, seat: Seat) -> None:
        """A session is over at its seat; twice does no harm."""
        seat.left.set()
        known = self._known.get(session_id)
        if known is not None:
            known.running = tuple(one for one in known.running if one is not seat)

    def _in_the_way(self, session_id: str, epoch: int, caller: str) -> tuple[Seat, ...]:
        """What runs in an older epoch for somebody else."""
        known = self._known.get(session_id)
        if known is None or known.epoch >= epoch:
            return ()
        return tuple(seat for seat in known.running if seat.caller != caller)
