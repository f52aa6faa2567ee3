"""The generated documents: committed as generated, and of one mind with the gate."""

import copy
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema import Draft7Validator, Draft202012Validator

import golden
from crafted import REALM, seal, verdict
from meshnet_events import subjects
from meshnet_events.envelope import canonical
from meshnet_events.facts import DEFAULT_POLICY
from meshnet_events.presence import Presence, decode_presence
from meshnet_events.reasons import MEANING
from meshnet_events.reference import EXAMPLE_REALM, example, pages
from meshnet_events.schema import (
    asyncapi,
    documents,
    event_schema,
    fact_schemas,
    presence_schema,
    query_schemas,
)
from meshnet_events.upcast import READABLE

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
# The AsyncAPI Initiative's own schema (its package of specifications, 6.11.1; Apache-2.0), unchanged
OFFICIAL = ROOT / "tests" / "data" / "asyncapi-3.0.0.schema.json.gz"

BODIES = {path.stem: path.read_bytes() for path in golden.FOLDER.iterdir()}
EVENT_SCHEMA = Draft202012Validator(event_schema())
FACT_SCHEMAS = {type_: Draft202012Validator(schema) for type_, schema in fact_schemas().items()}
ASYNCAPI = asyncapi()


def walk(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every place of a JSON value with what is there."""
    yield path, node
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, value in items:
        yield from walk(value, (*path, key))


def changed(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """A copy of a JSON value with another value at `path`."""
    result = copy.deepcopy(value)
    place = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = other
    return result


# -- drift ---------------------------------------------------------------------------------------


def test_the_committed_schemas_are_those_generated_and_no_others():
    committed = {path.name: path.read_bytes() for path in (REFERENCE / "schemas").iterdir()}
    generated = documents()
    assert sorted(committed) == sorted(generated)
    assert [name for name in generated if committed[name] != generated[name]] == []


@pytest.mark.parametrize("name", pages())
def test_the_committed_pages_are_those_generated(name):
    assert (REFERENCE / name).read_text(encoding="utf-8") == pages()[name]


def test_generating_twice_gives_the_same_bytes():
    assert documents() == documents()
    assert pages() == pages()


# -- JSON Schema ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in documents() if name.endswith(".schema.json")])
def test_every_schema_is_valid_json_schema_2020_12(name):
    schema = json.loads(documents()[name])
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


def test_every_readable_type_has_a_schema_file():
    facts = {name for name in documents() if name.startswith("io.meshnet.")}
    assert facts == {f"{type_}.schema.json" for type_ in READABLE}


QUERY_SCHEMAS = query_schemas()


@pytest.mark.parametrize(
    "name", [name for name in documents() if name.removesuffix(".schema.json") not in QUERY_SCHEMAS]
)
def test_every_object_with_members_refuses_others_and_asks_for_all(name):
    for path, node in walk(json.loads(documents()[name])):
        if isinstance(node, dict) and node.get("type") == "object" and "properties" in node:
            assert node["additionalProperties"] is False, path
            assert sorted(node["required"]) == sorted(node["properties"]), path


@pytest.mark.parametrize("name", QUERY_SCHEMAS)
def test_a_query_refuses_other_members_and_an_answer_may_learn_to_say_more(name):
    schema = QUERY_SCHEMAS[name]
    if name.startswith("query."):
        assert schema["additionalProperties"] is False
        assert set(schema["properties"]) - set(schema["required"]) <= {"min_sequence", "exclude"}
    else:
        assert "additionalProperties" not in schema
        assert set(schema["properties"]) - set(schema["required"]) <= {
            "head_sequence",
            "max_clock_skew_ms",
            "max_report_age_ms",
            "shards",
        }


@pytest.mark.parametrize("name", documents())
def test_every_reference_resolves_within_its_document(name):
    document = json.loads(documents()[name])
    for path, node in walk(document):
        if isinstance(node, dict) and "$ref" in node:
            assert node["$ref"].startswith("#/"), path
            place = document
            for step in node["$ref"][2:].split("/"):
                place = place[step]
            assert isinstance(place, dict)


@pytest.mark.parametrize("type_", BODIES)
def test_a_golden_event_is_valid_under_its_schemas(type_):
    body = json.loads(BODIES[type_])
    FACT_SCHEMAS[type_].validate(body["event"]["data"])
    EVENT_SCHEMA.validate(body)


OTHERS = [None, True, 0, -1, 2**53 - 1, "", "x", "x" * 1025, "a" * 64, [], {}, [None], {"x": 1}]


@pytest.mark.parametrize("type_", BODIES)
def test_schema_and_gate_agree_on_every_changed_member(type_):
    event = json.loads(BODIES[type_])["event"]
    key = golden.issuer({**golden.FACTS, **golden.RETIRED}[type_])
    subject = subjects.event(REALM, key.public)
    data = event["data"]
    candidates = []
    for path, node in walk(data):
        if "identity" in path[:1]:
            continue
        if path:
            candidates += [changed(data, path, other) for other in OTHERS]
        if isinstance(node, dict):
            candidates.append(changed(data, (*path, "colour"), "red"))
            for name in node:
                less = changed(data, (*path, name), None)
                place = less
                for step in path:
                    place = place[step]
                del place[name]
                candidates.append(less)
    verdicts = set()
    for candidate in candidates:
        told = verdict(seal(canonical({**event, "data": candidate}), key), subject)
        assert FACT_SCHEMAS[type_].is_valid(candidate) == (told == "good"), candidate
        verdicts.add(told)
    assert verdicts == {"good", "bad-shape"}


@pytest.mark.parametrize("type_", BODIES)
def test_the_event_schema_holds_data_to_its_type(type_):
    body = json.loads(BODIES[type_])
    for other in BODIES:
        told = changed(body, ("event", "type"), other)
        same_shape = FACT_SCHEMAS[other].is_valid(body["event"]["data"])
        assert EVENT_SCHEMA.is_valid(told) == same_shape
    assert not EVENT_SCHEMA.is_valid(changed(body, ("event", "type"), "io.meshnet.x.y.v1"))


@pytest.mark.parametrize("name", ["data", "id", "issuer", "issuerseq", "prev", "realm", "source",
                                  "specversion", "time", "type"])  # fmt: skip
def test_the_event_schema_refuses_a_missing_or_mistyped_member(name):
    body = json.loads(BODIES["io.meshnet.shard.withdrawn.v1"])
    for other in (None, True, 0, "", [], "X"):
        assert not EVENT_SCHEMA.is_valid(changed(body, ("event", name), other))
    del body["event"][name]
    assert not EVENT_SCHEMA.is_valid(body)


def test_the_event_schema_refuses_other_members_and_signatures():
    body = json.loads(BODIES["io.meshnet.shard.withdrawn.v1"])
    for told in (
        {**body, "more": 1},
        {**body, "event": {**body["event"], "more": 1}},
        {**body, "sig": body["sig"] + "=="},
        {**body, "sig": body["sig"][:-1] + "B"},
        {"event": body["event"]},
    ):
        assert not EVENT_SCHEMA.is_valid(told)


def test_a_keys_checksum_is_beyond_a_schema_but_not_beyond_the_gate():
    event = json.loads(BODIES["io.meshnet.node.suspended.v1"])["event"]
    event["data"]["node"] = "U" * 56
    FACT_SCHEMAS[event["type"]].validate(event["data"])
    key = golden.OPERATOR
    told = verdict(seal(canonical(event), key), subjects.event(REALM, key.public))
    assert told == "bad-shape"


def test_schema_and_reader_agree_on_presence():
    schema = Draft202012Validator(presence_schema())
    told = {"boot_id": golden.BOOT, "load": 7, "shards": ["main"]}
    assert decode_presence(canonical(told)) == Presence(
        boot_id=golden.BOOT, load=7, shards=("main",)
    )
    schema.validate(told)
    for name in told:
        for other in (*OTHERS, ["main", "Main"], 1000, 1001):
            candidate = {**told, name: other}
            read = decode_presence(canonical(candidate)) is not None
            assert schema.is_valid(candidate) == read, candidate
    assert not schema.is_valid({**told, "more": 1})


# -- AsyncAPI ------------------------------------------------------------------------------------


def test_the_asyncapi_document_is_valid_under_the_official_schema():
    official = json.loads(gzip.decompress(OFFICIAL.read_bytes()))
    validator = jsonschema.validators.validator_for(official)(official)
    validator.validate(ASYNCAPI)
    for path in (("operations", "wakeUp", "action"), ("components", "messages", "presence")):
        assert not validator.is_valid(changed(ASYNCAPI, path, "x"))


def test_addresses_are_the_subjects_and_their_parameters_are_declared():
    channels = ASYNCAPI["channels"]
    assert {name: channel["address"] for name, channel in channels.items()} == {
        "events": "mesh.{realm}.evt.{issuer}",
        "live": "mesh.{realm}.live.{issuer}",
        "presence": "mesh.{realm}.presence.{issuer}",
    }
    for channel in channels.values():
        assert set(re.findall(r"\{(\w+)\}", channel["address"])) == set(channel["parameters"])


def test_every_operation_names_messages_of_its_own_channel():
    for operation in ASYNCAPI["operations"].values():
        assert operation["messages"]
        for message in operation["messages"]:
            assert message["$ref"].startswith(operation["channel"]["$ref"] + "/messages/")


def test_every_type_is_stated_by_somebody_and_read():
    def messages(name):
        return {ref["$ref"].rsplit("/", 1)[1] for ref in ASYNCAPI["operations"][name]["messages"]}

    stated = messages("stateOperatorFact") | messages("stateNodeFact")
    assert stated == set(golden.FACTS)
    assert messages("readEvents") == messages("wakeUp") == set(READABLE)
    assert not messages("stateOperatorFact") & messages("stateNodeFact")


@pytest.mark.parametrize("type_", BODIES)
def test_a_golden_body_is_the_payload_of_its_message_and_of_no_other(type_):
    # without a `schemaFormat`, a payload is read as a superset of draft 7
    body = json.loads(BODIES[type_])
    for other in BODIES:
        payload = {"$ref": f"#/components/messages/{other}/payload"}
        validator = Draft7Validator({"allOf": [payload], "components": ASYNCAPI["components"]})
        assert validator.is_valid(body) == (other == type_)


# -- pages ---------------------------------------------------------------------------------------


def test_the_worked_example_is_the_golden_file_of_its_type():
    assert example().body == BODIES["io.meshnet.node.suspended.v1"]
    assert EXAMPLE_REALM == REALM
    page = pages()["events.md"]
    assert example().body.decode() in page
    assert example().head.digest in page


def test_the_page_of_events_has_every_type_and_every_member():
    page = pages()["events.md"]
    for type_, schema in fact_schemas().items():
        section = page.split(f"### `{type_}`\n")[1].split("\n#")[0]
        for member in schema["properties"]:
            assert f"| `{member}` |" in section
    for link in re.findall(r"\]\(#([a-z]+)\)", page):
        assert f"\n### {link}\n" in page.lower()
    for member in DEFAULT_POLICY.__struct_fields__:
        assert f"| `{member}` |" in page


def test_the_page_of_reasons_has_every_code_with_its_meaning():
    page = pages()["reasons.md"]
    for code, meaning in MEANING.items():
        assert f"| `{code}` | {meaning} |" in page
