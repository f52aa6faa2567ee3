"""One fact published, and what the registry made of it.

A stored event is not yet an applied one: the fold decides, wherever it runs. So after publishing the
state is read as of that sequence, and a refusal is an error with its code and reason.

An operator's fact is published at once. A node's goes through the outbox in its directory, behind what
is waiting there, as those of `meshnet node serve` do: two processes that each signed the next event of
one chain would fork it.
"""

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import TypeVar

import anyio
import msgspec

from meshnet_bus.api import Published
from meshnet_bus.asker import Asker, ask_head
from meshnet_bus.client import closing, connect
from meshnet_bus.outbox import Outbox
from meshnet_bus.outbox_file import OutboxInUse
from meshnet_bus.publisher import Publisher
from meshnet_cli import look
from meshnet_cli.errors import UNREACHABLE, USAGE, VERIFICATION_FAILED, CliError
from meshnet_cli.key_files import read_key
from meshnet_cli.options import Signing, Source, Where
from meshnet_cli.profile import Settings, settle
from meshnet_cli.state_source import CLIENT_NAME, Known, load
from meshnet_events.envelope import canonical
from meshnet_events.facts import Fact, ShardRegistered, ShardWithdrawn
from meshnet_events.keys import EventKey
from meshnet_node.directory import NodeDirectory

_GIVE_UP_AFTER_S = 15.0
AnyFact = TypeVar("AnyFact", bound=Fact)


def publish(
    where: Where, key: EventKey, fact: Fact, *, remedies: Mapping[str, str] | None = None
) -> tuple[Published, Known]:
    """Publish `fact` under `key`; where it is stored, and a state that has seen it.

    Raises `CliError` when the registry refused it, with the remedy of that code where there is one.
    """
    published = anyio.run(_publish, settle(where), key, checked(fact))
    return published, _heard(where, fact, published, remedies or {})


def publish_as_node(
    where: Where,
    directory: NodeDirectory,
    key: EventKey,
    fact: ShardRegistered | ShardWithdrawn,
    *,
    remedies: Mapping[str, str],
) -> tuple[Published, Known]:
    """As `publish`, from the node's own directory, where a registration's boot is written down.

    Raises `CliError` also when another process speaks from there, and then nothing was published.
    """
    published = anyio.run(_hand_over, settle(where), directory, key, checked(fact))
    return published, _heard(where, fact, published, remedies)


def _heard(where: Where, fact: Fact, published: Published, remedies: Mapping[str, str]) -> Known:
    """A state that has seen `fact`. Raises `CliError` when it was refused."""
    known = load(source_of(where), reached=published.sequence)
    refusal = known.refusal
    if refusal is not None:
        raise CliError(
            f"{fact.NAME} is stored at sequence {published.sequence} and was refused: "
            f"{refusal.code}: {refusal.detail}",
            remedies.get(refusal.code, look.meaning(refusal.code)),
        )
    return known


def operator_key(signing: Signing) -> EventKey:
    """The operator's key. Raises `CliError` when it is no operator's of the realm."""
    settings = settle(signing)
    path = signing.key_file or settings.operator_key_file
    if path is None:
        raise CliError(
            "no operator key is named",
            "name its file with --key-file or MESHNET_OPERATOR_KEY_FILE; `meshnet up` makes one",
            code=USAGE,
        )
    key = read_key(path, "operator key")
    if key.public != settings.operator:
        state = load(source_of(signing)).state
        if state.realm is not None and key.public not in state.realm.operators:
            raise CliError(
                f"{key.public} is no operator of {state.name}",
                f"its operators: {', '.join(state.realm.operators)}. Nothing was published",
                code=VERIFICATION_FAILED,
            )
    return key


@contextmanager
def naming_faults(fact: type[Fact]) -> Iterator[None]:
    """Turn what a fact cannot hold (ValueError) into a `CliError` that names the member."""
    try:
        yield
    except ValueError as error:
        raise CliError(f"{fact.NAME}: {error}", "nothing was published", code=USAGE) from error


def checked(fact: AnyFact) -> AnyFact:
    """The fact, its texts and numbers as the gate asks for them. Raises `CliError`."""
    with naming_faults(type(fact)):
        return msgspec.json.decode(canonical(fact), type=type(fact))


def source_of(where: Where) -> Source:
    """Where to read the state of the realm that is meant."""
    return Source(
        realm=where.realm, server=where.server, operator=where.operator, profile=where.profile
    )


async def _publish(settings: Settings, key: EventKey, fact: Fact) -> Published:
    realm, server = settings.need_realm(), settings.need_server()
    async with closing(await connect(server, name=CLIENT_NAME)) as nc:
        publisher = Publisher(nc, realm, key, give_up_after_s=_GIVE_UP_AFTER_S)
        return await publisher.publish(fact)


async def _hand_over(
    settings: Settings,
    directory: NodeDirectory,
    key: EventKey,
    fact: ShardRegistered | ShardWithdrawn,
) -> Published:
    realm, server = settings.need_realm(), settings.need_server()
    async with AsyncExitStack() as stack:
        nc = await stack.enter_async_context(closing(await connect(server, name=CLIENT_NAME)))
        try:
            ask = ask_head(Asker(nc, realm), key.public)
            outbox = await stack.enter_async_context(
                Outbox.open(directory.outbox, nc, realm, key, ask_head=ask)
            )
        except OutboxInUse as error:
            raise CliError(
                f"the outbox {directory.outbox} is in use by another process; nothing was published",
                "stop `meshnet node serve` first; as it ends it withdraws its shard itself",
            ) from error
        if isinstance(fact, ShardRegistered):
            directory.keep_boot(fact.boot_id)
        handed = await outbox.hand(fact)
        with anyio.move_on_after(_GIVE_UP_AFTER_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outbox.run)
                published = await outbox.stored(handed)
                tasks.cancel_scope.cancel()
            return published
        raise CliError(
            f"{fact.NAME} is signed and not stored yet, after {_GIVE_UP_AFTER_S:g} s"
            + (f": {outbox.trouble}" if outbox.trouble else ""),
            f"it waits in {directory.outbox}, and is sent when this node next speaks from there",
            code=UNREACHABLE,
        )
