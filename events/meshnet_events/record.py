"""A record: an event with what the broker added."""

from msgspec import Struct


class Record(Struct, frozen=True, gc=False):
    """What one stream sequence holds.

    `time_ns` is the broker's clock in nanoseconds since the epoch. It may step back when a leader
    changes: it is data, never an order. `body` is hostile until it passed the gate.
    """

    sequence: int
    time_ns: int
    subject: str
    body: bytes

    @property
    def time_ms(self) -> int:
        """The broker's time in whole milliseconds: *now* for every rule that asks for it."""
        return self.time_ns // 1_000_000
