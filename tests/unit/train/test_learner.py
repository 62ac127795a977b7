"""Several policies in training: each row trains the one that sampled it, and a checkpoint knows them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core.backends.checks import refuse_on_cluster
from core.config import Recipe, RecipeError
from core.config.load import replace_keys
from core.engine import weights
from core.policy.base import Policy, Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import Method
from core.rollout.roles import open_trained_roles
from core.rollout.rows import rows_from_groups
from core.rollout.turns import Turns
from core.runs.record import read_rollouts
from core.runs.run_folder import RunFolder
from core.train.command import _open_method, check_baseline
from core.train.learner import iterate_update, make_trainer
from core.train.loop import GRPOLoop
from core.train.rollout_engine import open_frozen_model
from core.train.trainer import finish
from core.types import Completion, Row, Sampling, Task, Trajectory
from tests import kit

PROMPT = (1, 2)
DR_GRPO = {"name": "dr_grpo", "loss_agg": "token", "max_response_length": None, "rows": "segment"}


class SolverAndCritic(Method):
    """Asks the solver, then the critic about what it wrote. The reward is the share of even ids of both."""

    solver_learns = True

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        turns = Turns(sampling)
        solved = await turns.ask(roles["policy"], "solve", PROMPT, 4, self.solver_learns)
        judged = await turns.ask(roles["critic"], "judge", (*PROMPT, *solved.token_ids), 3)
        ids = solved.token_ids + judged.token_ids
        return Trajectory(task.task_id, tuple(turns.recorded), reward=sum(i % 2 == 0 for i in ids) / len(ids))


def make_recipe(model: Path, *, steps: int = 2, lora: Any = None, kl_coef: float = 0.1, **sections: Any) -> Recipe:
    return kit.make_recipe(
        Recipe,
        model={"path": str(model), "device": "cpu", "lora": lora},
        data={"train": "none"},
        rollout={"tasks_per_step": 2, "group_size": 4, **sections.pop("rollout", {})},
        # Segments: the critic's prompt goes on from the solver's ids, and yet its row is its own.
        algorithm=DR_GRPO | {"kl_coef": kl_coef},
        inference={"kv_tokens": 1024, **sections.pop("inference", {})},
        run={"steps": steps, "eval_every": 0, "record_every": 1, "save_every": steps},
        roles={"critic": "trained"},
        **sections,
    )


def start_loop(recipe: Recipe, out: Path) -> GRPOLoop:
    tasks = [Task(f"t{i}", "?", ("x",)) for i in range(4)]
    folder = RunFolder.create(out, recipe.dump(), may_differ=["run"])
    tokenizer = kit.train_tokenizer("one two three", 300)
    return GRPOLoop(recipe, SolverAndCritic(), tokenizer, tasks, [], folder, 0, Path(recipe.model.path))


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["all weights", "adapters"])
async def test_each_row_trains_the_policy_that_sampled_it(qwen2: Path, tmp_path: Path, lora: Any) -> None:
    """One step of a run gives both policies the weights that a trainer alone gives them, on their own rows."""
    recipe = make_recipe(qwen2, steps=1, lora=lora)
    checkpoint = await start_loop(recipe, tmp_path / "run").run()
    rollouts = [r.trajectory() for r in read_rollouts(RunFolder(tmp_path / "run").rollouts_path(0))]
    assert [turn.policy for turn in rollouts[0].turns] == ["policy", "critic"]
    rows = rows_from_groups([rollouts[:4], rollouts[4:]], **recipe.algorithm.row_options())
    assert len(rows) == 16, "no segment goes over two policies"
    for name, folder in (("policy", checkpoint), ("critic", checkpoint / "critic")):
        model = weights.load(qwen2, device="cpu")
        trainer = make_trainer(recipe, model, 0, qwen2)
        trainer.grpo_step([row for row in rows if row.policy == name])
        alone, both = trainer.precise_weights(), weights.read(model, folder)
        for key, tensor in alone.items():
            torch.testing.assert_close(both[key], tensor.to(both[key]), atol=1e-6, rtol=1e-5, msg=f"{name}: {key}")
    both = (weights.read(model, folder) for folder in (checkpoint, checkpoint / "critic"))
    assert not torch.equal(*(tensors["model.layers.0.self_attn.q_proj.weight"] for tensors in both))


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["all weights", "adapters"])
async def test_a_resumed_run_goes_on_with_all_its_policies(qwen2: Path, tmp_path: Path, lora: Any) -> None:
    recipe = make_recipe(qwen2, steps=3, lora=lora)
    await start_loop(recipe, tmp_path / "whole").run()
    interrupted = start_loop(recipe, tmp_path / "resumed")
    await interrupted._adopt_weights()
    await interrupted._train_step()
    interrupted._save()
    await interrupted._train_step()
    for learner in interrupted.learners.values():
        await learner.engine.close()
    await start_loop(recipe, tmp_path / "resumed").run()
    whole, resumed = (kit.read_without_clocks(RunFolder(tmp_path / n).rollouts_path(0)) for n in ("whole", "resumed"))
    assert whole == resumed


async def test_a_run_in_which_the_critic_alone_learns_has_learned(
    qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is in bad health: replies are cut, and `policy` is not taught. A step of the critic is a step.

    One that it skips is told.
    """
    monkeypatch.setattr(SolverAndCritic, "solver_learns", False)
    loop = start_loop(make_recipe(qwen2, steps=3), tmp_path / "run")
    await loop.run()
    loop.check_learned()
    (*_, last) = RunFolder(tmp_path / "run").read_metrics(0)
    assert (last["rows"], last["critic_rows"], last["nonfinite_steps"]) == (0, 8, 0.0)
    assert last["health"].keys() == {"replies_cut", "policy_untaught"}

    learners = start_loop(make_recipe(qwen2, kl_coef=0.0), tmp_path / "other").learners
    row = Row((1, 2, 3), (1,), (-1.0,), 1.0, 0)
    rows = [row, replace(row, advantage=math.nan, policy="critic")]
    assert finish(iterate_update(learners, rows, None))["nonfinite_steps"] == 0.5


async def test_a_frozen_critic_trains_nobody(model: Path) -> None:
    """The method trains its turns as before; of another's tokens the policy would learn to say what it did not say."""
    spec: Any = SimpleNamespace(build=lambda recipe, tokenizer: SolverAndCritic())
    for place in (f"model:{model}", f"python:{__name__}.copy_prompts"):
        sections = {"model": {"path": str(model), "device": "cpu"}, "inference": {"kv_tokens": 1024}}
        recipe = kit.make_recipe(Recipe, roles={"critic": place}, **sections)
        async with _open_method(spec, recipe, model) as (method, _, roles):
            policies = Roles({"policy": copy_prompts(), **roles})
            rollout = await method.rollout(Task("t", "?", ("x",)), policies, Sampling(seed=0))
        assert [turn.trained for turn in rollout.turns] == [True, False]


@dataclass(frozen=True, slots=True)
class CopyPrompts:
    """A user's policy, which takes no further attribute."""

    scripted: ScriptedPolicy

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        return await self.scripted.generate(prompt_ids, sampling, session)


def copy_prompts(*_: Any) -> Policy:
    return CopyPrompts(ScriptedPolicy(lambda prompt, sampling: prompt))


async def test_adapters_share_the_weights_of_one_model(qwen2: Path, tmp_path: Path) -> None:
    loop = start_loop(make_recipe(qwen2, lora={"rank": 4}), tmp_path / "run")
    policy, critic = (learner.model for learner in loop.learners.values())
    for ours, theirs in zip(policy.parameters(), critic.parameters(), strict=True):
        assert ours.data_ptr() == theirs.data_ptr()
    separate = start_loop(make_recipe(qwen2), tmp_path / "other")
    policy, critic = (learner.model for learner in separate.learners.values())
    assert next(policy.parameters()).data_ptr() != next(critic.parameters()).data_ptr()


async def test_an_evaluation_opens_the_trained_critic(qwen2: Path, tmp_path: Path) -> None:
    """The critic of a checkpoint has its own weights; beside the untrained model it is that model."""
    recipe = make_recipe(qwen2, steps=1)
    checkpoint = await start_loop(recipe, tmp_path / "run").run()
    sampled = {}
    for name, folder in (("trained", checkpoint), ("untrained", qwen2)):
        async with open_trained_roles(recipe, folder, open_frozen_model) as roles:
            sampled[name] = await roles["critic"].generate(PROMPT, Sampling(temperature=0.0, max_new_tokens=4))
    async with open_frozen_model(str(checkpoint / "critic"), recipe) as critic:
        assert await critic.generate(PROMPT, Sampling(temperature=0.0, max_new_tokens=4)) == sampled["trained"]
    assert sampled["trained"].logprobs != sampled["untrained"].logprobs


def test_what_has_no_place_for_a_second_policy_says_so(qwen2: Path) -> None:
    with pytest.raises(RecipeError, match=r"roles\.critic is trained beside the policy, which slime has no place for"):
        refuse_on_cluster(replace_keys(make_recipe(qwen2, kl_coef=0.0), {"model.dtype": "bfloat16"}), "slime", "sglang")
    with pytest.raises(RecipeError, match=r"--baseline rejection trains one policy, and roles\.critic is trained, too"):
        check_baseline(make_recipe(qwen2, rejection={"lr": 1e-3}), "rejection")
    alone = replace_keys(make_recipe(qwen2, rejection={"lr": 1e-3}), {"rollout.group_size": 1})
    with pytest.raises(RecipeError, match=r"group_size=1 leaves nothing to compare: with adv_estimator=grpo"):
        check_baseline(replace_keys(alone, {"algorithm.adv_estimator": "grpo"}), None)
    ahead = {"rollout": {"tasks_per_step": 1, "group_size": 2, "ahead": 1}}
    ahead |= {"algorithm": {"name": "grpo", "tis": [0, 2]}}
    for sections in (ahead, {"inference": {"servers": ["http://127.0.0.1:1"]}}):
        with pytest.raises(ValueError, match="samples in this process between two updates"):
            kit.make_recipe(Recipe, roles={"critic": "trained"}, **sections)
