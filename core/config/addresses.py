"""Puts the addresses of services into the URLs of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from core.options import RecipeError


def read_addresses(field: str, path: str | None) -> Callable[[str], str]:
    """Return a function that puts an address for each `{name}` of a URL; without a file it changes nothing.

    `path` is a YAML file, name -> URL, as `tokentrue serve services` writes it, and `field` the recipe's key of it.

    Raises:
        RecipeError: the file is missing or broken; later, that it lacks a service.
    """
    if path is None:
        return lambda url: url
    try:
        addresses = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise RecipeError(
            f"{field}: {error}; start the services first: `tokentrue run METHOD` does it, and so does `tokentrue "
            "serve services FILE --logs DIR -- COMMAND`"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{path}: is no YAML ({error}); remove it and start the services again") from error
    if not isinstance(addresses, dict):
        raise RecipeError(f"{path}: must map names to URLs; remove it and start the services again")

    def fill(url: str) -> str:
        try:
            return url.format_map(addresses)
        except (KeyError, IndexError, ValueError) as error:
            names = ", ".join(addresses)
            raise RecipeError(f"{path}: no address of {error}, which {url!r} asks; it has {names}") from error

    return fill
