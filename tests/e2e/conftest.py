"""A training run small enough for a test, on a policy that guesses among four answers and so has something to learn."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentic.memagent.config import MemAgentSection
from agentic.memagent.rollout import MemAgent
from agentic.memagent.world import ANSWER, WORLD
from benchmarks.ruler.generate import generate
from benchmarks.ruler.niah import Niah
from core.config import OptimizerSection
from core.data import write_jsonl
from core.engine import weights
from core.text.tokenizer import encode_text, load_tokenizer
from core.train.trainer import Trainer
from core.types import Task
from core.worlds.needles import KEYS, VALUES

REPOSITORY = Path(__file__).resolve().parents[2]
ANSWERS = VALUES[:4]
MEMAGENT = {"chunk_tokens": 48, "max_memory_tokens": 6, "max_final_tokens": 8, "align": "sentence"}
MEMAGENT |= {"prompt_style": "compact", "prompt_order": "prefix_friendly"}


@pytest.fixture(scope="session")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe: six steps of two tasks, ten tasks, a checkpoint every other step."""
    folder = tmp_path_factory.mktemp("recipe")
    model = WORLD.build_model(folder / "model", seed=0)
    tokenizer = load_tokenizer(model)
    family = Niah(value_type="words", num_k=2, key_words=KEYS, value_words=ANSWERS)
    tasks: list[Task] = []
    for split, count in (("dev", 4), ("train", 10)):
        tasks = list(generate(family, length=90, count=count, tokenizer=tokenizer, split=split, budget="document"))
        write_jsonl(folder / f"{split}.jsonl", tasks)
    teach_guessing(model, tokenizer, tasks)
    recipe = {
        "method": "memagent",
        "follows": "nobody",
        "model": {"path": str(model), "max_model_len": 160, "device": "cpu"},
        "data": {"train": str(folder / "train.jsonl"), "eval": str(folder / "dev.jsonl")},
        "rollout": {"tasks_per_step": 2, "group_size": 4, "concurrency": 6},
        "algorithm": {"name": "dr_grpo"},
        "optimizer": {"lr": 1e-3, "lr_warmup_steps": 2},
        "inference": {"kv_tokens": 1280, "threads": 1},
        "memagent": MEMAGENT,
        "run": {"steps": 6, "eval_every": 2, "eval_tasks": 4, "save_every": 2, "record_every": 2},
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def teach_guessing(folder: Path, tokenizer: Any, tasks: list[Task]) -> None:
    """Train the model to note and to answer any of ANSWERS, whatever it reads."""
    method = MemAgent(MemAgentSection(**MEMAGENT), tokenizer)
    model = weights.load(folder, device="cpu")
    trainer = Trainer(model, OptimizerSection(lr=5e-3, lr_warmup_steps=10, weight_decay=0.0))
    rng = random.Random(0)
    end = tokenizer.eos_token_id
    for _ in range(40):
        examples = []
        for task in rng.sample(tasks, 5):
            problem = encode_text(tokenizer, task.question)
            memory, note = (encode_text(tokenizer, f" {rng.choice(ANSWERS)}") for _ in range(2))
            answer = encode_text(tokenizer, ANSWER.format(value=rng.choice(ANSWERS)))
            section = rng.choice(method.sections(task)[0])
            update = method.update.render(problem=problem, section=section, memory=memory)
            examples.append((update, (*note, end)))
            examples.append((method.final.render(problem=problem, memory=memory), (*answer, end)))
        trainer.supervised_step(examples)
    weights.save(model, folder, folder)


@dataclass
class Launcher:
    """Starts training runs as processes of their own, forked from one that has done all imports already."""

    process: subprocess.Popen[str]
    log: Path

    def start(self, arguments: list[str], method: str = "memagent") -> int:
        """The process id of a new run of `core.train.command METHOD`, or of the gateway for the method `gateway`."""
        self._say("\t".join([method, *arguments]))
        return int(self._hear())

    def run(self, arguments: list[str], status: int = 0) -> str:
        """Run to the end, expect the exit status, and return the output of this run.

        What runs before it printed is left out: a child whose parent is killed while it starts leaves a traceback.
        """
        before = self.log.stat().st_size
        self.start(arguments)
        status_seen = self.wait()
        output = self.log.read_bytes()[before:].decode()
        assert status_seen == status, output
        return output

    def wait(self) -> int:
        """The exit status of the run; -9 when it was killed."""
        self._say("")
        return int(self._hear())

    def kill(self, pid: int) -> None:
        """End the run as `kill -9` does. It is not yet reaped, so the id is still its own even if it has ended."""
        os.kill(pid, signal.SIGKILL)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def _hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the launcher died:\n{self.log.read_text()}"
        return line


LAUNCH = """
from core.train.command import main
from scripts.serve_gateway import main as serve

def run(name, *arguments):
    return serve(arguments) if name == "gateway" else main([name, *arguments])
"""

LOOP = """
import os, sys
from transformers import AutoConfig, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

answers = os.dup(1)
os.dup2(2, 1)
while line := sys.stdin.readline():
    pid = os.fork()
    if pid == 0:
        status = run(*line.rstrip("\\n").split("\\t"))
        sys.stdout.flush()
        os._exit(status)
    os.write(answers, f"{pid}\\n".encode())
    sys.stdin.readline()
    status = os.waitpid(pid, 0)[1]
    os.write(answers, f"{os.waitstatus_to_exitcode(status)}\\n".encode())
"""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(REPOSITORY)}


@contextmanager
def start_launcher(code: str, log: Path, *arguments: str) -> Iterator[Launcher]:
    """Start a process that calls `run` of `code` in its children; what it and they write goes to `log`."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code + LOOP, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, cwd=REPOSITORY, env=environment(),
        )  # fmt: skip
        yield Launcher(process, log)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=120)


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    with start_launcher(LAUNCH, tmp_path_factory.mktemp("launcher") / "output.txt") as launcher:
        yield launcher
