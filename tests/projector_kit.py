"""A realm with a lively history on a real server, and a projector process to be killed."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio

from bus_kit import client_at
from meshnet_bus.client import closing
from meshnet_bus.reader import Reader
from meshnet_cli.bench.mix import REALM
from meshnet_cli.bench.stream import fresh_mix
from meshnet_tracker.projector import Projector
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.state import State
from meshnet_tracker.snapshot import rows_of
from meshnet_tracker.views import Views

NODES = 12


def history(count: int, *, seed: int = 3) -> Iterator[tuple[str, bytes]]:
    """`count` messages of the mix, with what goes wrong in between: garbage, replays, forgeries."""
    chance = random.Random(seed)
    mix = fresh_mix(NODES)
    sent: list[tuple[str, bytes]] = []
    for subject, body in mix.events(count):
        roll = chance.random() if sent else 1.0
        if roll < 0.02:
            sent.append((subject, chance.randbytes(50)))
        elif roll < 0.04:
            sent.append(chance.choice(sent))
        elif roll < 0.05:
            sent.append((sent[0][0], body))
        elif roll < 0.06:
            sent.append((subject, body[:-20] + b"A" * 18 + b'"}'))
        else:
            sent.append((subject, body))
            yield sent[-1]
            continue
        yield sent[-1]
        sent.append((subject, body))
        yield sent[-1]


async def store(nc, messages):
    """Append messages in order; how many there were."""
    count = 0
    for subject, body in messages:
        await nc.request(subject, body, timeout=10)
        count += 1
    return count


async def fold_from_first(nc, until):
    """The state that a fold from sequence 1 gives, without any views."""
    fold = Fold(State(REALM))
    async with Reader(nc, REALM, until=until) as reader:
        async for batch in reader.batches():
            for record in batch:
                fold.apply(record)
    return fold.state


async def project(nc, path, until, **options):
    """Run a projector to `until`; the rows that are then in the file."""
    async with Views.open(path, REALM) as views:
        with anyio.fail_after(60):
            await Projector(views, nc, until=until, **options).run()
        loaded = await views.load()
        assert loaded.position is not None
        assert loaded.position.sequence == until
        return rows_of(loaded.state)


async def whole_file(path):
    """Every row of every table, as text."""
    async with Views.open(path, REALM) as views:
        db = views._db
        names = [
            row[0]
            async for row in await db.execute("select name from sqlite_schema where type = 'table'")
        ]
        dump = {}
        for name in sorted(names):
            dump[name] = sorted(
                [tuple(row) async for row in await db.execute(f"select * from {name}")]
            )
        return dump


async def _main(url: str, path: str) -> None:
    """Project for ever; the test kills this process."""
    async with closing(await client_at(url)) as nc, Views.open(Path(path), REALM) as views:
        print("ready", flush=True)
        await Projector(views, nc).run()


if __name__ == "__main__":
    anyio.run(_main, *sys.argv[1:])
