"""`bench forward`: tokens over a route of two node processes, one after another.

Beside it, in turns of a few tokens and with the same backend: the whole model in this process, with
nothing between the layers. What the route costs more is what a session costs: two hops of gRPC for
each token down and up, digests of all that passes, and another process's turn. The nodes share this
machine, so their layers are computed one after the other, as they would be on two. Each process has
one thread for BLAS.
"""

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from meshnet_cli.bench.result import Result, median_ratio
from meshnet_cli.demo.cast import ONE_THREAD, Actor
from meshnet_cli.demo.model import BACKEND, PROMPTS, Model, ModelName, make_model
from meshnet_cli.demo.stage import Stage
from meshnet_cli.driving import Driven, asking, plan_route
from meshnet_cli.key_files import read_node_key
from meshnet_cli.options import Where
from meshnet_cli.profile import settle

if TYPE_CHECKING:
    from meshnet_node.backends import LoadedShard
    from meshnet_node.session.driver import Token

SLICE = 8


async def bench_forward(
    *, model: ModelName, tokens: int, progress: Callable[[int, int], None]
) -> Result:
    """Generate `tokens` over a route of two nodes, and as many with the whole model here.

    The first slice of both warms up and does not count.
    """
    from meshnet_node.session.driver import open_route

    os.environ |= ONE_THREAD  # before numpy is imported, which reads it then
    slices = max(1, tokens // SLICE)
    async with Stage.open() as stage:
        made = make_model(model, stage.folder)
        ada = await stage.enrol("ada", "host-1", "north")
        bob = await stage.enrol("bob", "host-2", "south")
        await ada.serve(made.first, made.manifest)
        await bob.serve(made.last, made.manifest)
        driven = await _planned(stage, ada)
        with closing(_whole_model(made)) as shard:
            alone = _alone(shard, PROMPTS[model])
            async with open_route(driven.caller, driven.plan) as route:
                ids = await route.encode(PROMPTS[model])
                total = (slices + 1) * SLICE
                over = route.generate(ids, max_tokens=total, stop_at_end=False)
                pairs = []
                for done in range(slices + 1):
                    pairs.append((await _slice_of(over), _slice(alone)))
                    progress((done + 1) * SLICE, total)
    del pairs[0]
    return Result(
        bench="forward",
        measured=slices * SLICE / sum(over_s for over_s, _ in pairs),
        limit=slices * SLICE / sum(alone_s for _, alone_s in pairs),
        ratio=median_ratio([(alone_s, over_s) for over_s, alone_s in pairs]),
        unit="tokens/s",
        limit_is="the whole model in one process, with nothing between its layers",
        config={
            "model": model,
            "tokens": slices * SLICE,
            "hops": len(driven.plan.hops),
            "backend": made.recipe.runtime_version,
        },
    )


async def _planned(stage: Stage, ada: Actor) -> Driven:
    settings = settle(Where(profile=stage.profile))
    recipe = stage.claim(ada).recipe_key or ""
    key = read_node_key(settings.node_at(ada.folder))
    async with asking(settings) as asker:
        return await plan_route(asker, settings.need_realm(), recipe, "certify", key=key)


async def _slice_of(tokens: "AsyncIterator[Token]") -> float:
    """Seconds that the next `SLICE` tokens take."""
    start = time.perf_counter()
    for _ in range(SLICE):
        await anext(tokens)
    return time.perf_counter() - start


def _slice(tokens: Iterator[int]) -> float:
    start = time.perf_counter()
    for _ in range(SLICE):
        next(tokens)
    return time.perf_counter() - start


def _whole_model(made: Model) -> "LoadedShard":
    from meshnet_node.backends import find_backend

    backend = find_backend(BACKEND)
    return backend.load([made.path], start=0, end=made.layers, device=backend.devices[0])


def _alone(shard: "LoadedShard", prompt: str) -> Iterator[int]:
    """Tokens of the whole model, for ever."""
    with closing(shard.open(0, shard.layer_count)) as slot:
        step = slot.forward_tokens(shard.encode(prompt), sample=True)
        while step.token is not None:
            yield step.token
            step = slot.forward_tokens((step.token,), sample=True)
