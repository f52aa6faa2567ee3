"""The story, step by step. Each step says what happens, lets it happen, and shows what came of it."""

import json
from collections.abc import AsyncIterator, Callable

import anyio.to_thread
from msgspec import Struct, structs

from meshnet_auditor.replay import replay
from meshnet_cli.demo.cast import Actor, Done
from meshnet_cli.demo.model import BACKEND, PROMPTS, Model, ModelName, make_model
from meshnet_cli.demo.stage import REALM, Stage
from meshnet_events import facts
from meshnet_node.recipe_manifest import write_manifest
from meshnet_tracker.registry.routing.plan import NoRoute, Route, plan

STEPS = 11
_SHORT = 12
_WIDTH = 71  # of 80 columns, beside what stands before a line


class Step(Struct, frozen=True):
    """What is told of one step: its title, what came of it, and whether that is as it should be.

    `recipe_key` asks for the picture of that recipe as it stands.
    """

    title: str
    lines: tuple[str, ...]
    as_expected: bool
    recipe_key: str | None = None


Progress = Callable[[int, int], None]


async def tell(stage: Stage, name: ModelName, progress: Progress) -> AsyncIterator[Step]:
    """Play the story on `stage` with the model called `name`."""
    model = await anyio.to_thread.run_sync(make_model, name, stage.folder, progress)
    yield _pinned(model)

    ada = await stage.enrol("ada", "host-1", "north")
    bob = await stage.enrol("bob", "host-1", "north")
    cyd = await stage.enrol("cyd", "host-2", "south", before=bob)

    told = await ada.serve(model.first, model.manifest)
    key = stage.claim(ada).recipe_key or ""
    yield Step(
        "ada serves the first half: her doctor computes it, then she registers",
        (*(notice.text for notice in told), "so its recipe arrives dark"),
        as_expected=_status(stage, key) == "dark",
        recipe_key=key,
    )

    yield await _other_layout(bob, model)

    hole = plan(stage.state, key, "certify")
    yield Step(
        "so there is a hole in the coverage, and no route",
        _obstacles(hole),
        as_expected=isinstance(hole, NoRoute) and "range" in hole.codes,
    )

    await bob.serve(model.last, model.manifest)
    done = await ada.run("node", "certify", "--recipe", key)
    yield Step(
        "bob fills it on ada's own machine: one host proves nothing",
        _said(done),
        as_expected=done.code == 1 and "hosts" in done.err and _status(stage, key) == "dark",
        recipe_key=key,
    )

    await cyd.serve(model.last, model.manifest)
    done = await ada.run("node", "certify", "--recipe", key, "-o", "json")
    certified_at = stage.state.sequence
    yield Step(
        "cyd serves it on another host: a real forward over gRPC, attested by both",
        (*_certified(done), f"recipe {key[:_SHORT]} is {_status(stage, key)}"),
        as_expected=done.code == 0 and _status(stage, key) == "certified",
        recipe_key=key,
    )

    prompt = PROMPTS[name]
    done = await stage.user("generate", "--recipe", key, "--tokens", "12", prompt)
    yield Step(
        "now it serves: anyone's prompt goes over that route",
        (*_text(prompt, done), *_note_on(model)),
        as_expected=done.code == 0 and bool(done.out.strip()),
    )

    await stage.planned_over(cyd, key)
    await cyd.kill()
    done = await stage.user("generate", "--recipe", key, "--tokens", "12", prompt)
    yield Step(
        "cyd's process is killed: the route is planned anew without it",
        (*_said(done), *_text(prompt, done)),
        as_expected=done.code == 0 and "hop-lost" in done.err,
    )

    await stage.heard(
        await stage.operator.publish(
            facts.RecipeRevoked(reason=f"wrong tokens at layer {model.cut}", recipe_key=key)
        )
    )
    done = await stage.user("generate", "--recipe", key, prompt)
    yield Step(
        "the operator revokes the recipe: it serves nobody from the next record on",
        _said(done),
        as_expected=done.code == 1 and "revoked" in done.err,
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

    counts = now.counts
    refused = sum(n for code, n in counts.items() if code not in {"applied", "noop"})
    yield Step(
        "and the books add up",
        (
            f"{counts.get('applied', 0)} applied, {counts.get('noop', 0)} noop, {refused} rejected",
            f"together {sum(counts.values())} of {now.sequence} records",
        ),
        as_expected=sum(counts.values()) == now.sequence,
    )


def _pinned(model: Model) -> Step:
    artifact = model.pinned.artifact
    weights = model.pinned.recipe_fields["weight_quantization"]
    return Step(
        "a model file is pinned, and cut in two: each half states whose it is",
        (
            f"{artifact.artifact_id}: {artifact.architecture}, {model.layers} layers, {weights}",
            f"content {artifact.content_digest}",
            f"cut into layers [0, {model.cut}) and [{model.cut}, {model.layers})",
            f"recipe: {BACKEND} {model.recipe.runtime_version}",
        ),
        as_expected=True,
    )


async def _other_layout(bob: Actor, model: Model) -> Step:
    """What a doctor says to a recipe that is not what runs."""
    other = bob.folder / "other.toml"
    write_manifest(other, (structs.replace(model.recipe, kv_layout="padded-584"),))
    done = await bob.run(
        "node", "doctor", str(model.last), "--manifest", str(other),
        "--declared-host", bob.host, "-o", "json",
    )  # fmt: skip
    findings = json.loads(done.out)["findings"] if done.out else []
    failed = [f"{one['name']}: {one['found']}" for one in findings if one["status"] == "failed"]
    return Step(
        "bob declares another KV layout than runs: his own doctor stops him",
        tuple(failed),
        as_expected=done.code == 1 and any("kv_layout" in line for line in failed),
    )


def _status(stage: Stage, key: str) -> str:
    recipe = stage.state.recipes.get(key)
    return "unknown" if recipe is None else recipe.status


def _obstacles(verdict: Route | NoRoute) -> tuple[str, ...]:
    if isinstance(verdict, Route):
        return ("there is a route",)
    return tuple(f"no route: {o.code}: {o.detail}" for o in verdict.obstacles)


def _said(done: Done) -> tuple[str, ...]:
    """What a command said on stderr, but for the advice. What does not fit a line is cut."""
    lines = (line.removeprefix("meshnet: ") for line in done.err.splitlines())
    return tuple(_cut(line) for line in lines if line.strip() and "`meshnet " not in line)


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"


def _certified(done: Done) -> tuple[str, ...]:
    if done.code:
        return _said(done)
    said = json.loads(done.out)
    return (
        f"{said['tokens_generated']} tokens in {said['duration_ms']:,} ms",
        *(
            f"{one['label']} [{one['start']}, {one['end']}) attested at sequence {one['sequence']}"
            if one["attested"]
            else f"{one['label']} did not attest: {one['detail']}"
            for one in said["participants"]
        ),
        *(f"seam: {seam}" for seam in said["seams"]),
    )


def _text(prompt: str, done: Done) -> tuple[str, ...]:
    if done.code:
        return _said(done)
    text = f"{prompt}{done.out}".replace("\n", " ").strip()
    return tuple(text[at : at + _WIDTH] for at in range(0, len(text), _WIDTH))


def _note_on(model: Model) -> tuple[str, ...]:
    if model.text_is_nonsense:
        return ("(nonsense: this model's weights are random; try --model gemma)",)
    return ()
