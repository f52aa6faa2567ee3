"""Files that hold a secret, and the request that a new node signs.

A key file holds one seed (`SU…`) and a newline, mode 0600, and comes into being whole or not at all.
Its text is never printed, logged or put into an error.

An enrolment request is what a node hands to an operator. Byte for byte

    {"request":R,"sig":"S"}

`R` is canonical JSON, `S` base64url without padding of the node's signature over the DSSE encoding of
`R` with payload type `application/vnd.meshnet.enrol.v1+json`: whoever sends it holds the key. For
example, before signing:

    {"label":"rack-2","node":"UBXW…P4T2","time_ms":1790000000000}

`label` is what the node proposes to be called, `time_ms` when it asked.
"""

import base64
import binascii
import os
import secrets
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from meshnet_cli.errors import NOT_FOUND, VERIFICATION_FAILED, CliError
from meshnet_events.envelope import ENROL_PAYLOAD_TYPE, canonical, pre_authentication
from meshnet_events.forms import Count, PublicKey
from meshnet_events.keys import BadKey, EventKey, decode_public, signature_is_valid

MAX_REQUEST = 4_096


def write_new(path: Path, content: bytes) -> None:
    """Write `content` to a file that did not exist, mode 0600, whole or not at all.

    Raises FileExistsError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, path)  # unlike a rename, this never replaces
    finally:
        unfinished.unlink()


def create_key(path: Path) -> EventKey:
    """Make a key and keep it at `path`. Raises `CliError` if there is something already."""
    key = EventKey(secrets.token_bytes(32))
    try:
        write_new(path, f"{key.seed_text()}\n".encode())
    except FileExistsError:
        raise CliError(
            f"{path} exists; it is not written over",
            "use the key that is there, or name another directory",
        ) from None
    return key


def read_key(path: Path, whose: str) -> EventKey:
    """The key in `path`. Raises `CliError`, which never repeats what the file holds."""
    try:
        status = path.stat()
        text = path.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        raise CliError(
            f"there is no {whose} at {path}",
            "name the file, or run this where the key is kept",
            code=NOT_FOUND,
        ) from None
    if status.st_mode & 0o077:
        raise CliError(
            f"{path} holds a secret and others may read it (mode {status.st_mode & 0o777:04o})",
            f"chmod 600 {path}; if others had it in their hands, make a new key",
        )
    try:
        return EventKey.from_text(text)
    except BadKey as error:
        raise CliError(
            f"{path}: {error}", f"expected the {whose}'s seed and nothing else"
        ) from None


class EnrolmentRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a node asks: to be enrolled under its key. Members in alphabetical order."""

    label: Annotated[str, Meta(max_length=1024)]
    node: PublicKey
    time_ms: Count


class _Signed(Struct, frozen=True, forbid_unknown_fields=True):
    request: msgspec.Raw
    sig: str


def sign_request(key: EventKey, *, label: str, time_ms: int) -> bytes:
    """The file in which the owner of `key` asks to be enrolled."""
    request = canonical(EnrolmentRequest(label, key.public, time_ms))
    signature = key.sign(pre_authentication(ENROL_PAYLOAD_TYPE, request))
    text = base64.urlsafe_b64encode(signature).rstrip(b"=")
    return b'{"request":%b,"sig":"%b"}\n' % (request, text)


def read_request(path: Path) -> EnrolmentRequest:
    """The request in `path`, its signature checked. Raises `CliError`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_REQUEST + 1)
    except IsADirectoryError:
        return read_request(path / "enrol.json")
    if len(content) > MAX_REQUEST:
        raise CliError(f"{path} is larger than {MAX_REQUEST:,} bytes: no enrolment request")
    try:
        signed = msgspec.json.decode(content, type=_Signed)
        request = msgspec.json.decode(signed.request, type=EnrolmentRequest)
        signature = base64.urlsafe_b64decode(f"{signed.sig}==")
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error) as error:
        raise CliError(
            f"{path} is no enrolment request: {error}", "`meshnet node init` writes one"
        ) from None
    public = decode_public(request.node)
    if public is None:
        raise CliError(f"{path}: request.node: expected an NKey user public key (U…)")
    payload = pre_authentication(ENROL_PAYLOAD_TYPE, bytes(signed.request))
    if len(signature) != 64 or not signature_is_valid(public, payload, signature):
        raise CliError(
            f"{path}: {request.node} did not sign this request",
            "ask the node's owner for the file that `meshnet node init` wrote; nothing was published",
            code=VERIFICATION_FAILED,
        )
    return request
