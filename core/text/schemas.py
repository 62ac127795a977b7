"""This module says which values the JSON schema of a tool allows: by types, choices, unions and references.

What a schema says about the parts of a value is for the tool to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_UNIONS = ("anyOf", "oneOf")
KEYWORDS = frozenset({"type", "enum", "const", "allOf", "$ref", "properties", "items", *_UNIONS})
"""Lists what a schema says about a value; one with none of them says nothing."""


def find_argument(name: str, schema: Any, root: Any, seen: frozenset[str] = frozenset()) -> Any:
    """Return the schema of the argument `name` of an object with this schema; None if it names no such argument."""
    if not isinstance(schema, dict):
        return None
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    parts = [part for key in ("allOf", *_UNIONS) for part in _as_list(schema.get(key))]
    found = [each for part in parts if (each := find_argument(name, part, root, seen)) is not None]
    if isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        target = find_argument(name, _resolve(reference, root), root, seen | {reference})
        found += [] if target is None else [target]
    if not found and schema.get("additionalProperties"):
        return schema["additionalProperties"]
    return {"anyOf": found} if len(found) > 1 else next(iter(found), None)


def fits(value: Any, schema: Any, root: Any, seen: frozenset[str] = frozenset()) -> bool:
    """Return whether a schema allows a value of this type, and the value itself where it lists choices.

    An unknown type fits every value. A reference that leads nowhere, or back to itself, fits none.
    """
    if not isinstance(schema, dict):
        return schema is not False
    if value is None and schema.get("nullable") is True:
        return True
    if isinstance(reference := schema.get("$ref"), str):
        target = None if reference in seen else _resolve(reference, root)
        if target is None or not fits(value, target, root, seen | {reference}):
            return False
    if not _has_type(value, schema):
        return False
    choices = [*_as_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    # Python says that True == 1, and JSON that they differ.
    if choices and not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in choices):
        return False
    unions = [_as_list(schema[key]) for key in _UNIONS if key in schema]
    return all(fits(value, part, root, seen) for part in _as_list(schema.get("allOf"))) and all(
        any(fits(value, part, root, seen) for part in union) for union in unions
    )


def _has_type(value: Any, schema: Mapping[str, Any]) -> bool:
    """Say whether `value` has a JSON type that the schema names, one or a list; its parts name it, too."""
    named = schema.get("type") or ("object" if "properties" in schema else "array" if "items" in schema else [])
    names = [named] if isinstance(named, str) else _as_list(named)
    if not names or any(name not in _TYPES for name in map(str, names)):
        return True
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)


def _resolve(reference: str, root: Any) -> Any:
    """Return what a reference such as `#/$defs/Name` leads to within `root`; None if that is nothing."""
    if not reference.startswith("#"):
        return None
    for name in filter(None, unquote(reference[1:]).split("/")):
        if not isinstance(root, dict):
            return None
        root = root.get(name.replace("~1", "/").replace("~0", "~"))
    return root


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
