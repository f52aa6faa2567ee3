"""Checking many signatures at once.

libsodium works without Python's lock, so worker threads check signatures side by side, one chunk at
a time each: chunks of one size, a few a thread, so that none has much left to do when the others are
done. What a chunk gives is what checking one by one gives, in order.
"""

import os
from collections.abc import Sequence

import anyio
import anyio.to_thread

from meshnet_events.reasons import Refusal
from meshnet_events.screened import Event, Screened

MOST_IN_A_CHUNK = 256
FEWEST_FOR_THREADS = 64
_CHUNKS_A_THREAD = 2


class Verifier:
    """Checks signatures on at most `threads` threads (one a processor, unless told)."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1
        self._limiter = anyio.CapacityLimiter(self._threads)

    async def verify(self, screened: Sequence[Screened]) -> list[Event | Refusal]:
        """What each message is, its signature checked, in the given order."""
        total = len(screened)
        if total <= FEWEST_FOR_THREADS:
            return [one.verified() for one in screened]
        size = min(MOST_IN_A_CHUNK, -(-total // (self._threads * _CHUNKS_A_THREAD)))
        chunks = [screened[at : at + size] for at in range(0, total, size)]
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
