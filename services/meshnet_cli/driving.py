"""Driving a route from the command line: planned by a tracker, opened, and closed in good order."""

import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from meshnet_bus.asker import Asker, QueryRefused
from meshnet_bus.client import closing, connect
from meshnet_bus.root import check_root
from meshnet_cli import look
from meshnet_cli.errors import NOT_FOUND, UNREACHABLE, USAGE, CliError
from meshnet_cli.profile import Settings
from meshnet_cli.state_source import CLIENT_NAME
from meshnet_events import queries
from meshnet_events.keys import EventKey
from meshnet_events.queries import PlanAnswer, PlanQuery, Purpose
from meshnet_node.recipe_identity import CompatibilityFingerprint
from meshnet_node.session.driver import RoutePlan
from meshnet_node.session.link import Caller
from meshnet_node.session.opening import RouteHop

if TYPE_CHECKING:
    from meshnet_node.session.failure import SessionFailed
    from meshnet_node.session.transport import Tls


class Driven(Struct, frozen=True):
    """A route as it was planned, ready to be opened."""

    caller: Caller
    plan: RoutePlan
    answer: PlanAnswer

    def name_of(self, hop: int) -> str:
        """A hop as people call it: its label, else the beginning of its key."""
        planned = self.answer.hops[hop]
        return look.one_line(planned.label or look.short(planned.node))

    def explain(self, failure: "SessionFailed") -> CliError:
        """What a person is told when the session failed."""
        where = ""
        if failure.hop is not None and failure.hop < len(self.answer.hops):
            where = f"hop {failure.hop} ({self.name_of(failure.hop)}): "
        return CliError(
            f"{where}{failure.reason}: {failure.detail}",
            "the same may work later: run it again"
            if failure.retryable
            else "it will not work as it is; the detail says what to change",
        )


@asynccontextmanager
async def asking(settings: Settings) -> AsyncIterator[Asker]:
    """The realm's trackers, to be asked, once it is known to be that of the operator we were told."""
    realm = settings.need_realm()
    nc = await connect(settings.need_server(), name=CLIENT_NAME)
    async with closing(nc):
        if settings.operator is not None:
            await check_root(nc, realm, settings.operator)
        yield Asker(nc, realm)


async def plan_route(
    asker: Asker,
    realm: str,
    recipe: str,
    purpose: Purpose,
    *,
    key: EventKey,
    exclude: Collection[str] = (),
    tls: "Tls | None" = None,
) -> Driven:
    """A route for `purpose` from a tracker, for `key` to drive in a boot of its own.

    Raises `CliError` when there is none, with what is in the way.
    """
    try:
        answer = await asker.ask(
            PlanQuery(purpose=purpose, recipe=recipe, exclude=tuple(sorted(exclude)))
        )
    except QueryRefused as refusal:
        raise refused(refusal) from refusal
    if not answer.hops or answer.fingerprint is None:
        short = look.short(answer.recipe_key)
        listed = "".join(f"\n  {one.code}: {one.detail}" for one in answer.obstacles)
        raise CliError(
            f"no route to {purpose} {short}:{listed}", "`meshnet route why-not` says more"
        )
    fingerprint = CompatibilityFingerprint(**msgspec.structs.asdict(answer.fingerprint))
    hops = tuple(
        RouteHop(
            node=hop.node,
            boot_id=hop.boot_id,
            shard_id=hop.shard_id,
            endpoint=hop.endpoint,
            start=hop.start,
            end=hop.end,
        )
        for hop in answer.hops
    )
    plan = RoutePlan(
        purpose=purpose,
        route_session_id=str(uuid.uuid4()),
        route_epoch=0,
        layer_count=answer.layer_count,
        hops=hops,
    )
    return Driven(Caller(realm, key, str(uuid.uuid4()), fingerprint, tls), plan, answer)


def refused(refusal: QueryRefused) -> CliError:
    """What a person is told when a tracker gave no answer."""
    code = {
        queries.NOT_FOUND: NOT_FOUND,
        queries.AMBIGUOUS: NOT_FOUND,
        queries.BAD_QUERY: USAGE,
    }.get(refusal.code, UNREACHABLE)
    return CliError(
        f"the tracker says {refusal.code}: {refusal.detail}",
        "`meshnet recipe list` shows what there is" if code == NOT_FOUND else "ask again",
        code=code,
    )
