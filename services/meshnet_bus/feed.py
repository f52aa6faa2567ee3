"""The fastest way to read a stream: raw pull requests on one consumer, answered to one inbox.

A feed asks with `MSG.NEXT` for a few thousand records at a time and keeps up to four such requests
waiting at the server. What may arrive is what was asked for, so memory is bounded by *credit*:
records on their way and records not yet taken never exceed the window, and never 16 MiB; a server
that has more to say waits. Sequence and time come from the reply subject:

    $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<n>.<time in ns>.<records still to come>

Records leave in sequence order, each once, or not at all. At the first that is not the one after
the last, or when the consumer or the connection is gone, the feed is *broken*: it takes no more,
and its owner opens another one at the right place. Each feed has an inbox of its own, so nothing
that was sent to one can reach the next.

`deliver` runs in the read loop for every record: it is written for speed.
"""

import asyncio
import secrets

import anyio
from msgspec import Struct
from nats.errors import Error as NatsError

from meshnet_bus.api import ApiError, StreamApi
from meshnet_bus.client import Unreachable
from meshnet_bus.protocol import decode_text, parse_headers
from meshnet_events.record import Record

REQUESTS = 4
IDLE_HEARTBEAT_S = 1.0
_EXPIRES_S = 5.0
# A request also ends at this many bytes. One that they use up exactly ends without a word, and its
# credit stays lost: should that ever add up to the window, silence makes the owner open a new feed.
_REQUEST_BYTES = 4 * 1024 * 1024
_INACTIVE_S = 30.0
_CLOSE_TIMEOUT_S = 1.0
_S = 1_000_000_000


class _Consumer(Struct, frozen=True):
    name: str


class _Deleted(Struct, frozen=True):
    success: bool


async def create_consumer(api: StreamApi, after: int) -> str:
    """Make an ephemeral consumer that starts right behind `after`; the server forgets it unused."""
    name = f"reader-{secrets.token_hex(8)}"
    request = {
        "stream_name": api.stream,
        "config": {
            "name": name,
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "mem_storage": True,
            "num_replicas": 1,
            "max_waiting": 4 * REQUESTS,
            "inactive_threshold": int(_INACTIVE_S * _S),
        },
    }
    return (await api.call(f"CONSUMER.CREATE.{api.stream}.{name}", request, _Consumer)).name


class Feed:
    """One consumer's records, from one position on. Made by `open_feed`."""

    __slots__ = (
        "_api",
        "_consumer",
        "_expected",
        "_handle",
        "_inbox",
        "_next",
        "_owed",
        "_pending",
        "_records",
        "_request",
        "_request_size",
        "_window",
        "arrived",
        "broken",
        "gap_until",
        "heard",
    )

    def __init__(self, api: StreamApi, consumer: str, after: int, window: int) -> None:
        self._api = api
        self._consumer = consumer
        self._expected = after + 1
        self._window = window
        self._request_size = max(1, window // REQUESTS)
        self._next = f"{api.prefix}.CONSUMER.MSG.NEXT.{api.stream}.{consumer}"
        self._request = b'{"batch":%d,"max_bytes":%d,"expires":%d,"idle_heartbeat":%d}' % (
            self._request_size,
            _REQUEST_BYTES,
            int(_EXPIRES_S * _S),
            int(IDLE_HEARTBEAT_S * _S),
        )
        self._inbox = api.nc.new_inbox()
        self._handle = 0
        self._owed = 0
        self._pending = b"0"
        self._records: list[Record] = []
        self.arrived = asyncio.Event()
        """Set when there is something to take or to look at."""
        self.heard = False
        """The server said something other than records since this was last cleared."""
        self.broken: str | None = None
        """Why nothing more will come."""
        self.gap_until: int | None = None
        """The first record that did come, when those before it did not."""

    @property
    def last_known(self) -> int:
        """The highest sequence that the server said is there, when it sent the newest record."""
        return self._expected - 1 + int(self._pending)

    def take(self) -> list[Record]:
        """All records that have arrived, in order."""
        records, self._records = self._records, []
        self._owed -= len(records)
        return records

    async def ask(self) -> None:
        """Turn free credit into requests. Raises `Unreachable`."""
        try:
            while self._window - self._owed >= self._request_size:
                self._owed += self._request_size
                await self._api.nc.publish(self._next, self._request, reply=self._inbox)
        except (NatsError, OSError) as error:
            raise Unreachable(f"{self._next}: {error or repr(error)}") from error

    async def close(self) -> None:
        """Take nothing more and let the server forget the consumer, if it can be told in a second."""
        with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            try:
                await self._api.nc.untap(self._handle)
                verb = f"CONSUMER.DELETE.{self._api.stream}.{self._consumer}"
                await self._api.call(verb, None, _Deleted)
            except (Unreachable, ApiError, NatsError):
                return  # unused, it is forgotten after `_INACTIVE_S`

    async def start(self) -> None:
        """Begin to receive."""
        self._handle = await self._api.nc.tap(self._inbox, self.deliver, self.lost)
        await self.ask()

    def deliver(self, subject: bytes, reply: bytes, body: bytes, headers: bytes) -> None:
        """Take one message in the read loop. Never raises."""
        if not reply.startswith(b"$JS.ACK."):
            self._take_status(headers)
            return
        try:
            _, sequence_text, _, time_text, self._pending = reply.rsplit(b".", 4)
            sequence = int(sequence_text)
            time_ns = int(time_text)
        except ValueError:
            self._break("a reply subject that is not JetStream's")
            return
        if sequence != self._expected or self.broken:
            self._take_unexpected(sequence)
            return
        self._expected = sequence + 1
        records = self._records
        if not records:
            self.arrived.set()
        records.append(Record(sequence, time_ns, decode_text(subject), body))

    def lost(self) -> None:
        """Note that the connection is gone."""
        self._break("the connection was lost")

    def _take_unexpected(self, sequence: int) -> None:
        if sequence > self._expected and not self.broken:
            self.gap_until = sequence
            self._break(f"record {sequence} came after {self._expected - 1}")

    def _take_status(self, headers: bytes) -> None:
        fields = parse_headers(headers)
        status = fields.get("Status")
        unused = fields.get("Nats-Pending-Messages", "")
        if status is None:
            return  # only the server has a status; whatever this is, nobody asked for it
        self.heard = True
        if status == "100":
            last = fields.get("Nats-Last-Stream", "")
            if last.isdecimal() and int(last) >= self._expected:
                self.gap_until = int(last) + 1
                self._break(f"record {last} was sent and did not come")
        elif unused.isdecimal():
            self._owed -= int(unused)
            self.arrived.set()
        else:
            self._break(f"{status} {fields['Description']}")

    def _break(self, why: str) -> None:
        self.broken = self.broken or why
        self.arrived.set()


async def open_feed(api: StreamApi, *, after: int, window: int) -> Feed:
    """Make a consumer behind `after` and start to read it. Raises `Unreachable` or `ApiError`."""
    feed = Feed(api, await create_consumer(api, after), after, window)
    try:
        await feed.start()
    except NatsError as error:
        await feed.close()
        raise Unreachable(f"cannot subscribe: {error or repr(error)}") from error
    except BaseException:
        await feed.close()
        raise
    return feed
