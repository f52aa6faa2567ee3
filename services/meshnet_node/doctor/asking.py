"""How the doctor asks in earnest: trackers over NATS, the own endpoint over gRPC as a peer would.

    async with asking(case, server="nats://…", realm="lab", key=key) as case:
        await examine_realm(case)

The endpoint is tried whether the node runs or not. If its port is free, a service with this node's key
and no shards listens there while the question is asked; if it is taken, whoever took it has to answer
with the key. The key is what the responder's challenge says, before anybody has proven anything: that is
enough to tell another node's address from one's own.

The connection is made before the clock is asked, so that connecting does not count as a round trip.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec

from meshnet_bus.asker import Asker
from meshnet_bus.client import Unreachable, closing, connect
from meshnet_events.answers import ClockAnswer, NodeAnswer
from meshnet_events.facts import Fact
from meshnet_events.keys import EventKey
from meshnet_events.queries import ClockQuery, NodeQuery
from meshnet_node.doctor.realm import EndpointProbe, RealmCase
from meshnet_node.session.link import ask_key
from meshnet_node.session.node import Node
from meshnet_node.session.responder import CannotListen, serve
from meshnet_node.session.transport import Endpoint, Tls, default_listen

_NAME = "meshnet-doctor"


@asynccontextmanager
async def asking(
    case: RealmCase,
    *,
    server: str | None,
    realm: str | None,
    key: EventKey | None,
    listen: str | None = None,
    tls: Tls | None = None,
) -> AsyncIterator[RealmCase]:
    """The case with everything filled in that can be asked. A server that is not there is a finding.

    `listen` is where the endpoint arrives on this machine, `host:port`, if not at its own address.
    """
    case = msgspec.structs.replace(case, has_certificate=tls is not None)
    if key is not None:
        case = msgspec.structs.replace(
            case,
            node=key.public,
            reach=_reach(realm or "none", key, listen, tls),
        )
    async with AsyncExitStack() as stack:
        if server is None or realm is None:
            missing = "server" if server is None else "realm"
            yield msgspec.structs.replace(case, unasked=f"no {missing} is named")
            return
        try:
            nc = await stack.enter_async_context(closing(await connect(server, name=_NAME)))
        except Unreachable as error:
            unreachable = error

            async def refuse(*_: object) -> Any:
                raise unreachable

            yield msgspec.structs.replace(case, ask_clock=refuse, ask_node=refuse)
            return
        asker = Asker(nc, realm)

        async def ask_clock() -> ClockAnswer:
            return await asker.ask(ClockQuery())

        async def ask_node(node: str) -> NodeAnswer:
            return await asker.ask(NodeQuery(node=node))

        yield msgspec.structs.replace(case, ask_clock=ask_clock, ask_node=ask_node)


def _reach(realm: str, key: EventKey, listen: str | None, tls: Tls | None) -> EndpointProbe:
    async def reach(endpoint: str) -> str:
        parsed = Endpoint.parse(endpoint)
        where = listen or default_listen(parsed)
        nobody = _Nobody()
        node = Node(
            realm=realm,
            key=key,
            boot_id=str(uuid.uuid4()),
            shards={},
            tracker=nobody,
            outbox=nobody,
            tls=tls,
        )
        async with AsyncExitStack() as stack:
            # if it is taken, the node runs or another process does: the key that answers will tell
            with suppress(CannotListen):
                shown = tls if parsed.secure else None
                await stack.enter_async_context(serve(node, where, tls=shown))
            return await ask_key(endpoint, tls)

    return reach


class _Nobody:
    """The tracker and the log of a node that serves nothing: no session gets so far as to need them."""

    async def ask(self, query: object) -> Any:
        """As `Asker`."""
        raise Unreachable(f"the doctor serves no session, so it asks nothing ({query!r})")

    async def hand(self, fact: Fact) -> Any:
        """As the outbox."""
        raise Unreachable(f"the doctor serves no session, so it states nothing ({fact.NAME})")

    async def stored(self, handed: object) -> Any:
        """As the outbox."""
        raise Unreachable(f"the doctor stated nothing that could be stored ({handed!r})")
