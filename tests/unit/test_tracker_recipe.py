"""The tracker's reading of identity blocks: rules the vectors do not spell out, hostile input."""

import contextlib
import copy
import json
import math
import pickle
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_tracker import recipe
from meshnet_tracker.recipe import BlockError, Mismatch, derive, explain, route_reasons

MAX_INTEGER = 2**53 - 1
AXES = (
    "weight_quantization",
    "activation_dtype",
    "compute_dtype",
    "kv_dtype",
    "kv_layout",
    "tokenizer_revision",
    "architecture_adapter",
    "backend_id",
    "runtime_version",
    "boundary_schema_version",
    "protocol_schema_version",
)
LABELS = ("recipe_id", "recipe_version", "catalogue_version")
TEXT_PATHS = (
    "artifact.artifact_id",
    "artifact.revision",
    "artifact.architecture",
    *(f"recipe.{name}" for name in (*AXES, *LABELS) if not name.endswith("_schema_version")),
)
DIGEST_PATHS = (
    "artifact.content_digest",
    "artifact.architecture_digest",
    "artifact.derived_from.source_artifact_digest",
    "fingerprint.model_artifact_digest",
    "fingerprint.runtime_recipe_digest",
)
# Path and the least that is sound, other things being equal.
INTEGER_PATHS = (
    ("schema_version", 1),
    ("shard_start", 0),
    ("shard_end", 1),
    ("artifact.layer_count", 1),
    ("artifact.derived_from.shard_start", 0),
    ("artifact.derived_from.shard_end", 1),
    ("recipe.boundary_schema_version", 1),
    ("recipe.protocol_schema_version", 1),
)
OBJECT_PATHS = ("artifact", "recipe", "artifact.derived_from", "fingerprint")


def sound_block(start=2, end=5, layer_count=8):
    """A shard of a cut file, with its fingerprint: every member that a block can have is there."""
    block = {
        "schema_version": 1,
        "shard_start": start,
        "shard_end": end,
        "artifact": {
            "artifact_id": "example/toy",
            "revision": "0123abcd",
            "content_digest": "a" * 64,
            "architecture": "toy",
            "architecture_digest": "b" * 64,
            "layer_count": layer_count,
            "derived_from": {
                "source_artifact_digest": "c" * 64,
                "shard_start": 0,
                "shard_end": layer_count,
            },
        },
        "recipe": {
            **{name: f"some {name}" for name in (*AXES, *LABELS)},
            "boundary_schema_version": 1,
            "protocol_schema_version": 2,
        },
    }
    model_artifact_digest, runtime_recipe_digest = derive(block)
    block["fingerprint"] = {
        "model_artifact_digest": model_artifact_digest,
        "runtime_recipe_digest": runtime_recipe_digest,
        **{label: block["recipe"][label] for label in LABELS},
    }
    return block


def whole_block(*, start=0, end=8, layer_count=8, **axes):
    """A shard of a whole artifact that declares no fingerprint."""
    block = sound_block(start, end, layer_count)
    del block["fingerprint"]
    block["artifact"]["derived_from"] = None
    block["recipe"].update(axes)
    return block


def put(block, path, value):
    changed = copy.deepcopy(block)
    *parents, name = path.split(".")
    target = changed
    for parent in parents:
        target = target[parent]
    target[name] = value
    return changed


def drop(block, path):
    changed = copy.deepcopy(block)
    *parents, name = path.split(".")
    target = changed
    for parent in parents:
        target = target[parent]
    del target[name]
    return changed


def fault_of(block):
    with pytest.raises(BlockError) as refused:
        derive(block)
    return refused.value


def test_the_module_offers_what_the_spec_names_and_no_more():
    assert recipe.__all__ == ["BlockError", "Mismatch", "derive", "explain", "route_reasons"]


def test_the_digests_are_those_of_the_bytes_that_the_module_shows():
    block = whole_block(layer_count=2, end=2)
    artifact = (
        f'{{"body":{{"architecture":"toy","architecture_digest":"{"b" * 64}",'
        f'"layer_count":2,"source_digest":"{"a" * 64}"}},"domain":"meshnet.model-artifact.v1"}}'
    )
    axes = ",".join(f'"{a}":{json.dumps(block["recipe"][a])}' for a in sorted(AXES))
    runtime = f'{{"body":{{{axes}}},"domain":"meshnet.runtime-recipe.v1"}}'
    assert derive(block) == tuple(sha256(t.encode()).hexdigest() for t in (artifact, runtime))


def test_every_character_is_digested_as_canonical_json_spells_it():
    # Texts with every Unicode scalar value: escapes of control characters, DEL, U+2028, slash …
    everything = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)
    for at in range(0, len(everything), 1_000):
        block = whole_block(kv_layout="x" + everything[at : at + 1_000])
        body = {axis: block["recipe"][axis] for axis in AXES}
        value = {"domain": "meshnet.runtime-recipe.v1", "body": body}
        canonical = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        assert derive(block)[1] == sha256(canonical.encode()).hexdigest()


def test_text_is_digested_as_it_stands_padding_and_normal_form_included():
    spellings = ["q8", " q8", "q8\n", "Q8", "\u00e9", "e\u0301"]
    assert len({derive(whole_block(kv_dtype=text)) for text in spellings}) == len(spellings)


def test_swapping_the_values_of_any_two_axes_changes_the_recipe_digest():
    block = whole_block()
    for left in AXES:
        for right in AXES:
            swapped = copy.deepcopy(block)
            axes = swapped["recipe"]
            axes[left], axes[right] = axes[right], axes[left]
            if left.endswith("_schema_version") == right.endswith("_schema_version"):
                assert (derive(swapped)[1] == derive(block)[1]) == (left == right)


def test_neither_repository_nor_labels_nor_layers_are_part_of_the_fingerprint():
    block = whole_block()
    for path in ("artifact.artifact_id", "artifact.revision", *(f"recipe.{x}" for x in LABELS)):
        assert derive(put(block, path, "another")) == derive(block)
    assert derive(put(block, "shard_start", 7)) == derive(block)


@pytest.mark.parametrize("path", TEXT_PATHS)
@pytest.mark.parametrize(
    "value",
    [None, True, 7, 1.5, ["x"], {"x": "y"}, "", " \t\n", "\u2003", "\ud800", "x\udfff"],
    ids=ascii,
)
def test_text_must_be_text_and_say_something(path, value):
    assert fault_of(put(sound_block(), path, value)).field == path


@pytest.mark.parametrize("path", ["artifact.revision", "recipe.tokenizer_revision"])
@pytest.mark.parametrize(
    "value",
    ["main", " MAIN\n", "Head", "\u00a0latest", "TRUN\u212a", "refs/", "\trefs/pull/1"],
    ids=ascii,
)
def test_a_reference_that_moves_is_no_pin_in_any_case_or_padding(path, value):
    assert fault_of(put(sound_block(), path, value)).field == path


@pytest.mark.parametrize("value", ["mainline", "v1.0-dev", "heads/main", "a/refs/b", "0" * 40])
def test_a_revision_that_merely_contains_a_moving_name_is_a_pin(value):
    assert derive(whole_block(tokenizer_revision=value))


@pytest.mark.parametrize("path", DIGEST_PATHS)
@pytest.mark.parametrize(
    "value",
    [
        *(None, 1, ["a" * 64]),
        *("", "a" * 63, "a" * 65, "A" * 64, "g" * 64),
        *("a" * 64 + "\n", " " + "a" * 63, "\u0661" * 64, "\ud800" * 64),
    ],
    ids=ascii,
)
def test_a_digest_is_exactly_64_lowercase_hex_digits(path, value):
    assert fault_of(put(sound_block(), path, value)).field == path


@pytest.mark.parametrize(("path", "least"), INTEGER_PATHS)
def test_an_integer_is_neither_boolean_nor_float_nor_out_of_range(path, least):
    unsound = [None, True, False, "1", [1], 1.0, math.nan, math.inf, least - 1, -(10**5000)]
    for value in (*unsound, MAX_INTEGER + 1, 10**5000):
        assert fault_of(put(sound_block(), path, value)).field == path


def test_the_largest_integer_that_every_json_library_reads_is_sound():
    assert derive(whole_block(end=MAX_INTEGER, layer_count=MAX_INTEGER))
    assert derive(whole_block(protocol_schema_version=MAX_INTEGER))


@pytest.mark.parametrize("path", OBJECT_PATHS)
@pytest.mark.parametrize("value", [True, 0, "x", [], [{}]], ids=repr)
def test_an_object_must_be_an_object(path, value):
    assert fault_of(put(sound_block(), path, value)).field == path


@pytest.mark.parametrize("path", ["artifact", "recipe", "fingerprint"])
def test_only_derived_from_may_be_null(path):
    assert fault_of(put(sound_block(), path, None)).field == path
    assert derive(whole_block())


@pytest.mark.parametrize("value", [None, True, 3, "x", [], math.nan], ids=repr)
def test_a_block_must_be_an_object(value):
    assert fault_of(value).field == "block"


@pytest.mark.parametrize(
    "path",
    [
        *TEXT_PATHS,
        *DIGEST_PATHS,
        *(path for path, _ in INTEGER_PATHS),
        *(f"fingerprint.{label}" for label in LABELS),
        "artifact",
        "recipe",
    ],
)
def test_a_member_that_is_missing_is_named_not_defaulted(path):
    assert fault_of(drop(sound_block(), path)).field == path


@pytest.mark.parametrize("path", ["", *OBJECT_PATHS])
@pytest.mark.parametrize("name", ["rope_scaling", "", "\ud800", 7, None], ids=ascii)
def test_a_member_that_nobody_knows_is_refused_where_it_is(path, name):
    block = sound_block()
    target = block
    for parent in path.split(".") if path else ():
        target = target[parent]
    target[name] = 1
    assert fault_of(block).field == (path or "block")


def test_an_artifact_that_names_no_source_is_whole():
    assert derive(drop(whole_block(), "artifact.derived_from")) == derive(whole_block())


def test_a_fingerprint_need_not_be_declared():
    assert derive(drop(sound_block(), "fingerprint")) == derive(sound_block())


@pytest.mark.parametrize("name", ["model_artifact_digest", "runtime_recipe_digest"])
def test_a_declared_fingerprint_is_derived_again_and_never_believed(name):
    lie = put(sound_block(), f"fingerprint.{name}", "d" * 64)
    assert fault_of(lie).field == "fingerprint"
    for ask in (lambda: explain(lie, sound_block()), lambda: explain(sound_block(), lie)):
        with pytest.raises(BlockError, match=r"^fingerprint: "):
            ask()
    with pytest.raises(BlockError, match=r"^fingerprint: "):
        route_reasons([sound_block(), lie])


def test_labels_of_a_declared_fingerprint_are_required_and_never_compared():
    assert derive(put(sound_block(), "fingerprint.recipe_id", "another")) == derive(sound_block())
    assert fault_of(put(sound_block(), "fingerprint.recipe_id", " ")).field.startswith(
        "fingerprint"
    )


def cut_block(start, end, *, held_start, held_end):
    block = sound_block(layer_count=32)
    block["shard_start"], block["shard_end"] = start, end
    binding = block["artifact"]["derived_from"]
    binding["shard_start"], binding["shard_end"] = held_start, held_end
    return block


@pytest.mark.parametrize(
    ("shard", "held", "field"),
    [
        ((4, 4), (0, 32), "shard_end"),
        ((5, 4), (0, 32), "shard_end"),
        ((4, 33), (0, 32), "shard_end"),
        ((4, 12), (5, 32), "shard_start"),
        ((4, 12), (4, 11), "shard_end"),
        ((4, 12), (9, 9), "artifact.derived_from.shard_end"),
        ((4, 12), (12, 4), "artifact.derived_from.shard_end"),
        ((4, 12), (4, 33), "artifact.derived_from.shard_end"),
    ],
)
def test_a_shard_lies_within_its_cut_file_and_that_within_the_model(shard, held, field):
    fault = fault_of(cut_block(*shard, held_start=held[0], held_end=held[1]))
    assert fault.field == field


def test_a_shard_may_hold_exactly_its_cut_file_and_that_the_whole_model():
    assert derive(cut_block(4, 12, held_start=4, held_end=12))
    assert derive(cut_block(0, 32, held_start=0, held_end=32))


def test_a_file_is_not_cut_from_itself():
    block = put(sound_block(), "artifact.derived_from.source_artifact_digest", "a" * 64)
    assert fault_of(block).field == "artifact.derived_from.source_artifact_digest"


def test_a_message_says_what_was_found_and_expected_and_repeats_no_text():
    secret = "sk-hunter2"
    for path in (*TEXT_PATHS, *DIGEST_PATHS):
        assert secret not in str(fault_of(put(sound_block(), path, [secret])))
        assert secret not in str(fault_of(put(sound_block(), path, secret + "\ud800")))
    assert secret not in str(fault_of({**sound_block(), secret: secret}))
    assert str(fault_of(put(sound_block(), "shard_end", 9))) == (
        "shard_end: expected at most 8, found 9"
    )
    assert str(fault_of(put(sound_block(), "recipe.kv_dtype", None))) == (
        "recipe.kv_dtype: expected text, found null"
    )


def test_a_fault_survives_a_process_boundary():
    fault = BlockError("shard_end", "expected at most 8, found 9")
    copied = pickle.loads(pickle.dumps(fault))
    assert (copied.field, copied.message, str(copied)) == (fault.field, fault.message, str(fault))


def test_deriving_leaves_the_block_as_it_was():
    block = sound_block()
    before = copy.deepcopy(block)
    derive(block)
    assert block == before


def test_every_difference_is_told_even_two_of_one_reason():
    left = whole_block(kv_dtype="f16", kv_layout="NHD", backend_id="one")
    right = whole_block(kv_dtype="q8_0", kv_layout="HND", backend_id="two")
    assert explain(left, right) == (
        Mismatch("cache-layout", "kv_dtype is 'q8_0', expected 'f16'"),
        Mismatch("cache-layout", "kv_layout is 'HND', expected 'NHD'"),
        Mismatch("backend", "backend_id is 'two', expected 'one'"),
    )


def test_artifact_differences_come_before_axes_in_the_order_of_the_spec():
    left = whole_block()
    right = whole_block(layer_count=9, **dict.fromkeys(AXES[:-2], "x"))
    right["recipe"].update(boundary_schema_version=5, protocol_schema_version=5)
    right["artifact"].update(
        content_digest="e" * 64, architecture="y", architecture_digest="f" * 64
    )
    named = [mismatch.detail.split()[0] for mismatch in explain(left, right)]
    artifact = ["source_digest", "architecture", "architecture_digest", "layer_count"]
    assert named == [*artifact, *AXES]


def test_a_cut_file_is_compared_by_its_source():
    cut = sound_block()  # cut from "c" * 64
    assert [m.reason for m in explain(whole_block(), cut)] == ["artifact"]
    assert explain(put(whole_block(), "artifact.content_digest", "c" * 64), cut) == ()


def test_a_detail_is_one_short_line_whatever_the_values_hold():
    hostile = "\x1b[2J\n\u202e" * 150
    (mismatch,) = explain(whole_block(), whole_block(backend_id=hostile))
    assert mismatch.detail.isprintable()
    assert len(mismatch.detail) < 1024


def layers(*ranges, layer_count=8):
    return [whole_block(start=s, end=e, layer_count=layer_count) for s, e in ranges]


@pytest.mark.parametrize(
    ("ranges", "detail"),
    [
        ([(1, 8)], "no shard holds layers [0, 1)"),
        ([(0, 7)], "no shard holds layers [7, 8)"),
        ([(0, 2), (5, 8)], "no shard holds layers [2, 5)"),
        (
            [(6, 7), (1, 2), (3, 4)],
            "; ".join(f"no shard holds layers [{a})" for a in ("0, 1", "2, 3", "4, 6", "7, 8")),
        ),
    ],
)
def test_a_route_with_holes_is_refused_once_and_every_hole_is_named(ranges, detail):
    assert route_reasons(layers(*ranges)) == (Mismatch("range", detail),)


@pytest.mark.parametrize(
    "ranges", [[(0, 8)], [(4, 8), (0, 4)], [(0, 5), (3, 8)], [(0, 8), (2, 3)], [(0, 8), (0, 8)]]
)
def test_overlapping_nested_and_shuffled_shards_cover_the_model(ranges):
    assert route_reasons(layers(*ranges)) == ()


def test_layers_beyond_the_first_shards_model_are_named():
    longer = whole_block(start=4, end=10, layer_count=10)
    far = whole_block(start=9, end=10, layer_count=10)
    assert route_reasons([*layers((0, 4)), longer]) == (
        Mismatch("artifact", "layer_count is 10, expected 8", 1),
        Mismatch("range", "layers [8, 10) are beyond the last"),
    )
    assert route_reasons([*layers((0, 4)), far])[1].detail == (
        "no shard holds layers [4, 8); layers [8, 10) are beyond the last"
    )


def test_every_shard_is_compared_with_the_first_and_reasons_come_by_index():
    route = layers((0, 2), (2, 4), (4, 6), (6, 7))
    route[3]["recipe"]["kv_dtype"] = "other"
    route[1]["recipe"]["backend_id"] = "other"
    reasons = route_reasons(route, status="dark")
    assert [(m.reason, m.shard_index) for m in reasons] == [
        ("backend", 1),
        ("cache-layout", 3),
        ("range", None),
        ("uncertified", None),
    ]


@pytest.mark.parametrize(
    ("status", "serves", "certifies"),
    [
        (None, True, True),
        ("certified", True, True),
        ("dark", False, True),
        ("unknown", False, False),
        ("revoked", False, False),
        ("certifed", False, False),  # a status that nobody knows fails closed
    ],
)
def test_a_status_lets_pass_what_it_should(status, serves, certifies):
    route = layers((0, 8))
    refusal = ["uncertified"]
    for for_certification, passes in ((False, serves), (True, certifies)):
        reasons = route_reasons(route, status=status, for_certification=for_certification)
        assert [m.reason for m in reasons] == ([] if passes else refusal)


def test_an_empty_route_is_refused_for_its_range_alone():
    for status in (None, "unknown", "dark", "certified", "revoked"):
        assert [m.reason for m in route_reasons([], status=status)] == ["range"]


def test_a_route_with_an_unsound_block_raises_rather_than_passing_over_it():
    with pytest.raises(BlockError, match=r"^artifact\.revision: "):
        route_reasons([*layers((0, 8)), put(whole_block(), "artifact.revision", "main")])


JSON_ISH = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))  # lone surrogates too
    | st.sampled_from([2**53, -(2**53), "a" * 64, b"bytes", {1, 2}, object()]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=())) | st.integers() | st.none(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
PLACES = sorted(
    {
        *TEXT_PATHS,
        *DIGEST_PATHS,
        *OBJECT_PATHS,
        *(path for path, _ in INTEGER_PATHS),
        *(f"{path}.unheard_of" for path in OBJECT_PATHS),
        "unheard_of",
    }
)


@given(value=JSON_ISH)
def test_no_value_instead_of_a_block_raises_anything_but_a_block_error(value):
    fault = fault_of(value)
    assert fault.field
    assert str(fault).isprintable()


@given(changes=st.dictionaries(st.sampled_from(PLACES), JSON_ISH, min_size=1, max_size=4))
def test_no_value_anywhere_in_a_block_raises_anything_but_a_block_error(changes):
    block = sound_block()
    # Deepest first, so that an object is replaced after its members were.
    for path in sorted(changes, key=lambda path: -path.count(".")):
        block = put(block, path, changes[path])
    for ask in (derive, lambda b: explain(b, b), lambda b: route_reasons([b], status="dark")):
        with contextlib.suppress(BlockError):
            ask(block)


@pytest.mark.parametrize("path", PLACES)
def test_a_value_nested_past_any_stack_is_refused_like_any_other(path):
    value = "x"
    for level in range(100_000):
        value = [value] if level % 2 else {"x": value}
    block = sound_block()
    target = block
    *parents, name = path.split(".")
    for parent in parents:
        target = target[parent]
    target[name] = value
    assert fault_of(block).field
