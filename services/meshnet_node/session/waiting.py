"""Waiting with a bound: nothing in a session waits for ever."""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from meshnet_node.session.failure import SessionFailed
from meshnet_proto import shard_runtime_pb2 as pb


@contextmanager
def within(timeout_s: float, what: str) -> Iterator[None]:
    """Raise SessionFailed (`TIMED_OUT`, naming `what` was waited for) when this takes longer."""
    with anyio.move_on_after(timeout_s) as scope:
        yield
    if scope.cancelled_caught:
        raise SessionFailed(pb.ERROR_CODE_TIMED_OUT, f"no {what} within {timeout_s:g} s")
