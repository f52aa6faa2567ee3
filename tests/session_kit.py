"""Nodes in one process that talk over real gRPC on loopback, for tests of sessions.

    Lab        nodes, their tracker, a driver
    Stranger   a caller that says whatever a test makes it say
    Wire       a TCP connection that can be cut, or go silent
    Liar       a hop that is sound but for what it says

The model is small and real: every layer mixes each position with those before it, in float32, so
that one byte lost at a seam changes the tokens. Tracker and outbox are lists here: what a session
asks and what it says is looked at from the outside.
"""

import asyncio
import hashlib
import itertools
import math
import os
import secrets
import struct
import threading
import uuid
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import ClassVar

import anyio
import anyio.abc
import grpc
import grpc.aio
import msgspec

from backend_kit import greedy
from bus_kit import alongside, until
from meshnet_bus.api import Published
from meshnet_bus.asker import QueryRefused
from meshnet_events import facts
from meshnet_events.answers import ClaimAnswer, NodeAnswer
from meshnet_events.facts import Fingerprint, Host, recipe_key
from meshnet_events.keys import EventKey
from meshnet_events.queries import NOT_FOUND, ClaimQuery
from meshnet_events.session import Pair, SessionTerms
from meshnet_node.backends import BackendError, ContextFull, NoTokenizer, Step
from meshnet_node.handshake import presented_in
from meshnet_node.recipe_identity import ArtifactIdentity, RuntimeRecipe, ShardIdentity
from meshnet_node.session import hop as hop_module
from meshnet_node.session.driver import RoutePlan, open_route
from meshnet_node.session.link import Caller
from meshnet_node.session.node import Limits, Node, ServedShard
from meshnet_node.session.opening import RouteHop
from meshnet_node.session.responder import serve
from meshnet_node.session.transport import METHOD
from meshnet_node.shard_facts import ShardFacts
from meshnet_proto import shard_runtime_pb2 as pb

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
    axes: ClassVar = {}

    def __init__(self, start, end, *, twist=None):
        self.start, self.end, self.twist = start, end, twist
        self.open_slots = 0
        self.faults = []
        self._turn = threading.Lock()

    @contextmanager
    def alone(self):
        """A backend is called by one at a time: whoever comes in between is written down."""
        if not self._turn.acquire(blocking=False):
            self.faults.append("called while another call was at work")
            raise AssertionError(self.faults[-1])
        try:
            yield
        finally:
            self._turn.release()

    def open(self, start, end, *, positions=None):
        assert self.start <= start < end <= self.end
        with self.alone():
            self.open_slots += 1
            return ToySlot(self, start, end, positions or self.context_length)

    def encode(self, text):
        with self.alone():
            return tuple(byte % VOCABULARY for byte in text.encode())

    def decode(self, token):
        with self.alone():
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
        with self.shard.alone():
            step = self._compute(rows, sample)
        if not self.is_open:
            self.shard.faults.append("closed while it was at work")
        return step

    def _compute(self, rows, sample):
        if self.position + len(rows) > self.positions:
            raise ContextFull("full")
        for layer in self.layers:
            rows = [self._layer(layer, row) for row in rows]
        self.position += len(rows)
        if self.shard.twist is not None:
            self.shard.twist(self, rows)
        if self.layers.stop < LAYERS:
            return Step(activations=struct.pack(f"<{len(rows) * WIDTH}f", *itertools.chain(*rows)))
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
        with self.shard.alone():
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

    def lists(
        self,
        part,
        *,
        status="live",
        recipe_status="dark",
        reasons=("dark",),
        recipe_digest=None,
        **changes,
    ):
        """List the claim of a running node, by default under the recipe that it runs."""
        shard = part.shard
        fingerprint = Fingerprint(**shard.identity.fingerprint.to_dict())
        if recipe_digest is not None:
            fingerprint = msgspec.structs.replace(fingerprint, runtime_recipe_digest=recipe_digest)
        answer = ClaimAnswer(
            boot_id=part.boot_id,
            device="cpu",
            eligible_to_certify=True,
            eligible_to_serve=False,
            end=shard.identity.shard_end,
            endpoint=part.endpoint,
            fingerprint=fingerprint,
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
        self.knows(part.key.public, part.boot_id)

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

    trouble = None
    never_stored = False

    async def hand(self, fact):
        if self.trouble is not None:
            raise self.trouble
        self.append(fact)
        return len(self)

    async def stored(self, handed):
        if self.never_stored:
            await anyio.sleep_forever()
        return Published(handed, "5" * 64, duplicate=False)

    def of(self, kind):
        return [fact for fact in self if isinstance(fact, kind)]


class Listed:
    """A node as a tracker and a route know it."""

    def __init__(self, key, boot_id, endpoint, shard):
        self.key, self.boot_id, self.endpoint, self.shard = key, boot_id, endpoint, shard

    def hop(self, start=None, end=None, **changes):
        identity = self.shard.identity
        hop = RouteHop(
            node=self.key.public,
            boot_id=self.boot_id,
            shard_id=self.shard.shard_id,
            endpoint=self.endpoint,
            start=identity.shard_start if start is None else start,
            end=identity.shard_end if end is None else end,
        )
        return msgspec.structs.replace(hop, **changes)


class Part(Listed):
    """A node that runs here: its process state, its shard, its port."""

    def __init__(self, node, responder, shard, said, scheme):
        super().__init__(node.key, node.boot_id, f"{scheme}://127.0.0.1:{responder.port}", shard)
        self.node, self.responder, self.said = node, responder, said

    @property
    def is_idle(self):
        return self.responder.sessions == 0 and self.shard.loaded.open_slots == 0


class Remote(Listed):
    """A node that runs in another process."""

    def __init__(self, key, boot_id, endpoint, start, end):
        shard = served("main", start, end, loaded=None)
        super().__init__(key, boot_id, endpoint, shard)


def served(shard_id, start, end, *, loaded, recipe=RECIPE, synthetic=False):
    identity = ShardIdentity(ARTIFACT, recipe, start, end)
    facts = None if loaded is None else ShardFacts.of(loaded)
    return ServedShard(shard_id, identity, loaded, facts, synthetic=synthetic)


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
        shard = served("main", start, end, loaded=loaded, recipe=recipe, synthetic=synthetic)
        said = Said()
        node.setdefault("tracker", self.tracker)
        node = Node(
            realm=REALM,
            key=key or EventKey(os.urandom(32)),
            boot_id=str(uuid.uuid4()),
            shards={"main": shard},
            outbox=said,
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
    return [step.token for step in greedy(ToyShard(0, LAYERS).open(0, LAYERS), ids, count)]


def u32_digest(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


async def freed(*parts):
    """Wait until these nodes hold nothing any more; whatever they did, they did in turn."""
    await until(lambda: all(part.is_idle for part in parts))
    assert [part.shard.loaded.faults for part in parts] == [[]] * len(parts)


class Stranger:
    """A caller that says what a test makes it say: frames, or bytes that are none."""

    def __init__(self, call, lab_):
        self.call, self.lab = call, lab_

    async def receive(self):
        """The next frame; None at the end of the stream."""
        content = await self.call.read()
        return None if content is grpc.aio.EOF else pb.ResponderFrame.FromString(content)

    async def say(self, frame):
        """Send a frame, its only member, or bytes."""
        if not isinstance(frame, bytes):
            if not isinstance(frame, pb.CallerFrame):
                frame = pb.CallerFrame(**{_MEMBER[type(frame)]: frame})
            frame = frame.SerializeToString()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.call.write(frame)

    async def opening(self, part, *after, key=None, terms=None, forge=None, **changes):
        """What opens a session at `part`, proven by `key`; `terms` change only what is signed."""
        challenge = (await self.receive()).challenge
        key, nonce = key or self.lab.driver_key, secrets.token_bytes(32)
        hop = part.hop()
        frame = pb.SessionOpen(
            realm=REALM,
            purpose=pb.SESSION_PURPOSE_CERTIFY,
            route_session_id=str(uuid.uuid4()),
            key=key.public,
            nonce=nonce,
            caller_boot_id=self.lab.driver_boot,
            responder_boot_id=part.node.boot_id,
            fingerprint=part.shard.fingerprint.to_proto(),
            shard_id=hop.shard_id,
            range=pb.ShardRange(start=hop.start, end=hop.end),
            hops_after=[one.to_proto() for one in after],
        )
        for name, value in changes.items():
            frame.ClearField(name)
            if isinstance(value, list):
                getattr(frame, name).extend(value)
            elif hasattr(value, "SerializeToString"):
                getattr(frame, name).CopyFrom(value)
            else:
                setattr(frame, name, value)
        signed = SessionTerms(
            boots=Pair(frame.caller_boot_id, frame.responder_boot_id),
            keys=Pair(key.public, challenge.key),
            nonces=Pair(frame.nonce.hex(), challenge.nonce.hex()),
            realm=frame.realm,
            route_epoch=frame.route_epoch,
            route_session_id=frame.route_session_id,
        )
        signed = msgspec.structs.replace(signed, **(terms or {}))
        if "proof" not in changes:
            frame.proof = (
                forge(signed)
                if forge
                else signed.prove(key, "caller", presented_in(frame.fingerprint))
            )
        return frame

    async def opened(self, part, *after, **changes):
        """Open a session, and what came back: an accepted, or an error."""
        await self.say(await self.opening(part, *after, **changes))
        return await self.receive()

    async def refused(self, part, *after, **changes):
        """Open a session that is refused: with what."""
        frame = await self.opened(part, *after, **changes)
        assert frame.WhichOneof("frame") == "error", frame
        return frame.error

    async def last_word(self):
        """Read to the end of the stream: the error that was its last frame."""
        last = None
        while (frame := await self.receive()) is not None:
            last = frame
        assert last.WhichOneof("frame") == "error", last
        return last.error


_MEMBER = {
    pb.SessionOpen: "open",
    pb.Prompt: "prompt",
    pb.Tokens: "tokens",
    pb.Activations: "activations",
    pb.SessionFinish: "finish",
    pb.Evidence: "evidence",
}


@asynccontextmanager
async def stranger(lab_, part):
    """A caller with a stream of its own to `part`."""
    async with grpc.aio.insecure_channel(part.endpoint.removeprefix("grpc://")) as channel:
        call = channel.stream_stream(METHOD)()
        try:
            yield Stranger(call, lab_)
        finally:
            call.cancel()


class Wire:
    """A way to a node that can be cut, or go silent, while it is used. Made by `wire`."""

    def __init__(self, port):
        self._port = port
        self._open = anyio.CancelScope()
        self._flows = anyio.Event()
        self._flows.set()

    async def carry(self, listener):
        """Carry what whoever connects says, and what is answered, until the way is cut."""
        # a scope of its own: a cut must end nothing of the test that it belongs to
        with self._open:
            async with listener:
                await listener.serve(self._connect)

    async def _connect(self, near):
        async with (
            near,
            await anyio.connect_tcp("127.0.0.1", self._port) as far,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._copy, near, far)
            await self._copy(far, near)
            tasks.cancel_scope.cancel()

    async def _copy(self, source, target):
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                data = await source.receive()
                await self._flows.wait()
                await target.send(data)

    def silence(self):
        """Nothing gets through any more, and nobody is told."""
        self._flows = anyio.Event()

    def cut(self):
        """Both ends of every connection are closed, and so is the way."""
        self._open.cancel()


@asynccontextmanager
async def wire(part):
    """A way to `part` of its own, which is listed as its endpoint."""
    way = Wire(int(part.endpoint.rpartition(":")[2]))
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    part.endpoint = f"grpc://127.0.0.1:{port}"
    async with alongside() as tasks:
        tasks.start_soon(way.carry, listener)
        yield way


class Liar(hop_module._Session):
    """A hop that passes what it says through `up` and `down`, which may change it."""

    @staticmethod
    def up(frame):
        return frame

    @staticmethod
    def down(frame):
        return frame

    async def _up(self, frame):
        await super()._up(self.up(frame))

    async def _down(self, frame):
        await super()._down(self.down(frame))


@contextmanager
def lying(part, *, up=None, down=None):
    """Let `part` say what these make of its frames."""
    honest = hop_module._Session
    kind = type("Liar", (Liar,), {n: staticmethod(f) for n, f in (("up", up), ("down", down)) if f})

    def session(node, *arguments):
        return (kind if node is part.node else honest)(node, *arguments)

    hop_module._Session = session
    try:
        yield
    finally:
        hop_module._Session = honest


ATTESTED = facts.ForwardAttested
SHOOK_HANDS = facts.HandshakeCompleted
