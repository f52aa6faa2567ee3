"""The gRPC service: any number of callers, each stream one session, none able to harm the others.

Frames come as bytes and are parsed here, so that what cannot be parsed is refused like any other
frame out of place. Every way in which a session can end is turned into the stream's last frame in one
place (`Responder._session`); what nobody foresaw is logged and told as `INTERNAL`, and ends nothing
but that session.

    async with serve(node, "127.0.0.1:7001") as responder:
        ...                     # sessions are served
                                # at the end no new ones are taken and those that run are ended

A session that is ended waits for the backend's call that it is in, and so does the end, for
`CALLS_TIMEOUT_S`. Then the calls are abandoned (`ServedShard.abandon`): whoever stops is bounded.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from meshnet_bus.client import Unreachable
from meshnet_bus.groups import sole
from meshnet_bus.outbox_file import OutboxError
from meshnet_node.backends import BackendError
from meshnet_node.session.entrance import CallerGone
from meshnet_node.session.failure import SessionFailed, violation
from meshnet_node.session.hop import serve_session
from meshnet_node.session.node import Node
from meshnet_node.session.transport import SERVER_OPTIONS, SERVICE, Tls
from meshnet_proto import shard_runtime_pb2 as pb

CALLS_TIMEOUT_S = 10.0
_STOP_GRACE_S = 5.0
_LAST_WORD_S = 5.0
_log = logging.getLogger("meshnet_node.session")


class CannotListen(Exception):
    """The address cannot be listened on."""


class _GrpcStream:
    """A gRPC stream as `entrance.Stream`."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def receive(self, most_bytes: int) -> pb.CallerFrame | None:
        try:
            content = await self._context.read()
        except grpc.aio.BaseError as error:
            raise CallerGone from error
        if content is grpc.aio.EOF:
            return None
        if len(content) > most_bytes:
            raise violation(f"a frame of {len(content):,} bytes, expected at most {most_bytes:,}")
        try:
            return pb.CallerFrame.FromString(content)
        except DecodeError as error:
            raise violation("a frame that cannot be read") from error

    async def send(self, frame: pb.ResponderFrame) -> None:
        try:
            await self._context.write(frame)
        except grpc.aio.BaseError as error:  # the stream is over, and this task soon cancelled
            raise CallerGone from error


class Responder:
    """The service of one node. Made by `serve`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.sessions = 0
        """How many sessions are open now."""
        self.port = 0
        """The port that is listened on."""
        self._stopping = anyio.Event()
        self._ended = anyio.Event()

    @property
    def load(self) -> int:
        """How busy the node is, from 0 to 1000."""
        return min(1000, 1000 * self.sessions // self.node.limits.sessions)

    def stop_taking(self) -> None:
        """Take no new sessions, and end those that run."""
        self._stopping.set()
        self._note_ended()

    async def end_sessions(self) -> None:
        """Wait until those that ran have ended, once none are taken, abandoning what does not return."""
        with anyio.move_on_after(CALLS_TIMEOUT_S):
            await self._ended.wait()
            return
        for shard in self.node.shards.values():
            shard.abandon()

    def _note_ended(self) -> None:
        if self._stopping.is_set() and not self.sessions:
            self._ended.set()

    async def session(self, _requests: object, context: Any) -> None:
        """Serve one stream to its end. Never raises but when it is cancelled."""
        stream = _GrpcStream(context)
        failure = await self._outcome(stream)
        if failure is None:
            return
        _log.info("a caller is told: %s", failure)
        with anyio.move_on_after(_LAST_WORD_S), suppress(CallerGone):
            await stream.send(pb.ResponderFrame(error=failure.to_proto()))

    async def _outcome(self, stream: _GrpcStream) -> SessionFailed | None:
        """Serve a session; how it failed, or None when there is nothing to tell."""
        most = self.node.limits.sessions
        if self.sessions >= most or self._stopping.is_set():
            why = (
                "this node is stopping" if self._stopping.is_set() else f"{most} sessions are open"
            )
            return SessionFailed(pb.ERROR_CODE_UNAVAILABLE, why)
        self.sessions += 1
        try:
            return await self._served(stream)
        except SessionFailed as failure:
            return failure
        except CallerGone:
            return None
        except BackendError as error:
            _log.warning("the backend failed: %s", error)
            return SessionFailed(pb.ERROR_CODE_INTERNAL, f"the backend failed: {error}")
        except (OutboxError, Unreachable) as error:
            _log.warning("nothing can be published: %s", error)
            return SessionFailed(pb.ERROR_CODE_UNAVAILABLE, "this node cannot publish now")
        except Exception:  # noqa: BLE001 - one session's fault must not be the process's
            _log.exception("a session failed for a reason that nobody foresaw")
            return SessionFailed(pb.ERROR_CODE_INTERNAL, "this node failed; its log says where")
        finally:
            self.sessions -= 1
            self._note_ended()

    async def _served(self, stream: _GrpcStream) -> SessionFailed | None:
        """Serve a session until it is over, its caller is gone, or the node stops.

        gRPC cancels this task when the caller is gone, and would tear it away from a thread that
        computes. So the session is a task of its own, which only ever sees its scope cancelled.
        """
        stopped: SessionFailed | None = None
        try:
            async with anyio.create_task_group() as tasks:

                async def end_when_stopping() -> None:
                    nonlocal stopped
                    await self._stopping.wait()
                    stopped = SessionFailed(pb.ERROR_CODE_UNAVAILABLE, "this node is stopping")
                    tasks.cancel_scope.cancel()

                async def serve_to_its_end() -> None:
                    await serve_session(self.node, stream, self._stopping.is_set)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(end_when_stopping)
                tasks.start_soon(serve_to_its_end)
        except BaseExceptionGroup as group:
            raise sole(group) from None
        return stopped


@asynccontextmanager
async def serve(node: Node, listen: str, *, tls: Tls | None = None) -> AsyncIterator[Responder]:
    """Serve sessions at `listen` (`host:port`; port 0 takes a free one). Raises CannotListen."""
    responder = Responder(node)
    handler: Any = grpc.stream_stream_rpc_method_handler(
        responder.session,
        request_deserializer=None,
        response_serializer=pb.ResponderFrame.SerializeToString,
    )
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Session": handler}),)
    )
    try:
        responder.port = (
            server.add_insecure_port(listen)
            if tls is None
            else server.add_secure_port(listen, tls.for_server())
        )
    except RuntimeError as error:
        raise CannotListen(
            f"{listen} cannot be listened on ({error}); is another process there?"
        ) from error
    await server.start()
    try:
        yield responder
    finally:
        responder.stop_taking()
        with anyio.CancelScope(shield=True):
            await responder.end_sessions()
            await server.stop(_STOP_GRACE_S)
