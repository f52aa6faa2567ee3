"""Hypothesis strategies for everything the contract can say: facts, identity blocks, evidence.

What they make passes step 8 of the gate. Whether the fold applies it is another matter: digests are
arbitrary, and a node that an event names need not exist.
"""

import hashlib
from typing import Any

import msgspec
from hypothesis import strategies as st

from meshnet_events import facts, forms
from meshnet_events.envelope import ChainHead, canonical
from meshnet_events.keys import EventKey

KEYS = tuple(EventKey(bytes([index]) * 32) for index in range(1, 9))


def canonical_digest(domain: str, body: dict[str, Any]) -> str:
    """SHA-256 of a canonical body under its domain."""
    return hashlib.sha256(canonical({"domain": domain, "body": body})).hexdigest()


def texts(longest: int = 1024, shortest: int = 0) -> st.SearchStrategy[str]:
    """Any Unicode but surrogates; mostly short, now and then as long as a member may be.

    None is longer than 2 KiB as JSON, so that no fact outgrows an event.
    """
    short = st.text(
        st.characters(exclude_categories=["Cs"]), min_size=shortest, max_size=min(24, longest)
    )
    return short | st.sampled_from(["é" * longest, '"' * longest, "}" * longest])


keys = st.sampled_from(KEYS)
public_keys = keys.map(lambda key: key.public)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
uuids = st.uuids().map(str)
shard_ids = st.from_regex(rf"\A{forms.SHARD_ID_PATTERN}\Z")
endpoints = st.from_regex(rf"\A{forms.ENDPOINT_PATTERN}\Z").filter(lambda text: len(text) <= 1024)
counts = st.integers(0, forms.MAX_INTEGER)
integers = st.integers(-forms.MAX_INTEGER, forms.MAX_INTEGER)
chain_heads = st.builds(ChainHead, st.integers(0, forms.MAX_INTEGER - 1), digests)

json_keys = st.text(st.characters(codec="ascii"), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | integers | texts(64),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_keys, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(json_keys, json_values, max_size=4)

fingerprints = st.builds(
    facts.Fingerprint,
    catalogue_version=texts(),
    model_artifact_digest=digests,
    recipe_id=texts(),
    recipe_version=texts(),
    runtime_recipe_digest=digests,
)


@st.composite
def identity_blocks(draw: st.DrawFn) -> dict[str, Any]:
    """A sound identity block with the fingerprint that follows from it."""
    label = st.text("abcdefghijklmnopqrstuvwxyz0123456789-._/", min_size=1, max_size=12).filter(
        lambda text: text not in {"main", "master", "head", "latest", "dev", "trunk"}
    )
    layers = draw(st.integers(1, 128))
    start = draw(st.integers(0, layers - 1))
    artifact: dict[str, Any] = {
        "architecture": draw(label),
        "architecture_digest": draw(digests),
        "artifact_id": draw(label),
        "content_digest": draw(digests),
        "derived_from": None,
        "layer_count": layers,
        "revision": draw(st.binary(min_size=20, max_size=20)).hex(),
    }
    axes: dict[str, Any] = {
        name: draw(label)
        for name in (
            "activation_dtype",
            "architecture_adapter",
            "backend_id",
            "compute_dtype",
            "kv_dtype",
            "kv_layout",
            "runtime_version",
            "weight_quantization",
        )
    }
    axes["tokenizer_revision"] = draw(st.binary(min_size=20, max_size=20)).hex()
    axes["boundary_schema_version"] = draw(st.integers(1, 3))
    axes["protocol_schema_version"] = draw(st.integers(1, 3))
    labels = {name: draw(label) for name in ("catalogue_version", "recipe_id", "recipe_version")}
    body = {
        "source_digest": artifact["content_digest"],
        **{name: artifact[name] for name in ("architecture", "architecture_digest", "layer_count")},
    }
    return {
        "artifact": artifact,
        "fingerprint": {
            "model_artifact_digest": canonical_digest("meshnet.model-artifact.v1", body),
            "runtime_recipe_digest": canonical_digest("meshnet.runtime-recipe.v1", axes),
            **labels,
        },
        "recipe": {**axes, **labels},
        "schema_version": 1,
        "shard_end": draw(st.integers(start + 1, layers)),
        "shard_start": start,
    }


identities = (identity_blocks() | json_objects).map(lambda block: msgspec.Raw(canonical(block)))

capabilities = st.builds(
    facts.Capability,
    backend_id=texts(),
    device=texts(),
    diagnostics=st.lists(texts(), max_size=3).map(tuple),
    duration_ms=counts,
    model_artifact_digest=digests,
    model_id=texts(),
    output_digest=digests,
    recipe_id=texts(),
    recipe_version=texts(),
    runtime_recipe_digest=digests,
    shard_end=integers,
    shard_start=integers,
    status=st.sampled_from(["passed", "failed", "error"]),
    synthetic=st.booleans(),
    tokens=counts,
    validated_at_ms=integers,
)
hosts = st.builds(facts.Host, id=digests, source=st.sampled_from(["machine-id", "declared"]))
policies = st.builds(
    facts.Policy,
    accept_declared_hosts=st.booleans(),
    certify=st.sampled_from(["recipe", "seams"]),
    enrolment=st.sampled_from(["required", "open"]),
    max_clock_skew_ms=integers,
    max_report_age_ms=integers,
    min_certifying_nodes=integers,
    min_distinct_groups=integers,
    min_distinct_hosts=integers,
)


@st.composite
def evidence(draw: st.DrawFn) -> facts.Evidence:
    """Evidence whose hops tile the whole model in order, with a seam between neighbours."""
    cuts = sorted(draw(st.sets(st.integers(1, 64), min_size=1, max_size=4)))
    hops = tuple(
        facts.Hop(
            boot_id=draw(uuids),
            end=end,
            node=draw(public_keys),
            shard_id=draw(shard_ids),
            start=start,
        )
        for start, end in zip([0, *cuts[:-1]], cuts, strict=True)
    )
    return facts.Evidence(
        completed_at_ms=draw(integers),
        hops=hops,
        input_digest=draw(digests),
        layer_count=cuts[-1],
        model_artifact_digest=draw(digests),
        output_digest=draw(digests),
        route_epoch=draw(counts),
        route_session_id=draw(texts(128, shortest=1)),
        runtime_recipe_digest=draw(digests),
        seams=tuple(draw(digests) for _ in hops[1:]),
        synthetic=draw(st.booleans()),
        tokens_generated=draw(counts),
    )


_operators = st.lists(public_keys | texts(), max_size=3).map(tuple)
_garbage = texts(128)

BY_FACT: dict[type[facts.Fact], st.SearchStrategy[Any]] = {
    facts.RealmCreated: st.builds(
        facts.RealmCreated, operators=_operators, policy=policies, realm=texts()
    ),
    facts.RealmContinued: st.builds(
        facts.RealmContinued,
        last_sequence=counts,
        log_root=digests,
        realm=texts(),
        stream_created=texts(),
    ),
    facts.OperatorsChanged: st.builds(facts.OperatorsChanged, operators=_operators, reason=texts()),
    facts.PolicyChanged: st.builds(facts.PolicyChanged, policy=policies, reason=texts()),
    facts.NodeEnrolled: st.builds(
        facts.NodeEnrolled,
        chain_from=st.none() | st.integers(1, forms.MAX_INTEGER),
        group=texts(),
        label=texts(),
        node=public_keys,
    ),
    facts.NodeSuspended: st.builds(facts.NodeSuspended, node=public_keys, reason=texts()),
    facts.NodeReinstated: st.builds(facts.NodeReinstated, node=public_keys, reason=texts()),
    facts.ShardRegistered: st.builds(
        facts.ShardRegistered,
        boot_id=uuids,
        capability=capabilities,
        device=texts(),
        endpoint=endpoints,
        host=hosts,
        identity=identities,
        shard_id=shard_ids,
    ),
    facts.ShardWithdrawn: st.builds(
        facts.ShardWithdrawn, boot_id=uuids, reason=texts(), shard_id=shard_ids
    ),
    facts.HandshakeCompleted: st.builds(
        facts.HandshakeCompleted,
        accepted=st.booleans(),
        boot_id=uuids,
        local=fingerprints,
        mismatches=st.lists(
            st.builds(
                facts.Mismatch, detail=texts(), reason=texts(), shard_index=st.none() | integers
            ),
            max_size=3,
        ).map(tuple),
        peer=public_keys,
        peer_boot_id=uuids,
        presented=st.builds(
            facts.PresentedFingerprint,
            catalogue_version=_garbage,
            model_artifact_digest=_garbage,
            recipe_id=_garbage,
            recipe_version=_garbage,
            runtime_recipe_digest=_garbage,
        ),
        role=st.sampled_from(["initiator", "responder"]),
        route_epoch=counts,
        route_session_id=texts(128, shortest=1),
    ),
    facts.ForwardAttested: st.builds(
        facts.ForwardAttested,
        evidence=evidence(),
        hop=integers,
        in_digest=digests,
        out_digest=digests,
    ),
    facts.RecipeRevoked: st.builds(facts.RecipeRevoked, reason=texts(), recipe_key=digests),
    facts.RecipeReinstated: st.builds(facts.RecipeReinstated, reason=texts(), recipe_key=digests),
}
any_fact: st.SearchStrategy[facts.Fact] = st.one_of(*BY_FACT.values())
