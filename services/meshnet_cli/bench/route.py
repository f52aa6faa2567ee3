"""`bench route`: planning a route, over 10,000 claims of 100 recipes.

Claims are cut at a few places, as people cut models, with overlaps and loads; every tenth recipe
has refused handshakes. Beside it: reading the range of each of the recipe's claims once, which no
planner can do without.
"""

import random
import statistics
import time
import uuid
from collections.abc import Iterator

from msgspec import Raw

from meshnet_cli.bench.mix import REALM
from meshnet_cli.bench.result import Result
from meshnet_cli.scripted import digest
from meshnet_events.facts import Host
from meshnet_tracker.registry.routing.plan import Purpose, Route, plan
from meshnet_tracker.registry.rows import Claim, Handshake, Identity, Recipe
from meshnet_tracker.registry.state import Cause, State

LAYERS = 80
CUTS = (0, 10, 20, 30, 40, 50, 60, 70, 80)


class _Loads:
    """Everybody is live and says how loaded it is."""

    def __init__(self, loads: dict[str, int]) -> None:
        self._loads = loads

    def is_live(self, _: Claim) -> bool:
        """Yes."""
        return True

    def load(self, node: str) -> int:
        """From 0 to 1000."""
        return self._loads[node]


def bench_route(
    *, claims: int, recipes: int, plans: int, purpose: Purpose, presence: bool
) -> Result:
    """Plan `plans` routes over random recipes, with or without presence; times are in µs."""
    chance = random.Random(11)  # noqa: S311 - a bench must repeat, not surprise
    state, loads = _mesh(claims, recipes, chance)
    liveness = loads if presence else None
    keys = [chance.choice(list(state.recipes)) for _ in range(plans)]
    taken: list[float] = []
    limits: list[float] = []
    found = 0
    for key in keys:
        start = time.perf_counter()
        for claim in state.live_claims[key].values():
            if claim.identity is not None:
                _ = claim.identity.shard_start, claim.identity.shard_end
        middle = time.perf_counter()
        found += isinstance(plan(state, key, purpose, liveness=liveness), Route)
        end = time.perf_counter()
        limits.append((middle - start) * 1e6)
        taken.append((end - middle) * 1e6)
    median, limit = statistics.median(taken), statistics.median(limits)
    return Result(
        bench="route",
        measured=median,
        limit=limit,
        ratio=limit / median,
        unit="µs (median)",
        limit_is="reading the range of each claim of the recipe once",
        config={
            "claims": claims,
            "recipes": recipes,
            "purpose": purpose,
            "presence": presence,
            "plans": plans,
            "found": found,
            "p99_us": round(statistics.quantiles(taken, n=100)[98], 1),
            "max_us": round(max(taken), 1),
        },
    )


def _mesh(claims: int, recipes: int, chance: random.Random) -> tuple[State, _Loads]:
    state = State(REALM)
    cause = Cause(1, 0, "U", "0" * 64, "bench")
    loads: dict[str, int] = {}
    for number in range(recipes):
        key = digest("recipe", number)
        state.put_recipe(
            Recipe(
                certification=None,
                identity=Raw(b"{}"),
                layer_count=LAYERS,
                model_artifact_digest=digest("artifact", number),
                proven_seams=tuple(chance.sample(CUTS[1:-1], 3)),
                recipe_key=key,
                runtime_recipe_digest=digest("axes", number),
                sequence=1,
                status="certified",
                status_sequence=1,
                time_ms=0,
            ),
            cause,
        )
        for claim in _claims(key, claims // recipes, chance):
            row = state.touch_node(claim.node)
            row.enrolled, row.boot_id, row.group = True, claim.boot_id, claim.node[-2:]
            state.put_claim(claim)
            loads[claim.node] = chance.randrange(1_001)
        if number % 10 == 0:
            _refuse(state, key, chance)
    state.take_changes()
    return state, _Loads(loads)


def _claims(key: str, count: int, chance: random.Random) -> Iterator[Claim]:
    for number in range(count):
        first = chance.randrange(len(CUTS) - 1)
        last = min(len(CUTS) - 1, first + chance.choice((1, 2, 2, 4)))
        start = max(0, CUTS[first] - chance.choice((0, 0, 0, 2)))
        node = f"U{digest(key, number)[:55].upper()}"
        yield Claim(
            boot_id=str(uuid.UUID(digest("boot", key, number)[:32])),
            device="cuda:0",
            endpoint=f"grpc://{node[:12]}.example:7001",
            host=Host(id=digest("host", key, number), source="machine-id"),
            identity=Identity(
                artifact_id="acme/model",
                backend_id="llama.cpp",
                catalogue_version="1",
                layer_count=LAYERS,
                model_artifact_digest=digest("artifact", key),
                recipe_id="dense",
                recipe_key=key,
                recipe_version="1",
                runtime_recipe_digest=digest("axes", key),
                shard_end=CUTS[last],
                shard_start=start,
            ),
            node=node,
            sequence=number + 2,
            shard_id="main",
            status="live",
            synthetic=False,
            time_ms=0,
            validated_at_ms=0,
        )


def _refuse(state: State, key: str, chance: random.Random) -> None:
    """Three pairs of nodes that refused one another."""
    nodes = [node for node, _ in state.live_claims[key]]
    for _ in range(3):
        one, other = chance.sample(nodes, 2)
        state.put_handshake(
            Handshake(
                accepted=False,
                boot_id=state.nodes[one].boot_id or "",
                mismatches=(),
                node=one,
                peer=other,
                peer_boot_id=state.nodes[other].boot_id or "",
                presented=None,
                recipe_key=key,
                role="initiator",
                route_epoch=0,
                route_session_id="bench",
                sequence=1,
                time_ms=0,
            )
        )
