"""Gemini's ``Schema`` as JSON schema.

A ``Schema`` is OpenAPI 3.0 in protocol-buffer clothes: types in capitals, ``nullable`` beside the type, 64-bit bounds as
strings. JSON schemas proper come in fields of their own (``parametersJsonSchema``) and are used as they are.
"""

from __future__ import annotations

from typing import Any

from proxy.dialects.base import BadRequest
from proxy.dialects.gemini import proto

_DEEPEST = 64
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_ONLY_FOR_GOOGLE = frozenset({"nullable", "propertyOrdering", "example"})


def json_schema(value: Any, where: str, depth: int = 0) -> dict[str, Any]:
    """Raises BadRequest. Keywords without a conversion pass unchanged: Google takes on more of JSON schema's as time goes by."""
    if depth > _DEEPEST:
        raise BadRequest(f"'{where}' is nested deeper than {_DEEPEST} levels.", where)
    schema = proto.fields(value, where)
    found: dict[str, Any] = {}
    for key, inner in schema.items():
        if key == "type":
            found |= _type(inner, bool(schema.get("nullable")), where)
        elif key == "properties":
            named = inner if isinstance(inner, dict) else proto.fields(inner, f"{where}.properties")
            found[key] = {name: json_schema(one, f"{where}.{name}", depth + 1) for name, one in named.items()}
        elif key == "items":
            found[key] = json_schema(inner, f"{where}.items", depth + 1)
        elif key in ("anyOf", "prefixItems"):
            found[key] = [
                json_schema(one, f"{where}.{key}", depth + 1) for one in proto.items(schema, key, where)
            ]
        elif key in _COUNTS:
            found[key] = proto.integer(schema, key, where)
        elif key not in _ONLY_FOR_GOOGLE:
            found[key] = inner
    return found


def _type(value: Any, nullable: bool, where: str) -> dict[str, Any]:
    if not isinstance(value, str):
        raise proto.invalid(f"{where}.type", "the name of a type", value)
    if value == "TYPE_UNSPECIFIED":
        return {}
    return {"type": [value.lower(), "null"] if nullable else value.lower()}
