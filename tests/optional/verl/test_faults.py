"""What fails inside a rollout comes back to verl as a row with the name of the failure, within the deadline."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from core.policy.base import PolicyError
from core.types import Completion
from tests.contract.backends import scored_memagent

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]
CASE = scored_memagent.CASE
MINI = (
    "trainer.n_gpus_per_node=2",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",  # verl's separate trainer takes 4 updates for a batch of 4
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
)


class Broken:
    """A policy that fails in every way that verl's client can, by chance, or hangs."""

    def __init__(self, chance: Random, hang: bool):
        self.chance, self.hang = chance, hang

    async def generate(self, *_: Any) -> Completion:
        if self.hang and self.chance.random() < 0.2:
            await asyncio.Event().wait()
        faults: list[Any] = [
            ConnectionError("lost"),
            RuntimeError("No available servers in load balancer"),
            ValueError("exceeds the model's maximum context length (8)"),
            PolicyError("engine", "CUDA"),
            TimeoutError(),
        ]
        if self.chance.random() < 0.2:
            raise self.chance.choice(faults)
        if self.chance.random() < 0.05:
            return Completion((), (), "abort")
        size = self.chance.randint(1, 5)
        return Completion(tuple(self.chance.randrange(5, 50) for _ in range(size)), (-1.0,) * size, "stop")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("hang", "tasks"), [(False, 125), (True, 25)])
def test_every_rollout_ends_with_rows_and_every_failure_is_counted(
    verl: Any, hang: bool, tasks: int, model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 rollouts, and 200 of which many hang."""
    values = CASE.recipe(tasks_per_step=tasks, group_size=8, deadline_s=2.0 if hang else 60.0)
    config = verl.compose(tmp_path, model, values, tasks=CASE.tasks(tasks))
    verl.use_method(monkeypatch, CASE.spec)
    queue = verl.Queue()
    queue.patch(monkeypatch)
    verl.run_v1(config, verl.Client(Broken(Random(1), hang)), tokenizer)
    rollouts = {key.rpartition("_")[0]: verl.notes_of(row) for key, row in queue.rows.items()}
    assert len(rollouts) == tasks * 8
    assert {queue.tags[f"task{number}"]["status"] for number in range(tasks)} == {"finished"}
    counts = Counter(notes["failure"] for notes in rollouts.values())
    names = {None, "unavailable", "too_long", "engine", "timeout", "aborted"} | ({"deadline"} if hang else set())
    assert set(counts) == names
    metrics: dict[str, Any] = {}
    trainer = verl.make_trainer(config, tokenizer)
    trainer._compute_advantage(trainer._balance_batch(queue.batch(), metrics), metrics)
    assert {name.rpartition("/")[2]: n for name, n in metrics.items() if "failures/" in name} == {
        name: n for name, n in counts.items() if name
    }
    for key, row in queue.rows.items():
        if queue.tags[key].get("is_padding"):
            continue
        failed = rollouts[key.rpartition("_")[0]]["status"] == "failed"
        assert row["response_mask"].any() != failed
        assert not failed or not row["loss_scales"].any()


def test_training_ends_when_every_rollout_of_several_batches_failed(
    verl: Any, model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = CASE.recipe(tasks_per_step=2, group_size=2)
    config = verl.compose(tmp_path, model, values, tasks=CASE.tasks(2))
    queue = verl.Queue()
    queue.patch(monkeypatch)
    client = verl.Client(None)  # every call is an AttributeError
    verl.run_v1(config, client, tokenizer)
    trainer = verl.make_trainer(config, tokenizer)
    for _ in range(trainer._recipe.health.end_after - 1):
        trainer._compute_advantage(trainer._balance_batch(queue.batch(), {}), {})
    with pytest.raises(RuntimeError, match=r"every rollout of \d steps in a row failed: 4 x engine"):
        trainer._compute_advantage(trainer._balance_batch(queue.batch(), {}), {})


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_the_trainer_starts_as_verls_own(verl: Any, mode: str, model: Path, tmp_path: Path) -> None:
    """verl finds the configuration valid; its constructor runs, and finds the settings of its own mode."""
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.utils.config import validate_config

    config = verl.compose(tmp_path, model, CASE.recipe(), f"trainer.v1.trainer_mode=tokentrue_{mode}", *MINI)
    trainer = get_trainer_cls(f"tokentrue_{mode}")(config)
    validate_config(config, use_reference_policy=trainer.use_reference_policy, use_critic=trainer.use_critic)
    assert trainer.trainer_mode == trainer.replay_buffer.trainer_mode == mode
    assert trainer.parameter_sync_step == {"separate_async": 4}.get(mode, 1)
    assert not trainer.use_critic
    assert trainer.use_reference_policy == (trainer._recipe.algorithm.kl_loss_coef > 0)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("dead", ["server", "load balancer"])
def test_what_dies_under_verls_client_is_named(
    verl: Any, dead: str, model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's own client and load balancer on a local Ray: one of two servers dies in a call, or the load balancer."""
    import ray
    from verl.workers.rollout.llm_server import GlobalRequestLoadBalancer, LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

    class Server:
        """A replica whose process ends in the call after `left` ones. Inside a function, Ray sends it by value."""

        def __init__(self, left: int | None):
            self.left = left

        async def generate(self, request_id: str, **_: Any) -> Any:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    os._exit(1)
            extra = {"global_steps": 1}
            return TokenOutput(token_ids=[5, 6], log_probs=[-1.0] * 2, stop_reason="completed", extra_fields=extra)

    config = verl.compose(
        tmp_path, model, CASE.recipe(tasks_per_step=4, group_size=8, deadline_s=240), tasks=CASE.tasks(4)
    )
    verl.use_method(monkeypatch, CASE.spec)
    queue = verl.Queue()
    queue.patch(monkeypatch)
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        servers = {name: ray.remote(Server).remote(left) for name, left in (("a", 20), ("b", None))}
        balancer = ray.remote(GlobalRequestLoadBalancer).remote(servers)
        ray.get([server.__ray_ready__.remote() for server in (*servers.values(), balancer)])
        if dead == "load balancer":
            ray.kill(balancer)
        verl.run_v1(config, LLMServerClient(config, balancer), tokenizer)
    finally:
        ray.shutdown()
    assert {queue.tags[f"task{number}"]["status"] for number in range(4)} == {"finished"}
    rollouts = {key.rpartition("_")[0]: verl.notes_of(row) for key, row in queue.rows.items()}
    assert len(rollouts) == 32
    assert {notes["failure"] for notes in rollouts.values()} == {"unavailable", *([None] if dead == "server" else [])}


def test_a_killed_agent_loop_worker_ends_the_job(
    verl: Any, model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's own replay buffer waits for rollouts that run; one of two workers on a local Ray is killed."""
    import ray
    import transfer_queue
    from verl.trainer.ppo.v1 import get_trainer_cls

    class Worker:
        async def generate_sequences(self) -> None:
            await asyncio.Event().wait()

    config = verl.compose(tmp_path, model, CASE.recipe(tasks_per_step=4))
    trainer = get_trainer_cls("tokentrue_sync")(config)
    running = {"task0": {"is_prompt": True, "global_steps": 1, "status": "running"}}
    looks = 0

    def look() -> Any:
        nonlocal looks
        looks += 1
        if looks == 3:
            ray.kill(workers[0])
        assert looks < 60, "the buffer waits for a dead worker"
        return {"train": running}

    monkeypatch.setattr(transfer_queue, "kv_list", look)
    trainer.replay_buffer.poll_interval = 0.5
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        workers = [ray.remote(Worker).remote() for _ in range(2)]
        ray.get([worker.__ray_ready__.remote() for worker in workers])
        trainer.agent_loop_manager = SimpleNamespace(agent_loop_workers=workers)
        with pytest.raises(RuntimeError, match="an agent-loop worker died with its rollouts; start the job again"):
            trainer.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=4)
    finally:
        ray.shutdown()
    assert looks >= 3


def test_settings_that_contradict_raise_before_training(verl: Any, model: Path, tmp_path: Path) -> None:
    """The trainer reads the same recipe as the agent loop, before it starts a worker."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    from core.config import RecipeError

    config = verl.compose(tmp_path, model, CASE.recipe(), "actor_rollout_ref.rollout.n=3")
    with pytest.raises(RecipeError, match=r"rollout.n is 3, must be 4: the recipe's rollout.group_size"):
        get_trainer_cls("tokentrue_sync")(config)
