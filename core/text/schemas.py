"""This module says which values the JSON schema of a tool allows, and reads a value that was written as text.

It knows types, choices, unions and references. What a schema says about a value's parts is for the tool to check.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from core.text.tool_calls import CallError, parse_json

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
NAMING = frozenset({"properties", "additionalProperties", "allOf", "$ref", *_UNIONS})


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
    if not found and schema.get("additionalProperties") not in (None, False):
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


def read_value(text: str, schema: Any, root: Any) -> tuple[Any, bool]:
    """Read a value that was written as text; return it, and False if it fits nothing that the schema allows.

    What is written as JSON or as a Python literal is read so, if the schema allows it; other text is a string. A schema
    that says nothing means text.
    """
    if not isinstance(schema, dict) or not schema.keys() & KEYWORDS:
        return text, True
    if schema.get("type") == "string" and fits(text, schema, root):
        return text, True
    values = [value for value in _read_literals(text) if fits(value, schema, root)]
    typed = [value for value in values if not isinstance(value, str)]
    if not typed and fits(text, schema, root):
        return text, True
    return next(iter(typed or values), text), bool(values)


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


def _read_literals(text: str) -> list[Any]:
    """Return the value that a text is as JSON, or else as a literal of Python that JSON can express; none if neither.

    A key that occurs twice is neither: one of its values would be lost.
    """
    value = parse_json(text)
    if not isinstance(value, CallError):
        return [value]
    if value.kind == "duplicate_key":
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in what a model wrote
            tree = ast.parse(text.strip(), mode="eval")
            value = ast.literal_eval(tree)
        written = json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return []
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    unique = all(len({ast.dump(key) for key in node.keys if key}) == len(node.keys) for node in dicts)
    return [value] if unique and written == value else []
