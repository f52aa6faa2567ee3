"""`bench publish`: one node's events, signed and acknowledged one by one.

Beside it, slice by slice and on the same server: a bare nats-py loop of request and acknowledgement
over bodies of the same size, neither signed nor checked. Which fsync mode the server runs decides
what an acknowledgement costs, so it is part of the result.
"""

import hashlib
from collections.abc import Callable

import anyio

from meshnet_bus.local_server import Sync
from meshnet_bus.publisher import Publisher
from meshnet_cli.bench.mix import REALM
from meshnet_cli.bench.result import Result
from meshnet_cli.bench.stream import empty_stream, fresh_mix
from meshnet_events import subjects
from meshnet_events.facts import ShardWithdrawn
from meshnet_events.keys import EventKey

SLICE = 50


async def bench_publish(
    *, records: int, sync: Sync, progress: Callable[[int, int], None]
) -> Result:
    """Publish `records` events of one node, and as many bare messages."""
    key = EventKey(hashlib.sha256(b"bench publish").digest())
    bare = EventKey(hashlib.sha256(b"bench bare").digest())
    fact = ShardWithdrawn(
        boot_id="3769e4f9-167b-4492-993b-0bd3a15e3b5a", reason="bench", shard_id="main"
    )
    body = next(iter(fresh_mix(nodes=2).events(1)))[1]
    measured_s = limit_s = 0.0
    async with empty_stream(sync) as bench:
        js = bench.nc.jetstream()
        publisher = Publisher(bench.nc, REALM, key)
        await publisher.publish(fact)
        for at in range(0, records, SLICE):
            start = anyio.current_time()
            for _ in range(SLICE):
                await js.publish(subjects.event(REALM, bare.public), body)
            middle = anyio.current_time()
            for _ in range(SLICE):
                await publisher.publish(fact)
            limit_s += middle - start
            measured_s += anyio.current_time() - middle
            progress(min(at + SLICE, records), records)
    count = -(-records // SLICE) * SLICE
    return Result(
        bench="publish",
        measured=count / measured_s,
        limit=count / limit_s,
        ratio=limit_s / measured_s,
        unit="events/s",
        limit_is="a bare nats-py loop of request and acknowledgement on the same server",
        config={"records": count, "sync_interval": sync, "nodes": 1, "outbox": False},
    )
