"""Defines types of values that recipes and command lines share, with one wording for a wrong value."""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ParamSpec, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

P = ParamSpec("P")


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ValueError(f"{name!r} is neither auto, cpu, cuda nor cuda:N")
    return name


Device = Annotated[str, AfterValidator(_device)]
Port = Annotated[int, Field(ge=0, le=65535)]
"""Names a TCP port; 0 takes a free one."""
Share = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(ge=0, le=1)]

_WANTED = {"model_type": "must be a section, a mapping of keys", "dict_type": "must be a mapping"}


def import_by_path(path: str) -> Any:
    """Import what `package.module.name` names. Raises ValueError, which says what is not there."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(str(error)) from error


def open_later(library: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a library that imports a name of its door when somebody first asks for it.

    The door says where each name is as a type checker reads it: by imports under `if TYPE_CHECKING`.
    """
    door = sys.modules[library]
    tree = ast.parse(Path(str(door.__file__)).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    places = {alias.name: node.module for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {library!r} has no attribute {name!r}")
        vars(door)[name] = getattr(import_module(str(places[name])), name)
        return vars(door)[name]

    return find


def import_function(key: str, path: str) -> Callable[..., Any]:
    """Import package.module.function. Raises RecipeError, which names the key of the recipe, if that fails."""
    try:
        function: Callable[..., Any] = import_by_path(path)
        if not callable(function):
            raise ValueError(f"it is {function!r:.80}, which is no function")
    except Exception as error:  # a user's module fails in its own ways
        raise RecipeError(
            f"{key}: {path!r}: {error}; write package.module.function, with its folder on PYTHONPATH if it is outside "
            "of this repository"
        ) from error
    return function


def format_problem(problem: Mapping[str, Any]) -> str:
    """Say what is wrong with a value, given one of pydantic's `errors()`."""
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] == "tuple_type":
        return f"must be a list, such as [{problem['input']}]"
    return f"{_WANTED.get(problem['type'], problem['msg'])} (is {problem['input']!r})"


def argparse_type(kind: Any) -> Callable[[str], Any]:
    """Make the `type=` of an argparse option from a type of pydantic's, such as PositiveInt, FilePath or Port."""
    adapter = TypeAdapter(kind)

    def read(text: str) -> Any:
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            raise argparse.ArgumentTypeError(format_problem(error.errors()[0])) from error

    return read


def make_command_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """Make the parser of `tokentrue NAME`, whose help keeps the lines of `about`."""
    kind = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"tokentrue {name}", description=about, formatter_class=kind)


def show_errors(*kinds: type[Exception], status: int = 1) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Let a command print an error of these kinds as one line, and return `status`: its message names the fix."""

    def decorate(main: Callable[P, int]) -> Callable[P, int]:
        @wraps(main)
        def run(*arguments: P.args, **options: P.kwargs) -> int:
            try:
                return main(*arguments, **options)
            except kinds as error:
                print(f"error: {error}", file=sys.stderr)
                return status

        return run

    return decorate


EMBEDDED_ONLY = "embedded only"
"""Marks a key of a recipe, as `Annotated[T, EMBEDDED_ONLY]`, that the backends of a cluster do not have, but for verl's
`model.lora`: there it stays at its default (core/backends/checks.py)."""


FUNCTION = "function"
"""Marks a key of a recipe, as `Annotated[T, FUNCTION]`, that names a function as package.module.function."""


class RecipeError(ValueError):
    """Says that a preset or an override cannot be used; the message names file, key and fix."""


class Section(BaseModel):
    """A part of a recipe: frozen, an unknown key is an error, and keys of a nested part leave its other defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _read_keys(cls, values: Any) -> Any:
        for name, value in values.items() if isinstance(values, Mapping) else ():
            field = cls.model_fields.get(name)
            parts = value if isinstance(value, list) else [value]
            if field and any(isinstance(part, bool) for part in parts) and not _takes_truth(field.annotation):
                raise ValueError(f"{name} must be no truth value; YAML reads on, off, yes and no as such")
            if field and isinstance(field.default, BaseModel) and isinstance(value, Mapping):
                values = {**values, name: {**field.default.model_dump(exclude_unset=True), **value}}
        return values


def _takes_truth(annotation: Any) -> bool:
    return annotation in (bool, Any) or any(map(_takes_truth, get_args(annotation)))


def find_marked(section: Section, mark: str, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, value, default) of every key of a recipe that is annotated with `mark`."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if mark in field.metadata:
            yield prefix + name, value, field.default
        for inner, part in value.items() if isinstance(value, Mapping) else [("", value)]:
            if isinstance(part, Section):
                yield from find_marked(part, mark, f"{prefix}{name}.{inner}".rstrip(".") + ".")


def import_functions(recipe: Section) -> None:
    """Import every function that a recipe names. Raises RecipeError as `import_function`."""
    for key, path, _ in find_marked(recipe, FUNCTION):
        if path is not None:
            import_function(key, path)
