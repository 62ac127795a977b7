"""verl's V1 trainers, each with rollouts in the place of rows: `trainer.v1.trainer_mode=tokentrue_sync` and two more.

verl registers them when VERL_USE_EXTERNAL_MODULES names this module. What they change:

- A batch is cut into as many optimizer steps as the recipe says, by rollouts; verl takes a fixed number of rows.
- Advantages and weights are those of core/backends/verl/rows.py; verl's GRPO takes the last row of each rollout.
- The actor's loss is that of core/backends/verl/loss.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import register_adv_est
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1 import PPOTrainer, get_trainer_cls, register_trainer
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from core.algorithms.advantages import group_advantages
from core.algorithms.grpo import GRPOConfig
from core.backends.rollouts import NOTES, summarize_notes
from core.backends.verl.loss import SCALES, rollout_loss
from core.backends.verl.record import record_rows
from core.backends.verl.rollouts import name_files, read_fields
from core.backends.verl.rows import BatchRow, credit_rows, read_notes, split_rollouts
from core.backends.verl.settings import MODES, OLDER_ESTIMATOR, find_recipe, read_recipe
from core.config import RecipeError
from core.data.files import DataError
from core.rollout.method import method_spec
from core.rollout.runner import EmptyStepGuard, regrade_group
from core.runs.record import RolloutLog
from core.text.tokenizer import token_bytes
from core.types import Group, Task

Batch = Any
"""Stands for TransferQueue's KVBatchMeta: the keys `{uid}_{session}_{index}` of a batch's rows, and their tags."""


class RolloutTrainer(PPOTrainer):
    """Goes before one of verl's trainers among the bases of a class."""

    mode: str

    def __init__(self, config: Any):
        self._recipe = read_recipe(config, find_recipe(config))
        self._guard = EmptyStepGuard()
        self._steps = 1
        self._calls: list[Any] = []  # what each agent-loop worker was asked to see whether it lives
        super().__init__(config)

    @property
    def trainer_mode(self) -> str:
        """Name the mode whose settings verl's own code reads."""
        return self.mode

    @trainer_mode.setter
    def trainer_mode(self, value: str) -> None:
        """Take no notice of our own name, which verl reads from the configuration."""

    def init(self) -> None:
        """Start the workers, and give the actor's ranks our loss."""
        super().init()
        algorithm = self._recipe.algorithm
        coefficients = GRPOConfig(**{name: getattr(algorithm, name) for name in GRPOConfig.model_fields})
        self.actor_rollout_wg.set_loss_fn(partial(rollout_loss, coefficients=coefficients))

    def _build_replay_buffer(self) -> Any:
        """Make the buffer that waits for rollouts. Whenever it looks for them, it looks for dead workers too."""
        buffer = super()._build_replay_buffer()
        look = buffer._sync_metadata_from_transfer_queue

        def look_for_both() -> None:
            self._check_workers()
            look()

        buffer._sync_metadata_from_transfer_queue = look_for_both
        return buffer

    def _check_workers(self) -> None:
        """Ask every agent-loop worker for a sign of life, and read the answers of the last time.

        Raises:
            RuntimeError: a worker has died. verl would wait for its rollouts without end.
        """
        workers = self.agent_loop_manager.agent_loop_workers
        self._calls = self._calls or [worker.__ray_ready__.remote() for worker in workers]
        answered, _ = ray.wait(self._calls, num_returns=len(self._calls), timeout=0)
        try:
            ray.get(answered)
        except ray.exceptions.ActorUnavailableError:
            pass  # it may come back
        except ray.exceptions.RayActorError as error:
            fix = "start the job again: it goes on from its last checkpoint"
            raise RuntimeError(f"an agent-loop worker died with its rollouts; {fix}. {error}") from error
        calls = zip(workers, self._calls, strict=True)
        self._calls = [worker.__ray_ready__.remote() if call in answered else call for worker, call in calls]

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
        ranks = self._count_ranks()
        steps = split_rollouts(
            [key.rpartition("_")[0] for key in batch.keys], self._recipe.algorithm.num_steps_per_rollout
        )
        self._steps = len(steps)
        multiple = math.lcm(ranks, self.config.actor_rollout_ref.rollout.n)  # verl multiplies mini-batches by n
        rows = math.ceil(max(map(len, steps)) / multiple) * multiple
        parts: list[list[tuple[str, Any]]] = [[] for _ in range(ranks)]
        for places in steps:
            step = type(batch)(
                keys=[batch.keys[place] for place in places],
                tags=[batch.tags[place] for place in places],
                partition_id=batch.partition_id,
                fields=batch.fields,
                extra_info=batch.extra_info,
            )
            step = upsample_batch_to_divisible_size(step, rows, self.tokenizer.eos_token_id)
            work = calculate_workload(torch.tensor([tag["seq_len"] for tag in step.tags]))
            shares = get_seqlen_balanced_partitions(work, k_partitions=ranks, equal_size=True)
            for part, share in zip(parts, shares, strict=True):
                part += [(step.keys[place], step.tags[place]) for place in share]
        return type(batch)(
            keys=[key for part in parts for key, _ in part],
            tags=[tag for part in parts for _, tag in part],
            partition_id=batch.partition_id,
            fields=batch.fields,
            extra_info=batch.extra_info,
        )

    def _update_actor(self, batch: Batch, metrics: Any) -> Batch:
        """Train on a batch in the steps that `_balance_batch` made."""
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        configured = actor.ppo_mini_batch_size
        actor.ppo_mini_batch_size = len(batch.keys) // self._steps // rollout.n
        try:
            return super()._update_actor(batch, metrics)
        finally:
            actor.ppo_mini_batch_size = configured

    def _compute_advantage(self, batch: Batch, metrics: dict[str, Any]) -> Batch:
        """Write the advantage and the weight of each row, and count the rollouts that failed by name.

        Raises:
            RuntimeError: no rollout is valid, in the last `health.end_after` batches in a row.
        """
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask", "extra_fields"]
        )
        masks = data["response_mask"].unbind()
        steps: list[list[int]] = [[] for _ in range(self._steps)]  # the places of each step's rows
        ranks = self._count_ranks()
        for place in range(len(batch.keys)):  # rank after rank, step after step
            steps[place * ranks * self._steps // len(batch.keys) % self._steps].append(place)
        rows: dict[int, BatchRow] = {}
        for place, extra in enumerate(list(data["extra_fields"])):
            if not batch.tags[place].get("is_padding", False):
                uid, session, _ = batch.keys[place].rsplit("_", 2)
                rows[place] = BatchRow(uid, session, int(masks[place].sum()), extra[NOTES])
        notes = list({(row.uid, row.session): row.notes for row in rows.values()}.values())
        if reason := self._guard.check([read_notes(note, "") for note in notes], self._recipe.health.end_after):
            raise RuntimeError(reason)
        regrade = partial(self._regrade, batch) if method_spec(self._recipe.method).regrade else None
        own = [[place for place in step if place in rows] for step in steps]
        credits = credit_rows([[rows[place] for place in step] for step in own], self._recipe.algorithm, regrade)
        credit = {
            place: one for step, row in zip(own, credits, strict=True) for place, one in zip(step, row, strict=True)
        }
        advantages = [mask.float() * (credit[i].advantage if i in credit else 0.0) for i, mask in enumerate(masks)]
        scales = [mask.float() * (credit[i].scale if i in credit else 0.0) for i, mask in enumerate(masks)]
        nested = torch.nested.as_nested_tensor(advantages, layout=torch.jagged)
        weights = torch.nested.as_nested_tensor(scales, layout=torch.jagged)
        fields = TensorDict({"advantages": nested, "returns": nested, SCALES: weights}, batch_size=len(batch.keys))
        metrics.update({f"rollout/{name}": value for name, value in summarize_notes(notes).items()})
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _regrade(self, batch: Batch, uid: str, group: Group) -> Group:
        """Compare the rollouts of the group `uid` by the method's function."""
        spec = method_spec(self._recipe.method)
        assert spec.regrade is not None
        task = self._read_task(batch, uid)
        return group if task is None else regrade_group(partial(spec.regrade, self._recipe), task, group)

    def _read_task(self, batch: Batch, uid: str) -> Task | None:
        """Read the task of a group; None for a broken one, of which every rollout has already failed as `bad_task`."""
        key = next(key for key in batch.keys if key.rsplit("_", 2)[0] == uid)
        names = ["raw_prompt", "reward_model", "extra_info", "index"]
        data = tq.kv_batch_get(keys=[key], partition_id=batch.partition_id, select_fields=names)
        fields, options = {name: next(iter(data[name])) for name in names}, method_spec(self._recipe.method)
        try:
            path = name_files(self.config.data.train_files)
            return read_fields(fields, path, options.reading_options(self._recipe))
        except DataError:
            return None

    def _log_rollout_data(self, batch: Batch, timing_raw: Any, rollout_data_dir: str) -> None:
        """Record a step as the embedded backend would; verl would write texts."""
        every, step = self._recipe.run.record_every, self.global_steps
        if not every or (step % every and step > 1):
            return
        tags = {key: tag for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)}
        keys = sorted(tags, key=lambda key: int(key.rpartition("_")[2]))
        names = ["prompts", "responses", "response_mask", "rollout_log_probs", "old_log_probs", "advantages", SCALES]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[*names, "extra_fields"])
        columns = {name: data[name].unbind() for name in names}
        groups: defaultdict[str, defaultdict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        notes: dict[tuple[str, str], Any] = {}
        for place, (key, extra) in enumerate(zip(keys, data["extra_fields"], strict=True)):
            uid, session, _ = key.rsplit("_", 2)
            row = {name: column[place].tolist() for name, column in columns.items()}
            row |= {"scale": max(row[SCALES]), "version": str(tags[key].get("max_global_steps"))}
            groups[uid][session].append(row)
            notes[uid, session] = extra[NOTES]
        records = []
        for number, (uid, rollouts) in enumerate(groups.items()):
            task = self._read_task(batch, uid) or Task(uid, "", ())
            records += [record_rows(step, number, task, notes[uid, one], rows) for one, rows in rollouts.items()]
        self._rollouts.append(records)

    @cached_property
    def _rollouts(self) -> RolloutLog:
        path = Path(self.config.trainer.rollout_data_dir) / "rollouts.jsonl.gz"
        log = RolloutLog(path, partial(token_bytes, self.tokenizer))
        log.rewind(self.global_steps - 1)  # a run that goes on repeats the steps after its checkpoint
        return log

    def _count_ranks(self) -> int:
        """Count the data-parallel ranks of the actor."""
        workers = self.actor_rollout_wg
        if "actor" not in workers._dispatch_info:
            workers._dispatch_info["actor"] = workers._query_dispatch_info("actor")
        return max(workers._dispatch_info["actor"]) + 1


@register_adv_est(OLDER_ESTIMATOR)
def compute_row_advantages(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return GRPO's advantages for the older trainer, where a rollout is one row; a wholly masked one has failed."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, uid in enumerate(index):
        places[uid].append(place)
    result = torch.zeros_like(token_level_rewards)
    for group in places.values():
        rewards = [token_level_rewards[i].sum().item() if response_mask[i].any() else None for i in group]
        values = group_advantages(rewards, std_normalization=config.norm_adv_by_std_in_grpo)
        for place, value in zip(group, values, strict=True):
            result[place] = response_mask[place] * (value or 0.0)
    return result, result


for _name, _mode in MODES.items():
    _bases = RolloutTrainer, get_trainer_cls(_mode)
    register_trainer(_name)(type(_name, _bases, {"mode": _mode, "__module__": __name__}))
