"""Records from a file: a history that someone handed over, with no broker at all.

NDJSON, one record a line in sequence order, `body` in standard base64:

    {"stream": "MESH_lab", "created": "2026-09-21T14:13:20.000Z"}            optional, first
    {"sequence": 1, "time_ns": 1790000001000000000, "subject": "mesh.lab.evt.UCGB…", "body": "eyJl…"}

The file is hostile like everything else: a line that is not of this form is a `SourceError` that
names it. What the bytes of a body are worth is the gate's business.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from meshnet_events import subjects
from meshnet_events.record import Record

MAX_LINE = 128 * 1024
"""Bytes. A record of the largest body in base64 takes two thirds of it."""


class SourceError(ValueError):
    """The file is no history; the message names the file, the line and what was expected."""


class Header(Struct, frozen=True):
    """Which stream the records were read from, and when the broker made it."""

    stream: str
    created: str


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    sequence: Annotated[int, Meta(ge=1)]
    time_ns: Annotated[int, Meta(ge=0, le=2**63 - 1)]  # as the broker counts
    subject: str
    body: str


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_header = msgspec.json.Decoder(Header).decode


class RecordFile:
    """A file of records. `header` is None when the file does not say which stream it was."""

    def __init__(self, path: Path) -> None:
        """Look at the first line. Raises `SourceError` when there is no such file or no record."""
        self.path = path
        self.header: Header | None = None
        self._header_at = 0
        for number, line in self._lines():
            self.header = _header(line)
            if self.header is None:
                self._parse(number, line)
            else:
                self._header_at = number
            break
        else:
            raise SourceError(f"{path} is empty; expected one record a line")

    @property
    def size(self) -> int:
        """Bytes, for progress."""
        return self.path.stat().st_size

    @property
    def realm(self) -> str:
        """The realm whose records these are, by the subject of the first."""
        record = next(iter(self), None)
        parts = record.subject.split(".") if record else []
        if len(parts) != 4 or parts[0] != "mesh" or not subjects.is_realm(parts[1]):
            raise SourceError(
                f"{self.path}: the first record has no subject like mesh.<realm>.evt.<issuer>"
            )
        return parts[1]

    def __iter__(self) -> Iterator[Record]:
        for number, line in self._lines():
            if number != self._header_at:
                yield self._parse(number, line)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            with self.path.open("rb") as file:
                number = 0
                while line := file.readline(MAX_LINE + 1):
                    number += 1
                    if len(line) > MAX_LINE:
                        raise SourceError(
                            f"{self.path}, line {number}: longer than {MAX_LINE:,} bytes"
                        )
                    if line.strip():
                        yield number, line
        except OSError as error:
            raise SourceError(f"cannot read {self.path}: {error.strerror}") from error

    def _parse(self, number: int, line: bytes) -> Record:
        try:
            parsed = _decode_line(line)
            body = b64decode(parsed.body, validate=True)
        except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error) as error:
            raise SourceError(
                f"{self.path}, line {number}: no record ({error}); expected "
                '{"sequence":…,"time_ns":…,"subject":…,"body":"<base64>"}'
            ) from error
        return Record(parsed.sequence, parsed.time_ns, parsed.subject, body)


def _header(line: bytes) -> Header | None:
    try:
        return _decode_header(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def write_records(records: Iterable[Record], header: Header | None = None) -> Iterator[bytes]:
    """The lines of a file that `RecordFile` reads."""
    if header is not None:
        yield msgspec.json.encode(header) + b"\n"
    for record in records:
        line = _Line(
            record.sequence, record.time_ns, record.subject, b64encode(record.body).decode()
        )
        yield msgspec.json.encode(line) + b"\n"
