"""The one mix of records that every bench runs on, as a generator.

    40 %  handshakes between neighbours, 1 in 20 of them a refusal
    30 %  registrations: 2 in 3 refresh the proof, 1 in 3 follow a restart (a new boot)
    20 %  attestations, each forward attested by both its participants
    10 %  withdrawals, enrolments and other operator facts

It plays a mesh of nodes that behave: nearly everything is applied. Each recipe is served by an equal
share of the nodes, half of them holding the first half of its layers. Keys, times and choices come
from a seed, so two runs see the same bytes. Events are really signed.
"""

import hashlib
import random
from collections.abc import Iterator

from msgspec import Struct

from meshnet_cli import scripted
from meshnet_cli.scripted import digest
from meshnet_events import facts, subjects
from meshnet_events.envelope import ChainHead, SignedEvent, sign_event
from meshnet_events.keys import EventKey
from meshnet_events.record import Record
from meshnet_node.recipe_identity import ArtifactIdentity, RuntimeRecipe, ShardIdentity

REALM = "bench"
START_MS = 1_790_000_000_000
LAYERS = 28


class _Node(Struct):
    number: int
    key: EventKey
    recipe: int
    half: int
    boot: int = 0
    live: bool = False

    @property
    def boot_id(self) -> str:
        text = digest("boot", self.number, self.boot)
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


class Mix:
    """An endless, seeded stream of signed events by `nodes` nodes over `recipes` recipes."""

    def __init__(
        self,
        *,
        nodes: int = 1_000,
        recipes: int | None = None,
        seed: int = 7,
        start_ms: int = START_MS,
        step_ms: int = 5,
    ) -> None:
        """`nodes` must be at least two a recipe: a forward has two participants. 100 recipes, if so.

        Time starts at `start_ms` and goes on by `step_ms` an event. For a real stream start now and
        stand still: the broker's clock judges how fresh a proof is.
        """
        recipes = min(100, nodes // 2) if recipes is None else recipes
        if not 0 < 2 * recipes <= nodes:
            raise ValueError(f"{nodes} nodes for {recipes} recipes; expected two a recipe or more")
        self._chance = random.Random(seed)  # noqa: S311 - a bench must repeat, not surprise
        self._operator = EventKey(hashlib.sha256(b"operator").digest())
        self._nodes = [
            _Node(
                n, EventKey(hashlib.sha256(b"node %d" % n).digest()), n % recipes, n // recipes % 2
            )
            for n in range(nodes)
        ]
        self._recipes = recipes
        self._heads: dict[str, ChainHead] = {}
        self._identities: dict[tuple[int, int], ShardIdentity] = {}
        self._owed: list[tuple[_Node, facts.ForwardAttested]] = []
        self._sessions = 0
        self.time_ms = start_ms
        self._step_ms = step_ms

    @property
    def operator(self) -> str:
        """The root of trust of the realm that the mix creates."""
        return self._operator.public

    def records(self, count: int) -> Iterator[Record]:
        """The first or next `count` events, as records from sequence 1 on."""
        for sequence, (subject, body) in enumerate(self.events(count), start=1):
            yield Record(sequence, self.time_ms * 1_000_000, subject, body)

    def events(self, count: int) -> Iterator[tuple[str, bytes]]:
        """`count` pairs of subject and body: a realm, its enrolments, first claims, then the mix."""
        for key, fact in self._facts(count):
            self.time_ms += self._step_ms
            signed = self._sign(key, fact)
            yield subjects.event(REALM, key.public), signed.body

    def registrations(self, count: int) -> Iterator[tuple[str, bytes]]:
        """`count` registrations and nothing else, after the realm and the enrolments."""
        yield from self.events(1 + len(self._nodes))
        for number in range(count):
            node = self._nodes[number % len(self._nodes)]
            self.time_ms += self._step_ms
            signed = self._sign(node.key, self._register(node))
            yield subjects.event(REALM, node.key.public), signed.body

    def _sign(self, key: EventKey, fact: facts.Fact) -> SignedEvent:
        head = self._heads.get(key.public, ChainHead())
        signed = sign_event(
            fact,
            key=key,
            realm=REALM,
            after=head,
            time_ms=self.time_ms,
            chance=self._chance.randbytes(10),
        )
        self._heads[key.public] = signed.head
        return signed

    def _facts(self, count: int) -> Iterator[tuple[EventKey, facts.Fact]]:
        opening = self._opening()
        for _ in range(count):
            yield next(opening, None) or self._next()

    def _opening(self) -> Iterator[tuple[EventKey, facts.Fact]]:
        if self._heads:
            return
        yield (
            self._operator,
            facts.RealmCreated(
                operators=(self._operator.public,), policy=facts.DEFAULT_POLICY, realm=REALM
            ),
        )
        for node in self._nodes:
            yield self._operator, self._enrol(node)
        for node in self._nodes:
            yield node.key, self._register(node)

    def _next(self) -> tuple[EventKey, facts.Fact]:
        roll = self._chance.random()
        if roll < 0.3:
            node = self._chance.choice(self._nodes)
            if node.live and self._chance.random() < 1 / 3:
                node.boot += 1
            return node.key, self._register(node)
        node = self._live_node()
        if not node.live or not self._neighbour(node).live:
            down = node if not node.live else self._neighbour(node)
            return down.key, self._register(down)
        if roll < 0.7:
            return node.key, self._shake_hands(node)
        if roll < 0.9:
            return self._attest(node)
        if roll < 0.95:
            return node.key, self._withdraw(node)
        return self._operator, self._enrol(node)

    def _live_node(self) -> _Node:
        """A node that is up and whose neighbour is, or any node when none was found soon."""
        for _ in range(64):
            node = self._chance.choice(self._nodes)
            if node.live and self._neighbour(node).live:
                break
        return node

    def _enrol(self, node: _Node) -> facts.NodeEnrolled:
        return facts.NodeEnrolled(
            chain_from=None,
            group=f"group-{node.number % 40}",
            label=f"node {node.number}, renamed {self._chance.randrange(1_000)} times",
            node=node.key.public,
        )

    def _register(self, node: _Node) -> facts.ShardRegistered:
        shard = self._identity(node.recipe, node.half)
        node.live = True
        return facts.ShardRegistered(
            boot_id=node.boot_id,
            capability=scripted.capability(
                shard,
                device="cuda:0",
                duration_ms=self._chance.randrange(200, 2_000),
                output_digest=digest("output", node.recipe, node.half),
                validated_at_ms=self.time_ms - self._chance.randrange(60_000),
            ),
            device="cuda:0",
            endpoint=f"grpc://node-{node.number}.example:7001",
            host=facts.Host(id=digest("host", node.number), source="machine-id"),
            identity=scripted.identity_block(shard),
            shard_id=scripted.SHARD_ID,
        )

    def _withdraw(self, node: _Node) -> facts.ShardWithdrawn:
        node.live = False
        return facts.ShardWithdrawn(
            boot_id=node.boot_id, reason="rebalanced", shard_id=scripted.SHARD_ID
        )

    def _shake_hands(self, node: _Node) -> facts.HandshakeCompleted:
        peer = self._neighbour(node)
        ours = self._identity(node.recipe, node.half)
        accepted = self._chance.random() >= 0.05
        theirs = ours if accepted else self._identity((node.recipe + 1) % self._recipes, 0)
        self._sessions += 1
        return facts.HandshakeCompleted(
            accepted=accepted,
            boot_id=node.boot_id,
            local=facts.Fingerprint(**scripted.members(ours)),
            mismatches=()
            if accepted
            else (facts.Mismatch(detail="it differs", reason="fingerprint", shard_index=None),),
            peer=peer.key.public,
            peer_boot_id=peer.boot_id,
            presented=facts.PresentedFingerprint(**scripted.members(theirs)),
            role="initiator" if node.half == 0 else "responder",
            route_epoch=1,
            route_session_id=f"session-{self._sessions}",
        )

    def _attest(self, node: _Node) -> tuple[EventKey, facts.Fact]:
        if self._owed:
            other, fact = self._owed.pop()
            return other.key, fact
        first, last = sorted((node, self._neighbour(node)), key=lambda n: n.half)
        self._sessions += 1
        evidence = scripted.forward(
            f"session-{self._sessions}",
            [(hop.key.public, hop.boot_id) for hop in (first, last)],
            self._identity(node.recipe, 0),
            route_epoch=1,
            completed_at_ms=self.time_ms,
        )
        self._owed.append((last, scripted.attestation(evidence, 1)))
        return first.key, scripted.attestation(evidence, 0)

    def _neighbour(self, node: _Node) -> _Node:
        """A node that holds the other half of the same recipe."""
        step = self._recipes * (1 if node.half == 0 else -1)
        return self._nodes[(node.number + step) % len(self._nodes)]

    def _identity(self, recipe: int, half: int) -> ShardIdentity:
        known = self._identities.get((recipe, half))
        if known is None:
            known = self._identities[recipe, half] = ShardIdentity(
                artifact=ArtifactIdentity(
                    artifact_id=f"acme/model-{recipe}",
                    revision=digest("revision", recipe)[:40],
                    content_digest=digest("content", recipe),
                    architecture="llama",
                    architecture_digest=digest("architecture", recipe),
                    layer_count=LAYERS,
                ),
                recipe=RuntimeRecipe(
                    weight_quantization="Q4_K_M",
                    activation_dtype="bfloat16",
                    compute_dtype="float32",
                    kv_dtype="q8_0",
                    kv_layout="paged-16/HND",
                    tokenizer_revision=digest("tokenizer", recipe)[:40],
                    architecture_adapter="llama",
                    backend_id="llama.cpp",
                    runtime_version="b7421",
                    boundary_schema_version=1,
                    protocol_schema_version=1,
                    recipe_id="dense",
                    recipe_version="1",
                    catalogue_version="1",
                ),
                shard_start=0 if half == 0 else LAYERS // 2,
                shard_end=LAYERS // 2 if half == 0 else LAYERS,
            )
        return known
