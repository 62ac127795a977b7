"""Write prompts.json: the hashes of the published prompts, rendered from checkouts of their repositories.

python -m tests.golden.prompts.make_golden FOLDER    # has OWNER/NAME or a snapshot OWNER+NAME/repo for each
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from tests.golden.prompts.upstream import SOURCES, Source

GOLDEN = Path(__file__).with_name("prompts.json")


def read_upstream(folder: Path, source: Source) -> str:
    """Return the text of a source's file at its commit.

    Raises:
        FileNotFoundError: the folder has no checkout of the repository with that commit.
    """
    repository, commit = source.origin
    places = (folder / repository, folder / repository.replace("/", "+") / "repo")
    place = next((place for place in places if place.is_dir()), None)
    command = ["git", "-C", str(place), "show", f"{commit}:{source.file}"]
    shown = None if place is None else subprocess.run(command, capture_output=True, check=False)
    if shown is None or shown.returncode:
        raise FileNotFoundError(f"{folder} has no checkout of {repository} with commit {commit}")
    return shown.stdout.decode()


def describe(source: Source, text: str) -> dict[str, object]:
    """Return what prompts.json says about a rendered prompt."""
    repository, commit = source.origin
    return {
        "repository": repository,
        "commit": commit,
        "file": source.file,
        "line": source.line,
        "characters": len(text),
        "sha256": digest(text),
    }


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main(folder: str) -> None:
    found = {
        source.name: describe(source, source.render(read_upstream(Path(folder), source), source.line))
        for source in SOURCES
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in found.items())
    GOLDEN.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
