"""slime's real rollout functions, RolloutManager and loss drive each method's hooks on CPU.

Runs where SLIME_ROOT names a checkout of slime. test_batches.py compares an ordinary batch with ours; here are slime's
filters, aborts, evaluation and fanned-out rollouts, and its loss.
"""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from agentic.memagent.rollout import SPEC
from core.algorithms.aggregate import row_scales
from core.algorithms.grpo import grpo_loss
from core.backends.slime import flags
from core.backends.slime.bridge import SlimeBridge, summarize
from core.backends.slime.samples import group_samples, read_task, write_tasks
from core.config import AlgorithmSection
from core.rollout.runner import Failures, has_signal
from core.types import LossAgg, Row, Task
from tests.contract.backends.batch import Batch, Tape, assert_ours, our_rows, play_again
from tests.contract.backends.case import Case
from tests.contract.backends.conftest import CASES, Arguments
from tests.contract.backends.slime_settings import DATA_PARALLEL, HOOKS
from tests.contract.backends.table import read_parts, read_slime

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]
Manager = Callable[[Any], Any]
VOCABULARY = 5
"""Of the random logits that losses are compared on."""


def generate(made: Any, args: Any, tape: Tape, rollout_id: int) -> Batch:
    return read_slime(made.generate(rollout_id), made.samples, tape, args)


def test_a_record_is_read_for_a_model_that_sees_images_too(slime: Any, tmp_path: Path) -> None:
    """slime loads such a model's processor, and then takes no prompt that is a text."""
    from slime.utils.data import Dataset

    task = Task("t", "Which?", ("acorn",), metadata={"a": 1})
    write_tasks(tmp_path / "train.jsonl", [task], tmp_path / "source")
    for processor in (None, SimpleNamespace(image_processor=None)):
        names = {"prompt_key": "prompt", "label_key": "label"}
        (sample,) = Dataset(str(tmp_path / "train.jsonl"), None, processor, None, **names).samples
        assert read_task(sample, "train.jsonl") == task


def test_dynamic_filter_and_aborts(
    case: Case, manager: Manager, arguments: Arguments, tape: Tape, tokenizer: Any
) -> None:
    """More groups than needed, some without signal; what is under way is aborted, kept by slime and run again."""
    tasks = [*case.tasks(8), *case.faulty, case.slow, case.slow]
    recipe = case.recipe()
    recipe["algorithm"]["dynamic_sampling"] = True
    args = arguments(
        recipe,
        tasks,
        dynamic_sampling_filter_path=f"{HOOKS}.dynamic_filter",
        over_sampling_batch_size=len(tasks),
        partial_rollout=True,
    )
    made = manager(args)
    groups = assert_ours(generate(made, args, tape, 0), case, recipe, tokenizer)
    assert all(map(has_signal, groups))

    waiting = [sample for group in made.data_source.buffer for sample in group]
    aborted = {sample.group_index for sample in waiting if sample.status == sample.Status.ABORTED}
    assert {sample.group_index for sample in waiting if sample.metadata["task_id"] == case.slow.task_id} <= aborted
    assert len(aborted) >= 2
    for sample in waiting:
        if sample.status == sample.Status.ABORTED:  # slime runs it again
            sample.metadata |= case.quick
    made.data_source.buffer.sort(key=lambda group: group[0].group_index not in aborted)
    args.dynamic_sampling_filter_path, args.over_sampling_batch_size = None, args.rollout_batch_size
    assert_ours(generate(made, args, tape, 1), case, recipe, tokenizer)
    assert {sample.group_index for sample in made.samples} & aborted
    assert all(sample.status != sample.Status.ABORTED for sample in made.samples)


def test_fully_asynchronous_rollout(
    case: Case, slime: Any, manager: Manager, arguments: Arguments, tape: Tape, tokenizer: Any, url: str
) -> None:
    """Engines abort what they run at a weight update: such groups go back to slime's buffer, and none is trained on."""
    recipe = case.recipe()
    args = arguments(
        recipe,
        [*case.tasks(3), case.slow, *case.tasks(4)],
        rollout_function_path="slime.rollout.fully_async_rollout.generate_rollout_fully_async",
        sglang_server_concurrency=4,
        # What was aborted decides how many rows there are, and two ranks share an odd number only in packs of several.
        max_tokens_per_gpu=4096,
    )
    made = manager(args)
    requeued: set[str] = set()
    add_samples = made.data_source.add_samples

    def add(groups: list[list[Any]]) -> None:
        for sample in (sample for group in groups for sample in group):
            if sample.status == sample.Status.ABORTED:
                sample.metadata |= case.quick
                requeued.add(sample.metadata["task_id"])
        add_samples(groups)

    made.data_source.add_samples = add

    done = threading.Event()

    def abort_when_busy() -> None:
        while case.slow.task_id not in requeued and not done.wait(0.2):
            order = urllib.request.Request(f"{url}/abort_request", b'{"abort_all": true}', method="POST")
            order.add_header("Content-Type", "application/json")
            urllib.request.urlopen(order).close()

    thread = threading.Thread(target=abort_when_busy, daemon=True)
    thread.start()
    try:
        for rollout_id in range(2):
            assert_ours(generate(made, args, tape, rollout_id), case, recipe, tokenizer)
            assert all(sample.status != sample.Status.ABORTED for sample in made.samples)
    finally:  # what goes on in threads would reach into the next test
        done.set()
        slime.fully_async._stop_global_worker()
        thread.join(timeout=30)
    assert case.slow.task_id in requeued


def test_evaluation(
    case: Case,
    slime: Any,
    manager: Manager,
    arguments: Arguments,
    tape: Tape,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One rollout of each task; the logged numbers are those of our own rollouts."""
    from slime.utils.eval_config import EvalDatasetConfig

    recipe = case.recipe()
    args = arguments(recipe, list(case.faulty))
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
    samples: list[Any] = []
    monkeypatch.setattr(
        "slime.observability.logging_utils.log",
        lambda args, metrics, step_key: logged.update({"by": step_key}, **metrics),
    )

    def keep(rollouts: list[Any], key: str | None = None) -> dict[str, float]:
        samples.extend(rollouts)
        return summarize(rollouts, key)

    generate = SlimeBridge.generate

    async def named(bridge: SlimeBridge, args: Any, sample: Any, *others: Any, **options: Any) -> Any:
        sample.session_id = f"evaluation-{sample.index}"  # slime leaves it to the hook
        return await generate(bridge, args, sample, *others, **options)

    monkeypatch.setattr("core.backends.slime.bridge.summarize", keep)
    monkeypatch.setattr(SlimeBridge, "generate", named)
    manager(args).eval(3)
    groups = [(read_task(sample, args.prompt_data), [sample.session_id]) for sample in samples]
    played = play_again(tape, groups, case, case.spec.recipe.model_validate(recipe), tokenizer)
    ours = [trajectory for group in played for trajectory in group]
    done, failures = [t for t in ours if t.status != "failed"], Failures(ours)
    assert len(ours) == len(case.faulty)
    mean_reward = sum(t.reward or 0.0 for t in ours) / len(ours)
    assert logged["eval/dev"] == logged["eval/dev/reward"] == pytest.approx(mean_reward)
    assert {kind: logged[f"eval/dev/failures/{kind}"] for kind in failures.counts} == failures.counts
    assert logged["eval/dev/failed"] == failures.counts.total() / len(ours) > 0
    assert logged["eval/dev/turns"] == pytest.approx(sum(t.metrics["turns"] for t in done) / len(done))
    assert (logged["eval/step"], logged["by"]) == (3, "eval/step")
    assert "eval/dev/response_len/mean" in logged  # slime's own metrics are still there


def compares(case: Case) -> bool:
    return case.spec.regrade(case.spec.recipe.model_validate(case.recipe())) is not None


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if not compares(case)], indirect=True)
def test_fanned_out_rollouts(case: Case, manager: Manager, arguments: Arguments, tape: Tape, tokenizer: Any) -> None:
    """With the hooks that `slime.rows: fan_out` renders, slime's own converter makes the same rows, in its order."""
    recipe = case.recipe()
    algorithm = {"loss_agg": "rollout", "overlong_filter": False}  # else fanned-out rollouts are refused
    recipe["algorithm"] |= {**algorithm, "std_normalization": True}
    overrides = [f"algorithm.{name}={value}" for name, value in algorithm.items()]
    spec, preset = (case.spec, case.preset) if case.preset else (SPEC, "seed")  # the hooks are the same
    launched = spec.load(preset, ["slime.rows=fan_out", *overrides])
    words = flags.groups(launched, flags.Paths(Path("/x")))["CUSTOM"]
    paths = dict(zip(words[::2], words[1::2], strict=True))
    names = ("custom_convert_samples_to_train_data_path", "custom_reward_post_process_path")
    given = {name: paths.get(f"--{name.replace('_', '-')}") for name in names}
    args = arguments(recipe, list(case.faulty[:4]), **given)
    made = manager(args)
    post_process, samples = made.custom_reward_post_process_func, []
    made.custom_reward_post_process_func = lambda args, flat: samples.extend(flat) or post_process(args, flat)
    [trained] = read_parts([ref.inner for ref in made.generate(0)], args.global_batch_size)
    rollouts = {sample.rollout_id or sample.index: sample for sample in samples}
    groups = [
        (read_task(group[0], args.prompt_data), [sample.session_id for sample in group])
        for group in group_samples(rollouts.values())
    ]
    values = case.spec.recipe.model_validate(recipe)
    ours = our_rows(play_again(tape, groups, case, values, tokenizer), values)
    assert [(row.tokens, row.loss_mask) for row, _ in trained] == [(row.tokens, row.loss_mask) for row in ours]
    assert [row.advantage for row, _ in trained] == pytest.approx([row.advantage for row in ours])
    assert [row.rollout_id for row, _ in trained] == [samples[0].index + row.rollout_id for row in ours]


@pytest.mark.parametrize(
    ("case", "unit", "steps", "loss"),
    [("memagent", unit, steps, {}) for unit in get_args(LossAgg) for steps in (1, 2)]
    + [(name, None, 1, {}) for name in CASES if name != "memagent"]
    + [("search_r1", "rollout", 2, {"loss_mode": "gspo"})]
    + [("search_r1", "token", 2, {"loss_mode": "cispo", "clip_ratio_c": None, "clip_ratio_low": 1.0})]
    + [("search_r1", "token", 1, {"adv_estimator": "gigpo", "rows": "turn"})],
    indirect=["case"],
)
def test_slimes_loss_on_these_rows_is_ours(
    case: Case,
    slime: Any,
    manager: Manager,
    arguments: Arguments,
    unit: str | None,
    steps: int,
    loss: dict[str, Any],
) -> None:
    """Loss and gradient to the logits, over two ranks and several micro-batches, for each optimizer step of a batch."""
    recipe = case.recipe()
    recipe["algorithm"] |= {
        "loss_agg": unit or recipe["algorithm"]["loss_agg"],
        "max_response_length": 64,  # for loss_agg=constant
        "clip_ratio_high": 0.3,
        "clip_ratio_c": 3.0,
        "kl_loss_coef": 0.1,
        "entropy_coef": 0.01,
        "tis": (0.5, 2.0),
        "num_steps_per_rollout": steps,
        **loss,
    }
    if recipe["algorithm"]["loss_mode"] == "gspo":
        # With tis, a token of slime's GSPO gets the mean weight of its row, and one of ours its own.
        recipe["algorithm"] |= {"clip_ratio_c": None, "tis": None}
    recipe["optimizer"]["lr_decay_steps"] = None  # the end of the run, which has more optimizer steps now
    batch = 16 // steps
    made = manager(arguments(recipe, list(case.faulty[:4]), global_batch_size=batch))
    parts = [ref.inner for ref in made.generate(0)]
    for step in range(steps):
        ours, theirs = both_losses(slime, parts, step, recipe, batch)
        torch.testing.assert_close(theirs[0], ours[0], rtol=1e-6, atol=1e-6)
        for their_grad, our_grad in zip(theirs[1], ours[1], strict=True):
            torch.testing.assert_close(their_grad, our_grad, rtol=1e-6, atol=1e-6)
        assert sum(grad.abs().sum() for grad in ours[1]) > 0


def both_losses(slime: Any, parts: list[Any], step: int, recipe: dict[str, Any], batch: int) -> Any:
    """(loss, gradient to each row's logits) of ours and of slime's, on random logits."""
    from tests.golden.algorithms.make_golden import make_loss_args

    algorithm = AlgorithmSection.model_validate(recipe["algorithm"])
    args = make_loss_args(algorithm.model_dump(), advantage_estimator=flags.ESTIMATORS[algorithm.loss_mode])
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
        torch.tensor(row_scales(rows, algorithm.loss_agg, algorithm.max_response_length or 1)).repeat_interleave(
            lengths
        ),
        algorithm,
        torch.arange(len(rows)).repeat_interleave(lengths),
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
