"""The story, step by step. Each step says what happens, lets it happen, and shows what came of it."""

from collections.abc import AsyncIterator

from msgspec import Struct

from meshnet_auditor.replay import replay
from meshnet_cli import scripted
from meshnet_cli.demo.actors import Actor
from meshnet_cli.demo.model import LAYERS, MIDDLE, OTHER_LAYOUT, shard
from meshnet_cli.demo.stage import REALM, Stage, now_ms
from meshnet_events import facts
from meshnet_tracker.recipe import explain
from meshnet_tracker.registry.routing.plan import NoRoute, Route, plan

STEPS = 10
_TOO_OLD_MS = 20 * 60_000


class Step(Struct, frozen=True):
    """What is told of one step: its title, what came of it, and whether that is as it should be.

    `recipe_key` asks for the picture of that recipe as it stands.
    """

    title: str
    lines: tuple[str, ...]
    as_expected: bool
    recipe_key: str | None = None


async def tell(stage: Stage) -> AsyncIterator[Step]:
    """Play the story on `stage`."""
    ada = await stage.enrol("ada", "host-1", "north")
    bob = await stage.enrol("bob", "host-1", "north")
    cyd = await stage.enrol("cyd", "host-2", "south")
    dee = await stage.enrol("dee", "host-3", "south", before=bob)
    first, last = shard(0, MIDDLE), shard(MIDDLE, LAYERS)
    key = facts.recipe_key(
        first.fingerprint.model_artifact_digest, first.fingerprint.runtime_recipe_digest
    )

    said = await stage.heard(await ada.register(first, validated_at_ms=now_ms()))
    yield Step(
        "ada offers the first half of a model: its recipe arrives dark",
        (f"shard.registered: {said}", f"recipe {key[:12]} is {_status(stage, key)}"),
        as_expected=_status(stage, key) == "dark",
        recipe_key=key,
    )

    other = shard(MIDDLE, LAYERS, OTHER_LAYOUT)
    said = await stage.heard(await cyd.register(other, validated_at_ms=now_ms()))
    differences = explain(first.to_dict(), other.to_dict())
    yield Step(
        "cyd offers the second half, and differs in one axis of eleven",
        (
            f"shard.registered: {said}, as another recipe",
            *(f"why not together: {d.reason}: {d.detail}" for d in differences),
        ),
        as_expected=[d.reason for d in differences] == ["cache-layout"],
    )

    said = await stage.heard(await dee.register(last, validated_at_ms=now_ms() - _TOO_OLD_MS))
    yield Step(
        "dee offers it too, with a proof from twenty minutes ago",
        (said,),
        as_expected=said.startswith("capability:stale"),
    )

    hole = plan(stage.state, key, "certify")
    yield Step(
        "so there is a hole in the coverage, and no route",
        _obstacles(hole),
        as_expected=isinstance(hole, NoRoute) and "range" in hole.codes,
        recipe_key=key,
    )

    await stage.heard(await bob.register(last, validated_at_ms=now_ms()))
    said = await _certify(stage, "one-host", ada, bob)
    yield Step(
        "bob fills it on ada's own machine: evidence from one host is refused",
        (f"forward.attested: {said}", f"recipe {key[:12]} is {_status(stage, key)}"),
        as_expected=said.startswith("evidence:policy-hosts") and _status(stage, key) == "dark",
    )

    await stage.heard(await dee.register(last, validated_at_ms=now_ms()))
    await stage.heard(await ada.shake_hands(dee, first, role="initiator"))
    await stage.heard(await dee.shake_hands(ada, last, role="responder"))
    said = await _certify(stage, "two-hosts", ada, dee)
    certified_at = stage.state.sequence
    yield Step(
        "dee comes back with a fresh proof: evidence from two hosts certifies",
        (f"forward.attested: {said}", f"recipe {key[:12]} is {_status(stage, key)}"),
        as_expected=_status(stage, key) == "certified",
        recipe_key=key,
    )

    route = plan(stage.state, key)
    yield Step(
        "now a route can be planned for users",
        _route(stage, route),
        as_expected=isinstance(route, Route)
        and [hop.node for hop in route.hops] == [ada.key.public, dee.key.public],
    )

    await stage.heard(
        await stage.operator.publish(
            facts.RecipeRevoked(reason="wrong tokens at layer 14", recipe_key=key)
        )
    )
    gone = plan(stage.state, key)
    yield Step(
        "the operator revokes the recipe: it serves nobody from the next record on",
        _obstacles(gone),
        as_expected=isinstance(gone, NoRoute) and "revoked" in gone.codes,
    )

    history = await stage.history()
    then = replay(history, REALM, to=certified_at, operator=stage.operator_key)
    now = replay(history, REALM, operator=stage.operator_key)
    statuses = (then.recipes[key].status, now.recipes[key].status)
    yield Step(
        "an auditor folds the same log again, to two points",
        (
            f"at sequence {then.sequence}: {statuses[0]}",
            f"at sequence {now.sequence}: {statuses[1]}",
            "each by the signed events up to there and nothing else",
        ),
        as_expected=statuses == ("certified", "revoked"),
    )

    counts = stage.state.counts
    refused = sum(n for code, n in counts.items() if code not in {"applied", "noop"})
    yield Step(
        "and the books add up",
        (
            f"{counts.get('applied', 0)} applied, {counts.get('noop', 0)} noop, {refused} rejected",
            f"together {sum(counts.values())} of {stage.state.sequence} records",
        ),
        as_expected=sum(counts.values()) == stage.state.sequence,
    )


async def _certify(stage: Stage, session: str, first: Actor, last: Actor) -> str:
    """Both participants attest a forward; the outcome of the last word."""
    evidence = scripted.forward(
        session,
        [(actor.key.public, actor.boot_id) for actor in (first, last)],
        shard(0, MIDDLE),
        route_epoch=0,
        completed_at_ms=now_ms(),
    )
    await stage.heard(await first.attest(evidence, 0))
    return await stage.heard(await last.attest(evidence, 1))


def _status(stage: Stage, key: str) -> str:
    recipe = stage.state.recipes.get(key)
    return "unknown" if recipe is None else recipe.status


def _obstacles(verdict: Route | NoRoute) -> tuple[str, ...]:
    if isinstance(verdict, Route):
        return ("there is a route",)
    return tuple(f"no route: {o.code}: {o.detail}" for o in verdict.obstacles)


def _route(stage: Stage, verdict: Route | NoRoute) -> tuple[str, ...]:
    if isinstance(verdict, NoRoute):
        return _obstacles(verdict)
    return tuple(
        f"hop {index}: {stage.state.nodes[hop.node].label} computes layers "
        f"[{hop.effective_start}, {hop.effective_end}) at {hop.endpoint}"
        for index, hop in enumerate(verdict.hops)
    )
