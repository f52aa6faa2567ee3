"""One open GGUF file: where its keys, values and tensors lie, as byte ranges that can be trusted.

Identity is taken over the bytes of values *as the file holds them*, so this reader keeps the range
of every value instead of decoding it, and decodes a number or a short text only when asked.
`gguf.GGUFReader` makes one array object per token (seconds for a real vocabulary) and trusts every
length it meets; of the `gguf` package we take what changes with releases: the tensor types.

Rules

- Little-endian GGUF version 3 only. Whatever else the bytes are, the answer is a `PinError`.
- Memory is bounded by the `MAX_…` limits below, never by a number that the file states.
- The file is opened once and everything is read through that one handle, so a file replaced under
  its path cannot mix two models; one that is changed in place is noticed by `check_unchanged`.
- No two keys, no two tensors share a name; no tensor leaves the file or overlaps another.

Layout, all integers little-endian, `str` being a u64 length and that many bytes:

    "GGUF"  u32 version  u64 tensor count  u64 key count
    a key:      str name    u32 value type   value
    a tensor:   str name    u32 n            n × u64 dimension   u32 tensor type   u64 offset
    padding to `general.alignment` (32 unless stated); tensor offsets count from here

Example: the key `llama.block_count` = 2 (value type 4, u32) is the 33 bytes

    1100000000000000 6c6c616d612e626c6f636b5f636f756e74 04000000 02000000

of which `Value.start..end` is the whole, and `Value.data_start..end` the last four bytes. The value
of a string or an array begins with its own header: length, or element type and count.

Left out: what the keys and tensors mean (`identity`, `layers`) and sets of files (`split`).
"""

import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from meshnet_node.pin.errors import PinError, refusing_os_errors

MAGIC = b"GGUF"
VERSION = 3
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 17
MAX_NAME_BYTES = 1024
MAX_DIMENSIONS = 4
# Strings inside arrays have to be walked one by one; the largest vocabularies have under a million.
MAX_ARRAY_STRINGS = 1 << 24
MAX_TEXT_BYTES = 1 << 16
CHUNK_BYTES = 1 << 20

STRING, ARRAY, UINT32 = 8, 9, 4
# Value type -> bytes. 0/1 u8/i8, 2/3 u16/i16, 4/5 u32/i32, 6 f32, 7 bool, 10/11 u64/i64, 12 f64.
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_INTEGERS = frozenset({0, 1, 2, 3, 4, 5, 10, 11})
_SIGNED = frozenset({1, 3, 5, 11})
_NOT_LITTLE_ENDIAN = re.compile(rb"\0\0\0[\x01-\xff]")

_DAMAGED = "download it again, and compare its size and SHA-256 with the publisher's"
_NOT_SOUND = "no sound writer makes this: get the file from another source"


class Stamp(NamedTuple):
    """What tells one state of a file from another without reading it."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Stamp":
        """The stamp of a file that was just looked at."""
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


class Value(Struct, frozen=True):
    """Where one key lies: `start` (its name's length), `data_start` (past the type), `end`."""

    type_id: int
    start: int
    data_start: int
    end: int


class Tensor(Struct, frozen=True):
    """One tensor: dimensions innermost first as in the file, `start` an offset in the file."""

    name: str
    type_name: str
    type_id: int
    dimensions: tuple[int, ...]
    start: int
    size_bytes: int


class _TensorType(NamedTuple):
    name: str
    block_elements: int
    block_bytes: int


@cache
def _tensor_types() -> dict[int, _TensorType]:
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ModuleNotFoundError as error:
        raise PinError(
            "reading GGUF needs the gguf package; in the checkout: pip install -e '.[reference]'"
        ) from error
    return {
        int(type_id): _TensorType(type_id.name, elements, size)
        for type_id, (elements, size) in GGML_QUANT_SIZES.items()
    }


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


class GgufFile:
    """One open GGUF file. Close it, or use it as a context manager.

    Raises `PinError` when the file cannot be opened or is not sound.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with refusing_os_errors(path, "opening it"):
            # Asked before opening: opening a pipe would wait for a writer.
            if not stat.S_ISREG(path.stat().st_mode):
                raise PinError(f"{path}: not a regular file; name a .gguf file")
            self._stream: BinaryIO = path.open("rb")
        try:
            self.stamp = self._stamp()
            scanner = _Scanner(path, self._stream, self.stamp.size_bytes)
            self.alignment, self.values, self.tensors = scanner.scan()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. What was read stays readable; ranges do not."""
        self._stream.close()

    def _stamp(self) -> Stamp:
        with refusing_os_errors(self.path, "reading it"):
            found = os.fstat(self._stream.fileno())
        return Stamp.of(found)

    def check_unchanged(self) -> None:
        """Raise `PinError` if the file was written to since it was opened."""
        if self._stamp() != self.stamp:
            raise PinError(f"{self.path}: it changed while it was read; let its writer finish")

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes `[start, end)` of the file, in chunks of at most `CHUNK_BYTES`."""
        with refusing_os_errors(self.path, "reading it"):
            while start < end:
                # By position, so that two readers of one file cannot disturb each other.
                chunk = os.pread(self._stream.fileno(), min(CHUNK_BYTES, end - start), start)
                if not chunk:
                    raise PinError(f"{self.path}: it shrank while it was read; {_DAMAGED}")
                start += len(chunk)
                yield chunk

    def integer(self, key: str) -> int | None:
        """The value of an integer key of any width, or None where the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if value.type_id not in _INTEGERS:
            raise PinError(f"{self.path}: {_shown(key)} is not an integer; {_NOT_SOUND}")
        data = b"".join(self.read(value.data_start, value.end))
        return int.from_bytes(data, "little", signed=value.type_id in _SIGNED)

    def text(self, key: str) -> str | None:
        """The value of a string key, or None where the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if value.type_id != STRING:
            raise PinError(f"{self.path}: {_shown(key)} is not a string; {_NOT_SOUND}")
        if value.end - value.data_start > MAX_TEXT_BYTES:
            raise PinError(
                f"{self.path}: {_shown(key)} is over {MAX_TEXT_BYTES} bytes; {_NOT_SOUND}"
            )
        data = b"".join(self.read(value.data_start + 8, value.end))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise PinError(f"{self.path}: {_shown(key)} is not UTF-8; {_NOT_SOUND}") from error


def _shown(name: str) -> str:
    """A name from a file, fit for a message: quoted, escaped, short."""
    return ascii(name if len(name) <= 80 else f"{name[:80]}…")


class _Scanner:
    """Walks the header of one file, front to back, once."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self._path = path
        self._stream = stream
        self._size = size
        self._at = 0
        self._array_strings = 0

    def scan(self) -> tuple[int, dict[str, Value], tuple[Tensor, ...]]:
        """Return alignment, keys in file order, and tensors in file order."""
        with refusing_os_errors(self._path, "reading it"):
            tensor_count, key_count = self._header()
            values = self._values(key_count)
            alignment = self._alignment(values)
            return alignment, values, self._tensors(tensor_count, alignment)

    def _refusal(self, found: str, advice: str) -> PinError:
        return PinError(f"{self._path}: {found}; {advice}")

    def _take(self, count: int, what: str) -> bytes:
        if count > self._size - self._at:
            raise self._refusal(f"it ends inside {what}", _DAMAGED)
        data = self._stream.read(count)
        if len(data) != count:
            raise self._refusal("it shrank while it was read", _DAMAGED)
        self._at += count
        return data

    def _skip(self, count: int, what: str) -> None:
        if count > self._size - self._at:
            raise self._refusal(f"it ends inside {what}", _DAMAGED)
        self._stream.seek(count, os.SEEK_CUR)
        self._at += count

    def _integer(self, count: int, what: str) -> int:
        return int.from_bytes(self._take(count, what), "little")

    def _name(self, what: str) -> str:
        length = self._integer(8, what)
        if not 0 < length <= MAX_NAME_BYTES:
            raise self._refusal(
                f"{what} is {length} bytes long (1 to {MAX_NAME_BYTES} is sound)", _NOT_SOUND
            )
        try:
            return self._take(length, what).decode()
        except UnicodeDecodeError as error:
            raise self._refusal(f"{what} is not UTF-8", _NOT_SOUND) from error

    def _header(self) -> tuple[int, int]:
        magic = self._take(4, "the header")
        if magic != MAGIC:
            raise self._refusal(
                f"not a GGUF file (it starts with {magic!r})", "name a .gguf file, whole"
            )
        version = self._take(4, "the header")
        if _NOT_LITTLE_ENDIAN.fullmatch(version):
            raise self._refusal("a big-endian GGUF", "convert it to little-endian first")
        if int.from_bytes(version, "little") != VERSION:
            found = int.from_bytes(version, "little")
            raise self._refusal(
                f"GGUF version {found}", f"only {VERSION} is read: convert the model again"
            )
        tensor_count = self._integer(8, "the header")
        key_count = self._integer(8, "the header")
        for count, limit, what in (
            (tensor_count, MAX_TENSORS, "tensors"),
            (key_count, MAX_KEYS, "keys"),
        ):
            if count > limit:
                raise self._refusal(f"it states {count} {what} (at most {limit})", _NOT_SOUND)
        return tensor_count, key_count

    def _values(self, count: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for index in range(count):
            start = self._at
            key = self._name(f"the name of key {index}")
            if key in values:
                raise self._refusal(f"it holds the key {_shown(key)} twice", _NOT_SOUND)
            what = f"the value of {_shown(key)}"
            type_id = self._integer(4, what)
            data_start = self._at
            self._skip_value(type_id, what)
            values[key] = Value(type_id, start, data_start, self._at)
        return values

    def _skip_value(self, type_id: int, what: str) -> None:
        if type_id in _SCALAR_BYTES:
            self._skip(_SCALAR_BYTES[type_id], what)
        elif type_id == STRING:
            self._skip(self._integer(8, what), what)
        elif type_id == ARRAY:
            self._skip_array(what)
        else:
            raise self._refusal(f"{what} has the unknown type {type_id}", _NOT_SOUND)

    def _skip_array(self, what: str) -> None:
        type_id = self._integer(4, what)
        count = self._integer(8, what)
        if type_id in _SCALAR_BYTES:
            self._skip(count * _SCALAR_BYTES[type_id], what)
        elif type_id == STRING:
            self._array_strings += count
            if self._array_strings > MAX_ARRAY_STRINGS:
                raise self._refusal(
                    f"its arrays hold over {MAX_ARRAY_STRINGS} strings, {what} at the latest",
                    _NOT_SOUND,
                )
            for _ in range(count):
                self._skip(self._integer(8, what), what)
        else:
            # Arrays of arrays are in the format's text, but no runtime reads them.
            raise self._refusal(f"{what} is an array of type {type_id}", _NOT_SOUND)

    def _alignment(self, values: dict[str, Value]) -> int:
        value = values.get("general.alignment")
        if value is None:
            return DEFAULT_ALIGNMENT
        data = os.pread(self._stream.fileno(), 4, value.data_start)
        alignment = int.from_bytes(data, "little")
        power_of_two = alignment.bit_count() == 1
        if value.type_id != UINT32 or not power_of_two or alignment > MAX_ALIGNMENT:
            raise self._refusal(
                f"general.alignment must be a u32 power of two up to {MAX_ALIGNMENT}", _NOT_SOUND
            )
        return alignment

    def _tensors(self, count: int, alignment: int) -> tuple[Tensor, ...]:
        entries = [self._tensor(index, alignment) for index in range(count)]
        names: set[str] = set()
        for tensor in entries:
            if tensor.name in names:
                raise self._refusal(f"it holds tensor {_shown(tensor.name)} twice", _NOT_SOUND)
            names.add(tensor.name)
        data_start = padded(self._at, alignment)
        tensors = tuple(replace(entry, start=data_start + entry.start) for entry in entries)
        end_before = data_start
        for tensor in sorted(tensors, key=lambda each: each.start):
            if tensor.start < end_before:
                raise self._refusal(f"tensor {_shown(tensor.name)} overlaps another", _NOT_SOUND)
            end_before = tensor.start + tensor.size_bytes
            if end_before > self._size:
                raise self._refusal(
                    f"tensor {_shown(tensor.name)} ends at byte {end_before}"
                    f" of a file of {self._size}",
                    _DAMAGED,
                )
        return tensors

    def _tensor(self, index: int, alignment: int) -> Tensor:
        """One entry, its `start` still counted from the start of the data."""
        name = self._name(f"the name of tensor {index}")
        what = f"the entry of tensor {_shown(name)}"
        rank = self._integer(4, what)
        if rank > MAX_DIMENSIONS:
            raise self._refusal(f"{what} states {rank} dimensions", _NOT_SOUND)
        dimensions = tuple(self._integer(8, what) for _ in range(rank))
        type_id = self._integer(4, what)
        offset = self._integer(8, what)
        tensor_type = _tensor_types().get(type_id)
        if tensor_type is None:
            raise self._refusal(
                f"{what} has the unknown type {type_id}", "a newer gguf package may know it"
            )
        row = dimensions[0] if dimensions else 1
        if row % tensor_type.block_elements:
            raise self._refusal(
                f"{what} has rows of {row}, not whole blocks of {tensor_type.block_elements}",
                _NOT_SOUND,
            )
        if offset % alignment:
            raise self._refusal(f"{what} is not aligned to {alignment} bytes", _NOT_SOUND)
        elements = 1
        for dimension in dimensions:
            elements *= dimension
        if not elements:
            raise self._refusal(f"{what} has a dimension of 0", _NOT_SOUND)
        size = elements // tensor_type.block_elements * tensor_type.block_bytes
        return Tensor(name, tensor_type.name, type_id, dimensions, offset, size)
