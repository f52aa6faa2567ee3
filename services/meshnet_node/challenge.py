r"""What the doctor feeds a shard, and how it reads the numbers that come out.

The challenge is the same on every machine and in every dtype, so that what a shard makes of it can be
written down and compared. A stream of bytes is

    SHA-256("meshnet.doctor-challenge.v1\n" + kind + "\n" + u64(0)) + SHA-256(… + u64(1)) + …

with integers little-endian. Token id i is the u32 at byte 4 i of the stream `tokens`, modulo the size
of the vocabulary. Number i of the activations is (2 b - 255) / 128, b being byte i of the stream
`activations`: about unit scale, and exact in float32, float16 and bfloat16 alike. For example

    token ids, vocabulary 96     36, 42, 91, 45, …
    numbers                      0.3671875, -1.9765625, -1.4453125, -1.5859375, …

Numbers are decoded here and not by the backend, which is what is under test; without numpy, which a
node need not have.
"""

import hashlib
import itertools
import struct
import sys
from array import array
from collections.abc import Iterator

from msgspec import Struct

CHALLENGE = "meshnet.doctor-challenge.v1"


class UnknownDtype(ValueError):
    """A dtype that the doctor cannot read."""


class Dtype(Struct, frozen=True):
    """A floating-point form: bytes of a number, its exponent's bits, and the high half it keeps.

    A number is finite unless all bits of its exponent are set.
    """

    name: str
    size: int
    exponent: int
    form: str

    def encode(self, number: float) -> bytes:
        """A number that the form holds exactly, little-endian."""
        return struct.pack(self.form, number)[-self.size :]

    def not_finite(self, data: bytes | memoryview) -> int | None:
        """Which number of `data` is the first that is NaN or infinite; None when all are finite."""
        exponent = self.exponent
        for index, bits in enumerate(_little_endian("I" if self.size == 4 else "H", data)):
            if bits & exponent == exponent:
                return index
        return None


FLOAT32 = Dtype("float32", 4, 0x7F80_0000, "<f")
# bfloat16 is the upper half of a float32
_DTYPES = {
    dtype.name: dtype
    for dtype in (
        FLOAT32,
        Dtype("float16", 2, 0x7C00, "<e"),
        Dtype("bfloat16", 2, 0x7F80, "<f"),
    )
}


def dtype_of(name: str) -> Dtype:
    """The form of a recipe's `activation_dtype`. Raises `UnknownDtype`."""
    found = _DTYPES.get(name)
    if found is None:
        raise UnknownDtype(
            f"activation_dtype: found {name[:80]!r}, expected one that can be judged here: "
            f"{', '.join(_DTYPES)}"
        )
    return found


def token_ids(vocabulary: int, first: int, count: int) -> tuple[int, ...]:
    """Ids of the challenge's positions `[first, first + count)`."""
    stream = _stream("tokens", 4 * first, 4 * count)
    return tuple(value % vocabulary for value in _little_endian("I", stream))


def activations(dtype: Dtype, position_bytes: int, first: int, count: int) -> bytes:
    """Activations of the challenge's positions `[first, first + count)`, row-major."""
    width = position_bytes // dtype.size
    numbers = [dtype.encode((2 * byte - 255) / 128) for byte in range(256)]
    return b"".join(numbers[byte] for byte in _stream("activations", first * width, count * width))


def most_likely(logits: bytes | memoryview) -> int:
    """Of float32 logits, all finite, the index of the greatest; of equals the smallest."""
    numbers = _little_endian("f", logits)
    return numbers.index(max(numbers))


def _stream(kind: str, start: int, length: int) -> bytes:
    blocks = itertools.islice(_blocks(kind, start // 32), -(-(start % 32 + length) // 32))
    return b"".join(blocks)[start % 32 :][:length]


def _blocks(kind: str, first: int) -> Iterator[bytes]:
    for number in itertools.count(first):
        yield hashlib.sha256(
            f"{CHALLENGE}\n{kind}\n".encode() + number.to_bytes(8, "little")
        ).digest()


def _little_endian(code: str, data: bytes | memoryview) -> "array[int]":
    values = array(code, bytes(data))
    if sys.byteorder == "big":
        values.byteswap()
    return values
