"""The caller's end of a session: opened, proven, and then a pair of pipes for frames.

`open_link` connects to a hop, answers its challenge, and yields a `Link` once the two have compared
fingerprints and proven their keys to each other. What came of the comparison is told to `met` before
anything else happens, also when it is a refusal: but only of a peer that proved who it is.

Whatever goes wrong raises SessionFailed. On the way out the stream is cancelled and the channel
closed, however that comes: the hop then frees what it holds.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from msgspec import Struct

from meshnet_events.forms import is_key
from meshnet_events.keys import EventKey
from meshnet_events.session import NONCE_BYTES, Pair, SessionTerms
from meshnet_node.handshake import presented_in
from meshnet_node.recipe_identity import (
    MISMATCH_FINGERPRINT,
    CompatibilityFingerprint,
    RouteMismatch,
    check_handshake,
    handshake_error,
)
from meshnet_node.session.failure import SessionFailed, violation
from meshnet_node.session.opening import PURPOSES, Purpose, RouteHop
from meshnet_node.session.transport import METHOD, Endpoint, Tls, open_channel
from meshnet_node.session.waiting import within
from meshnet_proto import shard_runtime_pb2 as pb

OPEN_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 2.0


class Caller(Struct, frozen=True):
    """Who opens a session, and what it computes or, of a driver, asks to be computed."""

    realm: str
    key: EventKey
    boot_id: str
    fingerprint: CompatibilityFingerprint
    tls: Tls | None = None


class Request(Struct, frozen=True):
    """What is asked of `responder`, which is hop number `hop`; `after` are those behind it."""

    purpose: Purpose
    route_session_id: str
    route_epoch: int
    hop: int
    responder: RouteHop
    after: tuple[RouteHop, ...] = ()


class Meeting(Struct, frozen=True):
    """What came of comparing fingerprints with a peer that proved its key; no mismatch is yes."""

    terms: SessionTerms
    presented: pb.Fingerprint
    mismatches: tuple[RouteMismatch, ...]


Met = Callable[[Meeting], Awaitable[None]]


class Link:
    """An open session as its caller sees it. Made by `open_link`."""

    def __init__(self, call: Any, where: str) -> None:
        self._call = call
        self._where = where
        # one read is always under way: grpc.aio drops what has come in once a write has failed, and
        # that is the frame which says why
        self._reading = asyncio.ensure_future(call.read())

    async def send(self, frame: pb.CallerFrame) -> None:
        """Send a frame. What went wrong with the stream is for `receive` to say."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(frame)

    async def receive(self, *expected: str) -> pb.ResponderFrame:
        """The next frame, one of the kinds that are `expected`."""
        try:
            content = await asyncio.shield(self._reading)
        except grpc.aio.AioRpcError as error:
            raise self._lost(f"{error.code().name.lower()}: {_plainly(error)}") from error
        if content is grpc.aio.EOF:
            raise self._lost("the stream ended")
        self._reading = asyncio.ensure_future(self._call.read())
        try:
            frame = pb.ResponderFrame.FromString(content)
        except DecodeError as error:
            raise violation(f"{self._where} sent what is no frame") from error
        kind = frame.WhichOneof("frame")
        if kind == "error":
            raise SessionFailed.from_proto(frame.error)
        if kind not in expected:
            raise violation(
                f"{self._where} sent {kind or 'an unknown frame'}, expected {' or '.join(expected)}"
            )
        return frame

    async def close(self) -> None:
        """Cancel the stream, and with it the read that is under way. It is of no use afterwards.

        gRPC keeps the connection open for as long as the call object lives, and tracebacks hold a link
        in cycles that the collector may not look at for hours: so the call is let go of here.
        """
        try:
            self._call.cancel()
            await asyncio.wait((self._reading,))
            if not self._reading.cancelled():
                self._reading.exception()  # nobody asks for it any more
        finally:
            del self._call, self._reading

    def _lost(self, why: str) -> SessionFailed:
        return SessionFailed(pb.ERROR_CODE_HOP_LOST, f"{self._where}: {why}")


def _plainly(error: grpc.aio.AioRpcError) -> str:
    """What went wrong, without the addresses that gRPC puts around it: the endpoint is named already."""
    _, tried, why = (error.details() or "").rpartition("Failed to connect to remote host: ")
    return why if tried else error.details() or "no reason was given"


@asynccontextmanager
async def open_link(
    caller: Caller, request: Request, *, met: Met | None = None, timeout_s: float = OPEN_TIMEOUT_S
) -> AsyncIterator[Link]:
    """Open a session at `request.responder`; yield it once the two have accepted each other."""
    where = request.responder.endpoint
    try:
        channel = open_channel(Endpoint.parse(where), caller.tls)
    except ValueError as error:
        raise SessionFailed(pb.ERROR_CODE_UNAVAILABLE, str(error)) from error
    async with _linked(channel, where) as link:
        with within(timeout_s, f"session from {where}"):
            await _shake_hands(link, caller, request, met)
        yield link


async def ask_key(endpoint: str, tls: Tls | None, *, timeout_s: float = OPEN_TIMEOUT_S) -> str:
    """The key that whoever answers at `endpoint` calls its own: the challenge's, unproven.

    Raises SessionFailed, and ValueError for what is no endpoint.
    """
    async with _linked(open_channel(Endpoint.parse(endpoint), tls), endpoint) as link:
        with within(timeout_s, f"challenge from {endpoint}"):
            return (await link.receive("challenge")).challenge.key


@asynccontextmanager
async def _linked(channel: grpc.aio.Channel, where: str) -> AsyncIterator[Link]:
    """A stream on a channel of its own, both closed at the end."""
    call: Any = channel.stream_stream(
        METHOD, request_serializer=pb.CallerFrame.SerializeToString, response_deserializer=None
    )()
    link = Link(call, where)
    try:
        yield link
    finally:
        with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            await link.close()
            await channel.close()


async def _shake_hands(link: Link, caller: Caller, request: Request, met: Met | None) -> None:
    responder = request.responder
    challenge = (await link.receive("challenge")).challenge
    if not is_key(challenge.key) or len(challenge.nonce) != NONCE_BYTES:
        raise violation(f"{responder.endpoint} sent a challenge that is not of its form")
    if challenge.key != responder.node:
        raise SessionFailed(
            pb.ERROR_CODE_UNKNOWN_PEER,
            f"{challenge.key} answers at {responder.endpoint}, expected {responder.node}",
        )
    nonce = secrets.token_bytes(NONCE_BYTES)
    terms = SessionTerms(
        boots=Pair(caller=caller.boot_id, responder=responder.boot_id),
        keys=Pair(caller=caller.key.public, responder=responder.node),
        nonces=Pair(caller=nonce.hex(), responder=challenge.nonce.hex()),
        realm=caller.realm,
        route_epoch=request.route_epoch,
        route_session_id=request.route_session_id,
    )
    await link.send(pb.CallerFrame(open=_open(caller, request, terms, nonce)))
    refusal: SessionFailed | None = None
    try:
        said = (await link.receive("accepted")).accepted.responder
    except SessionFailed as failure:
        if failure.code != pb.ERROR_CODE_FINGERPRINT_MISMATCH or failure.responder is None:
            raise
        refusal, said = failure, failure.responder
    presented = presented_in(said.fingerprint)
    if said.boot_id != responder.boot_id or not terms.is_proven("responder", presented, said.proof):
        raise SessionFailed(
            pb.ERROR_CODE_BAD_PROOF,
            f"{responder.endpoint} did not prove that it is {responder.node} in its boot "
            f"{responder.boot_id}",
        ) from refusal
    mismatches = check_handshake(caller.fingerprint, said.fingerprint)
    if refusal is not None and not mismatches:
        mismatches = (
            RouteMismatch(MISMATCH_FINGERPRINT, "the peer refused what it presents itself"),
        )
    if met is not None:
        await met(Meeting(terms, said.fingerprint, mismatches))
    error = handshake_error(mismatches)
    if error is not None:
        raise SessionFailed(error.code, error.detail) from refusal


def _open(caller: Caller, request: Request, terms: SessionTerms, nonce: bytes) -> pb.SessionOpen:
    responder = request.responder
    fingerprint = caller.fingerprint.to_proto()
    return pb.SessionOpen(
        realm=caller.realm,
        purpose=PURPOSES[request.purpose],
        route_session_id=request.route_session_id,
        route_epoch=request.route_epoch,
        hop=request.hop,
        key=caller.key.public,
        nonce=nonce,
        proof=terms.prove(caller.key, "caller", presented_in(fingerprint)),
        caller_boot_id=caller.boot_id,
        responder_boot_id=responder.boot_id,
        fingerprint=fingerprint,
        shard_id=responder.shard_id,
        range=pb.ShardRange(start=responder.start, end=responder.end),
        hops_after=[hop.to_proto() for hop in request.after],
    )
