"""What a bench prints: what was measured, beside the raw limit measured in the same run.

Machines are noisy and differ, so the ratio is what counts; it is taken of rates measured in turns,
slice by slice, so that a slow moment slows both.
"""

import statistics
import time
from collections.abc import Callable, Sequence

from msgspec import Struct


class Result(Struct, frozen=True):
    """One measurement. `measured` and `limit` are in `unit`."""

    bench: str
    measured: float
    limit: float
    ratio: float
    unit: str
    limit_is: str
    config: dict[str, str | int | float | bool]


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes, by the wall."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """The median of measured/limit over rounds measured in turns."""
    return statistics.median(measured / limit for measured, limit in pairs)
