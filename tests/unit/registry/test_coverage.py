"""Coverage: the step line of replicas, its holes and its lowest step."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from meshnet_tracker.registry.coverage import Interval, cover


@st.composite
def held(draw):
    """A layer count, and ranges within it."""
    layer_count = draw(st.integers(1, 40))
    layer = st.integers(0, layer_count)
    ranges = st.tuples(layer, layer).filter(lambda pair: pair[0] < pair[1])
    return layer_count, draw(st.lists(ranges, max_size=8))


def test_replicas_are_intervals_that_tile_the_model():
    assert cover([(0, 9), (5, 18)], 18).intervals == (
        Interval(0, 5, 1),
        Interval(5, 9, 2),
        Interval(9, 18, 1),
    )


def test_neighbouring_layers_with_the_same_replicas_are_one_interval():
    assert cover([(0, 9), (9, 18)], 18).intervals == (Interval(0, 18, 1),)
    assert cover([(0, 9), (0, 5), (9, 18), (5, 18)], 18).intervals == (Interval(0, 18, 2),)


def test_nothing_held_is_one_gap_over_the_whole_model():
    found = cover([], 18)
    assert (found.intervals, found.gaps) == ((Interval(0, 18, 0),), ((0, 18),))
    assert found.least_replicas == 0


def test_gaps_are_found_at_the_head_in_the_middle_and_at_the_tail():
    assert cover([(2, 5), (9, 12)], 18).gaps == ((0, 2), (5, 9), (12, 18))


def test_a_model_that_is_held_has_no_gap_and_its_least_replicas_are_at_the_thinnest_layers():
    found = cover([(0, 18), (0, 9), (7, 18)], 18)
    assert (found.gaps, found.least_replicas) == ((), 2)


@given(held())
def test_every_layer_has_as_many_replicas_as_ranges_hold_it(case):
    layer_count, ranges = case
    found = cover(ranges, layer_count)
    counted = [sum(start <= layer < end for start, end in ranges) for layer in range(layer_count)]

    said = [one.replicas for one in found.intervals for _ in range(one.start, one.end)]
    assert said == counted
    bounds = [one.start for one in found.intervals] + [layer_count]
    assert bounds == [0] + [one.end for one in found.intervals]
    assert all(a.replicas != b.replicas for a, b in pairwise(found.intervals))
    missing = [layer for start, end in found.gaps for layer in range(start, end)]
    assert missing == [layer for layer, count in enumerate(counted) if not count]
    assert found.least_replicas == min(counted)
