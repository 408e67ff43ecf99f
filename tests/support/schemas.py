"""JSON schemas of the kinds that the JSON-Schema test suite has, some of them beyond what can be constrained; written for these
tests. Strings, arrays and objects are bounded where a schema leaves room, so that a small model comes to an end."""

import itertools
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

SHORT = {"type": "string", "maxLength": 12}
SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
SCALARS: list[Schema] = [
    SHORT,
    SMALL,
    {"type": "boolean"},
    {"type": "null"},
    {"type": "number", "minimum": -1, "maximum": 1},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 8},
    {"type": "integer", "minimum": 0, "maximum": 40, "multipleOf": 5},
    {"enum": ["red", "grün", "蓝", "🟡"]},
    {"enum": [1, "1", None, True, 2.5]},
    {"const": {"a": [1, 2]}},
    {"const": 'quote " and \\ slash'},
    {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    {"type": "string", "pattern": "^(foo|bär)+$", "maxLength": 9},
    {"type": "string", "pattern": "^\\d{3}$"},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
]
#: One for each keyword that cannot be constrained; each has to be refused by name.
BEYOND: dict[str, Schema] = {
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"maxLength": 3}},
    "uniqueItems": {"type": "array", "items": SMALL, "uniqueItems": True},
    "contains": {"type": "array", "contains": SMALL},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 3}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "zork": {"type": "string", "format": "zork"},
    "look-around": {"type": "string", "pattern": "^(?!a)b$"},
    "Invalid type": {"type": "thing"},
}


def closed(properties: dict[str, Schema], required: list[str] | None = None) -> Schema:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _wrapped(a: Schema, b: Schema) -> Iterator[Schema]:
    """The ways to hold two schemas together."""
    yield closed({"first": a, "second": b})
    yield closed({"kept": a, "left out": b}, ["kept"])
    yield {"type": "array", "items": a, "minItems": 1, "maxItems": 3}
    yield {"type": "array", "prefixItems": [a, b], "minItems": 2, "maxItems": 2, "items": False}
    yield {"anyOf": [a, closed({"other": b})]}
    yield {"$ref": "#/$defs/T", "$defs": {"T": closed({"inner": {"$ref": "#/$defs/A"}}), "A": a}}
    yield {"allOf": [{"type": "object", "properties": {"a": a}, "required": ["a"]}, closed({"a": {}, "b": b}, ["b"])]}
    yield closed({"deep": closed({"er": closed({"and": {"type": "array", "items": b, "maxItems": 2}})})})
    yield {
        "type": "object",
        "patternProperties": {"^k[0-9]$": a},
        "additionalProperties": False,
        "minProperties": 0,
        "maxProperties": 2,
    }


def _recursive(leaf: Schema, limit: int) -> Schema:
    node = closed({"value": leaf, "children": {"type": "array", "items": {"$ref": "#/$defs/N"}, "maxItems": limit}})
    return {"$ref": "#/$defs/N", "$defs": {"N": node}}


def schemas() -> list[Schema]:
    """More than 300."""
    pairs = [(SCALARS[i], SCALARS[(i * 5 + 3) % len(SCALARS)]) for i in range(len(SCALARS))]
    more = [(SCALARS[(i * 2 + 1) % len(SCALARS)], SCALARS[i]) for i in range(10)]
    found = [*SCALARS, *itertools.chain.from_iterable(_wrapped(a, b) for a, b in pairs + more)]
    found += [_recursive(leaf, limit) for leaf in SCALARS[:4] for limit in (1, 2)]
    found += [
        {"enum": [f"value {i}" for i in range(20_000)]},
        {"type": "object", "maxProperties": 2, "additionalProperties": SMALL},
    ]
    return found + list(BEYOND.values())
