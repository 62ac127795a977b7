"""An evaluator that is killed at random moments and started again repeats no sample and gives the same tables."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentic.memagent.world import WORLD
from benchmarks.ruler.generate import generate
from benchmarks.ruler.niah import Niah
from core.data import write_jsonl
from core.report import write_report
from core.runs.evaluation import EvalResult
from core.runs.files import read_batches, read_json
from core.runs.record import read_rollouts
from core.runs.run_folder import RunFolder
from core.text.tokenizer import load_tokenizer
from core.worlds import World
from core.worlds.start_model import build
from tests.kit import is_running

from .conftest import REPOSITORY, Launcher, start_launcher

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FAKE_TAU2 = REPOSITORY / "tests" / "unit" / "agentic" / "toolorchestra" / "tau2" / "fake_worker.py"
KILLS = 3

LAUNCH = """
import asyncio, importlib, os, sys
from pathlib import Path
from agentic.toolorchestra.tau2 import client
from core.rollout.runner import Runner

names = ("ruler", "heldout", "aime", "tau2")
modules = {name: importlib.import_module(f"benchmarks.{name}.evaluate") for name in names}
client.WORKER = Path(sys.argv[1])
run_one = Runner.run_one

async def note_and_run(self, task, sampling):
    with open(os.environ["STARTED"], "a+") as file:
        file.write(f"{task.task_id}\\t{sampling.seed}\\n")
        file.seek(0)
        if len(file.readlines()) == int(os.environ["HELD"]):
            await asyncio.Event().wait()
    return await run_one(self, task, sampling)

Runner.run_one = note_and_run

def run(name, started, held, *arguments):
    os.environ["STARTED"], os.environ["HELD"] = started, held
    return modules[name].main(arguments)
"""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Starts evaluators as processes of their own, which note each rollout that they start."""
    with start_launcher(LAUNCH, tmp_path_factory.mktemp("launcher") / "output.txt", str(FAKE_TAU2)) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The arguments of each evaluator, on untrained models of a few thousand parameters."""
    folder = tmp_path_factory.mktemp("models")
    model = WORLD.build_model(folder / "memagent", seed=0)
    family = Niah(value_type="words", num_k=2, key_words=("a", "b", "c"), value_words=("d", "e", "f"))
    tasks = generate(family, length=150, count=12, tokenizer=load_tokenizer(model), split="test", budget="document")
    write_jsonl(folder / "held.jsonl", tasks)
    problems = [{"id": f"p{i}", "problem": f"What is {i} plus {i}?", "answer": str(2 * i)} for i in range(6)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    long = folder / "long"
    long.mkdir()
    build(long, World(corpus=lambda: ["hello"], vocab_size=300).train_tokenizer(), seed=0)
    config = long / "config.json"
    config.write_text(json.dumps({**read_json(config), "max_position_embeddings": 8192}))
    small = ["--threads", "1", "--set", "model.device=cpu"]
    ruler = ["--variants", "trained", "full-context", "--lengths", "448", "--tasks", "8", "--seeds", "0"]
    aime = ["--variants", "single", "--k", "4", "--budget", "12", "--data", str(folder / "sums.jsonl")]
    tau2 = ["--user", "scripted", "--trials", "4", "--domains", "retail", "telecom", "--max-steps", "3"]
    heldout = ["memagent", "--preset", "tiny", "--untrained", str(model), "--seeds", "0", "--concurrency", "3"]
    return {
        "ruler": ["--model", str(model), "--preset", "tiny", *small, *ruler, "--concurrency", "3"],
        "heldout": [*heldout, "--model", str(model), *small, "--data", str(folder / "held.jsonl")],
        "aime": ["--model", str(long), *small, *aime, "--concurrency", "2"],
        "tau2": [
            *("--model", str(long), *small, *tau2, "--concurrency", "1", "--temperature", "1"),
            *("--set", "toolorchestra.max_tokens=12", "--kv-tokens", "8192"),
        ],
    }


@dataclass
class Evaluator:
    """Runs one evaluator's command into one folder."""

    launcher: Launcher
    name: str
    arguments: list[str]
    out: Path

    def start(self, started: Path, held: int = 0) -> int:
        """Start it; the rollout it starts as number `held`, counted from 1, never ends, so neither does it."""
        started.touch()
        return self.launcher.start([str(started), str(held), *self.arguments, "--out", str(self.out)], self.name)

    def logs(self) -> list[Path]:
        return sorted((self.out / "evaluation").glob("*.jsonl.gz"))

    def samples(self) -> Counter[tuple[str, str, int]]:
        """Count the samples by file, task and repeat."""
        read = ((path.name, rollout) for path in self.logs() for rollout in read_rollouts(path))
        return Counter((name, rollout.task_id, rollout.sample["repeat"]) for name, rollout in read)

    def count(self) -> int:
        return sum(1 for log in self.logs() for _ in read_batches(log))

    def tables(self) -> dict[str, str | EvalResult]:
        """Its results and tables, without what clocks say."""
        folder = RunFolder(self.out)
        for result in folder.evaluations():
            folder.save_evaluation(replace(result, seconds=0.0, notes={**result.notes, "cpu_seconds": 0.0}))
        write_report(folder)
        found: dict[str, str | EvalResult] = {path.name: path.read_text() for path in self.out.glob("*.md")}
        return found | {f"{r.variant} {r.data} {r.length} {r.seed}": r for r in folder.evaluations()}


@pytest.mark.parametrize("name", ["ruler", "heldout", "aime", "tau2"])
def test_a_killed_evaluator_repeats_no_finished_sample_and_gives_the_same_tables(
    name: str, launcher: Launcher, commands: dict[str, list[str]], tmp_path: Path
) -> None:
    whole = Evaluator(launcher, name, commands[name], tmp_path / "whole")
    whole.start(tmp_path / "whole.txt")
    assert launcher.wait() == 0, launcher.log.read_text()
    expected = whole.samples()
    assert set(expected.values()) == {1}

    killed = Evaluator(launcher, name, commands[name], tmp_path / "killed")
    rng = random.Random(f"{name} 0")
    for place in sorted(rng.sample(range(1, len(expected) - 1), KILLS)):
        finished = killed.samples()
        started = tmp_path / f"started-{place}.txt"
        pid = killed.start(started, held=expected.total() - finished.total())
        while killed.count() < min(max(place, finished.total() + 1), expected.total() - 1) and is_running(pid):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.02))
        launcher.kill(pid)
        assert launcher.wait() == -9, "the evaluator ended before it was killed"
        with max(killed.logs(), key=lambda path: path.stat().st_mtime_ns).open("ab") as log:  # what was being written
            log.write(gzip.compress(b'{"task_id": "a line that was being written"}')[:-10])
        assert finished <= killed.samples(), "a finished sample was lost"
        assert len(started.read_text().splitlines()) <= expected.total() - finished.total(), "a sample was run again"

    pending = (expected - killed.samples()).total()
    killed.start(tmp_path / "last.txt")
    assert launcher.wait() == 0, launcher.log.read_text()
    assert killed.samples() == expected, "a sample is missing or there twice"
    assert len((tmp_path / "last.txt").read_text().splitlines()) == pending > 0, "only what was pending is run"
    assert killed.tables() == whole.tables()
