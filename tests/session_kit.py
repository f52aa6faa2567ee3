"""Nodes in one process that talk over real gRPC on loopback, for tests of sessions.

The model is small and real: every layer mixes each position with those before it, in float32, so
that one byte lost at a seam changes the tokens. Tracker and outbox are lists here: what a session
asks and what it says is looked at from the outside.
"""

import hashlib
import math
import os
import struct
import uuid
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from meshnet_bus.publisher import Published
from meshnet_bus.service import QueryRefused
from meshnet_events import facts
from meshnet_events.facts import Fingerprint, Host, recipe_key
from meshnet_events.keys import EventKey
from meshnet_events.queries import NOT_FOUND, ClaimAnswer, ClaimQuery, NodeAnswer
from meshnet_node.backends import BackendError, ContextFull, NoTokenizer, Step
from meshnet_node.recipe_identity import ArtifactIdentity, RuntimeRecipe, ShardIdentity
from meshnet_node.session.driver import RoutePlan, open_route
from meshnet_node.session.link import Caller
from meshnet_node.session.node import Limits, Node, ServedShard
from meshnet_node.session.opening import RouteHop
from meshnet_node.session.responder import serve

REALM = "lab"
LAYERS = 6
WIDTH = 8
VOCABULARY = 97

ARTIFACT = ArtifactIdentity(
    artifact_id="lab/toy",
    revision="sha256:" + "1" * 64,
    content_digest="2" * 64,
    architecture="toy",
    architecture_digest="3" * 64,
    layer_count=LAYERS,
)
RECIPE = RuntimeRecipe(
    weight_quantization="F32:6",
    activation_dtype="float32",
    compute_dtype="float64",
    kv_dtype="float64",
    kv_layout="list",
    tokenizer_revision="bytes-1",
    architecture_adapter="toy",
    backend_id="toy",
    runtime_version="1",
    recipe_id="toy",
    recipe_version="1",
    catalogue_version="1",
)
QUICK = Limits(open_timeout_s=3.0, idle_timeout_s=3.0, step_timeout_s=3.0, attest_timeout_s=3.0)


class ToyShard:
    """Layers `[start, end)` of the toy."""

    layer_count = LAYERS
    position_bytes = 4 * WIDTH
    vocabulary = VOCABULARY
    context_length = 256
    end_tokens = frozenset()
    memory_bytes = 0
    axes = {}

    def __init__(self, start, end, *, twist=None):
        self.start, self.end, self.twist = start, end, twist
        self.open_slots = 0

    def open(self, start, end, *, positions=None):
        assert self.start <= start < end <= self.end
        self.open_slots += 1
        return ToySlot(self, start, end, positions or self.context_length)

    def encode(self, text):
        return tuple(byte % VOCABULARY for byte in text.encode())

    def decode(self, token):
        return b"%d " % token

    def close(self):
        pass


class ToySlot:
    def __init__(self, shard, start, end, positions):
        self.shard, self.layers, self.positions = shard, range(start, end), positions
        self.position = 0
        self.sums = {layer: [0.0] * WIDTH for layer in self.layers}
        self.is_open = True

    def forward_tokens(self, ids, *, sample):
        return self._forward(
            [[math.sin((token + 1) * (i + 1)) for i in range(WIDTH)] for token in ids], sample
        )

    def forward_activations(self, activations, *, sample):
        numbers = struct.unpack(f"<{len(activations) // 4}f", activations)
        return self._forward(
            [list(numbers[at : at + WIDTH]) for at in range(0, len(numbers), WIDTH)], sample
        )

    def _forward(self, rows, sample):
        if self.position + len(rows) > self.positions:
            raise ContextFull("full")
        for layer in self.layers:
            rows = [self._layer(layer, row) for row in rows]
        self.position += len(rows)
        if self.shard.twist is not None:
            self.shard.twist(self, rows)
        if self.layers.stop < LAYERS:
            return Step(activations=struct.pack(f"<{len(rows) * WIDTH}f", *sum(rows, [])))
        if not sample:
            return Step()
        logits = [
            sum(math.cos(token * (i + 2)) * x for i, x in enumerate(rows[-1]))
            for token in range(VOCABULARY)
        ]
        return Step(token=logits.index(max(logits)))

    def _layer(self, layer, row):
        sums = self.sums[layer] = [a + b for a, b in zip(self.sums[layer], row, strict=True)]
        mixed = [
            math.tanh(1.7 * row[i] - 0.9 * row[i - 1] + 0.3 * sums[i - 2] + 0.1 * layer)
            for i in range(WIDTH)
        ]
        return list(struct.unpack(f"<{WIDTH}f", struct.pack(f"<{WIDTH}f", *mixed)))

    def close(self):
        if self.is_open:
            self.is_open = False
            self.shard.open_slots -= 1


class NoTextShard(ToyShard):
    """A shard whose files hold no tokenizer."""

    def encode(self, text):
        raise NoTokenizer("these files hold no tokenizer; put token ids in")

    decode = encode


class BrokenShard(ToyShard):
    """A shard whose backend fails at every forward."""

    def open(self, start, end, *, positions=None):
        slot = super().open(start, end, positions=positions)

        def fail(*_args, **_kwargs):
            raise BackendError("the device was lost")

        slot.forward_tokens = slot.forward_activations = fail
        return slot


class Tracker:
    """What a tracker would answer: claims and nodes by key; `ask` as an Asker has it."""

    def __init__(self):
        self.claims = {}
        self.nodes = {}
        self.asked = []
        self.silent = None

    async def ask(self, query):
        self.asked.append(query)
        if self.silent is not None:
            raise self.silent
        if isinstance(query, ClaimQuery):
            answer = self.claims.get((query.node, query.shard_id))
            if answer is None:
                raise QueryRefused(NOT_FOUND, "no such shard")
            return answer
        return self.nodes.get(query.node) or self._node(query.node, None, status="unknown")

    def lists(self, part, *, status="live", recipe_status="dark", reasons=("dark",), **changes):
        """List the claim of a running node."""
        shard = part.shard
        fingerprint = shard.identity.fingerprint
        answer = ClaimAnswer(
            boot_id=part.node.boot_id,
            device="cpu",
            eligible_to_certify=True,
            eligible_to_serve=False,
            end=shard.identity.shard_end,
            endpoint=part.endpoint,
            fingerprint=Fingerprint(**fingerprint.to_dict()),
            host=Host(id="4" * 64, source="declared"),
            node=part.key.public,
            presence=True,
            reasons=reasons,
            recipe_key=recipe_key(
                fingerprint.model_artifact_digest, fingerprint.runtime_recipe_digest
            ),
            recipe_status=recipe_status,
            refusal=None,
            refusal_detail="",
            registered_sequence=1,
            shard_id=shard.shard_id,
            start=shard.identity.shard_start,
            status=status,
        )
        self.claims[part.key.public, shard.shard_id] = msgspec.structs.replace(answer, **changes)
        self.knows(part.key.public, part.node.boot_id)

    def knows(self, key, boot_id=None, *, status="enrolled"):
        self.nodes[key] = self._node(key, boot_id, status=status)

    def certify_all(self):
        """Every recipe is certified from now on."""
        for key, claim in self.claims.items():
            self.claims[key] = msgspec.structs.replace(
                claim, recipe_status="certified", reasons=(), eligible_to_serve=True
            )

    @staticmethod
    def _node(key, boot_id, *, status):
        return NodeAnswer(
            boot_id=boot_id,
            group="",
            head_digest="0" * 64,
            head_issuerseq=0,
            label="",
            may_speak=status == "enrolled",
            node=key,
            status=status,
        )


class Said(list):
    """Where facts go: a list of what was handed over."""

    full = False

    async def hand(self, fact):
        if self.full:
            raise OSError("no space left on device")
        self.append(fact)
        return len(self)

    async def stored(self, handed):
        return Published(handed, "5" * 64, duplicate=False)

    def of(self, kind):
        return [fact for fact in self if isinstance(fact, kind)]


class Part:
    """A running node: its process state, its shard, its port."""

    def __init__(self, node, responder, shard, said, scheme):
        self.node, self.responder, self.shard, self.said = node, responder, shard, said
        self.key = node.key
        self.endpoint = f"{scheme}://127.0.0.1:{responder.port}"

    @property
    def is_idle(self):
        return self.responder.sessions == 0 and self.shard.loaded.open_slots == 0

    def hop(self, start=None, end=None, **changes):
        identity = self.shard.identity
        hop = RouteHop(
            node=self.key.public,
            boot_id=self.node.boot_id,
            shard_id=self.shard.shard_id,
            endpoint=self.endpoint,
            start=identity.shard_start if start is None else start,
            end=identity.shard_end if end is None else end,
        )
        return msgspec.structs.replace(hop, **changes)


class Lab:
    """Some nodes, their tracker, and a driver that is a node too."""

    def __init__(self, stack):
        self._stack = stack
        self.tracker = Tracker()
        self.driver_key = EventKey(os.urandom(32))
        self.driver_boot = str(uuid.uuid4())
        self.tracker.knows(self.driver_key.public, self.driver_boot)
        self.parts = []

    async def start(
        self,
        start,
        end,
        *,
        loaded=None,
        recipe=RECIPE,
        synthetic=False,
        limits=QUICK,
        tls=None,
        listed=True,
        key=None,
        **node,
    ):
        loaded = loaded or ToyShard(start, end)
        shard = ServedShard(
            "main", ShardIdentity(ARTIFACT, recipe, start, end), loaded, synthetic=synthetic
        )
        said = Said()
        node = Node(
            realm=REALM,
            key=key or EventKey(os.urandom(32)),
            boot_id=str(uuid.uuid4()),
            shards={"main": shard},
            registry=self.tracker,
            record=said,
            tls=tls,
            limits=limits,
            **node,
        )
        responder = await self._stack.enter_async_context(serve(node, "127.0.0.1:0", tls=tls))
        part = Part(node, responder, shard, said, "grpcs" if tls else "grpc")
        if listed:
            self.tracker.lists(part)
        self.parts.append(part)
        return part

    def caller(self, *, key=None, boot_id=None, recipe=RECIPE, tls=None):
        identity = ShardIdentity(ARTIFACT, recipe, 0, LAYERS)
        return Caller(
            REALM, key or self.driver_key, boot_id or self.driver_boot, identity.fingerprint, tls
        )

    def plan(self, *hops, purpose="certify", session=None, epoch=0):
        return RoutePlan(
            purpose=purpose,
            route_session_id=session or str(uuid.uuid4()),
            route_epoch=epoch,
            layer_count=LAYERS,
            hops=hops,
        )

    def open(self, *hops, caller=None, **plan):
        return open_route(caller or self.caller(), self.plan(*hops, **plan))


@asynccontextmanager
async def lab():
    async with AsyncExitStack() as stack:
        yield Lab(stack)


async def tokens_of(route, ids, count):
    return [token.id async for token in route.generate(ids, max_tokens=count)]


def whole_model(ids, count):
    """What the toy says when nothing is cut."""
    slot = ToyShard(0, LAYERS).open(0, LAYERS)
    found, step = [], slot.forward_tokens(ids, sample=True)
    while len(found) < count:
        found.append(step.token)
        step = slot.forward_tokens((step.token,), sample=True)
    return found


def u32_digest(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


ATTESTED = facts.ForwardAttested
SHOOK_HANDS = facts.HandshakeCompleted
