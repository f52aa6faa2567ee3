"""`bench memory`: what registered shards hold, and that a long replay does not grow.

A process of its own folds and commits what comes through a pipe, so that the generator's keys are
not counted. It reports its resident size once every node is registered, and then along the way. It has
a process group of its own: whatever ends us, it sees the pipe's end and removes its folder.
"""

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import anyio
import msgspec

from meshnet_bus.history import FoldedPosition, record_digest
from meshnet_cli.bench.mix import REALM, Mix
from meshnet_cli.bench.result import Result
from meshnet_cli.errors import CliError
from meshnet_events.record import Record
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.snapshot import take_batch
from meshnet_tracker.views import Views

BATCH = 4_096
_LENGTH = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def bench_memory(*, records: int, nodes: int, progress: Callable[[int, int], None]) -> Result:
    """Send `records` events of `nodes` nodes to a process that folds them into views."""
    registered = 1 + 2 * nodes
    with subprocess.Popen(  # noqa: S603 - this very module, by this very Python
        [sys.executable, "-m", __name__, str(registered)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    ) as child:
        if child.stdin is None or child.stdout is None:
            raise OSError("a process without pipes")
        try:
            for record in Mix(nodes=nodes).records(records):
                packed = _encode(record)
                child.stdin.write(_LENGTH.pack(len(packed)) + packed)
                if record.sequence % BATCH == 0:
                    progress(record.sequence, records)
            child.stdin.close()
        except BrokenPipeError:
            raise CliError(f"the folding process ended early (exit code {child.wait()})") from None
        sizes = msgspec.json.decode(child.stdout.read(), type=list[tuple[int, float]])
    at_registered = next(size for sequence, size in sizes if sequence >= registered)
    settled = next(size for sequence, size in sizes if sequence >= records // 4)
    return Result(
        bench="memory",
        measured=at_registered,
        limit=sizes[0][1],
        ratio=sizes[-1][1] / settled,
        unit="MB of RSS",
        limit_is="the same process before its first record",
        config={
            "registered_shards": nodes,
            "records": records,
            "after_a_quarter_mb": settled,
            "at_the_end_mb": sizes[-1][1],
            "ratio_is": "RSS at the end over RSS after a quarter of the records",
        },
    )


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def _records(pipe: BinaryIO) -> Iterator[Record]:
    while header := pipe.read(_LENGTH.size):
        if len(header) < _LENGTH.size:
            return
        size = _LENGTH.unpack(header)[0]
        if len(packed := pipe.read(size)) < size:
            return
        yield _decode(packed)


async def _fold(registered: int) -> list[tuple[int, float]]:
    sizes: list[tuple[int, float]] = [(0, _rss_mb())]
    with tempfile.TemporaryDirectory(prefix="meshnet-bench-") as directory:
        async with Views.open(Path(directory) / "views.db", REALM) as views:
            fold = Fold((await views.load()).state)
            before = 0
            for record in _records(sys.stdin.buffer):
                fold.apply(record, verify=False)
                if record.sequence % BATCH == 0 or record.sequence == registered:
                    position = FoldedPosition("a pipe", record.sequence, record_digest(record))
                    await views.commit(take_batch(fold.state), before=before, position=position)
                    before = record.sequence
                    sizes.append((record.sequence, _rss_mb()))
    return sizes


if __name__ == "__main__":
    _sizes = msgspec.json.encode(anyio.run(_fold, int(sys.argv[1])))
    with suppress(BrokenPipeError):  # whoever asked is gone
        os.write(sys.stdout.fileno(), _sizes)
