"""`meshnet up`: a realm on this machine. What is kept in its directory:

operator.key    the operator's seed, mode 0600
profile.toml    realm, server, keys and views, for every other command
nats/           nats-server's configuration, log and store: the realm's stream
views.db        what a projector made of the stream; removed, it comes back the same
"""

import os
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import platformdirs
from cyclopts import Parameter, validators
from msgspec import Struct

from meshnet_bus.api import STREAM_NOT_FOUND, ApiError, StreamApi
from meshnet_bus.client import SafeClient, closing, connect
from meshnet_bus.history import HistoryFault
from meshnet_bus.local_server import LocalServer, NoServer
from meshnet_bus.stream import create_realm
from meshnet_cli.errors import FAILED, USAGE, VERIFICATION_FAILED, CliError
from meshnet_cli.key_files import keep_key, new_key, read_key
from meshnet_cli.leaving import stop_signals
from meshnet_cli.options import (
    OUTPUT,
    POLICY,
    PROFILE_VARIABLE,
    REALM_VARIABLE,
    Output,
    PolicyChoice,
)
from meshnet_cli.output import answer, line, note, pairs
from meshnet_cli.policies import choose
from meshnet_cli.profile import Profile, default_path, read_profile, said_by, write_profile
from meshnet_cli.tracking import serve_queries
from meshnet_events.envelope import ChainHead, sign_event
from meshnet_events.facts import DEFAULT_POLICY, Policy, RealmCreated
from meshnet_events.keys import EventKey
from meshnet_events.subjects import REALM_PATTERN, is_realm
from meshnet_tracker.projector import Projector
from meshnet_tracker.registry.outcome import FoldFault
from meshnet_tracker.views import Views

if TYPE_CHECKING:
    from rich.console import Console

_DEFAULT_REALM = "local"


def up(
    *,
    realm: Annotated[
        str | None,
        Parameter(env_var=REALM_VARIABLE, help="Its name: `local`, or what --dir holds."),
    ] = None,
    dir: Annotated[  # noqa: A002 - the option's name
        Path | None, Parameter(help="Where it is kept. By default the user's folder for data.")
    ] = None,
    port: Annotated[
        int | None,
        Parameter(
            validator=validators.Number(gte=1, lte=65_535),
            help="The server's port. By default the one it had, or a free one.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        Parameter(env_var=PROFILE_VARIABLE, help="Where to write the profile."),
    ] = None,
    policy: PolicyChoice = POLICY,
    output: Output = OUTPUT,
) -> None:
    """Make a realm on this machine, or go on with it; stay up until Ctrl-C.

    On the first start it makes an operator key, a local nats-server with a store on disk, and the
    realm itself, whose first record names the key. A projector folds every record into views, and
    a profile tells the other commands where all of that is. Any later start finds everything and
    goes on. A policy can be given when the realm is made; later, `meshnet admin policy set`.

    If the stream is not the one that was folded, nothing more is folded, and it ends with exit
    code 3.

    ```
    meshnet up
    meshnet up --dir ./lab --realm lab --accept-declared-hosts
    ```
    """
    if dir is None:
        realm = realm or _DEFAULT_REALM
        directory = platformdirs.user_data_path("meshnet") / "realms" / realm
        path = profile or default_path()
    else:
        directory, path = dir, profile or dir / "profile.toml"
    if directory.exists() and not directory.is_dir():
        raise CliError(f"--dir {directory} is not a directory", "name another", code=USAGE)
    request = _Request(realm, directory.resolve(), path, port, policy, output)
    try:
        anyio.run(_up, request)
    except NoServer as error:
        if taken := _TAKEN.search(str(error)):
            raise CliError(
                f"port {taken[1]} is taken", "name another with --port", code=FAILED
            ) from error
        raise


_TAKEN = re.compile(r":(\d+): bind: address already in use")
"""What nats-server says of a port that it cannot have."""


class _Request(Struct, frozen=True):
    realm: str | None
    directory: Path
    profile: Path
    port: int | None
    policy: PolicyChoice
    output: Output


class RealmUp(Struct, frozen=True):
    """What is up, for `-o json`."""

    realm: str
    server: str
    operator: str
    directory: str
    profile: str
    views: str
    sequence: int
    is_new: bool


async def _up(request: _Request) -> None:
    directory = request.directory
    key_path, views_path = directory / "operator.key", directory / "views.db"
    earlier = _earlier(request, key_path)
    realm = request.realm or earlier.realm or _DEFAULT_REALM
    if earlier.realm not in {None, realm}:
        raise CliError(
            f"{directory} holds the realm {earlier.realm!r}, not {realm!r}",
            f"unset {REALM_VARIABLE}, which says so, or name another --dir"
            if said_by(REALM_VARIABLE, realm)
            else "leave --realm out, or name another --dir",
            code=USAGE,
        )
    if not is_realm(realm):
        raise CliError(
            f"not a realm's name: {realm[:40]!r}", f"expected {REALM_PATTERN}", code=USAGE
        )
    policy = choose(request.policy, DEFAULT_POLICY)
    if key_path.exists():
        key = read_key(key_path, "operator key")
    else:
        key = new_key()
        keep_key(key_path, key)

    with anyio.open_signal_receiver(*stop_signals()) as signals:
        async with (
            LocalServer(
                directory / "nats", port=request.port or _port(earlier, directory / "nats")
            ) as server,
            closing(await connect(server.url, name="meshnet-up")) as nc,
        ):
            # views without a stream mean that the stream was lost: that is for the projector to say
            is_new = not views_path.exists() and await _create(nc, realm, key, policy)
            async with Views.open(views_path, realm) as views:
                projector = Projector(views, nc, operator=key.public)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_stop_on, signals, tasks.cancel_scope)
                    tasks.start_soon(_fold, projector, views_path)
                    tasks.start_soon(_watch, server)
                    await projector.caught_up()
                    await serve_queries(tasks, projector, nc, realm)
                    profile = Profile(
                        realm=realm,
                        server=server.url,
                        operator=key.public,
                        operator_key_file=key_path,
                        views=views_path,
                        node_directory=directory / "node",
                    )
                    write_profile(request.profile, profile)
                    _say(request, profile, projector.committed, policy if is_new else None)
                    if choose(request.policy, projector.state.policy) != projector.state.policy:
                        note(
                            "a policy can only be given when a realm is made; this one has another "
                            "in force. Change it with `meshnet admin policy set`"
                        )
        note(f"{realm} is down at sequence {projector.committed}; `meshnet up` goes on from there")


def _earlier(request: _Request, key_path: Path) -> Profile:
    """The profile of an earlier start. Raises `CliError` when it is someone else's."""
    if not request.profile.exists():
        return Profile()
    earlier = read_profile(request.profile)
    if earlier.operator_key_file != key_path:
        # not written beside the realm instead: other commands here would go on with the other one
        advice = "it is not written over: name another file with --profile"
        if said_by(PROFILE_VARIABLE, request.profile):
            advice += f", or unset {PROFILE_VARIABLE}, which names this one"
        raise CliError(
            f"{request.profile.resolve()} is the profile of another realm ({earlier.realm})", advice
        )
    return earlier


def _port(earlier: Profile, server: Path) -> int | None:
    """The port that the realm had: other profiles name it, so a new one must not move it."""
    _, _, port = (earlier.server or "").rpartition(":")
    if port.isdecimal():
        return int(port)
    try:
        found = _LISTENS.search((server / "nats.conf").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return int(found[1]) if found else None


_LISTENS = re.compile(r'^listen: "[^"]*:(\d+)"$', re.MULTILINE)


async def _create(nc: SafeClient, realm: str, key: EventKey, policy: Policy) -> bool:
    """Make the realm unless its stream is there. Whose it is, the projector checks."""
    try:
        if await StreamApi(nc, realm).leader_record(1) is not None:
            return False
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
    first = sign_event(
        RealmCreated(operators=(key.public,), policy=policy, realm=realm),
        key=key,
        realm=realm,
        after=ChainHead(),
        time_ms=time.time_ns() // 1_000_000,
        chance=os.urandom(10),
    )
    return (await create_realm(nc, realm, first, issuer=key.public)).is_new


async def _fold(projector: Projector, views: Path) -> None:
    """Fold until cancelled; what to do about a fault, if the change is meant, names our views."""
    try:
        await projector.run()
    except (HistoryFault, FoldFault) as fault:
        raise CliError(
            str(fault),
            "nothing more was folded. Find out who changed the history; if the change is meant, "
            f"remove {views} (it is rebuilt from the log) and start again",
            code=VERIFICATION_FAILED,
        ) from fault


async def _stop_on(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    """End in good order at the first signal; the projector's last commit is not cut short."""
    async for _ in signals:
        scope.cancel()
        return


async def _watch(server: LocalServer) -> None:
    """Without its server there is no realm to be up."""
    code = await server.ended()
    raise CliError(
        f"nats-server ended by itself (exit code {code})",
        f"its last words are in {server.log}; `meshnet up` goes on from what it stored",
    )


def _say(request: _Request, profile: Profile, sequence: int, made_with: Policy | None) -> None:
    """Say what is up, and of a realm just made, with which policy, how to come to a certified recipe."""

    def people(screen: "Console") -> None:
        what = "is made, and up" if made_with else f"is up again, at sequence {sequence}"
        line(screen, f"realm {profile.realm} {what}")
        pairs(
            screen,
            (
                ("  server", profile.server or ""),
                ("  directory", str(request.directory)),
                ("  profile", str(request.profile.resolve())),
                ("  views", str(profile.views)),
                ("  operator's seed", str(profile.operator_key_file)),
            ),
        )
        line(screen, f"operator key {profile.operator}")
        screen.print("\nTry next, in another terminal:")
        if not _is_default(request.profile):
            line(screen, f"  export {PROFILE_VARIABLE}={request.profile.resolve()}")
        for step in _first_steps(made_with) if made_with else _STEPS:
            line(screen, step)
        screen.print("\nCtrl-C stops it. Nothing is lost; `meshnet up` goes on from there.")

    document = RealmUp(
        realm=profile.realm or "",
        server=profile.server or "",
        operator=profile.operator or "",
        directory=str(request.directory),
        profile=str(request.profile.resolve()),
        views=str(profile.views),
        sequence=sequence,
        is_new=made_with is not None,
    )
    answer(request.output, document, people)


def _is_default(path: Path) -> bool:
    return path.resolve() == default_path().resolve()


_STEPS = (
    "  meshnet recipe list                      what may be computed, and what serves",
    "  meshnet log                              every record with its outcome",
)


def _first_steps(policy: Policy) -> tuple[str, ...]:
    """From a model file to text, on this machine: a server on loopback has no other."""
    accept = "  meshnet admin policy set --accept-declared-hosts     to try it on one machine"
    return (
        *(() if policy.accept_declared_hosts else (accept,)),
        "  meshnet node manifest MODEL --backend reference-numpy --output recipes.toml",
        "A recipe serves once a forward over two nodes has certified it. For each, by",
        "its NAME, with the layers A:B that are its part of the model:",
        "  meshnet node init --dir NAME --label NAME",
        "  meshnet admin node enrol NAME --group NAME",
        "  meshnet node serve MODEL --dir NAME --layers A:B --declared-host NAME \\",
        "    --endpoint grpc://127.0.0.1:PORT",
        "Then, with the KEY that `meshnet recipe list` shows:",
        "  meshnet node certify --recipe KEY --dir NAME",
        '  meshnet generate --recipe KEY "a text to go on with"',
        "docs/how-to/run-a-node.md explains each, and what is other between machines.",
    )
