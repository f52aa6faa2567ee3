"""A realm's stream on a local server, filled with the mix: what `bench replay` and `publish` need."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from meshnet_bus.client import SafeClient, closing, connect
from meshnet_bus.local_server import LocalServer, Sync
from meshnet_bus.stream import provision
from meshnet_cli.bench.mix import REALM, Mix

IN_FLIGHT = 2_000


class Bench(Struct, frozen=True):
    """A connected client and where its server is."""

    nc: SafeClient
    url: str


@asynccontextmanager
async def empty_stream(sync: Sync) -> AsyncIterator[Bench]:
    """A server of its own with the empty stream of the mix's realm; gone at the end."""
    async with (
        LocalServer(sync=sync) as server,
        closing(await connect(server.url, name="meshnet bench")) as nc,
    ):
        await provision(nc, REALM)
        yield Bench(nc, server.url)


def fresh_mix(nodes: int) -> Mix:
    """The mix, stamped with this machine's clock so that a broker finds its proofs fresh."""
    now_ms = time.time_ns() // 1_000_000
    return Mix(nodes=nodes, start_ms=now_ms, step_ms=0)


async def fill(bench: Bench, count: int, nodes: int, progress: Callable[[int, int], None]) -> None:
    """Store `count` events of the mix, in order, as fast as the server takes them."""
    js = bench.nc.jetstream(publish_async_max_pending=IN_FLIGHT)
    pending: list[asyncio.Future[Any]] = []
    for number, (subject, body) in enumerate(fresh_mix(nodes).events(count), start=1):
        pending.append(await js.publish_async(subject, body))
        if len(pending) == IN_FLIGHT or number == count:
            await asyncio.wait_for(asyncio.gather(*pending), timeout=60)
            pending.clear()
            progress(number, count)
