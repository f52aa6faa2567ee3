"""Registry states built from rows, for tests of what only reads them: routes, verdicts, sentences.

No event is signed and no rule of the fold runs, so a state costs microseconds:

    state = registry("n1@h1[0,14)", "n2@h2[14,28)", status="certified", proven=[14])

A shard is spelled as in `kit`: `node/shard_id@host[start,end)`; a `~` before the host's name makes
it a declared one. Nodes are called by their names, which stand where keys would.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from meshnet_events import facts
from meshnet_events.facts import DEFAULT_POLICY, Policy
from meshnet_tracker.registry.rows import Claim, Handshake, Identity, Node, Realm, Recipe
from meshnet_tracker.registry.state import Cause, State

LAYERS = 28
SEQUENCE = 99
TIME_MS = 1_790_000_000_000
REGISTERED = Cause(SEQUENCE, TIME_MS, "n1", "0" * 64, "io.meshnet.shard.registered.v1")


def digest(text: str) -> str:
    """64 hex that stand for `text`."""
    return hashlib.sha256(text.encode()).hexdigest()


ARTIFACT, RECIPE = digest("artifact"), digest("recipe")
KEY = facts.recipe_key(ARTIFACT, RECIPE)


class Presence:
    """A liveness overlay: what is live (all where not said), and the loads of nodes."""

    def __init__(
        self,
        live: Collection[tuple[str, str]] | None = None,
        loads: Mapping[str, int] | None = None,
    ) -> None:
        self._live, self._loads = live, loads or {}

    def is_live(self, claim: Claim) -> bool:
        return self._live is None or (claim.node, claim.shard_id) in self._live

    def load(self, node: str) -> int:
        return self._loads.get(node, 0)


def identity(start: int, end: int, *, layers: int = LAYERS, recipe: str = RECIPE) -> Identity:
    """Layers `[start, end)` of the one artifact, under `recipe`."""
    return Identity(
        artifact_id="model",
        backend_id="llama.cpp",
        catalogue_version="1",
        layer_count=layers,
        model_artifact_digest=ARTIFACT,
        recipe_id="dense",
        recipe_key=facts.recipe_key(ARTIFACT, recipe),
        recipe_version="1",
        runtime_recipe_digest=recipe,
        shard_end=end,
        shard_start=start,
    )


def claim(text: str, *, layers: int = LAYERS, recipe: str = RECIPE, **changes: Any) -> Claim:
    """A live claim from its spelling, with changes."""
    name, _, layers_held = text.partition("[")
    name, _, host = name.partition("@")
    node, _, shard_id = name.partition("/")
    start, _, end = layers_held.rstrip(")").partition(",")
    host = host or f"host-of-{node}"
    made = Claim(
        boot_id=f"boot-of-{node}",
        device="cpu",
        endpoint=f"grpc://{node}:9000",
        host=facts.Host(
            id=digest(host.lstrip("~")), source="declared" if host[0] == "~" else "machine-id"
        ),
        identity=identity(int(start), int(end), layers=layers, recipe=recipe),
        node=node,
        sequence=SEQUENCE,
        shard_id=shard_id or "main",
        status="live",
        synthetic=False,
        time_ms=TIME_MS,
        validated_at_ms=TIME_MS,
    )
    return msgspec.structs.replace(made, **changes)


def recipe_row(recipe: str = RECIPE, **changes: Any) -> Recipe:
    """A dark recipe, with changes."""
    made = Recipe(
        certification=None,
        identity=msgspec.Raw(b"{}"),
        layer_count=LAYERS,
        model_artifact_digest=ARTIFACT,
        proven_seams=(),
        recipe_key=facts.recipe_key(ARTIFACT, recipe),
        runtime_recipe_digest=recipe,
        sequence=SEQUENCE,
        status="dark",
        status_sequence=SEQUENCE,
        time_ms=TIME_MS,
    )
    return msgspec.structs.replace(made, **changes)


def handshake(node: str, peer: str, *, accepted: bool = False, recipe_key: str = KEY) -> Handshake:
    """What `node` said of `peer`."""
    return Handshake(
        accepted=accepted,
        boot_id=f"boot-of-{node}",
        mismatches=(),
        node=node,
        peer=peer,
        peer_boot_id=f"boot-of-{peer}",
        presented=None,
        recipe_key=recipe_key,
        role="initiator",
        route_epoch=0,
        route_session_id="s",
        sequence=SEQUENCE,
        time_ms=TIME_MS,
    )


def policy(**changes: Any) -> Policy:
    """The default policy, with changes."""
    return msgspec.structs.replace(DEFAULT_POLICY, **changes)


def registry(
    *claims: str | Claim,
    layers: int = LAYERS,
    status: str = "certified",
    proven: Iterable[int] = (),
    refused: Iterable[tuple[str, str]] = (),
    groups: Mapping[str, str] | None = None,
    nodes: Iterable[Node] = (),
    **changes: Any,
) -> State:
    """A state with one recipe, `KEY`, and these claims; `changes` are the policy's.

    A node that `nodes` does not give is enrolled, in the group that `groups` names, else in one of
    its own.
    """
    state = State("demo")
    in_force = policy(**changes)
    state.realm = Realm(TIME_MS, (), ("op",), in_force, 1, "demo", "op")
    state.put_policy(state.realm, in_force)
    state.sequence = SEQUENCE
    for node in nodes:
        state.nodes[node.node] = node
    state.put_recipe(
        recipe_row(layer_count=layers, status=status, proven_seams=tuple(sorted(proven))),
        REGISTERED,
    )
    for one in claims:
        made = claim(one, layers=layers) if isinstance(one, str) else one
        if made.node not in state.nodes:
            state.nodes[made.node] = Node(
                made.node,
                boot_id=made.boot_id,
                enrolled=True,
                group=(groups or {}).get(made.node, f"group-of-{made.node}"),
                label=made.node,
            )
        state.put_claim(made)
    for node, peer in refused:
        state.put_handshake(handshake(node, peer))
    return state
