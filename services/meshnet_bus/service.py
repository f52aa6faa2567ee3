"""Queries over NATS: answering them as a tracker (`meshnet_events.queries`); `asker` asks them.

    service = QueryService(nc, "lab", answer)      answer: Query -> Reply, the tracker's part
    tasks.start_soon(service.run)

Trackers share one queue group, so whichever is free answers, and a tracker that is lost is no loss.
It is a NATS micro service (`discovery` says what it is). nats-py's own is not used: it answers the
queries of an endpoint one by one, so that one which waits for a sequence would hold up all others; it
puts the text of any exception into a header; and its stopping raises while the connection is away.

What comes from the bus may be hostile:

- A query is bounded (`MAX_QUERY`), and so are those answered at once and those that wait for it; past
  that it is `unavailable`, at once. Whatever a handler raises is logged, and `unavailable`.
- Headers are ignored, and where an answer may go is decided in `replies`.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import TaskStatus
from msgspec import Struct
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from meshnet_bus.client import SafeClient, Unreachable
from meshnet_bus.discovery import Discovery, EndpointStats
from meshnet_bus.replies import respond
from meshnet_events import queries, subjects
from meshnet_events.queries import (
    MAX_ANSWER,
    MAX_QUERY,
    QUERY_NAMES,
    UNAVAILABLE,
    Query,
    QueryError,
    Reply,
)

Answerer = Callable[[Query[Any]], Awaitable[Reply[Any]]]
"""What answers a query. It bounds its own time."""

QUEUE_GROUP = "trackers"
AT_ONCE = 64
"""How many queries a tracker answers at once."""
WAITING = 256
"""How many more may wait for that."""
_STOP_TIMEOUT_S = 1.0
_PENDING_MSGS = 4_096
_PENDING_BYTES = 16 * 2**20
_log = logging.getLogger("meshnet_bus")


class _Received(Struct, frozen=True):
    name: str
    reply: str
    body: bytes


class QueryService:
    """Answers the queries of one realm until cancelled, whatever they hold."""

    def __init__(
        self,
        nc: SafeClient,
        realm: str,
        answer: Answerer,
        *,
        at_once: int = AT_ONCE,
        waiting: int = WAITING,
    ) -> None:
        """Raise ValueError when `realm` is no realm's name."""
        self._nc = nc
        self._realm = subjects.check_realm(realm)
        self._answer = answer
        self._at_once = at_once
        self._send, self._receive = anyio.create_memory_object_stream[_Received](waiting)
        self.stats = {
            name: EndpointStats(name, subjects.query(realm, name), QUEUE_GROUP)
            for name in QUERY_NAMES
        }

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started once the server knows of it. A lost connection is waited out.

        Once only. Raises `Unreachable` when there is no connection to begin on.
        """
        subscriptions: list[Subscription] = []
        try:
            await self._subscribe(subscriptions)
            async with anyio.create_task_group() as tasks:
                for _ in range(self._at_once):
                    tasks.start_soon(self._work)
                task_status.started()
        except NatsError as error:
            raise Unreachable(
                f"the queries of {self._realm} cannot be served: {error or repr(error)}"
            ) from error
        finally:
            self._send.close()
            self._receive.close()
            await _unsubscribe(subscriptions)

    async def _subscribe(self, subscriptions: list[Subscription]) -> None:
        for name, endpoint in self.stats.items():
            subscriptions.append(
                await self._nc.subscribe(
                    endpoint.subject,
                    queue=QUEUE_GROUP,
                    cb=self._taker(name),
                    pending_msgs_limit=_PENDING_MSGS,
                    pending_bytes_limit=_PENDING_BYTES,
                )
            )
        subscriptions += await Discovery(self._nc, self._realm, tuple(self.stats.values())).start()
        await self._nc.flush()
        await self._nc.flush()  # the first overtakes queued subscriptions

    def _taker(self, name: str) -> Callable[[Msg], Awaitable[None]]:
        async def take(message: Msg) -> None:
            # one byte too many is kept of a body that is too large: it will be found so
            received = _Received(name, message.reply, message.data[: MAX_QUERY + 1])
            try:
                self._send.send_nowait(received)
            except anyio.WouldBlock:
                busy = QueryError(UNAVAILABLE, "too many queries at once; ask again")
                await self._respond(received, Reply(sequence=0, error=busy), time.monotonic_ns())
            except anyio.ClosedResourceError:
                return  # stopped in the meantime; another tracker answers the next one

        return take

    async def _work(self) -> None:
        """Answer one query after another."""
        async for received in self._receive:
            started = time.monotonic_ns()
            query = queries.decode_query(received.name, received.body)
            if isinstance(query, QueryError):
                reply: Reply[Any] = Reply(sequence=0, error=query)
            else:
                try:
                    reply = await self._answer(query)
                except Exception:  # noqa: BLE001 - a query must not end the service, whatever it meets
                    _log.exception("the query %s failed", received.name)
                    failed = QueryError(
                        UNAVAILABLE, "the tracker failed to answer; its log says why"
                    )
                    reply = Reply(sequence=0, error=failed)
            await self._respond(received, reply, started)

    async def _respond(self, received: _Received, reply: Reply[Any], started_ns: int) -> None:
        """Send `reply` if there is somewhere to send it. Never raises."""
        body = queries.encode(reply)
        if len(body) > MAX_ANSWER:
            large = QueryError(
                UNAVAILABLE, f"the answer has {len(body):,} bytes, over {MAX_ANSWER:,}"
            )
            reply = Reply(sequence=reply.sequence, error=large)
            body = queries.encode(reply)
        code = reply.error.code if reply.error else None
        self.stats[received.name].count(time.monotonic_ns() - started_ns, code)
        await respond(self._nc, received.reply, body)


async def _unsubscribe(subscriptions: list[Subscription]) -> None:
    """Take nothing more, and tell the server so if it can be told in a second."""
    with anyio.move_on_after(_STOP_TIMEOUT_S, shield=True):
        for subscription in subscriptions:
            try:
                await subscription.unsubscribe()
            except (NatsError, OSError) as error:
                # closed for good: there is nobody left to tell
                _log.debug("unsubscribing %s: %r", subscription.subject, error)
