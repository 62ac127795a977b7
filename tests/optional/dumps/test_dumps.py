"""TRL's and verl's own code pads and saves rollouts; the drift check reads them, and finds a fault that is planted.

Needs TRL (`pip install trl`) and verl. verl's own requirements want a GPU; this is enough: `pip install --no-deps verl
tensordict codetiming omegaconf hydra-core pyvers orjson cachetools antlr4-python3-runtime==4.9.3`.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core.inspect.dumps import read_dump
from tests.unit.inspect.test_batch_dump import Line, find_kinds, make_lines, shifted, tool_text_trained
from tests.unit.runs.fake_policy import FakePolicy

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def policy(tokenizer: Any) -> FakePolicy:
    return FakePolicy(tokenizer)


def assert_read(path: Path, lines: list[Line]) -> None:
    rollouts = list(read_dump(path))
    assert len(rollouts) == len(lines)
    for line, rollout in zip(lines, rollouts, strict=True):
        sampled = [x for turn in rollout.turns for x in turn.sampled]
        logprobs = [x for turn in rollout.turns for x in turn.logprobs]
        assert rollout.prompts[0] == line.prompt
        assert sampled == [x for x, mask in zip(line.response, line.mask, strict=True) if mask]
        assert logprobs == pytest.approx([x for x, mask in zip(line.logprobs, line.mask, strict=True) if mask])


@pytest.mark.parametrize("faulty", [False, True])
def test_a_batch_of_trl(policy: FakePolicy, model: Path, tmp_path: Path, faulty: bool) -> None:
    trl = pytest.importorskip("trl", reason="needs trl: pip install trl")
    from datasets import Dataset

    lines = make_lines(policy, 2, Random(0), straight=True)
    if faulty:
        tool_text_trained(policy, lines[0], Random(0))

    class Saving(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            torch.save(output, f"{self.args.output_dir}/rollouts_{self.state.global_step}.pt")
            return output

    def roll_out(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [line.prompt for line in lines],
            "completion_ids": [line.response for line in lines],
            "logprobs": [line.logprobs for line in lines],
            "env_mask": [line.mask for line in lines],
        }

    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=8, num_generations=4,
        max_steps=1, max_completion_length=200, report_to="none", disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = Saving(
        model=str(model),
        args=arguments,
        reward_funcs=lambda completions, **_: [float(i % 2) for i in range(len(completions))],
        train_dataset=Dataset.from_list([{"prompt": f"What is {i}?"} for i in range(2)]),
        processing_class=policy.tokenizer,
        rollout_func=roll_out,
    )
    trainer.train()
    path = tmp_path / "rollouts_0.pt"
    assert_read(path, lines)
    assert find_kinds(path, policy) == ({"after_end"} if faulty else set())


@pytest.mark.parametrize("faulty", [False, True])
async def test_a_batch_of_verl(policy: FakePolicy, tmp_path: Path, faulty: bool) -> None:
    pytest.importorskip("verl", reason="needs verl: pip install --no-deps verl")
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker

    lines = make_lines(policy, 2, Random(0), straight=True)
    if faulty:
        shifted(policy, lines[0], Random(0))
    worker = AgentLoopWorker.__new__(AgentLoopWorker)  # its constructor wants servers; what pads rollouts does not
    length = max(len(line.response) for line in lines)
    worker.rollout_config = SimpleNamespace(prompt_length=64, response_length=length)
    worker.tokenizer, worker.processor, worker.distillation_enabled = policy.tokenizer, None, False
    worker.reward_loop_worker_handles = None
    worker.mm_processor_kwargs = {}
    outputs = []
    for line in lines:
        output = AgentLoopOutput(
            prompt_ids=line.prompt,
            response_ids=line.response,
            response_mask=line.mask,
            response_logprobs=line.logprobs,
            reward_score=1.0,
            metrics=AgentLoopMetrics(),
        )
        outputs.append(await worker._agent_loop_postprocess(output, False, raw_prompt=[]))
    batch = worker._postprocess(outputs)
    batch.save_to_disk(tmp_path / "gen_batch.dp")  # as verl's rollout skip does
    # The lines of docs/debugging.md, and the trainer's log-probs, which verl adds to the batch before the update.
    batch = DataProto.load_from_disk(tmp_path / "gen_batch.dp")
    old = [[*line.trainer, *[0.0] * (length - len(line.trainer))] for line in lines]
    tensors = {name: tensor.clone() for name, tensor in batch.batch.items()}  # as they are, they share one storage
    torch.save({**tensors, "old_log_probs": torch.tensor(old)}, tmp_path / "step_3.pt")
    assert_read(tmp_path / "step_3.pt", lines)
    assert [rollout.reward for rollout in read_dump(tmp_path / "step_3.pt")] == [1.0] * len(lines)
    assert find_kinds(tmp_path / "step_3.pt", policy) & {"shifted"} == ({"shifted"} if faulty else set())
