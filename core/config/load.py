"""Loads typed YAML presets with dotted overrides such as `optimizer.lr=1e-5`, and checks all before anything runs.

An unknown key is an error that names the nearest known key. A preset that `extends` another preset of its folder holds
only what differs from it. A recipe's URLs may name services, whose addresses a file has.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from core.config.recipe import Recipe
from core.options import RecipeError, format_problem

R = TypeVar("R", bound=Recipe)

RETIRED: Mapping[str, Mapping[str, float]] = {
    "health": {"failed_share": 0.25, "cut_off": 0.95, "cut_off_rise": 0.5, "reward_drop": 0.2, "min_entropy": 0.003,
               "logprob_diff": 0.1},
    "rejection": {"epochs": 1},
}  # fmt: skip
"""Holds keys that recipes had once, which every run folder of that time names, and their defaults."""
MISSING = {"algorithm.name": "missing; add one of core/algorithms/named.py, such as grpo"}


def load(kind: type[R], presets: Path, preset: str, overrides: Sequence[str] = (), *, method: str | None = None) -> R:
    """Read `presets`/`preset`.yaml or the file `preset` itself, apply `key.path=value` overrides, and check all.

    Raises:
        RecipeError: no such preset, broken YAML, a recipe that is not for `method`, an unknown key, or a value of the
            wrong type. The message names an override as `--set`.
    """
    path = Path(preset) if preset.endswith((".yaml", ".yml")) else presets / f"{preset}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in presets.glob("*.yaml")))
        raise RecipeError(f"preset {preset!r}: no file {path}. Presets of this method: {known}")
    values = drop_retired(_read_preset(path))
    overridden = [_override(values, override) for override in overrides]
    values["preset"] = values.get("preset", path.stem)
    if method is not None and values.get("method", method) != method:
        found = values["method"]
        raise RecipeError(
            f"{path}: method is {found!r}, and this is {method!r}; run {found}, or write method: {method}"
        )
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise as_recipe_error(error, kind, path, overridden) from error


def drop_retired(config: dict[str, Any]) -> dict[str, Any]:
    """Take RETIRED keys out of a recipe that was read. One with another value stays, as an unknown key."""
    for name, gone in RETIRED.items():
        if isinstance(section := config.get(name), dict):
            config[name] = {k: v for k, v in section.items() if k not in gone or v != gone[k]}
    return config


def replace_keys(recipe: R, settings: Mapping[str, Any]) -> R:
    """Return the recipe with other values at these keys, each a section and a name: `inference.kv_tokens`."""
    for key, value in settings.items():
        section, name = key.split(".")
        changed = getattr(recipe, section).model_copy(update={name: value})
        recipe = recipe.model_copy(update={section: changed})
    return recipe


def _read_preset(path: Path) -> dict[str, Any]:
    """Read a preset over the one that it extends: each key of a section replaces the whole value there."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: must be a mapping of sections")
    base = values.pop("extends", None)
    if base is None:
        return values
    below = path.with_name(f"{base}.yaml")
    if not below.is_file():
        raise RecipeError(f"{path}: extends: no preset {below}; name a neighbour without .yaml")
    merged = _read_preset(below)
    for name, section in values.items():
        old = merged.get(name)
        merged[name] = {**old, **section} if isinstance(old, dict) and isinstance(section, dict) else section
    return merged


def read_yaml(path: Path) -> Any:
    """Read a YAML file. Raises RecipeError, which names the file, when it cannot be read."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid YAML: {error}") from error


def as_recipe_error(
    error: ValidationError, kind: type[BaseModel], path: Path, overridden: Sequence[Sequence[str]] = ()
) -> RecipeError:
    """List every mistake of the file, a line each. `overridden` are the keys that `--set` gave."""
    lines = []
    for problem in error.errors():
        location = [str(part) for part in problem["loc"]]
        source, key = _source(path, location, overridden), ".".join(location)
        parts = (source, "" if source == f"--set {key}" else key, _explain(kind, location, problem))
        lines.append(": ".join(part for part in parts if part))
    return RecipeError("\n".join(lines))


def _override(values: dict[str, Any], override: str) -> list[str]:
    """Set an override in `values` and return its key."""
    key, separator, text = override.partition("=")
    keys = key.split(".")
    if not separator or not all(keys):
        raise RecipeError(f"--set {override}: write key.path=value, such as optimizer.lr=1e-5")
    for parent in keys[:-1]:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise RecipeError(f"--set {override}: {parent} is a value, not a section")
    try:
        values[keys[-1]] = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {override}: the value is not valid YAML: {error}") from error
    return keys


def _source(path: Path, location: Sequence[str], overridden: Sequence[Sequence[str]]) -> str:
    """Name where to fix a mistake: an override of that key or of a section above, or the file."""
    for keys in overridden:
        if list(location[: len(keys)]) == list(keys):
            return f"--set {'.'.join(keys)}"
    below = [f"--set {'.'.join(keys)}" for keys in overridden if list(keys[: len(location)]) == list(location)]
    return " ".join([str(path), *(["with", ", ".join(below)] if below else [])])


def _explain(kind: type[BaseModel], location: Sequence[str], problem: Mapping[str, Any]) -> str:
    if problem["type"] == "missing":
        return MISSING.get(".".join(location), "missing; add it")
    if problem["type"] != "extra_forbidden":
        return format_problem(problem)
    sections: list[Any] = [kind]
    for part in location[:-1]:
        inner = [
            model for one in sections if (field := one.model_fields.get(part)) for model in _models(field.annotation)
        ]
        # Otherwise it is a key of a mapping, a place in a list, or the value of `kind`, by which a model is chosen.
        tagged = [one for one in sections if any(part in get_args(f.annotation) for f in one.model_fields.values())]
        sections = inner or tagged or sections
    known = list(sections[0].model_fields)
    close = difflib.get_close_matches(location[-1], known, n=1)
    hint = f"did you mean {'.'.join([*location[:-1], close[0]])}?" if close else f"known keys: {', '.join(known)}"
    return f"unknown key; {hint}"


def _models(annotation: Any) -> list[Any]:
    """Return the sections that a field's annotation names."""
    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


class _Loader(yaml.SafeLoader):
    """Reads 1e-6 and 010 as decimal numbers; YAML 1.1 has a text, and 8. 0x10 is a text. No key is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [(key.tag, key.value) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice[0][1]!r} is there twice", node.start_mark
            )
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int | str:
        text = str(self.construct_scalar(node))
        digits = text.replace("_", "")
        return int(digits) if re.fullmatch(r"[-+]?[0-9]+", digits) else text


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf)$|^\.nan$"),
    list("-+0123456789."),
)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
