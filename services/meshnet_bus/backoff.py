"""Pauses between tries: each twice the one before up to a longest, and each cut by chance.

Ten thousand nodes that lost one server at one moment must not come back at one moment.
"""

from collections.abc import Callable

import anyio


class Backoff:
    """The pauses of one thing that is tried again and again."""

    def __init__(self, first_s: float, longest_s: float, *, chance: Callable[[int], bytes]) -> None:
        """`chance` gives as many random bytes as it is asked for."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._chance = chance
        self._next_s = first_s

    def reset(self) -> None:
        """It went well: the next pause is the first again."""
        self._next_s = self._first_s

    async def pause(self) -> None:
        """Wait for half of what is due, and by chance up to all of it."""
        due_s = self._next_s
        self._next_s = min(2 * due_s, self._longest_s)
        await anyio.sleep(due_s * (0.5 + self._chance(1)[0] / 512))
