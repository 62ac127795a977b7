"""The backends. Each runs a batch of a case's rollouts through its real code, and tells what it trained of them.

A backend to come is a function here and a row of `BACKENDS`; `request` gives it the fixtures of this folder.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import pytest

from core.backends.rollouts import NOTES
from core.backends.slime.bridge import summarize
from core.backends.slime.samples import group_samples, read_task
from core.config.load import replace_keys
from core.engine import EmbeddedPolicy, Engine, weights
from core.policy.base import Policy, Roles
from core.rollout.roles import open_roles
from core.runs.files import read_jsonl
from core.runs.record import read_rollouts
from core.runs.run_folder import RunFolder
from core.train.loop import GRPOLoop
from core.train.trainer import Trainer
from core.types import Row, Task
from tests.contract.backends.batch import Batch, Tape, Told, Trained, make_trained, record
from tests.contract.backends.case import Case
from tests.contract.backends.serving import ScriptedEngine

Run = Callable[[pytest.FixtureRequest, Case, dict[str, Any], list[Task]], Batch]
"""Takes the fixtures, the case, a recipe and its tasks."""


def run_embedded(request: pytest.FixtureRequest, case: Case, values: dict[str, Any], tasks: list[Task]) -> Batch:
    """A step of our own trainer, by what it writes into the run folder, and by what it weighs."""
    model, tokenizer = request.getfixturevalue("model"), request.getfixturevalue("tokenizer")
    folder, patch = request.getfixturevalue("tmp_path") / "run", request.getfixturevalue("monkeypatch")
    recipe = case.spec.recipe.model_validate(values)
    keys = {"data.shuffle": False, "run.steps": 1, "run.eval_every": 0, "run.record_every": 1}
    own = replace_keys(recipe, {**keys, "model.max_model_len": None})  # scripts write more than the model could read
    tape, numbers, steps = Tape(), count(), defaultdict[int, list[Trained]](list)
    iterate = Trainer.iterate_grpo_step

    def watched(self: Trainer, rows: Sequence[Row], watch: Any) -> Any:
        def tell(row: Row, logprobs: Sequence[float], scale: float) -> None:
            steps[self.steps].append(Trained(row, scale))
            watch(row, logprobs, scale)

        return iterate(self, rows, tell)

    async def train() -> None:
        method = record(case.spec, tape, lambda roles: str(next(numbers))).build(recipe, tokenizer)
        regrade = case.spec.regrade(recipe)
        opened = RunFolder.create(folder, own.dump())
        async with open_roles(own, tokenizer) as roles:
            loop = GRPOLoop(own, method, tokenizer, tasks, [], opened, 0, model, roles=roles, regrade=regrade)
            if case.reply:
                loop.runner.roles = Roles({**roles, "policy": make_policy(case, model, tokenizer)})
            await loop.run()
        await method.close()

    patch.setattr(Trainer, "iterate_grpo_step", watched)
    asyncio.run(train())
    [rollouts_path] = folder.glob("seed-0/rollouts.jsonl*")
    groups = defaultdict[int, list[Told]](list)
    for place, one in enumerate(read_rollouts(rollouts_path)):
        groups[one.group].append(Told(str(place), one.status, one.failure, one.reward, one.metrics))
    [metrics] = [line for line in read_jsonl(folder / "seed-0" / "metrics.jsonl") if line["stage"] == "train"]
    ordered = [
        [make_trained(*one) for one in sorted(step, key=lambda one: (one.row.rollout_id, one.row.turns))]
        for _, step in sorted(steps.items())
    ]
    return Batch(tasks, list(groups.values()), ordered, metrics["failures"], tape, compared=True)


def run_slime(request: pytest.FixtureRequest, case: Case, values: dict[str, Any], tasks: list[Task]) -> Batch:
    """A rollout of slime's RolloutManager, by what it hands to the ranks."""
    size = len(tasks) * values["rollout"]["group_size"] // values["algorithm"]["num_steps_per_rollout"]
    args = request.getfixturevalue("arguments")(values, tasks, global_batch_size=size)
    made = request.getfixturevalue("manager")(args)
    return read_slime(made.generate(0), made.samples, request.getfixturevalue("tape"), args)


def read_slime(refs: Sequence[Any], samples: Sequence[Any], tape: Tape, args: Any) -> Batch:
    """What the ranks got of the rollouts of `samples`."""
    groups = [
        [
            Told(sample.session_id, notes["status"], notes["failure"], sample.reward, notes["metrics"])
            for sample in group
            for notes in [sample.metadata[NOTES]]
        ]
        for group in group_samples(samples)
    ]
    tasks = [read_task(group[0], args.prompt_data) for group in group_samples(samples)]
    steps = read_parts([ref.inner for ref in refs], args.global_batch_size)
    return Batch(tasks, groups, steps, find_failures(summarize(samples)), tape)


def read_parts(parts: Sequence[Mapping[str, Any]], size: int) -> list[list[Trained]]:
    """The rows of each step of `size` rollouts, of all ranks, in the converter's order.

    slime's loss divides by `rollout_mask_sums`.
    """
    steps = []
    for step in range(len(parts[0]["num_microbatches"])):
        rows: dict[int, Trained] = {}
        for part in parts:
            first = sum(part["num_microbatches"][:step])
            for micro in part["micro_batch_indices"][first : first + part["num_microbatches"][step]]:
                for i in micro:
                    mask = tuple(part["loss_masks"][i].tolist())
                    if any(mask):
                        row = Row(
                            tuple(part["tokens"][i].tolist()),
                            mask,
                            tuple(part["rollout_log_probs"][i].tolist()),
                            part["rewards"][i],
                            part["rollout_ids"][i],
                        )
                        scale = 1 / (size * max(1.0, float(part["rollout_mask_sums"][i])))
                        rows[part["partition"][i]] = make_trained(row, scale)
        steps.append([rows[position] for position in sorted(rows)])
    return steps


def run_verl(request: pytest.FixtureRequest, case: Case, values: dict[str, Any], tasks: list[Task]) -> Batch:
    """A batch of verl's V1 worker and our trainer, in verl's mini-batches. Prompts are longer than prompt_length."""
    verl, tokenizer = request.getfixturevalue("verl"), request.getfixturevalue("tokenizer")
    model, patch = request.getfixturevalue("model"), request.getfixturevalue("monkeypatch")
    tape = Tape()
    config = verl.compose(
        request.getfixturevalue("tmp_path"), model, values, "actor_rollout_ref.rollout.prompt_length=4", tasks=tasks
    )
    verl.use_method(patch, record(case.spec, tape, lambda roles: verl.PLACE.get()))
    queue = verl.Queue()
    queue.patch(patch)
    verl.run_v1(config, verl.Client(make_policy(case, model, tokenizer)), tokenizer)
    trainer, metrics = verl.make_trainer(config, tokenizer), dict[str, Any]()
    batch = trainer._compute_advantage(trainer._balance_batch(queue.batch(), metrics), metrics)

    groups = defaultdict[str, list[Told]](list)
    for name in sorted({key.rpartition("_")[0] for key in queue.rows if not key.startswith("pad")}, key=verl.order):
        row, tag = queue.rows[f"{name}_0"], queue.tags[f"{name}_0"]
        assert tag["max_global_steps"] == verl.STEP
        notes, reward = verl.notes_of(row), float(row["rm_scores"].sum())
        told = Told(name, notes["status"], notes["failure"], reward, notes["metrics"])
        groups[name.rpartition("_")[0]].append(told)
    numbers = {told.name: number for number, told in enumerate(told for group in groups.values() for told in group)}
    steps = []
    for keys in verl.mini_batches(trainer, batch):
        trained = []
        for key in sorted(keys, key=verl.order):
            row = queue.rows[key]
            mask, scales, advantages = row["response_mask"], row["loss_scales"], row["advantages"]
            assert not scales[mask == 0].any()
            assert not advantages[mask == 0].any()
            if scales.any():
                assert len(row["prompts"]) <= 4
                [scale], [advantage] = {*scales[mask == 1].tolist()}, {*advantages[mask == 1].tolist()}
                tokens = (*row["prompts"].tolist(), *row["responses"].tolist())
                logprobs = tuple(row["rollout_log_probs"].tolist())
                number = numbers[key.rpartition("_")[0]]
                trained.append(make_trained(Row(tokens, tuple(mask.tolist()), logprobs, advantage, number), scale))
        steps.append(trained)
    renamed = {"engine": "bad_request"}  # the errors of verl's client have no kinds
    return Batch(tasks, list(groups.values()), steps, find_failures(metrics, "rollout/"), tape, renamed=renamed)


def find_failures(metrics: Mapping[str, Any], where: str = "") -> dict[str, float]:
    start = f"{where}failures/"
    return {name.removeprefix(start): value for name, value in metrics.items() if name.startswith(start)}


def make_policy(case: Case, model: Any, tokenizer: Any) -> Policy:
    """The case's script, or our engine with MemAgent's tiny weights."""
    if case.reply:
        return ScriptedEngine(tokenizer, case.reply)
    return EmbeddedPolicy(Engine(weights.load(model, device="cpu")))


BACKENDS: Mapping[str, Run] = {"embedded": run_embedded, "verl": run_verl, "slime": run_slime}
