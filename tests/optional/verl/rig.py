"""Drives verl's real agent-loop workers and our trainer on one CPU process, without Ray, a GPU or an LLM server.

In the place of TransferQueue stands a dictionary, and in the place of verl's servers a policy of ours. The
configuration is verl's own, composed by hydra; data is read by verl's own data set.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "core.backends.verl.trainer")

import hydra
import torch
import transfer_queue
import verl
import yaml
from tensordict import NonTensorStack, TensorDict
from verl.trainer.ppo.utils import create_rl_dataset
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.tensordict_utils import assign_non_tensor_data, get_tensordict
from verl.workers.rollout.replica import TokenOutput

from core.backends.rollouts import NOTES
from core.backends.verl import loop
from core.backends.verl.data import AGENT, write_tasks
from core.backends.verl.policy import VerlPolicy
from core.backends.verl.settings import LOOP
from core.rollout.method import MethodSpec
from core.types import RowUnit, Sampling, Task, Trajectory

PLACE = ContextVar[str]("PLACE")
"""Names the rollout that runs: verl's uid of its prompt, and its session_id."""
STEP = 3
"""The step of the trainer, and the version of the weights that the servers name."""


class Client:
    """verl's LLMServerClient over a policy of ours; `finish` maps our finish reasons to those of a verl server."""

    def __init__(self, policy: Any, finish: Callable[[str], str] = lambda reason: "completed"):
        self.policy, self.finish = policy, finish
        self.asked: Counter[tuple[int, ...]] = Counter()
        self.requests: list[dict[str, Any]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.requests.append({"request_id": request_id, **sampling_params})
        self.asked[tuple(prompt_ids)] += 1
        sampling = Sampling(
            temperature=sampling_params["temperature"],
            top_p=sampling_params["top_p"],
            top_k=sampling_params["top_k"],
            max_new_tokens=sampling_params["max_tokens"],
            stop_token_ids=tuple(sampling_params.get("stop_token_ids", ())),
            stop=tuple(sampling_params.get("stop", ())),
            # The replies to a prompt are the same, whichever rollout of its group comes first.
            seed=self.asked[tuple(prompt_ids)],
        )
        done = await self.policy.generate(tuple(prompt_ids), sampling, request_id)
        reason = "aborted" if done.finish_reason == "abort" else self.finish(done.finish_reason)
        return TokenOutput(
            token_ids=list(done.token_ids),
            log_probs=list(done.logprobs),
            stop_reason=reason,
            extra_fields={"global_steps": STEP, "min_global_steps": STEP - 1, "max_global_steps": STEP},
        )


@dataclass
class Queue:
    """Holds what TransferQueue would: fields and tags by key."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    tags: dict[str, dict[str, Any]] = field(default_factory=dict)

    def patch(self, monkeypatch: Any) -> None:
        async def put_one(key: str, partition_id: str, tag: Any = None, fields: Any = None) -> None:
            self.tags.setdefault(key, {}).update(tag or {})

        async def put_many(**named: Any) -> None:
            self.put(**named)

        for name, function in {
            "init": lambda *_: None,
            "async_kv_put": put_one,
            "async_kv_batch_put": put_many,
            "kv_batch_put": self.put,
            "kv_batch_get": self.get,
        }.items():
            monkeypatch.setattr(transfer_queue, name, function)

    def put(self, keys: Sequence[str], partition_id: str, fields: Any = None, tags: Any = None) -> Any:
        columns = {
            name: fields[name].unbind() if isinstance(fields[name], torch.Tensor) else list(fields[name])
            for name in (fields.keys() if fields is not None else ())
        }
        for place, key in enumerate(keys):
            self.tags.setdefault(key, {}).update(tags[place] if tags else {})
            self.rows.setdefault(key, {}).update({name: column[place] for name, column in columns.items()})
        return transfer_queue.KVBatchMeta(
            keys=list(keys), tags=[self.tags[key] for key in keys], partition_id=partition_id
        )

    def get(self, keys: Sequence[str], partition_id: str, select_fields: Sequence[str] | None = None) -> Any:
        found = {}
        for name in select_fields or self.rows[keys[0]]:
            values = [self.rows[key][name] for key in keys if name in self.rows[key]]
            if len(values) < len(keys):
                continue
            tensors = isinstance(values[0], torch.Tensor) and values[0].dim() > 0
            found[name] = (
                torch.nested.as_nested_tensor(values, layout=torch.jagged) if tensors else NonTensorStack(*values)
            )
        return TensorDict(found, batch_size=len(keys))

    def batch(self) -> Any:
        """The rows of all rollouts, as the replay buffer gives them."""
        keys = list(self.rows)
        return transfer_queue.KVBatchMeta(keys=keys, tags=[self.tags[key] for key in keys], partition_id="train")


def compose(folder: Path, model: Path, recipe: dict[str, Any], *overrides: str, tasks: Sequence[Task] = ()) -> Any:
    """verl's configuration for a recipe and its data, composed by hydra from verl's own files."""
    write_tasks(folder / "train.parquet", tasks, folder)
    (folder / "agentic_recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    (folder / "loops.yaml").write_text(yaml.safe_dump([{"name": AGENT, "_target_": LOOP}]))
    rollout, algorithm = recipe["rollout"], recipe["algorithm"]
    given = [
        "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.model.path={model}",
        f"actor_rollout_ref.rollout.n={rollout['group_size']}",
        f"actor_rollout_ref.rollout.temperature={rollout['temperature']}",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={folder / 'loops.yaml'}",
        f"+agentic_recipe={folder / 'agentic_recipe.yaml'}",
        f"actor_rollout_ref.actor.use_kl_loss={algorithm['kl_loss_coef'] > 0}",
        "algorithm.adv_estimator=grpo",
        f"data.train_batch_size={rollout['tasks_per_step']}",
        f"data.train_files={folder / 'train.parquet'}",
        "trainer.v1.trainer_mode=tokentrue_sync",
    ]
    config = Path(verl.__file__).parent / "trainer" / "config"
    with hydra.initialize_config_dir(str(config), version_base=None):
        return hydra.compose("ppo_trainer", [*given, *overrides])


def read_batch(config: Any, tokenizer: Any) -> dict[str, Any]:
    """The whole data file as one batch of verl's data loader."""
    dataset = create_rl_dataset(config.data.train_files, config.data, tokenizer, None)
    return collate_fn([dataset[place] for place in range(len(dataset))])


def run_v1(config: Any, client: Client, tokenizer: Any) -> None:
    """Run a batch by verl's V1 worker: every rollout of every task of the data file."""
    fields = read_batch(config, tokenizer)
    fields["uid"] = [f"task{place}" for place in range(len(fields["raw_prompt"]))]
    batch = get_tensordict({name: list(v) if not isinstance(v, torch.Tensor) else v for name, v in fields.items()})
    assign_non_tensor_data(batch, "global_steps", STEP)

    async def run() -> None:
        worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class(config, client)
        await worker.generate_sequences(batch)
        while worker.background_tasks:
            await asyncio.sleep(0.01)
        await loop.opened.close()

    asyncio.run(run())


def put_groups(config: Any, queue: Queue, groups: Sequence[Sequence[Trajectory]], unit: RowUnit) -> None:
    """Hand trajectories to verl's V1 worker as the rollouts of its agent loop: group g is the prompt `task{g}`."""
    client = Client(None)
    worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class(config, client)
    policy = VerlPolicy(client, config.actor_rollout_ref.rollout, worker.tokenizer)

    async def put_all() -> None:
        for number, group in enumerate(groups):
            for session, trajectory in enumerate(group):
                outputs = loop.make_outputs(
                    trajectory, unit, config.actor_rollout_ref.rollout.prompt_length, policy, STEP
                )
                kwargs = {"uid": f"task{number}", "session_id": session, "global_steps": STEP}
                await worker._agent_loop_postprocess(outputs, False, **kwargs)

    asyncio.run(put_all())


def use_method(monkeypatch: Any, spec: MethodSpec) -> None:
    """Have verl's workers and our trainer find `spec` by its name; `PLACE` names the rollout that runs."""
    for module in ("loop", "settings", "trainer"):
        monkeypatch.setattr(f"core.backends.verl.{module}.method_spec", {spec.name: spec}.__getitem__)
    run = loop.MethodAgentLoop.run

    async def named(self: Any, params: Any, **fields: Any) -> Any:
        PLACE.set(f"{fields['uid']}_{fields['session_id']}")
        return await run(self, params, **fields)

    monkeypatch.setattr(loop.MethodAgentLoop, "run", named)


def order(key: str) -> tuple[int, ...]:
    """The place of a rollout `task{g}_{session}`, or of its row, among those of its batch."""
    return tuple(map(int, key.removeprefix("task").split("_")))


def mini_batches(trainer: Any, batch: Any) -> list[list[str]]:
    """The keys of each optimizer step, as verl's own iterator cuts the part of each rank; padding is left out."""
    from verl.utils import tensordict_utils

    trainer._update_actor(batch, {})
    ranks = max(trainer.actor_rollout_wg._dispatch_info["actor"]) + 1
    size, part = trainer.sent[-1]["mini_batch_size"] // ranks, len(batch.keys) // ranks
    steps: dict[int, list[str]] = defaultdict(list)
    for rank in range(ranks):
        data = TensorDict({"place": torch.arange(rank * part, (rank + 1) * part)}, batch_size=part)
        shuffle = trainer.sent[-1]["dataloader_kwargs"]
        iterator = tensordict_utils.make_iterator(data, size, epochs=1, seed=rank, dataloader_kwargs=shuffle)
        for step, mini in enumerate(iterator):
            steps[step] += [batch.keys[place] for place in mini["place"].tolist()]
    return [[key for key in keys if not key.startswith("pad")] for _, keys in sorted(steps.items())]


def make_trainer(config: Any, tokenizer: Any, ranks: int = 2) -> Any:
    """Our trainer with verl's configuration and no workers; `sent` are the batches that the actor gets."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    from core.backends.verl import trainer
    from core.backends.verl.settings import read_recipe
    from core.rollout.runner import EmptyStepGuard

    made = object.__new__(get_trainer_cls(config.trainer.v1.trainer_mode))
    assert isinstance(made, trainer.RolloutTrainer)
    made.config, made.tokenizer = config, tokenizer
    made._recipe, made._guard = read_recipe(config), EmptyStepGuard()
    made.sent = []

    def update_actor(batch: Any) -> Any:
        made.sent.append(dict(batch.extra_info))
        return {"metrics": {"mfu": 0.0}}

    made.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": list(range(ranks))}, update_actor=update_actor)
    return made


def notes_of(row: dict[str, Any]) -> dict[str, Any]:
    return dict(row["extra_fields"][NOTES])
