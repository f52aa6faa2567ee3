"""Markdown of the contract's parts, for the pages that are made from the code (`reference`).

A struct becomes a table of its members, each with its form in words, read from its JSON Schema.
"""

import inspect
import json
from typing import Any

from meshnet_events.forms import (
    DIGEST_PATTERN,
    ENDPOINT_PATTERN,
    KEY_PATTERN,
    MAX_INTEGER,
    SHARD_ID_PATTERN,
    UUID_PATTERN,
)
from meshnet_events.queries import LEAST_PREFIX, RECIPE_PATTERN

REFERENCE = "#/"
GENERATED = (
    "<!-- Generated from the package `meshnet_events`; a test compares. Do not edit here. -->\n"
)
FORMS = {
    f"^{DIGEST_PATTERN}$": "64 lower-case hex",
    f"^{UUID_PATTERN}$": "UUID in lower case",
    f"^{SHARD_ID_PATTERN}$": f"text, `{SHARD_ID_PATTERN}`",
    f"^{ENDPOINT_PATTERN}$": "`grpc://host:port` or `grpcs://host:port`",
    f"^{KEY_PATTERN}$": "NKey user public key (`U…`)",
    f"^{RECIPE_PATTERN}$": f"recipe key, or {LEAST_PREFIX} hex digits or more of it",
}
"""What a pattern asks for, in words."""


def table(*rows: tuple[str, ...]) -> str:
    """A Markdown table; the first row is its head."""
    head, *rest = (
        "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows
    )
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *rest]) + "\n"


def _range(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low in {None, -MAX_INTEGER}:
        return "integer"
    return f"integer from {low}" if high == MAX_INTEGER else f"integer from {low} to {high}"


def _form(schema: dict[str, Any]) -> str:
    """What a member must look like, in words, from its JSON Schema."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(REFERENCE)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_form(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "pattern" in schema:
        return FORMS[schema["pattern"]]
    match schema["type"]:
        case "array":
            return f"list of: {_form(schema['items'])}"
        case "integer":
            return _range(schema)
        case "string":
            if "maxLength" not in schema:
                return "text"
            least = schema.get("minLength", 0)
            return f"text of {least} to {schema['maxLength']:,} characters"
        case "boolean":
            return "`true` or `false`"
        case "object":
            return "object"
        case "null":
            return "`null`"
        case other:
            raise LookupError(f"no words for a member of JSON type {other!r}")


def members(schema: dict[str, Any]) -> str:
    """A table of an object's members; those that may be left out say what they are then."""
    rows = (
        (f"`{name}`", _form(member) + _default(member))
        for name, member in schema["properties"].items()
    )
    return table(("member", "form"), *rows)


def _default(schema: dict[str, Any]) -> str:
    return f"; `{json.dumps(schema['default'])}` when left out" if "default" in schema else ""


def doc(struct: type) -> str:
    """What a struct says of itself."""
    return inspect.getdoc(struct) or ""
