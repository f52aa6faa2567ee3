"""Files that hold a secret, and files with a node's request to be enrolled.

A key file holds one seed (`SU…`) and a newline, mode 0600, and comes into being whole or not at all.
Its text is never printed, logged or put into an error. What a request's file holds is
`meshnet_events.enrolment`'s to say.
"""

import os
import secrets
from pathlib import Path

from meshnet_cli.errors import NOT_FOUND, VERIFICATION_FAILED, CliError
from meshnet_events.enrolment import MAX_REQUEST, EnrolmentRequest, parse_request
from meshnet_events.keys import EventKey
from meshnet_events.reasons import BAD_SIGNATURE, Refusal
from meshnet_node.directory import NodeDirectory
from meshnet_node.key_file import KeyFileError, read_key_file


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


def new_key() -> EventKey:
    """A key that nobody had before, kept nowhere yet."""
    return EventKey(secrets.token_bytes(32))


def keep_key(path: Path, key: EventKey) -> None:
    """Keep `key` at `path`. Raises `CliError` if there is something already."""
    try:
        write_new(path, f"{key.seed_text()}\n".encode())
    except FileExistsError:
        raise CliError(
            f"{path} exists; it is not written over",
            "use the key that is there, or name another directory",
        ) from None


def read_key(path: Path, whose: str, *, advice: str = "") -> EventKey:
    """The key in `path`. Raises `CliError`, which never repeats what the file holds.

    `advice` is what to do when there is no such file.
    """
    try:
        return read_key_file(path)
    except FileNotFoundError:
        raise CliError(
            f"there is no {whose} at {path}",
            advice or "name the file, or run this where the key is kept",
            code=NOT_FOUND,
        ) from None
    except KeyFileError as error:
        raise CliError(str(error), error.fix) from None


def read_node_key(directory: NodeDirectory) -> EventKey:
    """The key of the node whose directory it is. Raises `CliError`."""
    return read_key(
        directory.key_file,
        "node key",
        advice="make one with `meshnet node init`, or name its directory with --dir",
    )


def read_request(path: Path) -> EnrolmentRequest:
    """The request in `path`, its signature checked. Raises `CliError`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_REQUEST + 1)
    except IsADirectoryError:
        return read_request(NodeDirectory(path).enrolment)
    request = parse_request(content)
    if not isinstance(request, Refusal):
        return request
    if request.code == BAD_SIGNATURE:
        raise CliError(
            f"{path}: {request.detail}",
            "ask the node's owner for the file that `meshnet node init` wrote; nothing was published",
            code=VERIFICATION_FAILED,
        )
    raise CliError(
        f"{path} is no enrolment request: {request.code}: {request.detail}",
        "`meshnet node init` writes one",
    )
