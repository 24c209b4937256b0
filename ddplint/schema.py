"""The JSON Schema of a rule file, made from the table of fields that ``ddplint.rules`` reads it against."""

from __future__ import annotations

from typing import Any

from ddplint.fields import Anything, Boolean, Either, Integer, Kind, ListOf, MapOf, Number, Table, Text
from ddplint.rules import FIELDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a rule file, for editors that complete and check TOML.

    It says all that a schema can: what is wrong between values (``low`` not below ``high``) or inside a
    glob's ``[ ]`` is left to ``ddplint check``.
    """
    return {
        "$schema": DIALECT,
        "title": "ddplint rule file",
        "description": "What a project has written down about the unused parameters of one checkpoint type.",
        **of_kind(FIELDS),
    }


def of_kind(kind: Kind) -> dict[str, Any]:
    """The JSON Schema of one kind of value."""
    match kind:
        case Text(choices=choices) if choices:
            return {"enum": list(choices)}
        case Text(pattern=pattern):
            return {"type": "string", "pattern": f"^(?:{pattern})$"} if pattern else {"type": "string"}
        case Boolean():
            return {"type": "boolean"}
        case Integer(minimum=minimum):
            return {"type": "integer"} if minimum is None else {"type": "integer", "minimum": minimum}
        case Number(positive=positive):
            return {"type": "number", "exclusiveMinimum": 0} if positive else {"type": "number"}
        case ListOf(item=item, minimum=minimum):
            return {"type": "array", "items": of_kind(item), **({"minItems": minimum} if minimum else {})}
        case MapOf(value=value, key=key):
            names = {"propertyNames": of_kind(key)} if key.pattern else {}
            return {"type": "object", "additionalProperties": of_kind(value), **names}
        case Table(fields=fields, extra=extra):
            return {
                "type": "object",
                "properties": {name: {"description": field.doc, **of_kind(field.kind)} for name, field in fields.items()},
                "required": [name for name, field in fields.items() if field.required],
                "additionalProperties": False,
                **extra,
            }
        case Either(kinds=kinds):
            return {"anyOf": [of_kind(choice) for choice in kinds]}
        case Anything():
            return {"type": ["string", "boolean", "number", "array", "object"]}
