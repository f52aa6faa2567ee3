"""What tests of the outbox have in common, and a node's process that is to be killed.

Facts here are enrolments by an operator whose chain begins the realm: each is applied, so the fold
tells which were and how often.
"""

import shutil
import sys
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import anyio

from bus_kit import ISSUER, REALM, alongside, client_at, withdrawn
from meshnet_bus.api import StreamApi
from meshnet_bus.client import closing
from meshnet_bus.outbox import Outbox
from meshnet_bus.reader import Reader
from meshnet_bus.stream import read_state
from meshnet_events.envelope import ChainHead
from meshnet_events.facts import DEFAULT_POLICY, NodeEnrolled, RealmCreated
from meshnet_events.gate import Gate
from meshnet_events.keys import EventKey
from meshnet_events.screened import Event, follow
from meshnet_tracker.registry.fold import Fold
from meshnet_tracker.registry.state import State

NODE = EventKey(bytes(31) + b"n").public


def creation():
    return RealmCreated(operators=(ISSUER.public,), policy=DEFAULT_POLICY, realm=REALM)


def enrolment(label):
    return NodeEnrolled(chain_from=None, group="", label=label, node=NODE)


@asynccontextmanager
async def running(path, nc, *, key=ISSUER, **options):
    """An outbox that sends."""
    async with (
        Outbox.open(path, nc, REALM, key, **options) as outbox,
        alongside() as tasks,
    ):
        tasks.start_soon(outbox.run)
        yield outbox


async def drain(path, nc, **options):
    """Send whatever `path` holds."""
    async with running(path, nc, **options) as outbox:
        with anyio.fail_after(20):
            await outbox.drained()


def opened(path, nc, **options):
    """An outbox that nobody runs."""
    return Outbox.open(path, nc, REALM, ISSUER, **options)


async def hand_all(outbox, *names):
    """Hand a fact for each name, its reason."""
    return [await outbox.hand(withdrawn(name)) for name in names]


async def keep_pending(path, nc, *names):
    """Hand events that nobody sends."""
    async with opened(path, nc) as outbox:
        await hand_all(outbox, *names)


async def store(path, nc, *names):
    """Hand facts and have them stored."""
    async with running(path, nc) as outbox:
        await hand_all(outbox, *names)
        with anyio.fail_after(10):
            await outbox.drained()


async def copy_store(server, to):
    """Copy what the server keeps, as it is now."""
    await server.stop()
    shutil.copytree(server.directory / "jetstream", to)
    await server.start()


def restore_store(server, copy):
    """Put an older copy in the place of what a stopped server keeps."""
    shutil.rmtree(server.directory / "jetstream")
    shutil.copytree(copy, server.directory / "jetstream")


async def records(nc):
    """Every record of the stream."""
    last = (await read_state(StreamApi(nc, REALM))).last_sequence
    found = []
    if last:
        async with Reader(nc, REALM, until=last) as reader:
            async for batch in reader.batches():
                found += batch
    return found


async def bodies(nc, issuer=ISSUER.public):
    """The issuer's chain in the stream, as bodies: what the gate lets through, in order."""
    gate, head, kept = Gate(REALM), ChainHead(), []
    for record in await records(nc):
        event = gate.screen(record.body, record.subject).verified()
        if isinstance(event, Event) and event.issuer == issuer:
            after = follow(head, event)
            if isinstance(after, ChainHead):
                head = after
                kept.append(record.body)
    return kept


async def reasons(nc, issuer=ISSUER.public):
    """The reasons in the issuer's chain, in order."""
    gate = Gate(REALM)
    subject = f"mesh.{REALM}.evt.{issuer}"
    return [gate.screen(body, subject).result.data.reason for body in await bodies(nc, issuer)]


async def folded(nc):
    """Fold the stream from sequence 1: the state, and the labels that were applied, in order."""
    fold, labels = Fold(State(REALM)), []
    for record in await records(nc):
        applied = fold.apply(record)
        if applied.outcome.kind == "applied":
            fact = fold.screen(record).result.data
            if isinstance(fact, NodeEnrolled):
                labels.append(fact.label)
    return fold.state, labels


async def _main(url: str, path: str, name: str) -> None:
    """Hand facts as fast as they are taken, and tell each; the test kills this process."""
    async with closing(await client_at(url)) as nc, running(Path(path), nc) as outbox:
        print("ready", flush=True)
        if outbox.head == ChainHead():
            await outbox.hand(creation())
        for number in count():
            label = f"{name}-{number:06d}"
            await outbox.hand(enrolment(label))
            print(label, flush=True)


if __name__ == "__main__":
    anyio.run(_main, *sys.argv[1:])
