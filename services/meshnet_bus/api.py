"""Requests to JetStream about one realm's stream: what the server answers, typed.

Raw JSON instead of nats-py's configuration classes, which drop members they do not know. Everybody
but the administrator reaches the API under another name, so the prefix is a parameter.

    $JS.API.STREAM.MSG.GET.MESH_demo  {"seq":7}
    -> {"message":{"subject":"mesh.demo.evt.U…","seq":7,"data":"<base64>","time":"2026-…Z"}}

Every request has a time-out. Three things may come back: an answer; `ApiError`, the server's no;
`Unreachable`, nothing that can be relied on, so ask again.
"""

from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import Struct
from nats.errors import Error as NatsError

from meshnet_bus.client import SafeClient, Unreachable
from meshnet_events import subjects
from meshnet_events.record import Record

API_PREFIX = "$JS.API"
STREAM_NOT_FOUND = 10059
STREAM_NAME_IN_USE = 10058
NO_MESSAGE_FOUND = 10037

Answer = TypeVar("Answer")


class ApiError(Exception):
    """The server refused a request. `err_code` is JetStream's, `code` like an HTTP status."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"JetStream refused: {description} (code {code}, err_code {err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description


class Published(Struct, frozen=True):
    """Where an event is in the stream, and the event's digest.

    `duplicate` means, as in JetStream's own acknowledgements, that it had been stored before: an
    earlier attempt's acknowledgement was lost.
    """

    sequence: int
    digest: str
    duplicate: bool


class _Error(Struct, frozen=True):
    code: int
    err_code: int = 0
    description: str = ""


class _Failure(Struct, frozen=True):
    error: _Error | None = None


class _Stored(Struct, frozen=True):
    subject: str
    seq: int
    time: str
    data: bytes = b""


class _Message(Struct, frozen=True):
    message: _Stored


class _Acknowledgement(Struct, frozen=True):
    stream: str
    seq: int


class _Told(Struct, frozen=True):
    ts: str


def time_ns(text: str) -> int:
    """Nanoseconds since the epoch of the server's RFC 3339 time in UTC, as `2026-11-30T16:38:28.16Z`."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    whole = int(datetime.fromisoformat(f"{seconds}+00:00").timestamp())
    return whole * 1_000_000_000 + int(f"{fraction:0<9}"[:9])


class StreamApi:
    """The JetStream API, as far as it concerns the stream of `realm`."""

    def __init__(
        self, nc: SafeClient, realm: str, *, prefix: str = API_PREFIX, timeout_s: float = 5.0
    ) -> None:
        """Raise ValueError when `realm` is no realm's name."""
        self.nc = nc
        self.realm = subjects.check_realm(realm)
        self.stream = subjects.stream(realm)
        self.prefix = prefix
        self._timeout_s = timeout_s

    async def call(self, verb: str, request: object, answer: type[Answer]) -> Answer:
        """Ask `<prefix>.<verb>` with a JSON request; decode the answer or raise `ApiError`."""
        payload = b"" if request is None else msgspec.json.encode(request)
        reply, _ = await self._request(f"{self.prefix}.{verb}", payload)
        return _decode(reply, answer)

    async def append(
        self,
        issuer: str,
        body: bytes,
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Append to the stream as `issuer`; the sequence the server acknowledged."""
        subject = subjects.event(self.realm, issuer)
        reply, _ = await self._request(subject, body, headers=headers, timeout_s=timeout_s)
        acknowledgement = _decode(reply, _Acknowledgement)
        if acknowledgement.stream != self.stream:
            raise ApiError(
                409,
                0,
                f"stored in {acknowledgement.stream}; expected {self.stream} to hold {subject}",
            )
        return acknowledgement.seq

    async def leader_record(self, sequence: int) -> Record | None:
        """The record at `sequence` as the stream's leader has it; None when there is none."""
        return await self._leader({"seq": sequence})

    async def leader_record_of(self, issuer: str, at_least: int) -> Record | None:
        """The issuer's first record at `at_least` or behind it, as the stream's leader has it."""
        subject = subjects.event(self.realm, issuer)
        return await self._leader({"seq": at_least, "next_by_subj": subject})

    async def direct_record(self, sequence: int) -> Record | None:
        """The record at `sequence` from any replica, which may not have it yet: then None."""
        payload = b'{"seq":%d}' % sequence
        return await self._direct(f"{self.prefix}.DIRECT.GET.{self.stream}", payload)

    async def last_record_of(self, issuer: str) -> Record | None:
        """The issuer's last record from any replica: it may be stale."""
        subject = subjects.event(self.realm, issuer)
        return await self._direct(f"{self.prefix}.DIRECT.GET.{self.stream}.{subject}", b"")

    async def leader_time_ns(self) -> int:
        """The time of the stream's leader, in ns since the epoch, as it answered."""
        told = await self.call(f"STREAM.INFO.{self.stream}", None, _Told)
        try:
            return time_ns(told.ts)
        except ValueError as error:
            raise Unreachable(f"{told.ts[:40]!r} is not a server's time") from error

    async def _leader(self, which: dict[str, int | str]) -> Record | None:
        try:
            found = await self.call(f"STREAM.MSG.GET.{self.stream}", which, _Message)
        except ApiError as error:
            if error.err_code == NO_MESSAGE_FOUND:
                return None
            raise
        stored = found.message
        return Record(stored.seq, time_ns(stored.time), stored.subject, stored.data)

    async def _direct(self, subject: str, payload: bytes) -> Record | None:
        body, fields = await self._request(subject, payload)
        status = fields.get("Status")
        if status == "404":
            return None
        if status is not None:
            raise Unreachable(f"{subject}: {status} {fields['Description']}")
        try:
            return Record(
                int(fields["Nats-Sequence"]),
                time_ns(fields["Nats-Time-Stamp"]),
                fields["Nats-Subject"],
                body,
            )
        except (KeyError, ValueError) as error:
            raise Unreachable(f"{subject}: an answer that is no record") from error

    async def _request(
        self,
        subject: str,
        payload: bytes,
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> tuple[bytes, dict[str, str]]:
        # nats-py would keep the request and send it whenever the connection comes back
        if not self.nc.is_connected:
            raise Unreachable(
                "not connected" + (", and closed for good" if self.nc.is_closed else "")
            )
        try:
            answer = await self.nc.request(
                subject, payload, timeout=timeout_s or self._timeout_s, headers=headers
            )
        except (TimeoutError, NatsError, OSError) as error:
            raise Unreachable(f"{subject}: {error or repr(error)}") from error
        return answer.data, answer.headers or {}


def _decode(reply: bytes, answer: type[Answer]) -> Answer:
    """What a JSON answer says. 503 is the server's own *not now*, so it counts as unreachable."""
    try:
        failure = msgspec.json.decode(reply, type=_Failure).error
        if failure is None:
            return msgspec.json.decode(reply, type=answer)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unreachable(f"an answer that is not JetStream's: {reply[:80]!r}") from error
    if failure.code == 503:
        raise Unreachable(f"JetStream: {failure.description}")
    raise ApiError(failure.code, failure.err_code, failure.description)
