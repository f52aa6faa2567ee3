"""The stage: a real nats-server on loopback, a real realm, a real tracker, all temporary.

The tracker folds what the nodes say, hears who is alive, and answers queries, as `meshnet up` does. The
commands that the demo runs find it by a profile of its own.
"""

import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import anyio
from msgspec import structs

from meshnet_bus.api import Published
from meshnet_bus.asker import Asker
from meshnet_bus.client import SafeClient, closing, connect
from meshnet_bus.local_server import LocalServer
from meshnet_bus.publisher import Publisher
from meshnet_bus.reader import read_until
from meshnet_bus.stream import create_realm
from meshnet_cli.demo.cast import Actor, Done, ending, run
from meshnet_cli.key_files import keep_key
from meshnet_cli.profile import Profile, write_profile
from meshnet_cli.tracking import serve_queries
from meshnet_events import facts
from meshnet_events.envelope import ChainHead, SignedEvent, sign_event
from meshnet_events.keys import EventKey
from meshnet_events.queries import PlanQuery
from meshnet_events.record import Record
from meshnet_node.directory import NodeDirectory
from meshnet_tracker.projector import Projector
from meshnet_tracker.registry.rows import Claim
from meshnet_tracker.registry.state import State
from meshnet_tracker.views import Views

REALM = "demo"
POLICY = structs.replace(facts.DEFAULT_POLICY, accept_declared_hosts=True)
_PATIENCE_S = 20.0
_ASK_EVERY_S = 0.2


def now_ms() -> int:
    """This machine's clock, in ms since the epoch."""
    return time.time_ns() // 1_000_000


class Stage:
    """Where the story plays. Use `Stage.open`."""

    def __init__(
        self, nc: SafeClient, operator: EventKey, folder: Path, views: Views, projector: Projector
    ) -> None:
        self._nc = nc
        self._views = views
        self._projector = projector
        self.folder = folder
        """Where everything of the demo is, until it is over."""
        self.profile = folder / "profile.toml"
        self.operator_key = operator.public
        self.operator = Publisher(nc, REALM, operator)
        self.actors: list[Actor] = []

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """Start everything; stop and remove all of it at the end."""
        with tempfile.TemporaryDirectory(prefix="meshnet-demo-") as directory:
            folder = Path(directory)
            async with LocalServer(folder / "nats") as server:
                nc = await connect(server.url, name="meshnet demo")
                async with closing(nc):
                    operator = EventKey(os.urandom(32))
                    await create_realm(nc, REALM, _first_event(operator), issuer=operator.public)
                    async with (
                        Views.open(folder / "views.db", REALM) as views,
                        anyio.create_task_group() as tasks,
                    ):
                        projector = Projector(views, nc, operator=operator.public)
                        tasks.start_soon(projector.run)
                        await projector.caught_up()
                        await serve_queries(tasks, projector, nc, REALM)
                        stage = cls(nc, operator, folder, views, projector)
                        write_profile(
                            stage.profile,
                            Profile(realm=REALM, server=server.url, operator=operator.public),
                        )
                        async with ending(stage.actors):
                            yield stage
                        tasks.cancel_scope.cancel()

    @property
    def state(self) -> State:
        """What the registry knows now."""
        return self._projector.state

    async def enrol(
        self, name: str, host: str, group: str, *, before: Actor | None = None
    ) -> Actor:
        """A new node with a key of its own, enrolled by the operator.

        Of two equal routes the one with the lesser keys is planned; with `before`, this node's key
        sorts before that one's, so that the story is the same for everyone.
        """
        key = EventKey(os.urandom(32))
        while before is not None and key.public > before.key:
            key = EventKey(os.urandom(32))
        folder = self.folder / name
        keep_key(NodeDirectory(folder).key_file, key)
        await self.heard(
            await self.operator.publish(
                facts.NodeEnrolled(chain_from=None, group=group, label=name, node=key.public)
            )
        )
        actor = Actor(name, key.public, folder, host, self.profile)
        self.actors.append(actor)
        return actor

    async def planned_over(self, actor: Actor, recipe_key: str) -> None:
        """Wait until a tracker plans to serve over `actor`: one that was just busy is spared a while."""
        asker, query = Asker(self._nc, REALM), PlanQuery(purpose="serve", recipe=recipe_key)
        with anyio.fail_after(_PATIENCE_S):
            while True:
                if actor.key in {hop.node for hop in (await asker.ask(query)).hops}:
                    return
                await anyio.sleep(_ASK_EVERY_S)

    async def user(self, *arguments: str) -> Done:
        """Run one command as somebody who is no node."""
        return await run(self.profile, *arguments)

    def claim(self, actor: Actor) -> Claim:
        """The newest registration of a node's only shard."""
        (claim,) = self.state.claims[actor.key].values()
        return claim

    async def heard(self, published: Published) -> str:
        """The outcome of what was published, once the views hold it: `applied` or a refusal."""
        with anyio.fail_after(_PATIENCE_S):
            await self._projector.reached(published.sequence)
        refusal = await self._views.refusal(published.sequence)
        return "applied" if refusal is None else f"{refusal.code}: {refusal.detail}"

    async def history(self) -> list[Record]:
        """Every record so far, read from the stream once more."""
        records: list[Record] = []
        async with await read_until(self._nc, REALM, self._projector.committed) as reader:
            async for batch in reader.batches():
                records += batch
        return records


def _first_event(operator: EventKey) -> SignedEvent:
    return sign_event(
        facts.RealmCreated(operators=(operator.public,), policy=POLICY, realm=REALM),
        key=operator,
        realm=REALM,
        after=ChainHead(),
        time_ms=now_ms(),
        chance=os.urandom(10),
    )
