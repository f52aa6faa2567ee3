"""`meshnet node serve`: a shard proven, registered, and computed with until it is told to stop."""

import errno
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter, validators

from meshnet_cli import look
from meshnet_cli.errors import USAGE, CliError
from meshnet_cli.key_files import read_node_key
from meshnet_cli.leaving import closing_in_time, leave_open, stop_signals
from meshnet_cli.logs import log_to_stderr
from meshnet_cli.options import (
    NODE,
    OUTPUT,
    SHARD,
    TLS,
    WHERE,
    NodeDir,
    Output,
    ShardChoice,
    TlsChoice,
    Where,
)
from meshnet_cli.output import console, line, note, write_line
from meshnet_cli.profile import settle
from meshnet_cli.proving import Follow, question_of
from meshnet_cli.reaching import check_reached, parse_endpoint, read_tls
from meshnet_events.forms import SHARD_ID_PATTERN, is_shard_id
from meshnet_events.reasons import NOT_LIVE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from meshnet_events.answers import ClaimAnswer
    from meshnet_events.keys import EventKey
    from meshnet_node.directory import NodeDirectory
    from meshnet_node.doctor import ExaminedShard
    from meshnet_node.serve import LoadedOffer, Notice, ServeSettings


def serve(
    files: Annotated[list[Path], Parameter(help="A model file, or every part of a split one.")],
    /,
    *,
    endpoint: Annotated[
        str,
        Parameter(group=NODE, help="Where peers reach it: grpc://host:port, grpcs:// with TLS."),
    ],
    listen: Annotated[
        str | None,
        Parameter(group=NODE, help="Where that arrives here, host:port, if not at its address."),
    ] = None,
    shard_id: Annotated[
        str, Parameter(group=NODE, help="Names the shard among this node's: [a-z0-9-]{1,32}.")
    ] = "main",
    declared_host: Annotated[
        str | None,
        Parameter(group=NODE, help="Call the machine this instead of by its /etc/machine-id."),
    ] = None,
    max_sessions: Annotated[
        int,
        Parameter(
            group=NODE,
            validator=validators.Number(gte=1),
            help="How many sessions are served at once.",
        ),
    ] = 32,
    ask_every: Annotated[
        float,
        Parameter(
            group=NODE,
            validator=validators.Number(gte=1, lte=86_400),
            help="Ask the tracker what has become of the claim every so many seconds.",
        ),
    ] = 15.0,
    directory: NodeDir = None,
    shard: ShardChoice = SHARD,
    tls: TlsChoice = TLS,
    where: Where = WHERE,
    output: Output = OUTPUT,
) -> None:
    r"""Prove a shard, register it, and compute with it until it is told to stop.

    The doctor comes first: a shard that does not compute what its recipe declares is not registered.
    Then the node listens, registers in a boot of its own, and asks the tracker what it made of that.
    Peers open sessions here; users' tokens and forwards to be attested pass through. What the node has
    to say is kept in `outbox.db` in its directory until it is stored, also over a crash.

    Ctrl-C, SIGTERM and SIGHUP, as of a terminal that is closed, tell it to stop: it takes no new
    sessions, withdraws its shard, and waits for that to be stored. If nobody reads its output any more
    it does the same. A backend that does not come back from a call keeps it for some seconds and no
    longer; that it is left behind is told, and changes no exit code.

    A node that is started again is a new boot: its older claims end. If another process with the same
    key takes its place, this one stops, with exit code 1.

    ```
    meshnet node serve first.gguf --manifest recipes.toml \
        --endpoint grpc://10.0.0.7:7001
    ```
    """
    from meshnet_node.doctor import examined_shard
    from meshnet_node.host import host_of
    from meshnet_node.serve import ServeSettings
    from meshnet_node.session.node import Limits

    log_to_stderr()
    settings = settle(where)
    node = settings.node_at(directory)
    key = read_node_key(node)
    realm, server = settings.need_realm(), settings.need_server()
    if not is_shard_id(shard_id):
        raise CliError(
            f"--shard-id: {shard_id[:80]!r} names no shard",
            f"expected {SHARD_ID_PATTERN}",
            code=USAGE,
        )
    certificates = read_tls(tls)
    check_reached(parse_endpoint(endpoint), listen, certificates)
    serving = ServeSettings(
        realm=realm,
        server=server,
        directory=node,
        endpoint=endpoint,
        host=host_of(realm, declared_host),
        listen=listen,
        tls=certificates,
        limits=Limits(sessions=max_sessions),
        operator=settings.operator,
        ask_every_s=ask_every,
    )
    anyio.run(_check_outbox, node, realm, key.public)
    screen = console() if output.format == "table" else None
    with closing_in_time() as stack:
        examined = stack.enter_context(
            examined_shard(question_of(files, shard), telling=Follow(screen))
        )
        offer = _offer(examined, shard_id, is_told=screen is not None)
        owner = _Owner(key, screen)
        try:
            anyio.run(_serve, serving, key, [offer], owner)
        finally:
            if owner.was_told_of_abandoned:
                leave_open(stack)


async def _check_outbox(directory: "NodeDirectory", realm: str, node: str) -> None:
    """See that no other process speaks from there, before minutes go by. Raises `OutboxError`.

    Another may yet come: whoever serves takes the outbox for as long as it does.
    """
    from meshnet_bus.outbox_file import OutboxFile

    if directory.outbox.exists():
        async with OutboxFile.open(directory.outbox, realm, node):
            pass


def _offer(examined: "ExaminedShard", shard_id: str, *, is_told: bool) -> "LoadedOffer":
    """The shard as it is offered. Raises `CliError` unless the doctor passed it.

    Whoever `is_told` has just read each finding, with what to do about it.
    """
    from meshnet_node.registration import Offer
    from meshnet_node.serve import LoadedOffer
    from meshnet_node.shard_facts import ShardFacts

    diagnosis = examined.diagnosis
    if (
        not diagnosis.passed
        or diagnosis.identity is None
        or diagnosis.report is None
        or examined.shard is None
    ):
        failed = [one for one in diagnosis.findings if one.status == "failed"]
        if is_told:
            names = ", ".join(one.name for one in failed)
            raise CliError(f"the doctor did not pass this shard: {names}", "nothing was registered")
        raise CliError(
            "the doctor did not pass this shard: "
            + "; ".join(f"{one.name}: {one.found}" for one in failed),
            "nothing was registered; `meshnet node doctor` says what to do",
        )
    report = diagnosis.report
    offer = Offer(shard_id, diagnosis.identity, report, report.backend.device)
    return LoadedOffer(offer, examined.shard, ShardFacts.of(examined.shard))


class _Owner:
    """Whoever started the node, and reads what it tells on stdout and stderr."""

    def __init__(self, key: "EventKey", screen: "Console | None") -> None:
        self.gone: OSError | None = None
        """Why nothing can be told any more."""
        self.is_gone = anyio.Event()
        self.was_told_of_abandoned = False
        self._key = key
        self._screen = screen

    def tell(self, notice: "Notice") -> None:
        """Tell it, if anybody is there. Raises nothing: a node still has to take its leave."""
        self.was_told_of_abandoned |= notice.kind == "abandoned"
        if self.gone is not None:
            return
        try:
            self._show(notice)
        except OSError as error:
            # a terminal that is closed is a pipe that is
            self.gone = BrokenPipeError() if error.errno == errno.EIO else error
            self.is_gone.set()

    def _show(self, notice: "Notice") -> None:
        screen = self._screen
        if screen is None:
            write_line(notice)
            sys.stdout.flush()
        elif notice.kind in {"trouble", "abandoned"}:
            note(notice.text)
        else:
            line(screen, notice.text)
            if notice.claim is not None and _is_barred(notice.claim):
                name = f"{look.short(self._key.public)}/{notice.claim.shard_id}"
                line(screen, f"  `meshnet shard why-not {name}` says why, and what lifts it")


async def _serve(
    settings: "ServeSettings",
    key: "EventKey",
    shards: "Sequence[LoadedOffer]",
    owner: _Owner,
) -> None:
    from meshnet_node.serve import serve_node

    with anyio.open_signal_receiver(*stop_signals()) as signals:

        async def stop() -> None:
            async with anyio.create_task_group() as tasks:

                async def stop_after(wait: Callable[[], Awaitable[object]]) -> None:
                    await wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(stop_after, signals.__anext__)
                tasks.start_soon(stop_after, owner.is_gone.wait)

        await serve_node(settings, key, shards, stop=stop, tell=owner.tell)
    if owner.gone is not None:
        raise owner.gone


def _is_barred(claim: "ClaimAnswer") -> bool:
    """Whether no route may use it, and for more than that nobody has heard of it lately."""
    may = claim.eligible_to_serve or claim.eligible_to_certify
    return not may and set(claim.reasons) != {NOT_LIVE}
