"""The hooks of one method, without slime: settings that contradict each other, sampling, the filter, rewards, logs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.backends import rollouts
from core.backends.rollouts import AbortableRoles, MethodRollouts
from core.backends.slime import bridge as bridge_module
from core.backends.slime.bridge import SlimeBridge, router_urls
from core.backends.slime.samples import fan_out, fill_sample, read_trajectory
from core.config import HealthSection, Recipe, RecipeError
from core.policy.base import Roles
from core.rollout.method import Method, MethodSpec, PolicyFault, RolloutError
from core.rollout.turns import Turns
from core.types import Completion, Sampling, Task, Trajectory, Turn
from tests.unit.backends.slime.conftest import as_samples, trajectory, turn
from tests.unit.backends.slime.standin import SAMPLING, Sample, arguments

RECIPE: dict[str, Any] = {
    "method": "one_turn",
    "preset": "test",
    "follows": "nothing",
    "model": {"path": "nowhere"},
    "data": {"train": "train.jsonl"},
    "rollout": {"tasks_per_step": 2, "group_size": 4, "temperature": 1.0, "deadline_s": 30.0},
    "algorithm": {"name": "grpo", "max_num_gen_batches": 2},
    "optimizer": {"lr": 1e-6},
    "run": {"steps": 1},
}


FAN = {"custom_convert_samples_to_train_data_path": None, "custom_reward_post_process_path": "post_process_rewards"}
"""What slime is told for rollouts that are fanned out."""


def use(**algorithm: Any) -> dict[str, Any]:
    """The recipe with another algorithm."""
    return {"agentic_recipe": {**RECIPE, "algorithm": {**RECIPE["algorithm"], **algorithm}}}


@dataclass
class OneTurn(Method):
    """Asks once and is paid what the label says."""

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        completion = await roles["policy"].generate((1, 2), sampling)
        own = task.metadata.get("own_advantage")
        return trajectory(float(task.answers[0]), Turn("only", (1, 2), completion, True, advantage=own))


class Echo:
    """A policy and a tokenizer at once; remembers what it was asked."""

    def __init__(self, finish_reason: Any = "stop") -> None:
        self.finish_reason = finish_reason
        self.calls: list[tuple[Sampling, str | None]] = []

    async def generate(self, prompt_ids: Any, sampling: Sampling, session: str | None = None) -> Completion:
        self.calls.append((sampling, session))
        await asyncio.sleep(0)
        return Completion((5, 6), (-0.5, -0.5), self.finish_reason)

    def decode(self, ids: Any) -> str:
        return " ".join(map(str, ids))


SPEC = MethodSpec("one_turn", Recipe, Path(), lambda recipe, tokenizer: OneTurn())


@pytest.fixture
def hooks() -> SlimeBridge:
    return SlimeBridge(SPEC)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[[Echo], SlimeBridge]:
    """Hooks whose policy is the given one instead of slime's router."""

    def make(policy: Echo, aborting: bool = False) -> SlimeBridge:
        async def open_rollouts(spec: MethodSpec, recipe: Recipe, *_: Any) -> Any:
            return MethodRollouts(OneTurn(), {"policy": policy}, policy, recipe.rollout.deadline_s)

        monkeypatch.setattr(rollouts, "open_rollouts", open_rollouts)
        monkeypatch.setattr(bridge_module, "abort_flag", lambda args: lambda: aborting)
        return SlimeBridge(SPEC)

    return make


def sample(label: str = "1", **fields: Any) -> Sample:
    return Sample(**{"group_index": 0, "index": 0, "prompt": "Which?", "label": label, **fields})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"agentic_recipe": None}, "--custom-config-path"),
        ({"agentic_recipe": {**RECIPE, "rolout": 1}}, "rolout"),
        ({"n_samples_per_prompt": 8}, r"--n-samples-per-prompt is 8, must be 4: the recipe's rollout.group_size"),
        ({"rollout_batch_size": 3}, r"--rollout-batch-size is 3, must be 2"),
        ({"rollout_temperature": 0.7}, r"--rollout-temperature is 0.7, must be 1.0"),
        ({"rollout_top_p": 0.9}, r"--rollout-top-p is 0.9"),
        ({"use_dynamic_batch_size": False}, "--use-dynamic-batch-size"),
        ({"calculate_per_token_loss": True}, "--calculate-per-token-loss"),
        ({"normalize_advantages": True}, "--normalize-advantages"),
        ({"apply_chat_template": True}, "--apply-chat-template"),
        ({"log_passrate": True}, "--log-passrate"),
        ({"global_batch_size": 3}, "--global-batch-size 3 does not divide the batch of 8 rollouts"),
        ({"custom_convert_samples_to_train_data_path": None}, "--custom-convert-samples-to-train-data-path or"),
        (FAN | {"agentic_recipe": {**RECIPE, "algorithm": {"name": "grpo", "loss_agg": "turn"}}}, "loss_agg is turn"),
        (FAN | {"partial_rollout": True}, "--partial-rollout is True, must be False"),
        (
            {"advantage_estimator": "gspo"},
            "--advantage-estimator is gspo, must be grpo: the recipe's algorithm.loss_mode",
        ),
        (
            use(loss_mode="cispo") | {"advantage_estimator": "grpo"},
            "--advantage-estimator is grpo, must be cispo: the recipe's algorithm.loss_mode",
        ),
        (
            use(kl_coef=0.1, std_normalization=False),
            "algorithm.kl_coef is for the embedded backend alone; on slime set algorithm.kl_coef=0.0",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_named(hooks: SlimeBridge, change: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        hooks.recipe(arguments(RECIPE, **change))


async def test_generate_writes_the_rollout_into_the_sample(connect: Any) -> None:
    policy = Echo()
    hooks = connect(policy)
    done = await hooks.generate(arguments(RECIPE), sample(session_id="s1"), SAMPLING)
    assert (done.reward, done.status, done.response) == (1.0, Sample.Status.COMPLETED, "5 6")
    assert (done.tokens, done.loss_mask) == ([1, 2, 5, 6], [1, 1])
    assert policy.calls[0][1] == "s1"
    assert await hooks.reward_func(arguments(RECIPE), done) == 1.0
    assert await hooks.reward_func(arguments(RECIPE), [done, sample()]) == [1.0, 0.0]


@pytest.mark.parametrize("own", [0.0, 0.5, (0.5, 1.0)])
async def test_an_advantage_of_the_methods_own_fails_by_name_on_every_cluster(connect: Any, own: Any) -> None:
    """core/backends/rollouts.py is what slime's hooks and verl's agent loop run."""
    args = arguments(RECIPE)
    done = await connect(Echo()).generate(args, sample("1", metadata={"own_advantage": own}), SAMPLING)
    notes = done.metadata["agentic"]
    assert (done.status, notes["failure"]) == (Sample.Status.FAILED, "own_advantage")
    assert "only the embedded backend keeps" in notes["error"]


async def test_sampling_is_slimes_and_is_left_alone(connect: Any) -> None:
    policy = Echo()
    params = {**SAMPLING, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "sampling_seed": 7}
    before = dict(params)
    await connect(policy).generate(arguments(RECIPE), sample(), params, evaluation=True)
    sampling, session = policy.calls[0]
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.6, 0.95, 20, 7)
    assert session
    assert params == before


async def test_fan_out_in_training_and_one_sample_in_evaluation(connect: Any) -> None:
    hooks = connect(Echo())
    args = arguments(RECIPE, **FAN)
    (part,) = await hooks.generate(args, sample(index=7), SAMPLING)
    assert part.rollout_id == 7
    assert isinstance(await hooks.generate(args, sample(), SAMPLING, evaluation=True), Sample)


@pytest.mark.parametrize("how", ["engine", "slime"])
async def test_an_abort_gives_the_sample_back_to_slime(connect: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the method goes on without the call, as it may for a tool."""
    once = OneTurn.rollout

    async def goes_on(self: OneTurn, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        with contextlib.suppress(RolloutError):
            await once(self, task, roles, sampling)
        return trajectory(1.0, turn(1))

    monkeypatch.setattr(OneTurn, "rollout", goes_on)
    policy = Echo("abort" if how == "engine" else "stop")
    hooks = connect(policy, aborting=how == "slime")
    done = await hooks.generate(arguments(RECIPE), sample(), SAMPLING)
    assert (done.status, done.remove_sample, done.reward) == (Sample.Status.ABORTED, True, 0.0)
    assert len(policy.calls) == (how == "engine")  # once slime aborts, no further call goes out
    in_evaluation = await hooks.generate(arguments(RECIPE), sample(), SAMPLING, evaluation=True)
    assert in_evaluation.status == Sample.Status.FAILED


async def test_a_rollout_that_outgrew_the_context_is_a_zero_where_the_method_says_so(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def outgrow(self: OneTurn, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        turns = Turns(sampling)
        await turns.ask(roles["policy"], "only", (1, 2), 4)
        raise PolicyFault("too_long", "the prompt grew", turns.recorded)

    monkeypatch.setattr(OneTurn, "rollout", outgrow)
    hooks = connect(Echo())
    done = await hooks.generate(arguments(RECIPE), sample(group_index=0), SAMPLING)
    assert (done.status, done.reward, done.remove_sample) == (Sample.Status.TRUNCATED, 0.0, False)
    assert (done.tokens, done.loss_mask) == ([1, 2, 5, 6], [1, 1])
    assert read_trajectory(done, None).failure == "too_long"
    rows = hooks.convert(arguments(RECIPE, global_batch_size=2), [done, *filled(0, 1.0)])
    assert rows["raw_reward"] == [0.0, 1.0]


def filled(group_index: int, *rewards: float | None) -> list[Sample]:
    group = []
    for reward in rewards:
        group.append(sample(group_index=group_index))
        fill_sample(group[-1], trajectory(reward, turn(1), failure=None if reward is not None else "engine"), None)
    return group


@pytest.mark.usefixtures("slime_modules")
def test_the_filter_looks_at_valid_rollouts_alone(hooks: SlimeBridge) -> None:
    args = arguments(RECIPE)
    assert hooks.dynamic_filter(args, filled(0, 1.0, 0.0, None, 1.0)).keep
    dropped = hooks.dynamic_filter(args, filled(0, 1.0, 1.0, None, 1.0))  # slime's own would see a 0 and keep it
    assert (dropped.keep, dropped.reason) == (False, "zero_std")
    assert hooks.dynamic_filter(args, filled(0, None, None, None, None)).reason == "all_failed"
    nested = [[member, member] for member in filled(0, 1.0, 0.0)]
    assert hooks.dynamic_filter(args, nested).keep


@pytest.mark.usefixtures("slime_modules")
def test_the_filter_gives_way_after_its_rounds(hooks: SlimeBridge) -> None:
    """Else a policy that solves everything, or a dead server, would sample for ever."""
    args, group = arguments(RECIPE), filled(0, 1.0, 1.0)
    limit = RECIPE["algorithm"]["max_num_gen_batches"] * RECIPE["rollout"]["tasks_per_step"]
    assert [hooks.dynamic_filter(args, group).keep for _ in range(limit + 2)] == [False] * limit + [True] * 2
    assert hooks.dynamic_filter(args, filled(0, 1.0, 0.0)).keep
    assert not hooks.dynamic_filter(args, group).keep


def test_training_stops_after_three_batches_without_a_valid_rollout(hooks: SlimeBridge) -> None:
    args, lost = arguments(RECIPE), filled(0, *[None] * 4) + filled(1, *[None] * 4)
    for _ in range(HealthSection().end_after - 1):
        assert hooks.convert(args, lost)["tokens"] == [[0, 0]] * 8
    hooks.convert(args, filled(0, 1.0, 0.0, None, None) + filled(1, *[None] * 4))
    for _ in range(HealthSection().end_after - 1):
        hooks.convert(args, lost)
    with pytest.raises(RuntimeError, match=r"8 x engine \(first: because of engine\)"):
        hooks.convert(args, lost)


def test_so_does_a_training_of_fanned_out_rollouts(hooks: SlimeBridge) -> None:
    args, valid = arguments(RECIPE, **FAN), trajectory(1.0, turn(1), turn(2))
    lost, some = ([trajectory(None, failure="engine")] * 4, [valid] * 2 + [trajectory(None, failure="engine")] * 2)
    parts = [[part for s in as_samples([group]) for part in fan_out(s, "turn")] for group in (lost, some)]
    for batch in (0, 0, 1, 0, 0):
        hooks.post_process_rewards(args, parts[batch])
    with pytest.raises(RuntimeError, match=r"4 x engine \(first: because of engine\)"):
        hooks.post_process_rewards(args, parts[0])


def test_logs_tell_failures_by_name_and_leave_slimes_own_running(
    hooks: SlimeBridge, slime_modules: dict[str, Any]
) -> None:
    samples = filled(0, 1.0, 0.0, None, None)
    assert hooks.rollout_log(3, arguments(RECIPE), samples) is False
    data = {"dev": {"rewards": [1.0], "truncated": [False], "samples": samples}}
    assert hooks.eval_log(3, arguments(RECIPE), data) is False
    calls = slime_modules["observability.logging_utils"].log.call_args_list
    (train, train_key), (evaluation, eval_key) = [(call.args[1], call.kwargs["step_key"]) for call in calls]
    assert train == {
        "rollout/reward": 0.25,
        "rollout/reward_std": 0.5,  # of the valid ones
        "rollout/groups_with_signal": 1.0,
        "rollout/cut_off": 0.0,
        "rollout/truncated": 0.0,
        "rollout/failed": 0.5,
        "rollout/failures/engine": 2,
        "rollout/turns": 1.0,
        "rollout/step": 3,
    }
    assert evaluation == {
        name if name == "eval/step" else name.replace("rollout/", "eval/dev/"): value
        for name, value in {**train, "eval/step": 3}.items()
        if name != "rollout/step"
    }
    assert (train_key, eval_key, evaluation["eval/step"]) == ("rollout/step", "eval/step", 3)
    hooks.rollout_log(4, arguments(RECIPE), filled(0, None, None))
    outage = slime_modules["observability.logging_utils"].log.call_args.args[1]
    assert "rollout/reward" not in outage, "an outage is no step of reward 0"
    assert outage["rollout/failed"] == 1.0


@pytest.mark.usefixtures("slime_modules")
def test_a_run_on_slime_says_how_it_is(hooks: SlimeBridge, caplog: pytest.LogCaptureFixture) -> None:
    for rollout_id in range(3):
        hooks.rollout_log(rollout_id, arguments(RECIPE), filled(0, 0.0, 0.0) + filled(1, 0.0, 0.0))
    hooks.rollout_log(3, arguments(RECIPE), filled(0, 1.0, 0.0) + filled(1, 0.0, None))
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(". Try: ")[0] for line in said] == [
        "rollout 2: warning, rewards equal: every rollout of the step has the reward 0, so no weight learns from it",
        "rollout 3: over: rewards equal",
    ]


def test_a_tracker_that_fails_is_counted_and_costs_nothing_else(
    hooks: SlimeBridge, slime_modules: dict[str, Any]
) -> None:
    slime_modules["observability.logging_utils"].log.side_effect = ConnectionError("no route to the tracker")
    assert hooks.rollout_log(0, arguments(RECIPE), filled(0, 1.0)) is False
    assert hooks.log.failures == 1


def test_roles_are_slimes_routers_and_a_model_that_it_lacks_is_named(hooks: SlimeBridge) -> None:
    cluster: dict[str, Any] = {"model": "qwen2.5-7B", "checkpoint": {"hf": "/hf", "ref_load": "/dist"}}
    cluster |= {"rollout_gpus": 16, "nodes": 2, "roles": {"executor": "coder"}}
    cluster["sglang"] = {"models": {"coder": {"path": "/coder", "gpus": 4}}}
    recipe = Recipe.model_validate({**RECIPE, "slime": cluster})
    args = arguments(RECIPE, sglang_router_port=3000, sglang_model_routers={"coder": ("10.0.0.2", 3001)})
    assert router_urls(recipe, args) == {"policy": "http://127.0.0.1:3000", "executor": "http://10.0.0.2:3001"}
    with pytest.raises(RecipeError, match=r"slime.roles.executor: slime serves no model 'coder' \(known: none\)"):
        router_urls(recipe, arguments(RECIPE))


async def test_a_role_that_the_method_asks_and_nobody_serves_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "load_tokenizer", lambda path: None)
    method = OneTurn()
    method.needs = ("judge",)
    hooks = SlimeBridge(MethodSpec("one_turn", Recipe, Path(), lambda recipe, tokenizer: method))
    with pytest.raises(RecipeError, match=r"roles.judge is missing"):
        await hooks.generate(arguments(RECIPE), sample(), SAMPLING)


async def test_no_role_but_the_policy_is_trained() -> None:
    roles, turns = AbortableRoles({"judge": Echo(), "policy": Echo()}, "s1", lambda: False), Turns(Sampling())
    for role in roles:
        await turns.ask(roles[role], role, (1,), 1)
    recorded = [(turn.role, turn.trained, turn.policy) for turn in turns.recorded]
    assert recorded == [("judge", False, "policy"), ("policy", True, "policy")]


async def test_slimes_session_is_that_of_every_call() -> None:
    policy = Echo()
    for own in (None, "the method's"):
        await AbortableRoles({"judge": policy}, "s1", lambda: False)["judge"].generate((1,), Sampling(), own)
    assert [call[1] for call in policy.calls] == ["s1", "s1"]
