"""Which epoch each session has come to at this node, what runs in it, and what was attested.

A session's id and epoch are good for one forward: an epoch below the newest one is refused, and so is a
hop that was opened before. A newer epoch ends what still runs in an older one, if the same caller opens
it: then it is the driver that goes on anew. The id of a session stands in the log as soon as two
neighbours have shaken hands, so anyone could name it; for another caller what runs is therefore waited
for, a moment, and never ended.

The sessions of long ago are forgotten, those that were attested are not: each of them stands in the log
for good, and a second word on one would be taken for a lie.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from meshnet_node.session.failure import SessionFailed
from meshnet_proto import shard_runtime_pb2 as pb

GRACE_S = 2.0
"""How long what another caller opened may still run: its end may be on its way along the route."""


class Seat:
    """A session's seat at this node: one of its hops."""

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.superseded = anyio.Event()
        """Set when a newer epoch takes it."""
        self.left = anyio.Event()
        """Set when it is over."""


class Epochs:
    """The sessions of one process."""

    MAX_REMEMBERED = 16_384

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, dict[int, Seat]]] = {}
        self._attested: set[tuple[str, int]] = set()

    def attest_once(self, session_id: str, epoch: int) -> bool:
        """Whether this is the first word on a session: it is given once, whichever hop it was there."""
        session = (session_id, epoch)
        is_first = session not in self._attested
        self._attested.add(session)
        return is_first

    async def enter(self, session_id: str, epoch: int, hop: int, caller: str) -> Seat:
        """Enter a session; `run_at` says when it is over. Raises SessionFailed (`STALE_EPOCH`)."""
        with anyio.move_on_after(GRACE_S):
            for seat in tuple(self._in_the_way(session_id, epoch, caller)):
                await seat.left.wait()
        if any(self._in_the_way(session_id, epoch, caller)):
            raise SessionFailed(
                pb.ERROR_CODE_STALE_EPOCH,
                "this session still runs in an older epoch that another caller opened",
                retryable=True,
            )
        newest, hops = self._newest.pop(session_id, (-1, {}))
        try:
            if epoch < newest or (epoch == newest and hop in hops):
                raise SessionFailed(
                    pb.ERROR_CODE_STALE_EPOCH,
                    f"epoch {epoch} of this session, expected above {newest}: "
                    + ("a newer one has been opened" if epoch < newest else "it was opened before"),
                )
            if epoch > newest:
                for seat in hops.values():
                    seat.superseded.set()
                newest, hops = epoch, {}
            return hops.setdefault(hop, Seat(caller))
        finally:
            self._newest[session_id] = (newest, hops)
            if len(self._newest) > self.MAX_REMEMBERED:
                del self._newest[next(iter(self._newest))]

    def _in_the_way(self, session_id: str, epoch: int, caller: str) -> Iterator[Seat]:
        """What runs in an older epoch for somebody else."""
        newest, hops = self._newest.get(session_id, (epoch, {}))
        if newest < epoch:
            for seat in tuple(hops.values()):
                if seat.caller != caller and not seat.left.is_set():
                    yield seat


@contextmanager
def run_at(seat: Seat) -> Iterator[None]:
    """A session runs at its seat, and has left it at the end, however it comes."""
    try:
        yield
    finally:
        seat.left.set()
