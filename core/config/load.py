"""Typed YAML presets with dotted overrides. An unknown key is an error that names the nearest known one.

`load` reads a preset, applies overrides such as `optimizer.lr=1e-5`, and checks everything before anything runs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from core.config.recipe import Recipe
from core.config.section import RecipeError

R = TypeVar("R", bound=Recipe)


def load(kind: type[R], presets: Path, preset: str, overrides: Sequence[str] = ()) -> R:
    """Read `presets`/`preset`.yaml (or the file `preset` itself), apply `key.path=value` overrides, check all.

    Raises:
        RecipeError: no such preset, broken YAML, an unknown key, or a value of the wrong type.
    """
    path = Path(preset) if preset.endswith((".yaml", ".yml")) else presets / f"{preset}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in presets.glob("*.yaml")))
        raise RecipeError(f"preset {preset!r}: no file {path}. Presets of this method: {known}")
    try:
        values = yaml.load(path.read_text(), Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: must be a mapping of sections")
    for override in overrides:
        _override(values, override)
    values["preset"] = values.get("preset", path.stem)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise RecipeError("\n".join(_explain(kind, path, problem) for problem in error.errors())) from error


def _override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator:
        raise RecipeError(f"override {override!r}: write key.path=value, such as optimizer.lr=1e-5")
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise RecipeError(f"override {override!r}: {parent} is a value, not a section")
    try:
        values[last] = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"override {override!r}: the value is not valid YAML: {error}") from error


def _explain(kind: type[BaseModel], path: Path, problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "missing":
        return f"{path}: {key}: missing; add it"
    if problem["type"] == "value_error":
        return ": ".join(part for part in (str(path), key, str(problem["ctx"]["error"])) if part)
    if problem["type"] != "extra_forbidden":
        return f"{path}: {key}: {problem['msg']} (is {problem['input']!r})"
    section: Any = kind
    for part in location[:-1]:
        if part not in section.model_fields:  # a key of a mapping or a place in a list: its section is found already
            continue
        annotation = section.model_fields[part].annotation
        section = next((arm for arm in get_args(annotation) if hasattr(arm, "model_fields")), annotation)
    known = list(section.model_fields)
    close = difflib.get_close_matches(location[-1], known, n=1)
    hint = f"did you mean {'.'.join([*location[:-1], close[0]])}?" if close else f"known keys: {', '.join(known)}"
    return f"{path}: {key}: unknown key; {hint}"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-6 as text; this reads it as the number it is."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf)$|^\.nan$"),
    list("-+0123456789."),
)
