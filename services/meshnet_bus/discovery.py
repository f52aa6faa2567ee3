"""What a service says of itself: NATS's micro protocol, as `nats micro ls` and its kin ask it.

    $SRV.PING                      {"id":"4tKz…","metadata":{"realm":"lab"},"name":"meshnet-tracker",
                                    "type":"io.nats.micro.v1.ping_response","version":"1.0.0"}
    $SRV.INFO.meshnet-tracker      the endpoints with their subjects and queue groups
    $SRV.STATS.meshnet-tracker.ID  how often each was asked, how often in vain, how long it took

PING, INFO and STATS are each asked of every service, of those of a name, or of one by its id. The
format is NATS's ADR-32. Times are in ns. An error counted here is any answer that is one, so also a
query for what does not exist.
"""

import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from meshnet_bus.client import SafeClient
from meshnet_bus.replies import respond

SERVICE = "meshnet-tracker"
VERSION = "1.0.0"
"""The version of the queries, not of the program."""
_DESCRIPTION = "Verdicts of the registry: docs/reference/queries.md"
_PREFIX = "$SRV"
_TYPE = "io.nats.micro.v1"


class EndpointStats(Struct):
    """One endpoint, and what it did since it was started."""

    name: str
    subject: str
    queue_group: str
    num_requests: int = 0
    num_errors: int = 0
    last_error: str = ""
    processing_time: int = 0
    average_processing_time: int = 0
    data: None = None

    def count(self, elapsed_ns: int, code: str | None) -> None:
        """One query was answered, with an error where there is a `code`."""
        self.num_requests += 1
        self.processing_time += elapsed_ns
        self.average_processing_time = self.processing_time // self.num_requests
        if code is not None:
            self.num_errors += 1
            self.last_error = code


class _Endpoint(Struct, frozen=True):
    name: str
    subject: str
    queue_group: str
    metadata: dict[str, str]


class _Ping(Struct, frozen=True, kw_only=True):
    id: str
    metadata: dict[str, str]
    name: str = SERVICE
    type: str = f"{_TYPE}.ping_response"
    version: str = VERSION


class _Info(_Ping, frozen=True, kw_only=True):
    description: str = _DESCRIPTION
    endpoints: tuple[_Endpoint, ...]
    type: str = f"{_TYPE}.info_response"


class _Stats(_Ping, frozen=True, kw_only=True):
    endpoints: tuple[EndpointStats, ...]
    started: str
    type: str = f"{_TYPE}.stats_response"


class Discovery:
    """Answers what is asked of a service that serves `endpoints`."""

    def __init__(self, nc: SafeClient, realm: str, endpoints: tuple[EndpointStats, ...]) -> None:
        self._nc = nc
        self._endpoints = endpoints
        self._id = secrets.token_hex(11)
        self._metadata = {"realm": realm}
        self._started = datetime.now(tz=UTC)

    async def start(self) -> list[Subscription]:
        """Begin to answer; the subscriptions are the caller's to end."""
        verbs = (("PING", self._ping), ("INFO", self._info), ("STATS", self._stats))
        return [
            await self._nc.subscribe(f"{_PREFIX}.{verb}{whom}", cb=self._teller(document))
            for verb, document in verbs
            for whom in ("", f".{SERVICE}", f".{SERVICE}.{self._id}")
        ]

    def _teller(self, document: Callable[[], _Ping]) -> Callable[[Msg], Awaitable[None]]:
        async def tell(message: Msg) -> None:
            body = msgspec.json.encode(document(), order="sorted")
            await respond(self._nc, message.reply, body)

        return tell

    def _ping(self) -> _Ping:
        return _Ping(id=self._id, metadata=self._metadata)

    def _info(self) -> _Info:
        endpoints = tuple(
            _Endpoint(one.name, one.subject, one.queue_group, {}) for one in self._endpoints
        )
        return _Info(id=self._id, metadata=self._metadata, endpoints=endpoints)

    def _stats(self) -> _Stats:
        started = self._started.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return _Stats(
            id=self._id, metadata=self._metadata, endpoints=self._endpoints, started=started
        )
