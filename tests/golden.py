"""One signed event of every fact type and version ever written, as files that stay as they are.

    python tests/golden.py      write the files of types that have none yet

A file in `tests/data/golden` is a promise to whoever holds an old log: it is never written again,
and no test writes one. Every event is the first of its issuer's chain, under keys that anyone can
make. When a fact gets a new version, its expected fact moves to `RETIRED`, as upcast reads it.
"""

import hashlib
from pathlib import Path

import msgspec

from meshnet_events import facts
from meshnet_events.envelope import ChainHead, canonical, sign_event
from meshnet_events.facts import NODE_FACTS, TYPE_PREFIX, Fact
from meshnet_events.keys import EventKey

FOLDER = Path(__file__).parent / "data" / "golden"
REALM = "demo"
OPERATOR = EventKey(bytes(range(32)))
ALPHA = EventKey(bytes([1]) * 32)
BETA = EventKey(bytes([2]) * 32)
TIME_MS = 1_796_045_400_123

BOOT = "3769e4f9-167b-4492-993b-0bd3a15e3b5a"
PEER_BOOT = "938e6df1-d654-4c31-8765-2af0649d421a"


def digest(text: str) -> str:
    """A digest that is nothing but 64 hex of its own."""
    return hashlib.sha256(text.encode()).hexdigest()


# the sound block of tests/data/history.ndjson, record 6
ARTIFACT = "14d68d86b7096fdca4ac705e2dcfdb6165bad9d0513e55242a14e61d8570acd3"
RECIPE = "15fb4dc62f4d2a2a0251cee099f949115195a3d706964315e4c1e2bd204a1bc9"
IDENTITY = {
    "artifact": {
        "architecture": "llama",
        "architecture_digest": "b79606fb3afea5bd1609ed40b622142f1c98125abcfe89a76a661b0e8e343910",
        "artifact_id": "acme/model-28",
        "content_digest": "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c",
        "derived_from": None,
        "layer_count": 18,
        "revision": "a" * 40,
    },
    "fingerprint": {
        "catalogue_version": "1",
        "model_artifact_digest": ARTIFACT,
        "recipe_id": "dense",
        "recipe_version": "1",
        "runtime_recipe_digest": RECIPE,
    },
    "recipe": {
        "activation_dtype": "bfloat16",
        "architecture_adapter": "llama",
        "backend_id": "llama.cpp",
        "boundary_schema_version": 1,
        "catalogue_version": "1",
        "compute_dtype": "float32",
        "kv_dtype": "q8_0",
        "kv_layout": "paged-16/HND",
        "protocol_schema_version": 1,
        "recipe_id": "dense",
        "recipe_version": "1",
        "runtime_version": "b7421",
        "tokenizer_revision": "b" * 40,
        "weight_quantization": "Q4_K_M",
    },
    "schema_version": 1,
    "shard_end": 9,
    "shard_start": 0,
}

FACTS: dict[str, Fact] = {
    f"{TYPE_PREFIX}{fact.NAME}.v1": fact
    for fact in (
        facts.RealmCreated(operators=(OPERATOR.public,), policy=facts.DEFAULT_POLICY, realm=REALM),
        facts.RealmContinued(
            last_sequence=41,
            log_root=digest("log root"),
            realm=REALM,
            stream_created="2026-11-30T13:30:00.123456789Z",
        ),
        facts.OperatorsChanged(operators=(OPERATOR.public, ALPHA.public), reason="a second one"),
        facts.PolicyChanged(
            policy=msgspec.structs.replace(facts.DEFAULT_POLICY, certify="seams"),
            reason="this model breaks at some cuts",
        ),
        facts.NodeEnrolled(chain_from=8, group="acme", label="alpha", node=ALPHA.public),
        facts.NodeSuspended(node=ALPHA.public, reason="fan broken – repair"),
        facts.NodeReinstated(node=ALPHA.public, reason="fan replaced"),
        facts.ShardRegistered(
            boot_id=BOOT,
            capability=facts.Capability(
                backend_id="llama.cpp",
                device="cuda:0",
                diagnostics=('said "ok"', "größer\tals\\gedacht\u0001\u2028😀"),
                duration_ms=900,
                model_artifact_digest=ARTIFACT,
                model_id="acme/model-28",
                output_digest=digest("output"),
                recipe_id="dense",
                recipe_version="1",
                runtime_recipe_digest=RECIPE,
                shard_end=9,
                shard_start=0,
                status="passed",
                synthetic=False,
                tokens=4,
                validated_at_ms=TIME_MS - 5_000,
            ),
            device="cuda:0",
            endpoint="grpc://alpha.example:7001",
            host=facts.Host(id=digest("host"), source="machine-id"),
            identity=msgspec.Raw(canonical(IDENTITY)),
            shard_id="main",
        ),
        facts.ShardWithdrawn(boot_id=BOOT, reason="over", shard_id="main"),
        facts.HandshakeCompleted(
            accepted=False,
            boot_id=BOOT,
            local=facts.Fingerprint(
                catalogue_version="1",
                model_artifact_digest=ARTIFACT,
                recipe_id="dense",
                recipe_version="1",
                runtime_recipe_digest=RECIPE,
            ),
            mismatches=(
                facts.Mismatch(
                    detail="kv_dtype is q8_0, theirs f16", reason="cache-layout", shard_index=None
                ),
            ),
            peer=BETA.public,
            peer_boot_id=PEER_BOOT,
            presented=facts.PresentedFingerprint(
                catalogue_version="",
                model_artifact_digest="not even hex",
                recipe_id="dense",
                recipe_version="1",
                runtime_recipe_digest="",
            ),
            role="initiator",
            route_epoch=0,
            route_session_id="s-1",
        ),
        facts.ForwardAttested(
            evidence=facts.Evidence(
                completed_at_ms=TIME_MS - 1_000,
                hops=(
                    facts.Hop(boot_id=BOOT, end=9, node=ALPHA.public, shard_id="main", start=0),
                    facts.Hop(
                        boot_id=PEER_BOOT, end=18, node=BETA.public, shard_id="main", start=9
                    ),
                ),
                input_digest=digest("input"),
                layer_count=18,
                model_artifact_digest=ARTIFACT,
                output_digest=digest("output"),
                route_epoch=1,
                route_session_id="s-1",
                runtime_recipe_digest=RECIPE,
                seams=(digest("seam 9"),),
                synthetic=False,
                tokens_generated=16,
            ),
            hop=0,
            in_digest=digest("input"),
            out_digest=digest("seam 9"),
        ),
        facts.RecipeRevoked(reason="wrong tokens seen", recipe_key=digest("recipe key")),
        facts.RecipeReinstated(reason="the runtime was fixed", recipe_key=digest("recipe key")),
    )
}
# expected facts of types that are no longer written: what upcast makes of their golden files
RETIRED: dict[str, Fact] = {}


def issuer(fact: Fact) -> EventKey:
    """Who may state this fact."""
    return ALPHA if isinstance(fact, NODE_FACTS) else OPERATOR


def signed(type_: str, fact: Fact) -> bytes:
    """The golden body of a fact: the first event of its issuer's chain."""
    chance = hashlib.sha256(type_.encode()).digest()[:10]
    return sign_event(
        fact, key=issuer(fact), realm=REALM, after=ChainHead(), time_ms=TIME_MS, chance=chance
    ).body


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for type_, fact in FACTS.items():
        path = FOLDER / f"{type_}.json"
        if not path.exists():
            path.write_bytes(signed(type_, fact))
