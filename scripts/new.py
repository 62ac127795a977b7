"""Make the skeleton of a new method, which runs at once: a copy of agentic/skeleton under your name.

tokentrue new my_method              # agentic/my_method, in a clone of this repository
tokentrue new ./my_method            # a folder of your own, which needs no clone
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from core.config import Recipe
from core.options import make_command_parser, show_errors
from core.rollout.method import AGENTIC

SKELETON = AGENTIC / "skeleton"
ROOT = AGENTIC.parent
OWN_RUN = 'exec tokentrue run "$(dirname "${BASH_SOURCE[0]}")" "$@"\n'
"""Ends run.sh of a folder outside of this repository, which has no .venv of its own."""


@show_errors(OSError, ValueError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    folder = Path("." if "/" in options.method else AGENTIC, options.method).resolve()
    if problem := find_problem(folder):
        raise ValueError(problem)
    for path, text in render(folder).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    start = shlex.quote(str(ROOT if folder.parent == AGENTIC else folder.parent))
    print(f"made {folder}; its README begins with the commands, which start from here:\ncd {start}")
    return 0


def find_problem(folder: Path) -> str | None:
    """Return why no method can be made in `folder`, or None."""
    name = folder.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return f"METHOD {name!r} is no name of a module; write small letters, digits and _, such as my_method"
    if folder.exists():
        return f"{folder} is there already; choose another name"
    taken = iskeyword(name) or name in {*Recipe.model_fields, *dir(Recipe)} or find_spec(name)
    if taken or (AGENTIC / name).exists():
        return f"METHOD {name!r}: Python, a key of recipes, a module or another method has this name; choose another"
    if folder.parent == AGENTIC and not (ROOT / "pyproject.toml").is_file():
        return f"this tokentrue is installed and no clone; make a folder of your own: tokentrue new ./{name}"
    return None


def render(folder: Path) -> dict[Path, str]:
    """Return the files of the method in `folder`. In the repository its test goes to the others."""
    name, inside = folder.name, folder.parent == AGENTIC
    title = "".join(word.capitalize() for word in name.split("_"))
    words = {
        "agentic.skeleton": f"agentic.{name}" if inside else name,
        "agentic/skeleton": f"agentic/{name}" if inside else f"./{name}",
        "skeleton": name,
        "Skeleton": title,
    }
    files = {}
    for path in sorted(path for path in SKELETON.rglob("*") if path.suffix in (".py", ".yaml", ".md", ".sh")):
        text = path.read_text(encoding="utf-8")
        text = re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], text)
        target = folder / path.relative_to(SKELETON)
        if path.name == "run.sh" and not inside:
            text = text.partition("source ")[0] + OWN_RUN
        if path.name == "test_rollout.py" and inside:
            target = ROOT / "tests/unit/agentic" / name / path.name
        files[target] = text
    return files


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("new", __doc__)
    parser.add_argument("method", metavar="METHOD", help="a name, or the path of a folder of your own, with a /")
    return parser
