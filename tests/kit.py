"""Scenarios for tests of the registry and of whatever reads its log.

A `Scenario` plays a realm: an operator, nodes, their clocks and the broker. Each verb states one
fact as a real signed event in its issuer's chain, hands it to a `Fold` as the next record, and
returns what happened:

    lab = Scenario()
    lab.register("n1@h1[0,14)")                    # node n1 on host h1 offers layers 0 to 13 of 28
    lab.register("n2/spare@h2[14,28)", boot="b2")  # a shard id that is not `main`, a named boot
    forward = lab.evidence("n1[0,14)", "n2/spare[14,28)")
    lab.attest("n1", forward)
    then = lab.attest("n2", forward)
    assert then.outcome == "applied"
    assert then.moves == ["recipe R dark->certified"]

Names stand for keys, hosts and boots, always the same ones. A node that registers is enrolled first
unless it was named in an enrolment before, or the scenario was told not to (`enrols=False`). The
broker's clock stands at `now_ms`, moves one second after every record, and `wait` moves it either
way. `records` are the history so far, for whoever folds, stores or serves it.

Nothing here derives anything with the code under test: digests are hashlib and json.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from meshnet_events import facts
from meshnet_events.envelope import ChainHead, SignedEvent, canonical, sign_event
from meshnet_events.keys import EventKey
from meshnet_events.record import Record
from meshnet_tracker.registry.fold import Applied, Fold
from meshnet_tracker.registry.rows import Claim, Node, Recipe
from meshnet_tracker.registry.state import State

START_MS = 1_790_000_000_000
LAYERS = 28
AXES: dict[str, Any] = {
    "activation_dtype": "bfloat16",
    "architecture_adapter": "llama",
    "backend_id": "llama.cpp",
    "boundary_schema_version": 1,
    "compute_dtype": "float32",
    "kv_dtype": "q8_0",
    "kv_layout": "paged-16/HND",
    "protocol_schema_version": 1,
    "runtime_version": "b7421",
    "tokenizer_revision": "b" * 40,
    "weight_quantization": "Q4_K_M",
}
LABELS = {"catalogue_version": "1", "recipe_id": "dense", "recipe_version": "1"}
Json = dict[str, Any]

_SHARD = re.compile(
    r"(?P<node>[a-z0-9]+)(?:/(?P<shard>[a-z0-9-]+))?(?:@(?P<host>[a-z0-9]+))?"
    r"\[(?P<start>\d+),(?P<end>\d+)\)"
)


def digest(text: str) -> str:
    """64 hex that stand for `text`."""
    return hashlib.sha256(text.encode()).hexdigest()


def key_of(name: str) -> EventKey:
    """The one key of this name."""
    return EventKey(hashlib.sha256(f"key of {name}".encode()).digest())


def boot_of(node: str, boot: str) -> str:
    """The UUID of a named boot of a node."""
    return str(uuid.UUID(hex=digest(f"boot {boot} of {node}")[:32]))


def canonical_sha256(value: Any) -> str:
    """SHA-256 hex of a value's JSON with sorted keys and no white space."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Shard(NamedTuple):
    """A shard as these tests spell it: `node/shard_id@host[start,end)`."""

    node: str
    shard_id: str
    host: str
    start: int
    end: int

    @classmethod
    def read(cls, text: str) -> "Shard":
        """`n1[0,14)` is shard `main` of node n1 on a host of its own."""
        found = _SHARD.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not spelled node/shard_id@host[start,end)")
        node = found["node"]
        return cls(
            node,
            found["shard"] or "main",
            found["host"] or f"host-of-{node}",
            int(found["start"]),
            int(found["end"]),
        )


class Fingerprint(NamedTuple):
    """The two digests of a block."""

    artifact: str
    recipe: str

    @property
    def key(self) -> str:
        """The recipe key."""
        return digest(f"{self.artifact}:{self.recipe}")


def fingerprint_of(block: Json) -> Fingerprint:
    """Derive what a block's fingerprint should be."""
    artifact, recipe = block["artifact"], block["recipe"]
    source = artifact["content_digest"]
    if artifact["derived_from"] is not None:
        source = artifact["derived_from"]["source_artifact_digest"]
    covered = ("architecture", "architecture_digest", "layer_count")
    return Fingerprint(
        canonical_sha256(
            {
                "domain": "meshnet.model-artifact.v1",
                "body": {"source_digest": source, **{name: artifact[name] for name in covered}},
            }
        ),
        canonical_sha256(
            {
                "domain": "meshnet.runtime-recipe.v1",
                "body": {axis: recipe[axis] for axis in AXES},
            }
        ),
    )


def identity_block(
    start: int = 0,
    end: int | None = None,
    *,
    layers: int = LAYERS,
    axes: Mapping[str, Any] | None = None,
    artifact: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Json:
    """An identity block with the fingerprint that follows from it.

    `axes`, `artifact` and `labels` replace members; `artifact={"derived_from": …}` makes it a
    derivative. A fault put in here stays in.
    """
    stated = {**LABELS, **(labels or {})}
    block: Json = {
        "artifact": {
            "architecture": "llama",
            "architecture_digest": digest("architecture"),
            "artifact_id": "acme/model",
            "content_digest": digest("weights"),
            "derived_from": None,
            "layer_count": layers,
            "revision": "a" * 40,
            **(artifact or {}),
        },
        "recipe": {**AXES, **stated, **(axes or {})},
        "schema_version": 1,
        "shard_end": layers if end is None else end,
        "shard_start": start,
    }
    found = fingerprint_of(block)
    block["fingerprint"] = {
        "model_artifact_digest": found.artifact,
        "runtime_recipe_digest": found.recipe,
        **stated,
    }
    return block


R = fingerprint_of(identity_block())
"""The fingerprint that all shards share unless a test says otherwise."""


class Then:
    """What one record did, in words that a test can compare."""

    def __init__(self, record: Record, applied: Applied, names: Mapping[str, str]) -> None:
        self.record = record
        self.transitions = applied.transitions
        self.outcome = applied.outcome.name
        self.kind = applied.outcome.kind
        self.detail = applied.outcome.detail
        self._names = names

    @property
    def moves(self) -> list[str]:
        """Every transition as `kind subject old->new`, keys by their names."""
        return [
            f"{move.kind} {self._named(move.subject)} {move.old}->{move.new}"
            for move in self.transitions
        ]

    def _named(self, subject: str) -> str:
        owner, slash, shard_id = subject.partition("/")
        return f"{self._names.get(owner, owner)}{slash}{shard_id}"

    def __repr__(self) -> str:
        said = f" ({self.detail})" if self.detail else ""
        return f"<{self.record.sequence}: {self.outcome}{said}; {', '.join(self.moves) or '-'}>"


def rows_of(state: State) -> dict[str, Any]:
    """Every row of a state as plain values that compare, chains and accounts left out."""

    def plain(rows: Mapping[Any, Any]) -> dict[Any, bytes]:
        return {key: msgspec.json.encode(row) for key, row in rows.items()}

    return {
        "realm": msgspec.json.encode(state.realm),
        "nodes": plain(state.nodes),
        "boots": {node: set(boots) for node, boots in state.boots.items()},
        "claims": {node: plain(claims) for node, claims in state.claims.items()},
        "recipes": plain(state.recipes),
        "handshakes": plain(state.handshakes),
        "attestations": {node: dict(said) for node, said in state.attestations.items() if said},
        "evidence": plain(state.evidence),
    }


class Scenario:
    """One realm, from its first record on."""

    def __init__(
        self,
        realm: str = "lab",
        *,
        policy: facts.Policy = facts.DEFAULT_POLICY,
        enrols: bool = True,
        verify: bool = True,
        created: bool = True,
    ) -> None:
        """Create the realm, unless `created` is false. Its operator is called `operator`."""
        self.realm = realm
        self.state = State(realm)
        self.fold = Fold(self.state)
        self.records: list[Record] = []
        self.now_ms = START_MS
        self.boots: dict[str, str] = {}
        self.heads: dict[str, ChainHead] = {}
        self._names = {R.key: "R"}
        self._enrolled: set[str] = set()
        self._enrols = enrols
        self._verify = verify
        self._sessions = 0
        if created:
            self.publish("operator", self.creation(policy=policy))

    # -- records ---------------------------------------------------------------------------------

    def wait(self, ms: int) -> None:
        """Let the broker's clock move; it steps back when `ms` is negative."""
        self.now_ms += ms

    def key(self, name: str) -> EventKey:
        """The key of this name, which reports and transitions are then spelled with."""
        key = key_of(name)
        self._names[key.public] = name
        return key

    def public(self, name: str) -> str:
        """The public key of this name."""
        return self.key(name).public

    def call(self, recipe_key: str, name: str) -> str:
        """Name a recipe in `Then.moves`; gives its key back."""
        self._names[recipe_key] = name
        return recipe_key

    def sign(
        self,
        issuer: str,
        fact: facts.Fact,
        *,
        after: ChainHead | None = None,
        realm: str | None = None,
    ) -> SignedEvent:
        """Sign a fact as the issuer's next event, without delivering it."""
        return sign_event(
            fact,
            key=self.key(issuer),
            realm=realm or self.realm,
            after=after or self.heads.get(issuer, ChainHead()),
            time_ms=self.now_ms,
            chance=digest(f"{issuer} {len(self.records)}").encode()[:10],
        )

    def deliver(self, body: bytes, issuer: str, *, sequence: int | None = None) -> Then:
        """Store bytes on the issuer's subject and fold them as the next record."""
        record = Record(
            sequence or len(self.records) + 1,
            self.now_ms * 1_000_000,
            f"mesh.{self.realm}.evt.{self.public(issuer)}",
            body,
        )
        applied = self.fold.apply(record, verify=self._verify)
        self.records.append(record)
        self.now_ms += 1000
        return Then(record, applied, self._names)

    def publish(self, issuer: str, fact: facts.Fact) -> Then:
        """State a fact."""
        signed = self.sign(issuer, fact)
        then = self.deliver(signed.body, issuer)
        self.heads[issuer] = signed.head
        return then

    def refold(self) -> State:
        """Fold the same records from the first on, into a new state."""
        state = State(self.realm)
        fold = Fold(state)
        for record in self.records:
            fold.apply(record, verify=False)
        return state

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What happens inside changes no row and causes no transition.

        Chains, the accounts and the list of refusals are not rows in this sense.
        """
        before, moves = rows_of(self.state), len(self.state.changes.transitions)
        yield
        assert rows_of(self.state) == before
        assert len(self.state.changes.transitions) == moves

    # -- what an operator states -----------------------------------------------------------------

    def creation(
        self,
        *,
        policy: facts.Policy = facts.DEFAULT_POLICY,
        operators: tuple[str, ...] | None = None,
        realm: str | None = None,
    ) -> facts.RealmCreated:
        """The fact that creates this realm."""
        return facts.RealmCreated(
            operators=(self.public("operator"),) if operators is None else operators,
            policy=policy,
            realm=realm or self.realm,
        )

    def operators(self, *names: str, by: str = "operator") -> Then:
        """State who the operators are."""
        keys = tuple(self.public(name) for name in names)
        return self.publish(by, facts.OperatorsChanged(operators=keys, reason="a test"))

    def policy(self, *, by: str = "operator", **changes: Any) -> Then:
        """Change members of the policy in force."""
        policy = msgspec.structs.replace(self.state.policy, **changes)
        return self.publish(by, facts.PolicyChanged(policy=policy, reason="a test"))

    def enrol(
        self,
        name: str,
        *,
        group: str | None = None,
        label: str = "",
        chain_from: int | None = None,
        by: str = "operator",
    ) -> Then:
        """Enrol a node, in a group of its own unless one is named.

        With `chain_from`, the node learns of it and takes its chain up from there.
        """
        group = f"group of {name}" if group is None else group
        self._enrolled.add(name)
        fact = facts.NodeEnrolled(
            chain_from=chain_from, group=group, label=label, node=self.public(name)
        )
        then = self.publish(by, fact)
        if chain_from is not None and then.outcome == "applied":
            self.heads[name] = ChainHead(chain_from - 1, self.heads[by].digest)
        return then

    def suspend(self, name: str, *, by: str = "operator") -> Then:
        """Suspend a node."""
        return self.publish(by, facts.NodeSuspended(node=self.public(name), reason="a test"))

    def reinstate(self, name: str, *, by: str = "operator") -> Then:
        """Reinstate a node."""
        return self.publish(by, facts.NodeReinstated(node=self.public(name), reason="a test"))

    def revoke(self, recipe_key: str = R.key, *, by: str = "operator") -> Then:
        """Revoke a recipe."""
        return self.publish(by, facts.RecipeRevoked(recipe_key=recipe_key, reason="a test"))

    def reinstate_recipe(self, recipe_key: str = R.key, *, by: str = "operator") -> Then:
        """Reinstate a recipe."""
        return self.publish(by, facts.RecipeReinstated(recipe_key=recipe_key, reason="a test"))

    # -- what a node states ----------------------------------------------------------------------

    def registration(
        self,
        shard: str,
        *,
        boot: str | None = None,
        block: Json | None = None,
        host_source: str = "machine-id",
        device: str = "cuda:0",
        capability: Mapping[str, Any] | None = None,
        **identity: Any,
    ) -> facts.ShardRegistered:
        """The fact that a node offers a shard, with a proof that covers it.

        `identity` goes to `identity_block` (`layers`, `axes`, `artifact`, `labels`), or `block` is
        taken as it is; `capability` replaces members of the proof.
        """
        wanted = Shard.read(shard)
        block = block or identity_block(wanted.start, wanted.end, **identity)
        proof: Json = {
            "backend_id": block["recipe"]["backend_id"],
            "device": device,
            "diagnostics": (),
            "duration_ms": 900,
            "model_artifact_digest": block["fingerprint"]["model_artifact_digest"],
            "model_id": block["artifact"]["artifact_id"],
            "output_digest": digest("output of the doctor"),
            "recipe_id": block["recipe"]["recipe_id"],
            "recipe_version": block["recipe"]["recipe_version"],
            "runtime_recipe_digest": block["fingerprint"]["runtime_recipe_digest"],
            "shard_end": block["shard_end"],
            "shard_start": block["shard_start"],
            "status": "passed",
            "synthetic": False,
            "tokens": 4,
            "validated_at_ms": self.now_ms - 5_000,
            **(capability or {}),
        }
        return facts.ShardRegistered(
            boot_id=boot_of(wanted.node, boot or self.boots.get(wanted.node, "b1")),
            capability=facts.Capability(**proof),
            device=device,
            endpoint=f"grpc://{wanted.node}.example:7001",
            host=msgspec.convert(
                {"id": digest(f"host {wanted.host}"), "source": host_source}, facts.Host
            ),
            identity=msgspec.Raw(canonical(block)),
            shard_id=wanted.shard_id,
        )

    def register(self, shard: str, *, boot: str | None = None, **more: Any) -> Then:
        """Offer a shard in a boot (the node's last one if none is named); see `registration`."""
        node = Shard.read(shard).node
        if self._enrols and node not in self._enrolled:
            self.enrol(node)
        fact = self.registration(shard, boot=boot, **more)
        if boot is not None:
            self.boots[node] = boot
        return self.publish(node, fact)

    def withdraw(self, node: str, shard_id: str = "main", *, boot: str | None = None) -> Then:
        """Take a shard back."""
        boot_id = boot_of(node, boot or self.boots.get(node, "b1"))
        return self.publish(
            node, facts.ShardWithdrawn(boot_id=boot_id, reason="a test", shard_id=shard_id)
        )

    def handshake(
        self,
        node: str,
        peer: str,
        *,
        accepted: bool = True,
        boot: str | None = None,
        peer_boot: str | None = None,
        session: str = "s",
        epoch: int = 0,
        role: str = "initiator",
        local: Fingerprint = R,
        mismatches: tuple[facts.Mismatch, ...] | None = None,
    ) -> Then:
        """Report what comparing fingerprints with a peer came to."""
        labels = dict(LABELS)
        presented = local if accepted else Fingerprint(digest("another artifact"), local.recipe)
        mismatch = facts.Mismatch(detail="another artifact", reason="artifact", shard_index=None)
        fact = facts.HandshakeCompleted(
            accepted=accepted,
            boot_id=boot_of(node, boot or self.boots.get(node, "b1")),
            local=facts.Fingerprint(
                model_artifact_digest=local.artifact, runtime_recipe_digest=local.recipe, **labels
            ),
            mismatches=mismatches or (() if accepted else (mismatch,)),
            peer=self.public(peer),
            peer_boot_id=boot_of(peer, peer_boot or self.boots.get(peer, "b1")),
            presented=facts.PresentedFingerprint(
                model_artifact_digest=presented.artifact,
                runtime_recipe_digest=presented.recipe,
                **labels,
            ),
            role="initiator" if role == "initiator" else "responder",
            route_epoch=epoch,
            route_session_id=session,
        )
        return self.publish(node, fact)

    def evidence(
        self,
        *hops: str,
        layers: int = LAYERS,
        of: Fingerprint = R,
        session: str | None = None,
        boots: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> facts.Evidence:
        """Evidence of a forward over these hops in their nodes' boots, in a session of its own.

        `of` is the fingerprint, `boots` names other boots, `changes` replaces any other member.
        """
        self._sessions += 1
        session = session or f"s-{self._sessions}"
        wanted = [Shard.read(hop) for hop in hops]
        named = {**self.boots, **(boots or {})}
        members: Json = {
            "completed_at_ms": self.now_ms - 1_000,
            "hops": tuple(
                facts.Hop(
                    boot_id=boot_of(hop.node, named.get(hop.node, "b1")),
                    end=hop.end,
                    node=self.public(hop.node),
                    shard_id=hop.shard_id,
                    start=hop.start,
                )
                for hop in wanted
            ),
            "input_digest": digest(f"{session} input"),
            "layer_count": layers,
            "model_artifact_digest": of.artifact,
            "output_digest": digest(f"{session} output"),
            "route_epoch": 0,
            "route_session_id": session,
            "runtime_recipe_digest": of.recipe,
            "seams": tuple(digest(f"{session} seam {hop.end}") for hop in wanted[:-1]),
            "synthetic": False,
            "tokens_generated": 16,
            **changes,
        }
        return facts.Evidence(**members)

    def attest(
        self,
        node: str,
        evidence: facts.Evidence,
        *,
        hop: int | None = None,
        in_digest: str | None = None,
        out_digest: str | None = None,
    ) -> Then:
        """Attest evidence as the hop that the node is in it, with the digests that it states."""
        if hop is None:
            public = self.public(node)
            hop = next((i for i, one in enumerate(evidence.hops) if one.node == public), 0)
        crossed = (evidence.input_digest, *evidence.seams, evidence.output_digest)
        inside = hop >= 0 and hop + 1 < len(crossed)
        fact = facts.ForwardAttested(
            evidence=evidence,
            hop=hop,
            in_digest=in_digest or crossed[hop if inside else 0],
            out_digest=out_digest or crossed[hop + 1 if inside else -1],
        )
        return self.publish(node, fact)

    def attest_all(self, evidence: facts.Evidence) -> Then:
        """Let every participant attest, in the order of the hops; gives what the last one did."""
        thens = [self.attest(self._names[hop.node], evidence) for hop in evidence.hops]
        return thens[-1]

    def certify(self, *shards: str) -> Then:
        """Register these shards of R and let them prove a forward; it must certify R."""
        for shard in shards:
            assert self.register(shard).outcome == "applied"
        then = self.attest_all(self.evidence(*shards))
        assert self.recipe().status == "certified", then
        return then

    # -- what the registry knows -----------------------------------------------------------------

    def node(self, name: str) -> Node:
        """The row of a node."""
        return self.state.nodes[self.public(name)]

    def claim(self, name: str, shard_id: str = "main") -> Claim:
        """The row of a node's newest registration of a shard id."""
        return self.state.claims[self.public(name)][shard_id]

    def claims(self) -> dict[str, str]:
        """Every claim that is listed, as `node/shard_id: status`."""
        return {
            f"{self._names[claim.node]}/{claim.shard_id}": claim.status
            for claim in self.state.all_claims()
        }

    def recipe(self, recipe_key: str = R.key) -> Recipe:
        """The row of a recipe."""
        return self.state.recipes[recipe_key]

    def void(self) -> dict[str, bool]:
        """Evidence that is kept, by session: whether it is void."""
        return {one.route_session_id: one.void is not None for one in self.state.evidence.values()}
