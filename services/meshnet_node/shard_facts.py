"""What a loaded shard says of itself: asked once, and believed only where it can be.

A backend is somebody else's code, its attributes too: one may hang, raise, or say another thing the next
time. So they are read here, before anything depends on them, and never by whoever serves: an event loop
that waits for a backend waits for ever.
"""

from typing import NoReturn

from msgspec import Struct

from meshnet_node.backends import BackendError, LoadedShard
from meshnet_node.foreign import fault_text, kind_of, text_of

_MAX_INTEGER = 2**53 - 1
_MAX_POSITION_BYTES = 1 << 24
_MAX_VOCABULARY = 1 << 32


class Unbelievable(BackendError):
    """A shard says of itself what cannot be, or will not say it."""


class ShardFacts(Struct, frozen=True):
    """What `LoadedShard` has under the same names."""

    start: int
    end: int
    layer_count: int
    position_bytes: int
    vocabulary: int
    context_length: int
    end_tokens: frozenset[int]

    @classmethod
    def of(cls, shard: LoadedShard) -> "ShardFacts":
        """Ask. Raises `Unbelievable`. Blocks for as long as the shard takes to say."""
        return cls(
            start=_integer(shard, "start", 0),
            end=_integer(shard, "end", 1),
            layer_count=_integer(shard, "layer_count", 1),
            position_bytes=_integer(shard, "position_bytes", 1, _MAX_POSITION_BYTES),
            vocabulary=_integer(shard, "vocabulary", 1, _MAX_VOCABULARY),
            context_length=_integer(shard, "context_length", 1),
            end_tokens=_ids(shard, "end_tokens"),
        )


def _integer(shard: LoadedShard, name: str, least: int, most: int = _MAX_INTEGER) -> int:
    value = _asked(shard, name)
    if type(value) is not int or not least <= value <= most:
        _refuse(name, text_of(value), f"an integer from {least} to {most}")
    return value


def _ids(shard: LoadedShard, name: str) -> frozenset[int]:
    value = _asked(shard, name)
    if type(value) is not frozenset:
        _refuse(name, kind_of(value), "a frozenset of token ids")
    # ids beyond the vocabulary end no text, and do no harm
    if wrong := [one for one in value if type(one) is not int or not 0 <= one < _MAX_VOCABULARY]:
        _refuse(name, text_of(wrong[0]), f"integers below {_MAX_VOCABULARY}")
    return value


def _asked(shard: LoadedShard, name: str) -> object:
    try:
        value: object = getattr(shard, name)
    except (Exception, SystemExit) as error:
        raise Unbelievable(f"{name}: {fault_text(error)}") from error
    return value


def _refuse(name: str, found: str, expected: str) -> NoReturn:
    raise Unbelievable(f"{name}: found {found}, expected {expected}")
