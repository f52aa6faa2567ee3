"""Keys of a model file as values: asked for by name, decoded then, and none overlooked.

`pin.gguf_file` knows where each value lies and that it lies inside the file; here its bytes become
numbers and texts. Rules

- What a key says is checked before anything is made from it: its type, that a number is finite and
  within bounds, that an array holds what it is said to.
- `ArchitectureKeys` remembers which keys were asked for. One that nobody asked for may move the
  numbers (a soft cap, another scaling), so it is refused by name rather than passed over.

Every refusal is a `BackendError`.
"""

import math
import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from meshnet_node.backends import BackendError
from meshnet_node.pin.gguf_file import ARRAY, STRING, GgufFile, Value

_FLOATS = {6: "<f", 12: "<d"}
_BOOL = 7
# Element type of an array -> how numpy reads it.
_ELEMENTS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


def flag(file: GgufFile, key: str, *, default: bool) -> bool:
    """The value of a bool key, or `default` where there is none."""
    value = file.values.get(key)
    if value is None:
        return default
    if value.type_id != _BOOL:
        raise _wrong(file, key, "not a bool")
    return _data(file, value.data_start, value.end) != b"\0"


def number(file: GgufFile, key: str) -> float | None:
    """The value of a float key, finite, or None where there is none."""
    value = file.values.get(key)
    if value is None:
        return None
    spelling = _FLOATS.get(value.type_id)
    if spelling is None:
        raise _wrong(file, key, "not a float")
    found: float = struct.unpack(spelling, _data(file, value.data_start, value.end))[0]
    if not math.isfinite(found):
        raise _wrong(file, key, f"{found}, not a number")
    return found


def numbers(file: GgufFile, key: str) -> NDArray[np.generic] | None:
    """The value of a key that holds an array of numbers, or None where there is none."""
    value = file.values.get(key)
    if value is None:
        return None
    element = _element(file, key, value)
    if element not in _ELEMENTS:
        raise _wrong(file, key, "not an array of numbers")
    return np.frombuffer(_data(file, value.data_start + 12, value.end), _ELEMENTS[element])


def texts(file: GgufFile, key: str) -> list[str] | None:
    """The value of a key that holds an array of strings, or None where there is none."""
    value = file.values.get(key)
    if value is None:
        return None
    if _element(file, key, value) != STRING:
        raise _wrong(file, key, "not an array of strings")
    try:
        return [text.decode() for text in _split(_data(file, value.data_start + 12, value.end))]
    except UnicodeDecodeError as error:
        raise _wrong(file, key, "not all UTF-8") from error


def count(file: GgufFile, key: str) -> int | None:
    """How many elements the array of a key has, or None where there is none."""
    value = file.values.get(key)
    if value is None:
        return None
    _element(file, key, value)
    return int.from_bytes(_data(file, value.data_start + 4, value.data_start + 12), "little")


def _split(data: bytes) -> Iterator[bytes]:
    # The lengths were walked when the file was opened: they end where `data` does.
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        yield data[at + 8 : at + 8 + length]
        at += 8 + length


def _element(file: GgufFile, key: str, value: Value) -> int:
    if value.type_id != ARRAY:
        raise _wrong(file, key, "not an array")
    return int.from_bytes(_data(file, value.data_start, value.data_start + 4), "little")


def _data(file: GgufFile, start: int, end: int) -> bytes:
    return b"".join(file.read(start, end))


def _wrong(file: GgufFile, key: str, found: str) -> BackendError:
    return BackendError(f"{file.path}: {key[:80]!a} is {found}; convert the model again")


class ArchitectureKeys:
    """The keys `<architecture>.*` of a model, named here without that prefix."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file = file
        self._prefix = f"{architecture}."
        self._asked: set[str] = set()

    def _full(self, name: str) -> str:
        self._asked.add(self._prefix + name)
        return self._prefix + name

    def integer(self, name: str, default: int | None = None, *, most: int = 1 << 24) -> int:
        """A whole number from 1 to `most`; required unless there is a default."""
        key = self._full(name)
        found = self.file.integer(key)
        if found is None:
            found = default
        if found is None:
            raise _wrong(self.file, key, "missing")
        if not 1 <= found <= most:
            raise _wrong(self.file, key, f"{found}, which is not within 1 to {most}")
        return found

    def number(self, name: str, default: float | None = None) -> float:
        """A float above 0; required unless there is a default."""
        key = self._full(name)
        found = number(self.file, key)
        if found is None:
            found = default
        if found is None:
            raise _wrong(self.file, key, "missing")
        if found <= 0:
            raise _wrong(self.file, key, f"{found}, which is not above 0")
        return found

    def text(self, name: str) -> str | None:
        """A text, or None where there is none."""
        return self.file.text(self._full(name))

    def holds(self, name: str) -> bool:
        """Whether there is such a key."""
        return self._prefix + name in self.file.values

    def known(self, *names: str) -> None:
        """These keys are read elsewhere, or say nothing that is computed here."""
        self._asked.update(self._prefix + name for name in names)

    def refuse_unasked(self) -> None:
        """Raise `BackendError` for keys that nobody asked for."""
        unasked = sorted(
            key
            for key in self.file.values
            if key.startswith(self._prefix) and key not in self._asked
        )
        if unasked:
            raise BackendError(
                f"{self.file.path}: the key {unasked[0][:80]!a} (one of {len(unasked)} such) is "
                "not known here and may change what the model computes; use another backend for it"
            )
