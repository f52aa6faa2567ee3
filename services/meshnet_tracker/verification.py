"""Checking many signatures at once.

libsodium works without Python's lock, so worker threads check signatures side by side, one chunk at
a time each. What a chunk gives is what checking one by one gives, in order.
"""

import os
from collections.abc import Sequence

import anyio
import anyio.to_thread

from meshnet_events.reasons import Refusal
from meshnet_events.screened import Event, Screened

CHUNK = 256


class Verifier:
    """Checks signatures on at most `threads` threads (one a processor, unless told)."""

    def __init__(self, threads: int | None = None) -> None:
        self._limiter = anyio.CapacityLimiter(threads or os.cpu_count() or 1)

    async def verify(self, screened: Sequence[Screened]) -> list[Event | Refusal]:
        """What each message is, its signature checked, in the given order."""
        if len(screened) <= CHUNK // 4:
            return [one.verified() for one in screened]
        chunks = [screened[at : at + CHUNK] for at in range(0, len(screened), CHUNK)]
        results: list[list[Event | Refusal]] = [[] for _ in chunks]

        async def check(index: int) -> None:
            results[index] = await anyio.to_thread.run_sync(
                _verify_chunk, chunks[index], limiter=self._limiter
            )

        async with anyio.create_task_group() as tasks:
            for index in range(len(chunks)):
                tasks.start_soon(check, index)
        return [result for chunk in results for result in chunk]


def _verify_chunk(chunk: Sequence[Screened]) -> list[Event | Refusal]:
    return [one.verified() for one in chunk]
