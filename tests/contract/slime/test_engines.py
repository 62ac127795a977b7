"""slime's real rollout functions, RolloutManager and loss drive the hooks on CPU, against the embedded server.

Runs where SLIME_ROOT names a checkout of slime. Each training dictionary is compared, value by value, with the rows
that our own engine makes when the same method meets the same completions again; each loss with ours on those rows.
"""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.algorithms.aggregate import LOSS_UNITS, row_scales
from core.algorithms.grpo import grpo_loss
from core.config import AlgorithmSection
from core.policy.base import Roles
from core.rollout.rows import rows_from_groups
from core.rollout.runner import Runner
from core.slime.samples import NOTES, by_group, task_of
from core.types import Row, Sampling, Trajectory
from tests.contract.slime.conftest import HOOKS, SENTENCE, Arguments, Tape, make_recipe, make_tasks
from tests.contract.slime.scored_memagent import SPEC
from tests.contract.slime.settings import DATA_PARALLEL

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]
Manager = Callable[[Any], Any]
VOCABULARY = 5
"""Of the random logits that losses are compared on."""


@pytest.fixture
def manager(slime: Any, monkeypatch: pytest.MonkeyPatch) -> Manager:
    """A RolloutManager over given arguments; `samples` is what its converter got."""

    def make(args: Any) -> Any:
        slime.sglang_rollout.GenerateState.clear_instances()
        made = slime.rollout_manager(args, None)
        made.set_train_parallel_config(
            {"dp_size": DATA_PARALLEL, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
        )
        convert = made.custom_convert_samples_to_train_data_func

        def keep(args: Any, samples: list[Any]) -> Any:
            made.samples = samples
            return convert(args, samples)

        if convert is not None:
            made.custom_convert_samples_to_train_data_func = keep
        return made

    return make


def rows_of(refs: list[Any]) -> list[Row]:
    """The rows of all ranks, in the converter's order."""
    rows: dict[int, Row] = {}
    for ref in refs:
        part = ref.inner
        for place, position in enumerate(part["partition"]):
            rows[position] = Row(
                tuple(part["tokens"][place].tolist()),
                tuple(part["loss_masks"][place].tolist()),
                tuple(part["rollout_log_probs"][place].tolist()),
                part["rewards"][place],
                part["rollout_ids"][place],
            )
    return [rows[position] for position in range(len(rows))]


def again(tape: Tape, samples: list[Any], recipe: dict[str, Any], tokenizer: Any) -> list[list[Trajectory]]:
    """The trajectories of our own runner, from the completions that slime's rollouts got."""
    method = SPEC.build(SPEC.recipe.model_validate(recipe), tokenizer)

    async def run(sample: Any) -> Trajectory:
        policy = tape.replay(sample.session_id)
        trajectory = await Runner(method, Roles({"policy": policy}), concurrency=1, deadline_s=60).run_one(
            task_of(sample, "train.jsonl"), Sampling()
        )
        assert not policy.outcomes
        return trajectory

    async def run_all() -> list[list[Trajectory]]:
        return [[await run(sample) for sample in group] for group in by_group(samples)]

    return asyncio.run(run_all())


def assert_rows_are_ours(refs: list[Any], made: Any, tape: Tape, recipe: dict[str, Any], tokenizer: Any) -> list[Row]:
    algorithm = AlgorithmSection.model_validate(recipe["algorithm"])
    groups = again(tape, made.samples, recipe, tokenizer)
    ours = rows_from_groups(groups, std_norm=algorithm.std_norm, credit=algorithm.credit)
    theirs = rows_of(refs)
    as_float32 = [
        Row(row.tokens, row.loss_mask, tuple(torch.tensor(row.logprobs).tolist()), row.advantage, row.rollout_id)
        for row in ours
    ]
    assert [row for row in theirs if row.trained_tokens] == as_float32
    rollouts = sum(map(len, groups))
    assert {row.rollout_id for row in theirs} == set(range(rollouts))
    for sample, trajectory in zip(made.samples, (t for group in groups for t in group), strict=True):
        assert sample.metadata[NOTES]["failure"] == trajectory.failure
        assert sample.metadata[NOTES]["metrics"] == dict(trajectory.metrics)
    return theirs


def test_a_training_batch(manager: Manager, arguments: Arguments, tape: Tape, tokenizer: Any) -> None:
    """Uneven turns, half-failed groups, a reward that raises, a task without context."""
    recipe = make_recipe(tasks_per_step=6)
    tasks = make_tasks(6, "one", "half", "one", "raises", "one", "one")
    tasks[4] = replace(tasks[4], context="")
    made = manager(arguments(recipe, tasks))
    rows = assert_rows_are_ours(made.generate(0), made, tape, recipe, tokenizer)
    failures = [sample.metadata[NOTES]["failure"] for sample in made.samples]
    assert failures.count("exception_RuntimeError") == 4
    assert failures.count("no_context") == 4
    assert 0 < failures.count("half") < 4
    assert len({sum(row.rollout_id == r for row in rows) for r in range(24)}) > 3
    assert any(row.advantage for row in rows)
    assert all(version == "0" for sample in made.samples for version in sample.weight_versions)


@pytest.mark.parametrize(("std_norm", "credit"), [(True, "split"), (False, "broadcast")])
def test_advantages_of_each_kind(
    manager: Manager, arguments: Arguments, tape: Tape, tokenizer: Any, std_norm: bool, credit: str
) -> None:
    recipe = make_recipe()
    recipe["algorithm"] |= {"std_norm": std_norm, "credit": credit}
    made = manager(arguments(recipe, make_tasks(4, "one", "half")))
    assert_rows_are_ours(made.generate(0), made, tape, recipe, tokenizer)


def test_memagents_own_hooks(manager: Manager, arguments: Arguments, tape: Tape) -> None:
    made = manager(arguments(make_recipe(), make_tasks(4), hooks="agentic.memagent.rollout"))
    rows = rows_of(made.generate(0))
    assert all(row.trained_tokens and not row.advantage for row in rows)  # an untrained model never answers right
    assert len(rows) == 4 * (2 + 3 + 4 + 5)


def test_dynamic_filter_and_aborts(manager: Manager, arguments: Arguments, tape: Tape, tokenizer: Any) -> None:
    """More groups than needed, some without signal; what is under way is aborted, kept by slime and run again."""
    recipe = make_recipe(filter="zero_std")
    tasks = make_tasks(12, "easy", "one", "half")
    long = [replace(task, task_id=f"long-{i}", context=SENTENCE * 60) for i, task in enumerate(make_tasks(4, "one"))]
    args = arguments(
        recipe,
        tasks + long,
        dynamic_sampling_filter_path=f"{HOOKS}.dynamic_filter",
        over_sampling_batch_size=len(tasks + long),
        partial_rollout=True,
    )
    made = manager(args)
    assert_rows_are_ours(made.generate(0), made, tape, recipe, tokenizer)
    for group in by_group(made.samples):
        assert len({sample.reward for sample in group if not sample.remove_sample}) > 1

    waiting = [sample for group in made.data_source.buffer for sample in group]
    aborted = {sample.group_index for sample in waiting if sample.status == sample.Status.ABORTED}
    assert {sample.group_index for sample in waiting if sample.metadata["task_id"].startswith("long")} <= aborted
    for sample in waiting:
        if sample.status == sample.Status.ABORTED:
            sample.metadata["context"] = SENTENCE  # so that its second run ends soon
            tape.forget(sample.session_id)
    assert_rows_are_ours(made.generate(1), made, tape, recipe, tokenizer)
    assert {sample.group_index for sample in made.samples} & aborted
    assert all(sample.status != sample.Status.ABORTED for sample in made.samples)


def test_fully_asynchronous_rollout(
    slime: Any, manager: Manager, arguments: Arguments, tape: Tape, tokenizer: Any, url: str
) -> None:
    """Engines abort what they run at a weight update: such groups go back to slime's buffer, and none is trained on."""
    recipe = make_recipe()
    made = manager(
        arguments(
            recipe,
            make_tasks(8, "one", "half", longest=8),
            rollout_function_path="slime.rollout.fully_async_rollout.generate_rollout_fully_async",
            sglang_server_concurrency=4,
        )
    )
    requeued: list[str] = []
    add_samples = made.data_source.add_samples

    def add(groups: list[list[Any]]) -> None:
        for sample in (sample for group in groups for sample in group):
            if sample.status == sample.Status.ABORTED:
                requeued.append(sample.session_id)
                tape.forget(sample.session_id)
        add_samples(groups)

    made.data_source.add_samples = add

    def abort_when_busy() -> None:
        for calls in (3, 12):
            while sum(map(len, tape.outcomes.values())) < calls:
                time.sleep(0.01)
            order = urllib.request.Request(f"{url}/abort_request", b'{"abort_all": true}', method="POST")
            urllib.request.urlopen(order).close()

    thread = threading.Thread(target=abort_when_busy)
    thread.start()
    for rollout_id in range(2):
        assert_rows_are_ours(made.generate(rollout_id), made, tape, recipe, tokenizer)
        assert all(sample.status != sample.Status.ABORTED for sample in made.samples)
    thread.join()
    slime.fully_async._stop_global_worker()
    assert requeued


def test_evaluation(
    slime: Any, manager: Manager, arguments: Arguments, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from slime.utils.eval_config import EvalDatasetConfig

    args = arguments(make_recipe(), make_tasks(6, "easy", "raises"))
    args.eval_datasets = [
        EvalDatasetConfig(
            name="dev",
            path=args.prompt_data,
            input_key="prompt",
            label_key="label",
            metadata_key="metadata",
            n_samples_per_eval_prompt=1,
            temperature=0.7,
            top_p=0.95,
            top_k=-1,
            max_response_len=1024,
        )
    ]
    logged: dict[str, Any] = {}
    monkeypatch.setattr(
        "slime.observability.logging_utils.log",
        lambda args, metrics, step_key: logged.update({"by": step_key}, **metrics),
    )
    manager(args).eval(3)
    assert logged["eval/dev"] == logged["eval/dev/reward"] == 0.5
    assert logged["eval/dev/failures/exception_RuntimeError"] == 3
    assert logged["eval/dev/failed"] == 0.5
    assert logged["eval/dev/turns"] == pytest.approx((2 + 4 + 2) / 3)
    assert (logged["eval/step"], logged["by"]) == (3, "eval/step")
    assert "eval/dev/response_len/mean" in logged  # slime's own metrics are still there


def test_fanned_out_rollouts(manager: Manager, arguments: Arguments, tape: Tape, tokenizer: Any) -> None:
    """slime's own converter makes the rows, with our rewards: the same rows, in its order."""
    recipe = make_recipe()
    recipe["algorithm"] |= {"loss_unit": "rollout", "std_norm": True}
    made = manager(
        arguments(
            recipe,
            make_tasks(4, "one", "half"),
            custom_convert_samples_to_train_data_path=None,
            custom_reward_post_process_path=f"{HOOKS}.post_process_rewards",
        )
    )
    post_process, samples = made.custom_reward_post_process_func, []
    made.custom_reward_post_process_func = lambda args, flat: samples.extend(flat) or post_process(args, flat)
    theirs = rows_of(made.generate(0))
    made.samples = list({sample.rollout_id or sample.index: sample for sample in samples}.values())
    groups = again(tape, made.samples, recipe, tokenizer)
    ours = rows_from_groups(groups, std_norm=True, credit="broadcast")
    trained = [row for row in theirs if row.trained_tokens]
    assert [(row.tokens, row.loss_mask) for row in trained] == [(row.tokens, row.loss_mask) for row in ours]
    assert [row.advantage for row in trained] == pytest.approx([row.advantage for row in ours])


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("unit", LOSS_UNITS)
def test_slimes_loss_on_these_rows_is_ours(
    slime: Any, manager: Manager, arguments: Arguments, unit: Any, steps: int
) -> None:
    """Loss and gradient to the logits, over two ranks and several micro-batches, for each optimizer step of a batch."""
    recipe = make_recipe()
    recipe["algorithm"] |= {
        "loss_unit": unit,
        "std_norm": True,
        "clip_high": 0.3,
        "dual_clip": 3.0,
        "kl_coef": 0.1,
        "entropy_coef": 0.01,
        "tis": (0.5, 2.0),
        "steps_per_batch": steps,
    }
    batch = 16 // steps
    made = manager(arguments(recipe, make_tasks(4, "one", "half"), global_batch_size=batch))
    parts = [ref.inner for ref in made.generate(0)]
    for step in range(steps):
        ours, theirs = both_losses(slime, parts, step, recipe, batch)
        torch.testing.assert_close(theirs[0], ours[0], rtol=1e-6, atol=1e-6)
        for their_grad, our_grad in zip(theirs[1], ours[1], strict=True):
            torch.testing.assert_close(their_grad, our_grad, rtol=1e-6, atol=1e-6)
        assert sum(grad.abs().sum() for grad in ours[1]) > 0


def both_losses(slime: Any, parts: list[Any], step: int, recipe: dict[str, Any], batch: int) -> Any:
    """(loss, gradient to each row's logits) of ours and of slime's, on random logits."""
    algorithm = AlgorithmSection.model_validate(recipe["algorithm"])
    args = loss_arguments(algorithm)
    torch.manual_seed(step)
    rows, logits, kept = [], [], []
    theirs = torch.zeros(())
    for part in parts:
        first = sum(part["num_microbatches"][:step])
        indices = part["micro_batch_indices"][first : first + part["num_microbatches"][step]]
        for micro in indices:
            chosen = {name: [part[name][i] for i in micro] for name in ("tokens", "rollout_log_probs", "rewards")}
            lengths = [part["response_lengths"][i] for i in micro]
            for i in micro:
                tokens = part["tokens"][i] % VOCABULARY
                rows.append(
                    Row(
                        tuple(tokens.tolist()),
                        tuple(part["loss_masks"][i].tolist()),
                        tuple(part["rollout_log_probs"][i].tolist()),
                        part["rewards"][i],
                        part["rollout_ids"][i],
                    )
                )
                logits.append(torch.randn(len(tokens), VOCABULARY, requires_grad=True))
            new = logits[-len(micro) :]
            old = [
                response_logprobs(x, row).detach() + 0.3 * torch.randn(n)
                for x, row, n in zip(new, rows[-len(micro) :], lengths, strict=True)
            ]
            reference = [o + 0.3 * torch.randn(len(o)) for o in old]
            rollout = [o + 0.3 * torch.randn(len(o)) for o in old]
            kept += list(zip(old, reference, rollout, strict=True))
            data = {
                "unconcat_tokens": [t % VOCABULARY for t in chosen["tokens"]],
                "total_lengths": [len(t) for t in chosen["tokens"]],
                "response_lengths": lengths,
                "loss_masks": [part["loss_masks"][i] for i in micro],
                "rollout_mask_sums": part["rollout_mask_sums"][micro],
                "rewards": chosen["rewards"],
                "log_probs": old,
                "ref_log_probs": reference,
                "rollout_log_probs": rollout,
            }
            slime.loss.compute_advantages_and_returns(args, data)
            scaled, _, _ = slime.loss.loss_function(args, data, len(indices), batch, torch.cat(new)[None])
            theirs = theirs + scaled / len(indices) / DATA_PARALLEL  # Megatron's means over micro-batches and ranks
    theirs.backward()
    their_grads = [x.grad.clone() for x in logits]
    for x in logits:
        x.grad = None
    lengths = torch.tensor([len(row.loss_mask) for row in rows])
    old, reference, rollout = (torch.cat([values[i] for values in kept]) for i in range(3))
    logprobs = torch.cat([response_logprobs(x, row) for x, row in zip(logits, rows, strict=True)])
    entropy = torch.cat([response_entropy(x, row) for x, row in zip(logits, rows, strict=True)])
    loss, _ = grpo_loss(
        logprobs,
        old,
        rollout,
        reference,
        entropy,
        torch.tensor([row.advantage for row in rows]).repeat_interleave(lengths),
        torch.tensor([mask for row in rows for mask in row.loss_mask]),
        torch.tensor(row_scales(rows, algorithm.loss_unit)).repeat_interleave(lengths),
        algorithm.grpo(),
    )
    loss.backward()
    return (loss.detach(), [x.grad if x.grad is not None else torch.zeros_like(x) for x in logits]), (
        theirs.detach(),
        their_grads,
    )


def response_logprobs(logits: torch.Tensor, row: Row) -> torch.Tensor:
    n = len(row.loss_mask)
    return logits[-n - 1 : -1].log_softmax(-1).gather(-1, torch.tensor(row.tokens[-n:])[:, None]).squeeze(-1)


def response_entropy(logits: torch.Tensor, row: Row) -> torch.Tensor:
    logprobs = logits[-len(row.loss_mask) - 1 : -1].log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def loss_arguments(algorithm: AlgorithmSection) -> Namespace:
    low, high = algorithm.tis or (None, None)
    return Namespace(
        loss_type="policy_loss",
        advantage_estimator="grpo",
        eps_clip=algorithm.clip_low,
        eps_clip_high=algorithm.clip_high,
        eps_clip_c=algorithm.dual_clip,
        use_kl_loss=True,
        kl_coef=0,
        kl_loss_coef=algorithm.kl_coef,
        kl_loss_type=algorithm.kl_kind,
        use_unbiased_kl=False,
        entropy_coef=algorithm.entropy_coef,
        use_tis=algorithm.tis is not None,
        tis_clip_low=low,
        tis_clip=high,
        custom_tis_function_path=None,
        custom_advantage_function_path=None,
        normalize_advantages=False,
        use_opd=False,
        get_mismatch_metrics=False,
        use_opsm=False,
        use_rollout_logprobs=False,
        calculate_per_token_loss=False,
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        log_probs_chunk_size=-1,
        allgather_cp=False,
        recompute_loss_function=False,
    )
