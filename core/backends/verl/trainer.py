"""verl's V1 trainers, each with rollouts in the place of rows: `trainer.v1.trainer_mode=tokentrue_sync` and two more.

verl registers them when VERL_USE_EXTERNAL_MODULES names this module. What they change:

- A batch is cut into as many optimizer steps as the recipe says, by rollouts; verl takes a fixed number of rows.
- Advantages and weights are those of core/backends/verl/rows.py; verl's GRPO takes the last row of each rollout.
- The actor's loss is that of core/backends/verl/loss.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1 import PPOTrainer, get_trainer_cls, register_trainer
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from core.backends.rollouts import NOTES, summarize_notes
from core.backends.verl.data import read_row
from core.backends.verl.loss import rollout_loss
from core.backends.verl.rows import (
    RECORDED,
    SCALES,
    BatchRow,
    credit_rows,
    name_rollout,
    read_rollout,
    record_rows,
    split_rollouts,
)
from core.backends.verl.settings import MODES, read_recipe
from core.config import RecipeError
from core.data.files import DataError
from core.rollout.method import Regrade, method_spec
from core.rollout.runner import EmptyStepGuard, regrade_group
from core.runs.record import RolloutLog
from core.text.tokenizer import token_bytes
from core.types import Group, Task

Batch = Any
"""Stands for TransferQueue's KVBatchMeta: the keys `{uid}_{session}_{index}` of a batch's rows, and their tags."""


class RolloutTrainer(PPOTrainer):
    """Goes before one of verl's trainers among the bases of a class."""

    # verl's own code reads the settings of its own mode. Our name, which it sets from the configuration, is not taken.
    trainer_mode = property(attrgetter("mode"), lambda self, name: None)

    def __init__(self, config: Any):
        self._recipe = read_recipe(config)
        self._guard = EmptyStepGuard()
        self._steps: list[list[str]] = []  # the keys of each optimizer step's rows, without padding
        super().__init__(config)

    def init(self) -> None:
        """Start the workers, and give the actor's ranks our loss."""
        super().init()
        self.actor_rollout_wg.set_loss_fn(partial(rollout_loss, coefficients=self._recipe.algorithm))

    def _build_replay_buffer(self) -> Any:
        """Make the buffer that waits for rollouts. Whenever it looks for them, it looks for dead workers too."""
        buffer = super()._build_replay_buffer()
        buffer._sync_metadata_from_transfer_queue = partial(self._look, buffer._sync_metadata_from_transfer_queue)
        return buffer

    def _look(self, look_for_rollouts: Callable[[], None]) -> None:
        """Ask every agent-loop worker for a sign of life, which a busy one gives later, and look for rollouts.

        Raises:
            RuntimeError: a worker has died. verl would wait for its rollouts without end.
        """
        calls = [worker.__ray_ready__.remote() for worker in self.agent_loop_manager.agent_loop_workers]
        answered, _ = ray.wait(calls, num_returns=len(calls), timeout=1)
        try:
            ray.get(answered)
        except ray.exceptions.ActorUnavailableError:
            pass  # it may come back
        except ray.exceptions.RayActorError as error:
            fix = "start the job again: it goes on from its last checkpoint"
            raise RuntimeError(f"an agent-loop worker died with its rollouts; {fix}. {error}") from error
        look_for_rollouts()

    def _init_dataloader(self) -> None:
        """Read the data. verl drops a batch that is not whole, and divides by their number."""
        super()._init_dataloader()
        if not self.steps_per_epoch:
            size = self._recipe.rollout.tasks_per_step
            raise RecipeError(f"data.train: {len(self.train_dataset)} tasks make no batch of {size}; give more")

    def _balance_batch(self, batch: Batch, metrics: Any, **_: Any) -> Batch:
        """Cut a batch into its optimizer steps, each filled up to as many rows, and divide each among the ranks.

        verl gives rank r the r-th part of the batch, and each rank cuts its part into mini-batches in order.
        """
        workers, rollout = self.actor_rollout_wg, self.config.actor_rollout_ref.rollout
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        ranks = max(workers._dispatch_info["actor"]) + 1
        tags = dict(zip(batch.keys, batch.tags, strict=True))
        self._steps = split_rollouts(batch.keys, self._recipe.algorithm.num_steps_per_rollout)
        multiple = math.lcm(ranks, rollout.n)  # verl multiplies mini-batches by n
        size = math.ceil(max(map(len, self._steps)) / multiple) * multiple
        self.config.actor_rollout_ref.actor.ppo_mini_batch_size = size // rollout.n
        parts: list[list[str]] = [[] for _ in range(ranks)]
        for keys in self._steps:
            step = replace(batch, keys=keys, tags=[tags[key] for key in keys])
            step = upsample_batch_to_divisible_size(step, size, self.tokenizer.eos_token_id)
            tags.update(zip(step.keys, step.tags, strict=True))
            work = calculate_workload(torch.tensor([tag["seq_len"] for tag in step.tags]))
            shares = get_seqlen_balanced_partitions(work, k_partitions=ranks, equal_size=True)
            for part, share in zip(parts, shares, strict=True):
                part += [step.keys[place] for place in share]
        keys = [key for part in parts for key in part]
        return replace(batch, keys=keys, tags=[tags[key] for key in keys])

    def _compute_advantage(self, batch: Batch, metrics: dict[str, Any]) -> Batch:
        """Write the advantage and the weight of each row, and count the rollouts that failed by name.

        Raises:
            RuntimeError: no rollout is valid, in the last `health.end_after` batches in a row.
        """
        data = _read_rows(batch, batch.keys, "response_mask", "extra_fields")
        steps = [
            [BatchRow(key, int(data[key]["response_mask"].sum()), data[key]["extra_fields"][NOTES]) for key in keys]
            for keys in self._steps
        ]
        notes = list({row.rollout_id: row.notes for step in steps for row in step}.values())
        if reason := self._guard.check(map(read_rollout, notes), self._recipe.health.end_after):
            raise RuntimeError(reason)
        regrade = method_spec(self._recipe.method).regrade(self._recipe)
        compare = partial(self._regrade, batch, regrade) if regrade else None
        credits = credit_rows(steps, self._recipe.algorithm, compare)
        fields = defaultdict(list)
        for key in batch.keys:
            mask = data[key]["response_mask"].float()
            advantage, scale = credits.get(key, (0.0, 0.0))  # padding has none
            fields["advantages"].append(mask * advantage)
            fields[SCALES].append(mask * scale)
        nested = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in fields.items()}
        metrics.update({f"rollout/{name}": value for name, value in summarize_notes(notes).items()})
        nested["returns"] = nested["advantages"]
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(nested, batch_size=len(batch.keys))
        )

    def _regrade(self, batch: Batch, regrade: Regrade, uid: str, group: Group) -> Group:
        """Compare the rollouts of the group `uid` by the method's function."""
        task = self._read_task(batch, uid)
        return group if task is None else regrade_group(regrade, task, group)

    def _read_task(self, batch: Batch, uid: str) -> Task | None:
        """Read the task of a group; None for a broken one, of which every rollout has already failed as `bad_task`."""
        key = next(key for key in batch.keys if key.startswith(f"{uid}_"))
        row = _read_rows(batch, [key], "raw_prompt", "reward_model", "extra_info", "index")[key]
        options = method_spec(self._recipe.method).reading_options(self._recipe)
        try:
            return read_row(row, self.config.data.train_files, options)
        except DataError:
            return None

    def _log_rollout_data(self, batch: Batch, timing_raw: Any, rollout_data_dir: str) -> None:
        """Record a step as the embedded backend would; verl would write texts."""
        every, step = self._recipe.run.record_every, self.global_steps
        if not every or (step % every and step > 1):
            return
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        keys.sort(key=lambda key: (name_rollout(key), int(key.rpartition("_")[2])))
        rows, records = _read_rows(batch, keys, *RECORDED), []
        for number, (uid, group) in enumerate(groupby(rows, lambda key: name_rollout(name_rollout(key)))):
            task = self._read_task(batch, uid) or Task(uid, "", ())
            for _, rollout in groupby(group, name_rollout):
                records.append(record_rows(step, number, task, [rows[key] for key in rollout]))
        self._rollouts.append(records)

    @cached_property
    def _rollouts(self) -> RolloutLog:
        path = Path(self.config.trainer.rollout_data_dir) / "rollouts.jsonl.gz"
        log = RolloutLog(path, partial(token_bytes, self.tokenizer))
        log.rewind(self.global_steps - 1)  # a run that goes on repeats the steps after its checkpoint
        return log


def _read_rows(batch: Batch, keys: list[str], *names: str) -> dict[str, dict[str, Any]]:
    """Read fields of rows of a batch: key -> name -> value."""
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(names))
    columns = {name: data[name].unbind() if torch.is_tensor(data[name]) else list(data[name]) for name in names}
    return {key: {name: column[place] for name, column in columns.items()} for place, key in enumerate(keys)}


for _name, _mode in MODES.items():
    _bases = RolloutTrainer, get_trainer_cls(_mode)
    register_trainer(_name)(type(_name, _bases, {"mode": _mode, "__module__": __name__}))
