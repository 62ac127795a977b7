"""What the documents tell a reader to type: commands that their parsers take, and keys that a recipe has."""

from __future__ import annotations

import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentic.memagent.rollout import SPEC, MemAgent
from core.backends.slime import make_job
from tests.contract.test_fixes import ROOT, parse_command

FOLDERS = ("agentic", "benchmarks", "core", "docker", "docs")
DOCUMENTS = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
CLUSTER = ROOT / "docs" / "cluster.md"


def read_commands(document: Path) -> list[str]:
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```", document.read_text(), re.MULTILINE | re.DOTALL)
    joined = (re.sub(r" *\\\n *", " ", block) for block in blocks)  # a backslash continues a command
    return [line.strip() for block in joined for line in block.splitlines() if line.strip()]


def find_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield (document, words behind `tokentrue`), also of scripts that hand their own words to it."""
    for document in sorted(path for path in DOCUMENTS if ".venv" not in path.parts):
        for line in read_commands(document):
            if "$" in line or "..." in line:
                continue
            program, *words = shlex.split(line, comments=True) or [""]
            if program == "bash" and re.fullmatch(r"agentic/\w+/(run|evaluate)\.sh", words[0]):
                words = read_script(ROOT / words[0], words[1:])
            elif Path(program).name != "tokentrue":
                continue
            yield str(document.relative_to(ROOT)), words


def read_script(script: Path, words: list[str]) -> list[str]:
    """Return the words that a method's script hands to `tokentrue`."""
    if script.name == "run.sh":
        return ["run", script.parent.name, *words]
    ends = re.findall(r'scripts\.tokentrue (.+) "\$@"', script.read_text())
    tau2 = words[:1] == ["tau2"]
    return [*ends[0 if tau2 else -1].split(), *words[tau2:]]


FOUND = list(find_commands())


@pytest.mark.parametrize(("document", "words"), FOUND, ids=[f"{name}-{i}" for i, (name, _) in enumerate(FOUND)])
def test_a_command_of_a_document_is_taken(
    document: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in (word for word in words if Path(word).suffix in (".json", ".jsonl", ".parquet", ".txt")):
        (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / word).touch()
    assert not parse_command(words), f"{document}: tokentrue {shlex.join(words)}"


def test_the_commands_are_found() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/cluster.md"} <= {document for document, _ in FOUND}
    assert len(FOUND) > 120


def test_the_cluster_page_starts_ray_as_the_dry_run_says(tmp_path: Path) -> None:
    assert make_job(SPEC.load("seed"), tmp_path).ray.start_head in read_commands(CLUSTER)


def test_every_key_that_the_cluster_page_sets_is_a_key_of_the_recipe() -> None:
    rows = re.findall(r"^\| [^|]+ \| `([^`]+=[^`]+)`[^|]*\|$", CLUSTER.read_text(), re.MULTILINE)
    assert len(rows) > 5
    for row in rows:
        overrides = re.split(r" (?=[a-z_]+[.][a-z_.]+=)", row)
        SPEC.load("seed", [override.replace("=PATH", "=/x") for override in overrides])


def test_the_readme_shows_the_rollout_of_memagent_as_it_is() -> None:
    assert f"```python\n{textwrap.dedent(inspect.getsource(MemAgent.rollout))}```" in (ROOT / "README.md").read_text()
