"""Waiting with a bound: nothing in a session waits for ever."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from meshnet_node.session.failure import SessionFailed
from meshnet_proto import shard_runtime_pb2 as pb

_T = TypeVar("_T")


async def within(timeout_s: float, wait: Callable[[], Awaitable[_T]], what: str) -> _T:
    """What `wait` gives. Raises SessionFailed (`TIMED_OUT`, naming `what`) when it takes longer."""
    with anyio.move_on_after(timeout_s):
        return await wait()
    raise SessionFailed(pb.ERROR_CODE_TIMED_OUT, f"no {what} within {timeout_s:g} s")
