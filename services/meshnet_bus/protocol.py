r"""Reading what a NATS server sends, whatever bytes a peer put into it.

nats-py's parser and header code trust their input: a stored record with a form feed in its subject,
a malformed header line or a reply that is not UTF-8 ends the read loop of every client that is sent
it, for good. Here

- a control line ends at CRLF and its fields at a space, as the server's own parser has it:
  `MSG <subject> <sid> [reply] <bytes>`, `HMSG <subject> <sid> [reply] <header bytes> <all bytes>`;
- a status is only what follows `NATS/1.0 ` on the first header line, where no publisher can write:
  JetStream strips it from what it stores. A header *named* `Status` is nothing;
- of repeated headers the last one counts: the server appends its own;
- text that is not UTF-8 is read with U+FFFD for each bad byte, which is how the server's JSON
  spells it, so that a record looks the same whichever way it was read.

A *tap* takes the raw messages of one subscription in the read loop itself: no message object, queue
or task wake-up for each. It must be quick and must not raise.

    b"HMSG mesh.demo.evt.UA 7 $JS.ACK.MESH_demo.r.1.41.9.1796056708166264668.0 17 19\r\n
      NATS/1.0\r\nA:b\r\n\r\n{}\r\n"
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

if TYPE_CHECKING:
    from meshnet_bus.client import SafeClient

Deliver: TypeAlias = Callable[[bytes, bytes, bytes, bytes], None]
"""What a tap does with one message: its subject, reply, body and raw headers."""

_FIRST_LINE = re.compile(rb"NATS/1\.0 +([0-9]{3})(.*)", re.DOTALL)
_ESCAPED = re.compile("[\udc80-\udcff]")


def decode_text(raw: bytes) -> str:
    """UTF-8 text, with U+FFFD for each byte that is none. Never raises."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _ESCAPED.sub("\ufffd", raw.decode("utf-8", "surrogateescape"))


def parse_headers(raw: bytes) -> dict[str, str]:
    """Headers by name, the last of each; `Status` and `Description` are the server's. Never raises."""
    first, _, rest = raw.partition(b"\r\n")
    fields: dict[str, str] = {}
    for line in rest.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            fields[decode_text(name.strip())] = decode_text(value.strip())
    fields.pop("Status", None)
    fields.pop("Description", None)
    if status := _FIRST_LINE.fullmatch(first):
        fields["Status"] = status[1].decode()
        fields["Description"] = decode_text(status[2].strip())
    return fields


class SafeParser(Parser):
    """nats-py's parser for everything but messages, which it takes apart itself."""

    def __init__(self, client: "SafeClient", taps: dict[bytes, Deliver]) -> None:
        """Hand messages of the subscriptions whose ids are in `taps` to them, others to `client`."""
        self._client = client
        self._taps = taps
        self._rest = b""
        super().__init__(client)

    def reset(self) -> None:
        """Forget a half-read message: the connection is another."""
        super().reset()
        self._rest = b""

    async def parse(self, data: bytes = b"") -> None:
        """Take what the socket gave; keep an incomplete message for the next call."""
        buffer = self._rest + data if self._rest else data
        size = len(buffer)
        find = buffer.find
        taps = self._taps
        at = 0
        try:
            while (end := find(b"\r\n", at)) >= 0:
                start = end + 2
                fields = buffer[at:end].split(b" ")
                if fields[0] == b"MSG":
                    body_at = start
                elif fields[0] == b"HMSG":
                    body_at = start + int(fields.pop(-2))
                else:
                    line = buffer[at:start]
                    at = start
                    await self._control(line)
                    continue
                stop = start + int(fields[-1])
                if stop + 2 > size:
                    break
                at = stop + 2
                reply = fields[3] if len(fields) == 5 else b""
                if tap := taps.get(fields[2]):
                    tap(fields[1], reply, buffer[body_at:stop], buffer[start:body_at])
                else:
                    await self._client._process_msg(  # noqa: SLF001 - nats-py's parser calls it too
                        int(fields[2]),
                        fields[1],
                        reply,
                        buffer[body_at:stop],
                        buffer[start:body_at],
                    )
        except (ValueError, IndexError) as error:
            raise ProtocolError from error
        self._rest = buffer[at:]

    async def _control(self, line: bytes) -> None:
        if line.startswith(b"-ERR"):
            line = decode_text(line).encode()
        await super().parse(line)
