"""Checks what any job needs before it is submitted: each missing thing becomes a line with its fix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from core.config import Recipe
from core.data.hub_sets import is_hub_set

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 10.0


def find_url_problem(url: str) -> str | None:
    """Say why a GET of `url` fails; None if it succeeds."""
    try:
        with urlopen(url, timeout=PATIENCE_S):  # an HTTP status of 400 or more raises
            return None
    except (URLError, OSError, ValueError) as error:
        return str(error)


def find_missing_data(recipe: Recipe) -> Iterator[str]:
    """Name each file of `data` that is not there."""
    files = {"train": recipe.data.train, "eval": recipe.data.eval if recipe.run.eval_every else None}
    for key, path in files.items():
        if path and not (REPOSITORY / path).exists() and not is_hub_set(path):
            yield f"data.{key}: no file {REPOSITORY / path}. See Data in agentic/{recipe.method}/README.md"


def find_silent_servers(recipe: Recipe, services: Mapping[str, str], served: Collection[str]) -> Iterator[str]:
    """Name each server that does not answer: `services` (key -> URL), and roles that the job does not serve itself."""
    urls = dict(services)
    for role, place in recipe.roles.items():
        if place.startswith("http") and role not in served:
            urls[f"roles.{role}"] = f"{place.rstrip('/')}/health"
    answers = {url: find_url_problem(url) for url in dict.fromkeys(urls.values())}
    for key, url in urls.items():
        if error := answers[url]:
            named = url.removesuffix("/health") if key.startswith("roles.") else url  # as the recipe does
            other = urlsplit(named)._replace(netloc="HOST:PORT").geturl()
            yield f"{key}: {url} does not answer ({error}). Start that server, or name another: --set {key}={other}"
