"""JSON Schema (2020-12) and AsyncAPI 3.0 of the contract, made from the structs themselves.

`documents()` names every file and its bytes; the committed copies under `docs/reference/schemas`
are those bytes, and a test compares them. The same release always makes the same bytes.

    io.meshnet.<name>.v<n>.schema.json   `data` of one event type
    event.schema.json                    a whole message body, `data` by the event's type
    presence.schema.json                 a presence body
    query.<name>.schema.json             what a tracker is asked
    answer.<name>.schema.json            `answer` of what comes back; further members may come
    asyncapi.json                        subjects, operations and messages, with all of the above

A schema says less than the gate does: not that the body is canonical, not that `issuer`, `source`,
`realm` and the subject agree, not that a key's checksum or a signature is right, and JSON Schema
takes `1.0` for an integer. What a schema refuses, the gate refuses; the reverse does not hold.
"""

import inspect
from typing import Any

import msgspec

from meshnet_events import subjects
from meshnet_events.envelope import MAX_BODY, SIGNATURE_PATTERN, TIME_PATTERN, UUID7_PATTERN
from meshnet_events.facts import NODE_FACTS, OPERATOR_FACTS, Fact
from meshnet_events.forms import DIGEST_PATTERN, KEY_PATTERN, MAX_INTEGER
from meshnet_events.presence import MAX_PRESENCE, Presence
from meshnet_events.queries import ANSWERS, QUERIES
from meshnet_events.upcast import READABLE

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFS = "#/$defs/"
_COMPONENTS = "#/components/schemas/"


def _components(*structs: type[msgspec.Struct], at: str) -> Schema:
    """Schemas of structs and of all they are made of, by name; references point below `at`."""
    _, components = msgspec.json.schema_components(structs, ref_template=f"{at}{{name}}")
    return {name: components[name] for name in sorted(components)}


def _standing_alone(name: str, struct: type[msgspec.Struct]) -> Schema:
    """The schema of one struct as a document of its own."""
    parts = _components(struct, at=_DEFS)
    schema = {
        "$schema": _DIALECT,
        "$id": f"urn:meshnet:schema:{name}",
        **parts.pop(struct.__name__),
        "title": name,
    }
    return {**schema, "$defs": parts} if parts else schema


def _text(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^{pattern}$"}


def _closed(title: str, description: str, properties: Schema) -> Schema:
    """An object that has exactly these members."""
    return {
        "title": title,
        "description": description,
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _body() -> Schema:
    """A message body whose event may be of any known type, `data` being any object."""
    event = _closed(
        "CloudEvent",
        "A CloudEvents 1.0 event in canonical form (RFC 8785); its bytes are what is signed.",
        {
            "data": {"type": "object"},
            "id": _text(UUID7_PATTERN),
            "issuer": _text(KEY_PATTERN),
            "issuerseq": {"type": "integer", "minimum": 1, "maximum": MAX_INTEGER},
            "prev": _text(DIGEST_PATTERN),
            "realm": _text(subjects.REALM_PATTERN),
            "source": _text(f"urn:meshnet:{subjects.REALM_PATTERN}:{KEY_PATTERN}"),
            "specversion": {"const": "1.0"},
            "time": _text(TIME_PATTERN),
            "type": {"enum": sorted(READABLE)},
        },
    )
    return _closed(
        "Body",
        f"The body of one message, at most {MAX_BODY:,} bytes, spelled as "
        '{"event":E,"sig":"S"} byte for byte.',
        {"event": event, "sig": _text(SIGNATURE_PATTERN)},
    )


def _holds(type_: str, fact: type[Fact], *, at: str) -> Schema:
    """A body's `event` is of this type, and its `data` is this fact."""
    return {
        "properties": {
            "event": {
                "properties": {
                    "data": {"$ref": f"{at}{fact.__name__}"},
                    "type": {"const": type_},
                }
            }
        }
    }


def event_schema() -> Schema:
    """JSON Schema of a whole message body: exactly one type, and `data` as that type asks."""
    return {
        "$schema": _DIALECT,
        "$id": "urn:meshnet:schema:event",
        **_body(),
        "oneOf": [_holds(type_, fact, at=_DEFS) for type_, fact in sorted(READABLE.items())],
        "$defs": _components(*READABLE.values(), at=_DEFS),
    }


def fact_schemas() -> dict[str, Schema]:
    """JSON Schema of `data`, by event type, for every type that this release reads."""
    return {type_: _standing_alone(type_, fact) for type_, fact in sorted(READABLE.items())}


def presence_schema() -> Schema:
    """JSON Schema of a presence body."""
    return _standing_alone("presence", Presence)


def query_schemas() -> dict[str, Schema]:
    """JSON Schema of every query and every answer, by `query.<name>` and `answer.<name>`."""
    return {
        **{f"query.{name}": _standing_alone(f"query.{name}", of) for name, of in QUERIES.items()},
        **{f"answer.{name}": _standing_alone(f"answer.{name}", of) for name, of in ANSWERS.items()},
    }


def _message(type_: str, fact: type[Fact]) -> Schema:
    return {
        "name": type_,
        "title": fact.NAME,
        "description": inspect.getdoc(fact),
        "contentType": "application/json",
        "payload": {"allOf": [{"$ref": f"{_COMPONENTS}Body"}, _holds(type_, fact, at=_COMPONENTS)]},
    }


def _channel(address: str, description: str, messages: list[str]) -> Schema:
    return {
        "address": address,
        "description": description,
        "parameters": {
            "realm": {"description": f"The realm's name: {subjects.REALM_PATTERN}"},
            "issuer": {"description": "The NKey user public key (U…) of who signs or is alive"},
        },
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
    }


def _operation(action: str, channel: str, summary: str, messages: list[str]) -> Schema:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
    }


def asyncapi() -> Schema:
    """The AsyncAPI 3.0 document. Its version is the contract's, not the program's."""
    every = sorted(READABLE)
    by_operator = [type_ for type_ in every if READABLE[type_] in OPERATOR_FACTS]
    by_node = [type_ for type_ in every if READABLE[type_] in NODE_FACTS]
    presence = "presence"
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "meshnet events",
            "version": "1.0.0",
            "description": "Signed events of one realm, and the presence of its nodes. "
            "Canonical form, signature and chain are described in events.md.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            "events": _channel(
                subjects.event("{realm}", "{issuer}"),
                "One subject per issuer, all in the realm's one stream. Published without headers.",
                every,
            ),
            "live": _channel(
                subjects.live("{realm}", "{issuer}"),
                "The stream's republish: a wake-up, never evidence.",
                every,
            ),
            "presence": _channel(
                subjects.presence("{realm}", "{issuer}"),
                "Liveness over core NATS, unsigned and outside the log.",
                [presence],
            ),
        },
        "operations": {
            "stateOperatorFact": _operation(
                "send", "events", "An operator states a fact", by_operator
            ),
            "stateNodeFact": _operation("send", "events", "A node states a fact", by_node),
            "readEvents": _operation(
                "receive", "events", "A tracker or auditor reads the stream in order", every
            ),
            "wakeUp": _operation("receive", "live", "A reader hears that there is more", every),
            "announcePresence": _operation(
                "send", "presence", "A node says that it is alive", [presence]
            ),
            "watchPresence": _operation(
                "receive", "presence", "A tracker hears who is alive", [presence]
            ),
        },
        "components": {
            "messages": {
                **{type_: _message(type_, READABLE[type_]) for type_ in every},
                presence: {
                    "name": presence,
                    "title": presence,
                    "description": f"{Presence.__doc__} At most {MAX_PRESENCE:,} bytes.",
                    "contentType": "application/json",
                    "payload": {"$ref": f"{_COMPONENTS}{Presence.__name__}"},
                },
            },
            "schemas": {
                "Body": _body(),
                **_components(*READABLE.values(), Presence, at=_COMPONENTS),
            },
        },
    }


def _pretty(document: Schema) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def documents() -> dict[str, bytes]:
    """Every generated document: file name to bytes of indented JSON."""
    schemas = {
        **fact_schemas(),
        **query_schemas(),
        "event": event_schema(),
        "presence": presence_schema(),
    }
    return {
        **{f"{name}.schema.json": _pretty(schema) for name, schema in schemas.items()},
        "asyncapi.json": _pretty(asyncapi()),
    }
