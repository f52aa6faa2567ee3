"""Connecting to NATS, with a client that nothing a peer sends can stop.

`SafeClient` is nats-py (pinned: it overrides private methods) with five differences. Messages are
read by `protocol.SafeParser`; headers by `protocol.parse_headers`; subject and reply need not be
UTF-8; a late PONG does not end the read loop because the `flush` that asked for it gave up; and what
has piled up in the socket is taken in larger pieces.

Whoever reads fast takes a *tap*: see `protocol`. A tap lives no longer than the connection it was
opened on: when that is lost, `lost` is called once and nothing is delivered any more, so that no
record of a server that came back with another history can slip in before it was looked at.

Reconnecting goes on for ever. A client that closed for good (an expired or revoked JWT) stays
closed; `Unreachable` says so and a new one is built.
"""

import asyncio
import logging
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from nats.aio.client import Client, Srv
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError

from meshnet_bus.protocol import Deliver, SafeParser, decode_text, parse_headers

ErrorSink = Callable[[Exception], None]

INBOX_PREFIX = "_INBOX"
_CLOSE_TIMEOUT_S = 2.0
_SAY_AGAIN_S = 60.0
# asyncio takes 256 KiB at once. Fewer turns of the loop make a reader that is behind 6 % faster
_RECEIVED_AT_ONCE = 1024 * 1024
_log = logging.getLogger("meshnet_bus")


class Unreachable(Exception):
    """The bus does not answer: not connected, a time-out, or nobody there to serve a request."""


class SafeClient(Client):
    """nats-py's client, hardened. Made by `connect`."""

    def __init__(self) -> None:
        super().__init__()
        self.outages = 0
        """How often this client has lost its connection."""
        self._taps: dict[bytes, Deliver] = {}
        self._tap_losses: dict[int, Callable[[], None]] = {}
        self._ps = SafeParser(self, self._taps)

    async def tap(self, subject: str, deliver: Deliver, lost: Callable[[], None]) -> int:
        """Subscribe; give each message to `deliver` as raw bytes, in the read loop.

        Returns a handle for `untap`. `lost` is called once if the connection goes.
        """
        subscription = await self.subscribe(subject)
        handle = subscription._id  # noqa: SLF001 - nats-py shows it nowhere else
        self._taps[b"%d" % handle] = deliver
        self._tap_losses[handle] = lost
        return handle

    async def untap(self, handle: int) -> None:
        """End a tap. At once: nothing is delivered while the server is told."""
        if self._forget(handle) is not None and self.is_connected:
            await self._send_unsubscribe(handle)

    def drop(self) -> None:
        """Let go of the connection without another word to the server."""
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call] # nats-py has no types there
        self.drop_taps()

    def drop_taps(self) -> None:
        """End every tap, because the connection is lost."""
        self.outages += 1
        for handle in tuple(self._tap_losses):
            if lost := self._forget(handle):
                lost()

    def _forget(self, handle: int) -> Callable[[], None] | None:
        self._taps.pop(b"%d" % handle, None)
        self._remove_sub(handle)
        return self._tap_losses.pop(handle, None)

    async def _connect_to_server(self, s: Srv) -> None:
        await super()._connect_to_server(s)
        if isinstance(self._transport, TcpTransport):
            writer = self._transport._io_writer  # noqa: SLF001 - nats-py shows it nowhere else
            writer.transport.max_size = _RECEIVED_AT_ONCE  # type: ignore[union-attr]

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        return parse_headers(headers) or None if headers else None

    def _build_message(
        self,
        sid: int,
        subject: bytes,
        reply: bytes,
        data: bytes,
        headers: dict[str, str] | None,
    ) -> Msg:
        return Msg(
            subject=decode_text(subject),
            reply=decode_text(reply),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()


class LogErrors:
    """Logs what nats-py reports, the same thing once in a while; the default sink of `connect`.

    While a server is away nats-py tells of every attempt to reach it, once a second.
    """

    def __init__(self) -> None:
        self._last = ""
        self._quiet_until = 0.0

    def __call__(self, error: Exception) -> None:
        """Log `error`, unless it was logged a moment ago."""
        text, now = str(error) or repr(error), time.monotonic()
        if text == self._last and now < self._quiet_until:
            return
        self._last, self._quiet_until = text, now + _SAY_AGAIN_S
        _log.warning("nats: %s", text)


async def connect(
    url: str,
    *,
    name: str,
    on_error: ErrorSink | None = None,
    credentials: Path | None = None,
    inbox_prefix: str = INBOX_PREFIX,
    timeout_s: float = 5.0,
    reconnect_wait_s: float = 1.0,
) -> SafeClient:
    """Connect, or raise `Unreachable` after `timeout_s`. From then on reconnect for ever.

    `on_error` is given what nats-py can tell in no other way, such as a denied publish. Should it
    raise, that is logged and goes no further: an error in nats-py's own callback ends its read loop.
    `credentials` is a NATS `.creds` file; with it goes the user's own `inbox_prefix`.
    """
    on_error = on_error or LogErrors()
    nc = SafeClient()
    refusals: list[Exception] = []
    connected = False

    async def error_cb(error: Exception) -> None:
        if not connected:
            refusals.append(error)
            return
        try:
            on_error(error)
        except Exception:  # noqa: BLE001 - see above: whatever it is, it must stop here
            _log.exception("the error sink of connection %s failed", name)

    async def disconnected_cb() -> None:
        nc.drop_taps()

    try:
        with anyio.fail_after(timeout_s):
            await nc.connect(
                url,
                name=name,
                error_cb=error_cb,
                disconnected_cb=disconnected_cb,
                # both are annotated int and used as seconds
                connect_timeout=timeout_s,  # type: ignore[arg-type]
                reconnect_time_wait=reconnect_wait_s,  # type: ignore[arg-type]
                max_reconnect_attempts=-1,
                ping_interval=10,
                user_credentials=credentials,
                inbox_prefix=inbox_prefix,
            )
    except (TimeoutError, OSError, NatsError) as error:
        await close(nc)
        reason = refusals[-1] if refusals else error
        raise Unreachable(
            f"no NATS server at {url} within {timeout_s:g} s ({_said(reason)}); "
            "check the address and that the server runs"
        ) from error
    except BaseException:
        await close(nc)
        raise
    connected = True
    return nc


def _said(reason: Exception) -> str:
    """What kept us from connecting, in the system's words where it is the system that says so.

    asyncio wraps those in its own, and of several addresses' errors keeps but one text.
    """
    if isinstance(reason, ssl.SSLError):  # its number is OpenSSL's, and no number of the system's
        return reason.strerror or str(reason)
    if isinstance(reason, OSError):
        numbers = (reason.errno, *map(int, _ERRNO.findall(str(reason))))
        found = dict.fromkeys(os.strerror(number) for number in numbers if number and number > 0)
        return ", ".join(found) or reason.strerror or str(reason) or "it does not answer"
    return str(reason) or repr(reason)


_ERRNO = re.compile(r"\[Errno (\d+)\]")


async def close(nc: SafeClient) -> None:
    """Close for good, within two seconds, even while being cancelled. What goes wrong is logged."""
    with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
        try:
            await nc.close()
        except (OSError, NatsError) as error:
            # what was still to be sent could not be; nats-py leaves the rest to us
            _log.debug("closing: %s", error or repr(error))
            nc.drop()


@asynccontextmanager
async def closing(nc: SafeClient) -> AsyncIterator[SafeClient]:
    """For `async with`: the client, closed at the end however that comes."""
    try:
        yield nc
    finally:
        await close(nc)
