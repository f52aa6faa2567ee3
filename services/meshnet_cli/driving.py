"""Driving a route from the command line: planned by a tracker, opened, and closed in good order.

What people type for it is looked at first (`check_recipe`, `check_prompt`), before anybody is asked.
"""

import re
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
from meshnet_cli.errors import NOT_FOUND, UNREACHABLE, USAGE, CliError, not_found
from meshnet_cli.profile import Settings
from meshnet_cli.remedies import for_a_route
from meshnet_cli.state_source import CLIENT_NAME
from meshnet_events import queries
from meshnet_events.answers import PlanAnswer, Purpose
from meshnet_events.keys import EventKey
from meshnet_events.queries import LEAST_PREFIX, PlanQuery
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

    def node_at(self, hop: int | None) -> str | None:
        """The key of the node at a hop that a peer named; None where the route has no such hop."""
        hops = self.plan.hops
        return hops[hop].node if hop is not None and 0 <= hop < len(hops) else None

    def explain(self, failure: "SessionFailed") -> CliError:
        """What a person is told when the session failed."""
        where = ""
        if failure.hop is not None and self.node_at(failure.hop) is not None:
            where = f"hop {failure.hop} ({self.name_of(failure.hop)}): "
        return CliError(f"{where}{failure.reason}: {failure.detail}", self._advice(failure))

    def _advice(self, failure: "SessionFailed") -> str:
        ours = self.caller.key.public
        if failure.reason == _UNKNOWN_PEER and ours in failure.detail:
            return (
                f"an operator must run `meshnet admin node enrol {ours}`; `meshnet node status` says "
                "what the realm makes of this node"
            )
        if failure.retryable:
            return "the same may work later: run it again"
        return "it will fail again as long as that node, or what is asked of it, stays as it is"


_UNKNOWN_PEER = "unknown-peer"


def check_recipe(text: str) -> str:
    """The beginning of a recipe key as it was typed, in small letters. Raises `CliError`."""
    wanted = text.lower()
    if len(wanted) < LEAST_PREFIX:
        fault = f"{text!r} is too short: give {LEAST_PREFIX} characters or more"
    elif _RECIPE.fullmatch(wanted) is None:
        fault = f"{text[:80]!r} begins no recipe key, which is of 64 hex digits"
    else:
        return wanted
    raise not_found("recipe", fault, (), _WHICH_RECIPES)


_RECIPE = re.compile(queries.RECIPE_PATTERN)
_WHICH_RECIPES = "`meshnet recipe list` shows what there is"


def check_prompt(text: str) -> None:
    """Raise `CliError` (usage) for a text that nothing can be made of."""
    if not text:
        raise CliError("the prompt is empty", "give a text to go on with", code=USAGE)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CliError(
            f"the prompt is no UTF-8: its character {error.start + 1} cannot be encoded",
            "give a text in UTF-8; is the terminal, or the file that it came from, of that?",
            code=USAGE,
        ) from None


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
    lost: Collection[str] = (),
    tls: "Tls | None" = None,
) -> Driven:
    """A route for `purpose` from a tracker, for `key` to drive in a boot of its own.

    It goes without the nodes that whoever asks excludes, and without those that were lost. Raises
    `CliError` when there is none, with what is in the way.
    """
    try:
        answer = await asker.ask(
            PlanQuery(purpose=purpose, recipe=recipe, exclude=tuple(sorted({*exclude, *lost})))
        )
    except QueryRefused as refusal:
        raise refused(refusal) from refusal
    if not answer.hops:
        short = look.short(answer.recipe_key)
        listed = "".join(
            f"\n  {look.one_line(f'{one.code}: {one.detail}')}" for one in answer.obstacles
        )
        helps = for_a_route((one.code for one in answer.obstacles), answer.recipe_key, exclude)
        if failed := ", ".join(look.short(node) for node in sorted(lost)):
            helps = (*helps, f"left out after it failed: {failed}; run it again later")
        raise CliError(f"no route to {purpose} {short}:{listed}", "\n  ".join(helps))
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
        f"the tracker says {look.one_line(str(refusal))}",
        _WHICH_RECIPES if code == NOT_FOUND else "ask again",
        code=code,
    )
