"""Two derivations of one identity, held against each other on generated blocks.

Node and tracker share no code on purpose, so that no bug can be common to both. What they share is
the answer: the same digests, the same refusals, the same differences, the same route verdicts.
"""

import copy
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_node.recipe_identity import (
    DistributedForwardEvidence,
    RecipeIdentityError,
    RecipeRegistry,
    ShardIdentity,
    check_route,
    explain_mismatch,
)
from meshnet_tracker import recipe as tracker

TEXT_AXES = (
    "weight_quantization",
    "activation_dtype",
    "compute_dtype",
    "kv_dtype",
    "kv_layout",
    "architecture_adapter",
    "backend_id",
    "runtime_version",
)
VERSION_AXES = ("boundary_schema_version", "protocol_schema_version")
LABELS = ("recipe_id", "recipe_version", "catalogue_version")
MAX_INTEGER = 2**53 - 1

texts = st.sampled_from(["f16", "q8_0", "paged-16/NHD"]) | st.text(min_size=1).filter(str.strip)
pins = texts.map(lambda text: "pin " + text)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
versions = st.integers(1, 3) | st.integers(1, MAX_INTEGER)


@st.composite
def ranges(draw, start, end):
    first = draw(st.integers(start, end - 1))
    return first, draw(st.integers(first + 1, end))


@st.composite
def blocks(draw):
    """A sound block: whole or cut, with a declared fingerprint or without."""
    layer_count = draw(st.integers(1, 100) | st.integers(1, MAX_INTEGER))
    content, source = draw(st.lists(digests, min_size=2, max_size=2, unique=True))
    held, binding = (0, layer_count), None
    if draw(st.booleans()):
        held = draw(ranges(0, layer_count))
        binding = {
            "source_artifact_digest": source,
            "shard_start": held[0],
            "shard_end": held[1],
        }
    start, end = draw(ranges(*held))
    block = {
        "schema_version": 1,
        "shard_start": start,
        "shard_end": end,
        "artifact": {
            "artifact_id": draw(texts),
            "revision": draw(pins),
            "content_digest": content,
            "architecture": draw(texts),
            "architecture_digest": draw(digests),
            "layer_count": layer_count,
            "derived_from": binding,
        },
        "recipe": {
            **{name: draw(texts) for name in (*TEXT_AXES, *LABELS)},
            **{name: draw(versions) for name in VERSION_AXES},
            "tokenizer_revision": draw(pins),
        },
    }
    if draw(st.booleans()):
        artifact_digest, recipe_digest = tracker.derive(block)
        block["fingerprint"] = {
            "model_artifact_digest": artifact_digest,
            "runtime_recipe_digest": recipe_digest,
            **{label: block["recipe"][label] for label in LABELS},
        }
    return block


def objects_of(value, path=()):
    """List the path of every object in a block, the block's own, (), included."""
    inner = [objects_of(v, (*path, name)) for name, v in value.items() if isinstance(v, dict)]
    return [path, *(found for paths in inner for found in paths)]


def at(block, path):
    for name in path:
        block = block[name]
    return block


anything = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates too
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=5,
)


def near(value, block):
    """List values that lie just inside or outside what may stand where this one stands."""
    if type(value) is int:
        layer_count = block["artifact"]["layer_count"]
        edges = [value - 1, value + 1, layer_count, layer_count + 1, MAX_INTEGER, MAX_INTEGER + 1]
        shard = [block["shard_start"], block["shard_end"]]
        return [*edges, *shard, 0, -1, True, float(value), str(value), None, 10**400]
    if type(value) is str and len(value) == 64:
        other = [block["artifact"]["content_digest"], block["artifact"]["architecture_digest"]]
        return [*other, value + "\n", " " + value[1:], value[1:], value + "0", "A" * 64, "g" * 64]
    if type(value) is str:
        return ["", " \t\n", "\u2003", "\ud800", "x\udfff", "main", " x", None, 1, [value]]
    return [None, [], {}, "", 0, False, float("nan"), [value]]


def changed(block, where, name, value):
    copied = copy.deepcopy(block)
    at(copied, where)[name] = value
    return copied


def dropped(block, where, name):
    copied = copy.deepcopy(block)
    del at(copied, where)[name]
    return copied


def ask_node(block):
    """Return the node's digests and None, or None and the words of its refusal."""
    try:
        fingerprint = ShardIdentity.from_dict(block).fingerprint
    except RecipeIdentityError as refusal:
        return None, str(refusal)
    return (fingerprint.model_artifact_digest, fingerprint.runtime_recipe_digest), None


def ask_tracker(block):
    """Return the tracker's digests and None, or None and its refusal."""
    try:
        return tracker.derive(block), None
    except tracker.BlockError as refusal:
        return None, refusal


@given(block=blocks())
def test_both_derive_the_same_digests_from_a_sound_block(block):
    assert ask_node(block) == ask_tracker(block)
    assert ask_node(block)[1] is None


def hold_together(block, where, name):
    """Check that both accept the block, or both refuse it and name the same field."""
    node_digests, node_words = ask_node(block)
    tracker_digests, refusal = ask_tracker(block)
    assert node_digests == tracker_digests, (where, name, node_words, refusal)
    if refusal is None:
        return
    if isinstance(at(block, where).get(name), dict):
        # One object for another may hold several faults, and which is told first is open.
        path = (*where, name)
        assert path[0] in node_words or refusal.field == "block"
    elif refusal.field != "block":  # a surplus member of the block itself has no path to name
        assert refusal.field in node_words


@settings(max_examples=40)
@given(block=blocks())
def test_both_agree_about_every_single_fault_near_a_sound_block(block):
    for where in objects_of(block):
        for name, value in at(block, where).items():
            hold_together(dropped(block, where, name), where, name)
            for other in near(value, block):
                hold_together(changed(block, where, name, other), where, name)
        hold_together(changed(block, where, "unheard_of", 1), where, "unheard_of")


@settings(max_examples=300)
@given(data=st.data(), block=blocks(), value=json_values)
def test_both_agree_about_any_value_in_any_place(data, block, value):
    where = data.draw(st.sampled_from(objects_of(block)))
    name = data.draw(st.sampled_from(list(at(block, where))) | anything)
    hold_together(changed(block, where, name, value), where, name)


paddings = st.text("\t\n \x00\x1c\x85\xa0\u2028\u200b\u3000\ufeff", max_size=2)


@st.composite
def almost_pins(draw):
    """A moving reference in odd case and padding: Unicode has more of both than ASCII."""
    names = ["main", "master", "head", "latest", "dev", "trunk", "refs/", "refs/heads/x", ""]
    odd = {"s": "sS\u017f", "k": "kK\u212a", "i": "iI\u0130\u0131"}
    letters = [
        draw(st.sampled_from(odd.get(letter, letter + letter.upper())))
        for letter in draw(st.sampled_from(names))
    ]
    return draw(paddings) + "".join(letters) + draw(paddings)


@settings(max_examples=300)
@given(block=blocks(), pin=almost_pins(), tokenizer=st.booleans())
def test_both_agree_on_which_references_move(block, pin, tokenizer):
    block.pop("fingerprint", None)
    if tokenizer:
        block["recipe"]["tokenizer_revision"] = pin
    else:
        block["artifact"]["revision"] = pin
    assert ask_node(block)[0] == ask_tracker(block)[0]


@given(value=json_values)
def test_both_refuse_what_is_no_block(value):
    assert ask_node(value)[0] is None
    assert ask_tracker(value)[0] is None


def digests_other_than_source(artifact):
    """A file is not cut from itself."""
    source = (artifact["derived_from"] or {}).get("source_artifact_digest")
    return digests.filter(lambda digest: digest != source)


def changes_of(draw, block):
    """Return the block with some of the members that a route compares, or ignores, drawn anew."""
    changed = copy.deepcopy(block)
    changed.pop("fingerprint", None)
    recipe, artifact = changed["recipe"], changed["artifact"]
    for name in draw(st.sets(st.sampled_from([*TEXT_AXES, *LABELS]), max_size=3)):
        recipe[name] = draw(texts)
    for name in draw(st.sets(st.sampled_from(VERSION_AXES), max_size=1)):
        recipe[name] = draw(versions)
    match draw(st.integers(0, 9)):
        case 0:
            recipe["tokenizer_revision"] = draw(pins)
        case 1:
            artifact["architecture_digest"] = draw(digests)
        case 2:
            artifact["architecture"] = draw(texts)
        case 3:
            artifact["revision"] = draw(pins)
        case 4:
            artifact["content_digest"] = draw(digests_other_than_source(artifact))
        case 5:
            artifact["layer_count"] = min(artifact["layer_count"] + 2, MAX_INTEGER)
        case 6 if artifact["derived_from"] is None:
            # The same weights, cut: the source is what is compared.
            artifact["derived_from"] = {
                "source_artifact_digest": artifact["content_digest"],
                "shard_start": 0,
                "shard_end": artifact["layer_count"],
            }
            artifact["content_digest"] = draw(digests_other_than_source(artifact))
        case 7:
            artifact["derived_from"] = None
    return changed


@st.composite
def pairs(draw):
    left = draw(blocks())
    return left, draw(blocks()) if draw(st.booleans()) else changes_of(draw, left)


def told(mismatches):
    return [(mismatch.reason, mismatch.shard_index) for mismatch in mismatches]


@given(pair=pairs(), index=st.none() | st.integers(0, 9))
def test_both_tell_the_same_differences(pair, index):
    left, right = pair
    identities = ShardIdentity.from_dict(left), ShardIdentity.from_dict(right)
    assert told(explain_mismatch(*identities, shard_index=index)) == told(
        tracker.explain(left, right, shard_index=index)
    )


@st.composite
def routes(draw):
    """Shards of one small model: tiling it or not, of one recipe or not quite."""
    layer_count = draw(st.integers(1, 12))
    base = draw(blocks())
    base.pop("fingerprint", None)
    base["artifact"].update(layer_count=layer_count, derived_from=None)
    cuts = sorted({0, layer_count, *draw(st.sets(st.integers(0, layer_count), max_size=3))})
    tiles = list(pairwise(cuts))
    extra = draw(st.lists(ranges(0, layer_count), max_size=2))
    kept = [tile for tile in tiles if draw(st.integers(0, 5))]
    shards = []
    for start, end in draw(st.permutations(kept + extra)):
        block = copy.deepcopy(base)
        block.update(shard_start=start, shard_end=end)
        if not draw(st.integers(0, 3)):
            block = changes_of(draw, block)
        shards.append(block)
    if shards and not draw(st.integers(0, 3)):
        # A shard of a longer model, which may reach beyond the first shard's.
        shards[-1]["artifact"].update(layer_count=layer_count + 2, derived_from=None)
        shards[-1]["shard_end"] += 2
    return shards


def registry_in(status, identities):
    """Return a node's registry in which the first shard's recipe has this status."""
    if status is None:
        return None
    registry = RecipeRegistry()
    if identities and status in {"dark", "certified"}:
        registry.register(identities[0])
    if identities and status == "certified":
        layer_count = identities[0].artifact.layer_count
        evidence = DistributedForwardEvidence(
            route_session_id="session",
            route_epoch=0,
            node_ids=("one", "two"),
            shard_ranges=((0, layer_count), (0, layer_count)),
            tokens_generated=1,
            layer_count=layer_count,
        )
        registry.certify(identities[0], evidence)
    return registry


@settings(max_examples=300)
@given(
    route=routes(),
    status=st.sampled_from([None, "unknown", "dark", "certified"]),
    for_certification=st.booleans(),
)
def test_both_give_the_same_verdict_on_a_route(route, status, for_certification):
    identities = [ShardIdentity.from_dict(block) for block in route]
    registry = registry_in(status, identities)
    assert told(
        check_route(identities, registry=registry, for_certification=for_certification)
    ) == told(tracker.route_reasons(route, status=status, for_certification=for_certification))


@given(
    block=blocks(),
    where=st.sampled_from(["artifact.artifact_id", "recipe.runtime_version", "recipe.recipe_id"]),
)
@settings(max_examples=20)
def test_both_take_texts_of_1024_characters_and_no_longer_ones(block, where):
    part, name = where.split(".")
    block.pop("fingerprint", None)
    for length, accepted in ((1_024, True), (1_025, False)):
        longer = copy.deepcopy(block)
        longer[part][name] = "é" * length
        for ask in (ask_node, ask_tracker):
            digests, refusal = ask(longer)
            assert (digests is not None) is accepted
            assert accepted or name in str(refusal)
