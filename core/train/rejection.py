"""Trains the baseline of rejection sampling: the rollouts of a GRPO run, but no advantages.

The start model samples the rollouts of a whole GRPO run: the same tasks in the same order, with the same seeds. Those
with score 1 are kept, and the model is trained on their trained turns with cross-entropy, on each once. (Expert
iteration, or RFT: Yuan et al., arXiv 2308.01825, who keep distinct ones; here an easy task weighs as often as it is
solved.) With `algorithm.dynamic_sampling` the tasks may differ, since each policy has its own groups without a signal.
With `data.sampler: curriculum` the tasks are those of `epoch`: the start model learns nothing that a curriculum could
follow.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from core.config import Recipe, RejectionSection
from core.engine import EmbeddedPolicy, weights
from core.policy.base import Policy, Roles
from core.rollout.method import Method
from core.rollout.runner import Failures, Runner
from core.rollout.stream import TaskStream
from core.runs.files import JsonlLog, read_jsonl
from core.runs.health import Health, measure_health
from core.runs.progress import Progress, Show
from core.runs.run_folder import StepLog
from core.text.tokenizer import Tokenizer
from core.train.loop import sample_batch
from core.train.rollout_engine import open_engine
from core.train.trainer import TrainingError
from core.train.warm_start import train_supervised
from core.types import Task, Trajectory
from core.worlds import Example


async def run_rejection(
    recipe: Recipe,
    method: Method,
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    folder: Path,
    seed: int,
    start: Path,
    *,
    roles: dict[str, Policy],
    show: Show | None = None,
) -> Path:
    """Return the model `folder`/model: the model `start`, trained on its own successes.

    A killed process goes on with the sampling after the last step that is in `folder`/rollouts.jsonl, and with the
    training as `train_supervised`, if there are as many steps.

    Raises:
        TrainingError: no rollout has score 1, all of a step failed, or the folder is of another number of steps.
    """
    config, model, path = recipe.rejection, folder / "model", folder / "rollouts.jsonl"
    assert config is not None, "check_baseline has seen to it"
    steps, wanted = sum(1 for _ in read_jsonl(path)), recipe.run.steps
    if steps > wanted or (0 < steps < wanted and model.is_dir()):
        where = folder if steps > wanted else model
        raise TrainingError(f"{where} is of {steps} steps; for run.steps={wanted}, delete it and its evaluations")
    if model.is_dir():
        return model
    log = JsonlLog(path)
    await _sample_successes(recipe, method, tokenizer, tasks, log, seed, start, roles=roles, show=show)
    examples = [(prompt, completion) for record in log.records() for prompt, completion in record["turns"]]
    log.close()
    if not examples:
        raise TrainingError(f"{log.path}: no rollout of the start model has score 1, so there is nothing to train on")
    steps = -(-len(examples) // config.batch_size)
    batches = _draw_batches(examples, config, seed)
    metrics = StepLog(folder / "metrics.jsonl")
    label = f"seed {seed} rejection, training"
    train_supervised(recipe, config, steps, start, batches, model, metrics, stage="rejection", label=label, show=show)
    return model


async def _sample_successes(
    recipe: Recipe,
    method: Method,
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    log: JsonlLog,
    seed: int,
    start: Path,
    *,
    roles: dict[str, Policy],
    show: Show | None,
) -> None:
    """Sample the steps that the log lacks, one record each: what was sampled, and the trained turns of what is kept."""
    stream = TaskStream(tasks, shuffle=recipe.data.shuffle, seed=seed)
    records = log.records()
    done = len(records)
    if done >= recipe.run.steps:
        return
    shutil.rmtree(log.path.with_name(".model.partial"), ignore_errors=True)  # trained on fewer examples
    if records:
        stream.cursor = records[-1]["cursor"]
    engine = open_engine(
        recipe,
        weights.load(start, recipe.model.dtype, recipe.model.device, recipe.model.lora).eval(),
        start,
        tokenizer,
    )
    policy = EmbeddedPolicy(engine)
    runner = Runner(
        method,
        Roles({**roles, "policy": policy}),
        concurrency=recipe.rollout.concurrency,
        deadline_s=recipe.rollout.deadline_s,
    )
    with Progress(recipe.run.steps, label=f"seed {seed} rejection", start=done, show=show) as progress:
        health, told = Health(recipe.health), set[str]()
        runner.watch = lambda finished, total: progress.tell("sampling", finished, total)
        for step in range(done, recipe.run.steps):
            # Without regrading: a reward is the rollout's own, as in an evaluation.
            batch = await sample_batch(recipe, runner, stream, seed=seed, step=step)
            kept = [each for each in batch.trajectories if each.status != "failed" and find_score(recipe, each) == 1]
            turns = [
                (turn.prompt_ids, turn.completion.token_ids)
                for trajectory in kept
                for turn in trajectory.turns
                if turn.trained and turn.completion.token_ids
            ]
            sampled = len(batch.trajectories)
            Failures(batch.trajectories).tell(f"step {step + 1}", told)
            for line in health.update(measure_health(batch.tasks, batch.trajectories)):
                progress.note(f"step {step + 1}: {line}")
            # Such as in an outage: it counts for nothing, and a second start samples it again.
            if all(trajectory.status == "failed" for trajectory in batch.trajectories):
                raise TrainingError(f"seed {seed}: all rollouts of step {step + 1} failed; mend it, and start again")
            log.append(
                {
                    "step": step + 1,
                    "tasks": [task.task_id for task in batch.tasks],
                    "cursor": stream.cursor,
                    "sampled": sampled,
                    "kept": len(kept),
                    "turns": turns,
                }
            )
            progress.update(step + 1, kept=len(kept) / sampled)
    await policy.close()


def find_score(recipe: Recipe, trajectory: Trajectory) -> float | None:
    """Return the metric `official`, as an evaluation does; the reward where a method has none, or a user gives it."""
    return trajectory.reward if recipe.reward else trajectory.metrics.get("official", trajectory.reward)


def _draw_batches(examples: Sequence[Example], config: RejectionSection, seed: int) -> Iterator[list[Example]]:
    """Yield every example once, in an order that follows from the seed."""
    order = list(examples)
    Random(f"{seed}-0").shuffle(order)
    yield from (order[i : i + config.batch_size] for i in range(0, len(order), config.batch_size))
