"""The README of each library: its examples run, it has every public name, and it is at most a page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from core.engine import Engine
from core.runs.run_folder import RunFolder
from core.types import Sampling
from core.worlds import World, start_model
from scripts import tokentrue
from tests.contract.test_import_rules import LIBRARIES, ROOT, read_door

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
A_PAGE = 75
README = {library: ROOT / library.replace(".", "/") / "README.md" for library in LIBRARIES if library.count(".") == 1}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the examples name: a model, a batch that TRL has sampled, and a run."""
    folder = tmp_path_factory.mktemp("reader")
    words = "the sea is two and are blue four".split()
    tokenizer = World(corpus=lambda: [" " + " ".join(words)] * 9, words=words, vocab_size=400).train_tokenizer()
    start_model.build(folder / MODEL, tokenizer, seed=0)
    prompt = tokenizer.encode(" the sea is")
    [completion] = Engine.from_pretrained(folder / MODEL).generate([prompt], Sampling(max_new_tokens=4))
    ids = {"prompt_ids": prompt, "completion_ids": completion.token_ids}
    batch = {name: torch.tensor([values]) for name, values in ids.items()}
    batch |= {name.replace("ids", "mask"): torch.ones_like(values) for name, values in batch.items()}
    torch.save({**batch, "sampling_per_token_logps": torch.tensor([completion.logprobs])}, folder / "rollouts.pt")
    RunFolder.create(folder / "runs/memagent-tiny", {"method": "memagent", "preset": "tiny"})
    return folder


@pytest.mark.parametrize("library", README)
def test_the_examples_of_a_readme_run(library: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", README[library].read_text(), flags=re.MULTILINE | re.DOTALL)
    assert blocks, "a library shows how it is used"
    names = {"__name__": "example"}
    for language, text in blocks:
        if language == "python":
            exec(compile(text, str(README[library]), "exec"), names)
        for line in text.splitlines() if language == "bash" else ():
            command, *words = shlex.split(line)
            assert (command, tokentrue.main(words)) == ("tokentrue", 0)


@pytest.mark.parametrize("library", README)
def test_a_readme_is_a_page_with_every_public_name(library: str) -> None:
    text = README[library].read_text()
    assert len(text.splitlines()) <= A_PAGE
    inner = [other for other in LIBRARIES if other.startswith(f"{library}.")]
    public = read_door(library).union(*map(read_door, inner))
    named = re.findall(r"`([^`\n]+)`", text.partition("## Public names")[2])
    assert sorted(public - set(re.findall(r"\w+", " ".join(named)))) == []
    for heading in ("## What it promises", "## Public names", "## What it never ran on"):
        assert heading in text


def test_the_readme_of_core_has_a_line_for_each_package_and_file() -> None:
    tree = (ROOT / "core/README.md").read_text().split("```")[1]
    parts = [path.name for path in (ROOT / "core").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    named = set(re.findall(r"[\w.]+", tree))
    assert sorted(set(parts) - named - {"__init__.py"}) == []
    assert sorted(name for name in named - set(parts) if name.endswith(".py")) == []
