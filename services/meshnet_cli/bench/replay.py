"""`bench replay`: from the stream to committed SQLite views.

Without signatures, beside a bare raw pull of the same stream with nats-py: what reading alone costs.
With `--verify`, beside worker threads that check the same signatures when nothing else runs.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import anyio

from meshnet_bus.limits import raw_pull_rate
from meshnet_bus.reader import Reader
from meshnet_cli.bench.mix import REALM
from meshnet_cli.bench.result import Result, median_ratio
from meshnet_cli.bench.stream import Bench, empty_stream, fill
from meshnet_events.gate import Gate
from meshnet_events.screened import Screened
from meshnet_tracker.projector import Projector
from meshnet_tracker.verification import Verifier
from meshnet_tracker.views import Views

_GIVE_UP_AFTER_S = 30.0


async def bench_replay(
    *,
    records: int,
    nodes: int,
    rounds: int,
    verify: bool,
    progress: Callable[[int, int], None],
) -> Result:
    """Fill a stream with `records` events once, then replay it `rounds` times into new files."""
    async with empty_stream("2m") as bench:
        await fill(bench, records, nodes, progress)
        screened = await _screen(bench, records) if verify else []
        pairs: list[tuple[float, float]] = []
        with tempfile.TemporaryDirectory(prefix="meshnet-bench-") as directory:
            for number in range(rounds):
                if verify:
                    limit = await _verify_alone(screened)
                else:
                    limit = await raw_pull_rate(bench.url, REALM)
                path = Path(directory) / f"views-{number}.db"
                pairs.append((await _replay(bench, path, records, verify=verify), limit))
    best = max(pairs)
    return Result(
        bench="replay",
        measured=best[0],
        limit=best[1],
        ratio=median_ratio(pairs),
        unit="records/s",
        limit_is="two threads checking the same signatures and nothing else"
        if verify
        else "raw pull of the same stream and nothing else",
        config={
            "records": records,
            "nodes": nodes,
            "rounds": rounds,
            "verify": verify,
            "ratio_is": "median of the rounds; measured and limit are of the fastest",
        },
    )


async def _replay(bench: Bench, path: Path, records: int, *, verify: bool) -> float:
    async with Views.open(path, REALM) as views:
        projector = Projector(views, bench.nc, verify=verify, until=records)
        start = anyio.current_time()
        await projector.run()
        return records / (anyio.current_time() - start)


async def _screen(bench: Bench, records: int) -> list[Screened]:
    gate = Gate(REALM)
    screened: list[Screened] = []
    async with Reader(bench.nc, REALM, until=records, give_up_after_s=_GIVE_UP_AFTER_S) as reader:
        async for batch in reader.batches():
            screened += [gate.screen(record.body, record.subject) for record in batch]
    return screened


async def _verify_alone(screened: list[Screened]) -> float:
    start = anyio.current_time()
    await Verifier(threads=2).verify(screened)
    return len(screened) / (anyio.current_time() - start)
