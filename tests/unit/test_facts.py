"""The facts keep their own rules, and what was once written stays readable."""

import inspect
import json
import re
from typing import get_args

import msgspec
import pytest

import golden
from crafted import REALM, judge
from meshnet_events import facts, forms, subjects
from meshnet_events.envelope import canonical
from meshnet_events.facts import FACTS, NODE_FACTS, OPERATOR_FACTS, ShardRegistered
from meshnet_events.presence import Presence
from meshnet_events.screened import Event
from meshnet_events.upcast import READABLE

STRUCTS = [
    kind
    for _, kind in inspect.getmembers(facts, inspect.isclass)
    if issubclass(kind, msgspec.Struct) and kind.__module__ == facts.__name__
]
EXPECTED = {**golden.FACTS, **golden.RETIRED}


@pytest.mark.parametrize("kind", [*STRUCTS, Presence])
def test_every_struct_is_frozen_closed_and_declared_in_alphabetical_order(kind):
    config = kind.__struct_config__
    assert config.frozen
    assert config.forbid_unknown_fields
    assert list(kind.__struct_fields__) == sorted(kind.__struct_fields__)
    assert kind.__struct_encode_fields__ == kind.__struct_fields__
    assert kind.__struct_defaults__ == ()


@pytest.mark.parametrize("kind", READABLE.values(), ids=list(READABLE))
def test_no_member_is_a_float_or_of_any_type(kind):
    def walk(node: object) -> None:
        assert not isinstance(node, msgspec.inspect.FloatType | msgspec.inspect.AnyType)
        for name in ("fields", "types"):
            for part in getattr(node, name, ()):
                walk(part.type if name == "fields" else part)
        if (item := getattr(node, "item_type", None)) is not None:
            walk(item)

    for field in msgspec.inspect.type_info(kind).fields:
        if kind is not ShardRegistered or field.name != "identity":
            walk(field.type)


def test_only_a_registration_keeps_bytes_as_they_came():
    # the fast path proves those bytes apart, for this type alone
    holders = [
        kind
        for kind in [*STRUCTS, *READABLE.values()]
        if any(
            member.type is msgspec.Raw or "Raw" in str(member.type)
            for member in msgspec.structs.fields(kind)
        )
    ]
    assert set(holders) == {ShardRegistered}


def test_every_fact_is_stated_by_operators_or_by_nodes_and_named_once():
    assert not set(OPERATOR_FACTS) & set(NODE_FACTS)
    assert set(FACTS.values()) == {*OPERATOR_FACTS, *NODE_FACTS}
    assert len(FACTS) == len(OPERATOR_FACTS) + len(NODE_FACTS)
    for name in FACTS:
        assert re.fullmatch(r"io\.meshnet\.[a-z]+\.[a-z]+\.v1", name)


def test_every_readable_type_has_a_golden_file_and_no_file_lacks_a_type():
    files = {path.name.removesuffix(".json") for path in golden.FOLDER.iterdir()}
    assert files == set(READABLE) == set(EXPECTED)


@pytest.mark.parametrize("type_", EXPECTED)
def test_a_golden_file_still_passes_the_gate_as_the_fact_it_was(type_):
    body = (golden.FOLDER / f"{type_}.json").read_bytes()
    fact = EXPECTED[type_]
    event = judge(body, subjects.event(REALM, golden.issuer(fact).public))
    assert isinstance(event, Event)
    assert event.type == type_
    assert event.data == fact


@pytest.mark.parametrize("type_", golden.FACTS)
def test_a_fact_is_still_written_as_its_golden_file(type_):
    assert (
        golden.signed(type_, golden.FACTS[type_]) == (golden.FOLDER / f"{type_}.json").read_bytes()
    )


@pytest.mark.parametrize("type_", golden.FACTS)
def test_order_of_declaration_is_canonical_form(type_):
    fact = golden.FACTS[type_]
    assert msgspec.json.encode(fact) == canonical(fact)


FORMS = {
    "digest": (
        re.compile(r"[0-9a-f]{64}"),
        ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "h" * 64, "?" * 64, "é" * 64, "a" * 63 + "\n"],
    ),
    "uuid": (
        re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        [
            golden.BOOT.upper(),
            golden.BOOT[:-1],
            golden.BOOT + "0",
            "h" + golden.BOOT[1:],
            golden.BOOT[:-1] + "?",
            golden.BOOT.replace("-", "0"),
            golden.BOOT[1:9] + golden.BOOT[0] + golden.BOOT[9:],
        ],
    ),
}


def texts_in(value, path=()):
    """Every text in a fact, by its path; what may be of any form is left out."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in ("identity", "presented"):
                yield from texts_in(one, (*path, key))


def with_text(value, path, text):
    """A copy with another text at `path`."""
    if not path:
        return text
    changed = value.copy()
    changed[path[0]] = with_text(value[path[0]], path[1:], text)
    return changed


@pytest.mark.parametrize("form", FORMS)
def test_a_digest_or_uuid_of_another_form_is_refused_wherever_it_stands(form):
    pattern, others = FORMS[form]
    tried = 0
    for fact in golden.FACTS.values():
        told = json.loads(canonical(fact))
        for path, text in texts_in(told):
            for other in others if pattern.fullmatch(text) else ():
                tried += 1
                with pytest.raises(msgspec.ValidationError):
                    msgspec.json.decode(canonical(with_text(told, path, other)), type=type(fact))
    assert tried > 10 * len(others) if form == "digest" else tried >= 6 * len(others)


def test_two_texts_of_wrong_lengths_do_not_make_up_for_one_another():
    fact = golden.FACTS["io.meshnet.handshake.completed.v1"]
    longer, shorter = fact.boot_id + fact.peer_boot_id[0], fact.peer_boot_id[1:]
    changed = msgspec.structs.replace(fact, boot_id=longer, peer_boot_id=shorter)
    with pytest.raises(msgspec.ValidationError, match="boot_id"):
        msgspec.json.decode(canonical(changed), type=type(fact))


def test_a_policy_below_the_least_says_which_member():
    assert facts.DEFAULT_POLICY.fault() is None
    for member, value in (
        ("min_certifying_nodes", 1),
        ("min_distinct_hosts", 0),
        ("min_distinct_groups", 0),
        ("max_report_age_ms", -1),
        ("max_clock_skew_ms", -1),
    ):
        lax = msgspec.structs.replace(facts.DEFAULT_POLICY, **{member: value})
        assert member in (lax.fault() or "")


def test_a_recipe_key_is_the_digest_of_both_digests():
    assert facts.recipe_key(golden.ARTIFACT, golden.RECIPE) == (
        golden.digest(f"{golden.ARTIFACT}:{golden.RECIPE}")
    )


# of the right length, so that only the form is wrong
MISSHAPEN = {
    forms.Digest: "G" * 64,
    forms.Endpoint: "http://host:9000",
    forms.JsonObject: [],
    forms.PublicKey: "U" * 56,
    forms.ShardId: "Main",
    forms.Uuid: golden.BOOT.upper(),
}


def misshapen(value, kind):
    """Path and JSON of every way to put one member of `value` out of its form."""
    if isinstance(value, msgspec.Struct):
        told = json.loads(msgspec.json.encode(value))
        for member in msgspec.structs.fields(value):
            for path, wrong in misshapen(getattr(value, member.name), member.type):
                yield f".{member.name}{path}", {**told, member.name: wrong}
    elif isinstance(value, tuple):
        told = json.loads(msgspec.json.encode(value))
        for index, one in enumerate(value):
            for path, wrong in misshapen(one, get_args(kind)[0]):
                yield f"[{index}]{path}", [*told[:index], wrong, *told[index + 1 :]]
    for form, wrong in MISSHAPEN.items():
        if kind == form:
            yield "", wrong


WRONG = [
    pytest.param(type_, path.lstrip("."), data, id=f"{fact.NAME}{path}")
    for type_, fact in golden.FACTS.items()
    for path, data in misshapen(fact, type(fact))
]


def test_the_forms_are_those_that_the_schema_states():
    stated = {
        name
        for name, kind in vars(forms).items()
        if any(
            isinstance(meta, msgspec.Meta) and meta.extra_json_schema for meta in get_args(kind)[1:]
        )
    }
    assert {name for name in stated if getattr(forms, name) in list(MISSHAPEN)} == stated
    assert len(stated) == len(MISSHAPEN)


@pytest.mark.parametrize(("type_", "path", "data"), WRONG)
def test_a_member_of_another_form_is_refused_and_named_however_deep_it_stands(type_, path, data):
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(msgspec.json.encode(data), type=FACTS[type_])
    assert str(refused.value).startswith(f"{path}: expected ")
