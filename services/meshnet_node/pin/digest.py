"""SHA-256 of model files: streamed, and remembered by path, size, times and inode.

The cache is one JSON file in the user's cache folder (`meshnet/digests.json`), path to what was
hashed there:

    {"version":2,"digests":{"/models/a.gguf":{"stamp":[253,1700000000000000000,1700000000000000000,42],
                                              "sha256":"5f…","tensors":{"blk.0":"9c…"}}}}

`tensors` are the digests of its tensor groups (`tensors`), where they were asked for.

Rules

- It only ever saves time: unreadable, damaged or from another version, it is ignored and written
  anew; a folder that cannot be written to costs the saving, not the pin.
- Times are when the bytes were written to (mtime) and when anything of the file changed (ctime), which
  nobody can put back short of the machine's clock. Neither moves for what a failing disk does to bytes,
  nor, before it is written back, for a write through a shared page that is mapped and dirty already;
  `cache=False` asks the bytes themselves. A file that either time puts in the last two seconds is not
  remembered, because another write could still leave the same times (file systems count in ticks of up
  to that).
- Two processes at once may each forget what the other has just learnt; neither sees half a file.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import platformdirs
from msgspec import Struct
from msgspec.structs import replace

from meshnet_node.files import replace_file
from meshnet_node.pin.gguf_file import GgufFile, Stamp

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), after every chunk."""


class Meter:
    """Adds up the bytes taken care of and tells `progress`, if there is one."""

    def __init__(self, progress: Progress | None, total_bytes: int) -> None:
        self._progress = progress
        self._total = total_bytes
        self._done = 0

    def advance(self, count: int) -> None:
        """`count` more bytes are done."""
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


_RECENT_NS = 2_000_000_000


class _Entry(Struct, frozen=True, omit_defaults=True):
    stamp: Stamp
    sha256: str
    tensors: dict[str, str] = {}


class _Cache(Struct):
    version: Literal[2] = 2
    digests: dict[str, _Entry] = {}


def cache_path() -> Path:
    """Where digests are remembered."""
    return platformdirs.user_cache_path("meshnet") / "digests.json"


def digest_files(files: Sequence[GgufFile], *, cache: bool, meter: Meter) -> tuple[str, ...]:
    """SHA-256 (hex) of each file, in order. A remembered file counts as done at once.

    Raises `PinError` when a file cannot be read or changes meanwhile.
    """
    known = _load() if cache else _Cache()
    digests = []
    learnt = False
    for file in files:
        name = _name(file)
        entry = known.digests.get(name)
        if entry is not None and entry.stamp == file.stamp:
            meter.advance(file.stamp.size_bytes)
        else:
            entry = _Entry(file.stamp, _digest(file, meter))
            if time.time_ns() - max(file.stamp.mtime_ns, file.stamp.ctime_ns) > _RECENT_NS:
                known.digests[name] = entry
                learnt = True
        digests.append(entry.sha256)
    if cache and learnt:
        _save(known)
    return tuple(digests)


def remembered_tensors(file: GgufFile) -> dict[str, str]:
    """The digests of its tensor groups; empty where they are not remembered."""
    entry = _load().digests.get(_name(file))
    return entry.tensors if entry is not None and entry.stamp == file.stamp else {}


def remember_tensors(file: GgufFile, tensors: dict[str, str]) -> None:
    """Keep the digests of its tensor groups beside its own, if that is remembered."""
    known, name = _load(), _name(file)
    entry = known.digests.get(name)
    if entry is not None and entry.stamp == file.stamp:
        known.digests[name] = replace(entry, tensors=tensors)
        _save(known)


def _name(file: GgufFile) -> str:
    # Names need not be UTF-8, JSON has to be.
    return str(file.path.resolve()).encode(errors="backslashreplace").decode()


def _digest(file: GgufFile, meter: Meter) -> str:
    digest = hashlib.sha256()
    for chunk in file.read(0, file.stamp.size_bytes):
        digest.update(chunk)
        meter.advance(len(chunk))
    file.check_unchanged()
    return digest.hexdigest()


def _load() -> _Cache:
    try:
        return msgspec.json.decode(cache_path().read_bytes(), type=_Cache)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return _Cache()


def _save(known: _Cache) -> None:
    path = cache_path()
    with suppress(OSError):  # the rule above: no cache is no failure
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(known))
