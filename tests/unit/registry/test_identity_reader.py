"""What is remembered of identity blocks: answers, never more than a bound of them."""

import msgspec
import pytest

from kit import identity_block
from meshnet_events.envelope import canonical
from meshnet_events.reasons import Refusal
from meshnet_tracker.registry import identity
from meshnet_tracker.registry.identity import IdentityReader
from meshnet_tracker.registry.rows import Identity


def block(**artifact: str) -> bytes:
    """A sound block whose artifact has other labels."""
    told = identity_block(0, 14)
    told["artifact"] = {**told["artifact"], **artifact}
    return canonical(told)


def test_the_same_bytes_are_read_once():
    reader = IdentityReader()
    first = reader.read(block())
    assert isinstance(first, Identity)
    assert reader.read(bytes(bytearray(block()))) is first
    assert reader.read(block(artifact_id="another")) != first


def test_a_fault_is_remembered_like_an_identity():
    reader = IdentityReader()
    first = reader.read(b"{}")
    assert isinstance(first, Refusal)
    assert reader.read(b"{" + b"}") is first


@pytest.mark.parametrize("spare", [0, 1])
def test_a_block_larger_than_the_bound_is_read_anew_each_time(spare):
    room = identity._REMEMBERED_LENGTH - len(block(artifact_id=""))
    large = block(artifact_id="x" * (room + spare))
    assert len(large) == identity._REMEMBERED_LENGTH + spare
    reader = IdentityReader()
    first, second = reader.read(large), reader.read(large)
    assert first == second
    assert (first is second) is (spare == 0)


def test_more_blocks_than_the_bound_are_forgotten_and_read_alike(monkeypatch):
    monkeypatch.setattr(identity, "_REMEMBERED", 3)
    reader = IdentityReader()
    blocks = [msgspec.json.encode({"x": number}) for number in range(10)]
    first = [reader.read(one) for one in blocks]
    assert len(reader._known) <= 3
    assert [reader.read(one) for one in blocks] == first
