"""Pauses grow to a longest, are cut by chance to no less than half, and begin anew."""

import anyio
import pytest

from meshnet_bus.backoff import Backoff


@pytest.fixture
def pauses(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(anyio, "sleep", sleep)
    return slept


async def test_each_is_twice_the_one_before_up_to_the_longest(pauses):
    backoff = Backoff(0.1, 0.5, chance=bytes)
    for _ in range(5):
        await backoff.pause()
    assert pauses == [0.05, 0.1, 0.2, 0.25, 0.25]


async def test_what_went_well_begins_with_the_first_again(pauses):
    backoff = Backoff(0.1, 0.5, chance=bytes)
    await backoff.pause()
    await backoff.pause()
    backoff.reset()
    await backoff.pause()
    assert pauses == [0.05, 0.1, 0.05]


async def test_chance_spreads_them_between_half_and_whole(pauses):
    for byte in range(256):
        await Backoff(1.0, 1.0, chance=bytes([byte]).__mul__).pause()
    assert min(pauses) == 0.5
    assert 0.99 < max(pauses) < 1.0
    assert len(set(pauses)) == 256
