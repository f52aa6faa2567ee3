"""Which layers of a recipe are held, by how many claims, and where the holes are.

Layers are `[start, end)` everywhere. Replicas are a step line: intervals that tile `[0, L)`, each
with the number of usable claims over it. With claims [0,9), [5,18) and L = 18:

    [0,5) x1   [5,9) x2   [9,18) x1        least 1, no gap
"""

from collections.abc import Iterable

from msgspec import Struct


class Interval(Struct, frozen=True):
    """Layers `[start, end)`, held by `replicas` claims."""

    start: int
    end: int
    replicas: int


class Coverage(Struct, frozen=True):
    """The step line of replicas over `[0, layer_count)`."""

    intervals: tuple[Interval, ...]

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Layers that nobody holds, as maximal `[start, end)`."""
        return tuple((i.start, i.end) for i in self.intervals if not i.replicas)

    @property
    def least_replicas(self) -> int:
        """The claims over the layers held by the fewest: 0 when some are not held at all."""
        return min((i.replicas for i in self.intervals), default=0)


def cover(ranges: Iterable[tuple[int, int]], layer_count: int) -> Coverage:
    """Count how often each layer of `[0, layer_count)` lies in `ranges`, which lie within it."""
    steps: dict[int, int] = {0: 0, layer_count: 0}
    for start, end in ranges:
        steps[start] = steps.get(start, 0) + 1
        steps[end] = steps.get(end, 0) - 1
    intervals: list[Interval] = []
    replicas, at = 0, 0
    for layer in sorted(steps):
        if layer > at:
            if intervals and intervals[-1].replicas == replicas:
                intervals[-1] = Interval(intervals[-1].start, layer, replicas)
            else:
                intervals.append(Interval(at, layer, replicas))
        at = layer
        replicas += steps[layer]
    return Coverage(tuple(intervals))
