"""What tests on a real nats-server have in common: a client, records, hostile bytes, waiting, tasks.

The server and the realm are fixtures of `tests/integration/conftest.py`.
"""

import time
from contextlib import asynccontextmanager

import anyio

from meshnet_bus.client import connect
from meshnet_events import subjects
from meshnet_events.facts import ShardWithdrawn
from meshnet_events.keys import EventKey

REALM = "demo"
ISSUER = EventKey(bytes(32))
BOOT = "3769e4f9-5b0f-4b7e-9a57-2e0c2f6a1d11"


async def client(server, **options):
    """Connect to a local server, and soon again when it was away."""
    return await client_at(server.url, **options)


async def client_at(url, **options):
    """Connect to a server that another process runs."""
    return await connect(url, name="test", reconnect_wait_s=0.05, **options)


def withdrawn(reason="over"):
    """A small fact."""
    return ShardWithdrawn(boot_id=BOOT, reason=reason, shard_id="main")


async def fill(nc, count, *, body=b"{}", issuer=ISSUER.public):
    """Append `count` records quickly; the last is acknowledged when this returns."""
    for _ in range(count - 1):
        await nc.publish(subjects.event(REALM, issuer), body)
    await nc.request(subjects.event(REALM, issuer), body, timeout=10)


async def wire(nc, subject, body=b"", *, headers=b"", reply=b""):
    """Publish raw bytes, as a hostile client would."""
    where = b"%b %b " % (subject, reply) if reply else b"%b " % subject
    if headers:
        line = b"HPUB %b%d %d\r\n" % (where, len(headers), len(headers) + len(body))
    else:
        line = b"PUB %b%d\r\n" % (where, len(body))
    nc._transport.write(line + headers + body + b"\r\n")
    await nc._transport.drain()


async def until(condition, seconds=5.0):
    """Wait for `condition()`; fail when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await anyio.sleep(0.01)


@asynccontextmanager
async def alongside():
    """Tasks beside a test's body, which end when it has ended.

    Whoever cancels their group while the body runs cancels the body with them: it would stop at its
    next await, before what it asserts, and pass. Here that fails.
    """
    is_through = False
    async with anyio.create_task_group() as tasks:
        yield tasks
        is_through = True
        tasks.cancel_scope.cancel()
    assert is_through, "the body was cancelled with the tasks beside it: not all of it has run"
