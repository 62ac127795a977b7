"""With `format: fences` a reply's last bash block is run in the workspace, and its output is a user's message.

With `rewrite` a reply's last Python block is the new source file.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from agentic.coding.mbpp import WORLD
from agentic.coding.prompts import FENCE_INSTRUCTIONS, REWRITE_INSTRUCTIONS
from agentic.coding.repairs.generate import write_patch
from agentic.coding.rollout import SPEC
from core.config import RecipeError
from core.policy.base import Roles
from core.rollout.method import RolloutError
from core.rollout.rows import make_rows
from core.types import Sampling, Task, Trajectory
from tests.kit import script_policy
from tests.unit.agentic.coding.test_rollout import PATH, RIGHT, TASK
from tests.unit.gateway.templates import make_tokenizer

ROOMY = ("coding.max_turns=20", "coding.context_tokens=8000", "coding.max_tokens=2000", "model.max_model_len=null")
WRITE = f"I repair it.\n```bash\ncat > {PATH} <<'END'\n{RIGHT}END\necho written\n```\n"


def replace_metadata(task: Task, **metadata: Any) -> Task:
    return replace(task, metadata={**task.metadata, **metadata})


async def play(*replies: str, form: str = "fences", task: Task = TASK) -> tuple[Trajectory, list[str]]:
    """Return the rollout of these replies, and its prompts as texts."""
    tokenizer = make_tokenizer("qwen3")
    policy = script_policy(tokenizer, replies, last=False)
    method = SPEC.build(SPEC.load("tiny", [*ROOMY, f"coding.format={form}", "coding.tools=[bash]"]), tokenizer)
    trajectory = await method.rollout(task, Roles({"policy": policy}), Sampling(seed=1))
    return trajectory, [tokenizer.decode(turn.prompt_ids) for turn in trajectory.turns]


async def test_a_bash_block_is_run_and_its_output_follows(isolation: None) -> None:
    trajectory, prompts = await play(WRITE, "Done.")
    assert (trajectory.reward, trajectory.log["verdict"], trajectory.log["end"]) == (1.0, "solved", "answered")
    assert FENCE_INSTRUCTIONS in prompts[0]
    assert "# Tools" not in prompts[0]
    assert prompts[1].endswith("<|im_start|>user\n```output\nwritten\n```<|im_end|>\n<|im_start|>assistant\n")
    assert trajectory.metrics["calls_bash"] == 1
    (row,) = make_rows(trajectory.turns, "segment")
    assert sum(row.loss_mask) == sum(len(turn.completion.token_ids) for turn in trajectory.turns)


async def test_an_output_that_the_model_makes_up_is_cut_off(isolation: None) -> None:
    trajectory, prompts = await play("```sh\nexit 3\n```\n```output\nall tests pass", "```python\nprint(1)\n```")
    assert "all tests pass" not in prompts[1]
    assert "```output\n\nexit code 3\n```<|im_end|>" in prompts[1]
    assert (trajectory.log["end"], trajectory.metrics["turns"]) == ("answered", 2)


async def test_a_python_block_replaces_the_file(isolation: None) -> None:
    trajectory, prompts = await play(f"Repaired:\n```python\n{RIGHT}```\nDone.", form="rewrite")
    assert (trajectory.reward, trajectory.log["verdict"], trajectory.log["end"]) == (1.0, "solved", "answered")
    assert f"```python\n{TASK.metadata['repository'][PATH]}```\n{REWRITE_INSTRUCTIONS}" in prompts[0]
    trajectory, _ = await play("It is fine as it is.", form="rewrite")
    assert (trajectory.reward, trajectory.log["diff"], trajectory.log["end"]) == (0.0, "", "answered")


async def test_the_fence_around_a_file_is_closed_without_its_last_line_break(isolation: None) -> None:
    _, prompts = await play("Fine.", form="rewrite", task=replace_metadata(TASK, repository={PATH: "x = 1"}))
    assert "```python\nx = 1\n```\n" in prompts[0]


@pytest.mark.parametrize("form", ["fences", "rewrite"])
async def test_a_block_in_a_thought_is_a_draft(isolation: None, form: str) -> None:
    draft = "<think>\nFirst\n```bash\nrm -r *\n```\nor\n```python\nx = 1\n```\n</think>\n\nI leave it as it is."
    trajectory, _ = await play(draft, form=form)
    assert (trajectory.log["diff"], trajectory.log["end"]) == ("", "answered")


async def test_the_supervised_baseline_is_taught_replies_that_solve_the_rollouts_own_prompt(isolation: None) -> None:
    recipe = SPEC.load("tiny", [*ROOMY, "coding.format=rewrite", "coding.tools=[bash]"])
    tokenizer = make_tokenizer("qwen3")
    patch = write_patch(PATH, TASK.metadata["repository"][PATH], RIGHT)
    ((prompt, completion),) = WORLD.solve(Random(0), recipe, tokenizer, [replace_metadata(TASK, patch=patch)])
    trajectory, _ = await play(tokenizer.decode(completion[:-1]), form="rewrite")
    assert (trajectory.reward, trajectory.turns[0].prompt_ids) == (1.0, prompt)


async def test_a_rewrite_needs_one_source_file(isolation: None) -> None:
    two = {**TASK.metadata["repository"], "other.py": ""}
    with pytest.raises(RolloutError, match="needs one source file"):
        await play("", form="rewrite", task=replace_metadata(TASK, repository=two))


@pytest.mark.parametrize("form", ["fences", "rewrite"])
def test_other_tools_are_refused(form: str) -> None:
    with pytest.raises(RecipeError, match=r"set coding.tools=\[bash\]"):
        SPEC.load("tiny", [f"coding.format={form}", "coding.tools=[bash, edit]"])


def test_a_model_without_calls_in_its_template_is_enough(isolation: None) -> None:
    from agentic.retool.world import WORLD

    tokenizer: Any = WORLD.train_tokenizer()
    SPEC.build(SPEC.load("tiny", [*ROOMY, "coding.format=fences", "coding.tools=[bash]"]), tokenizer)
    with pytest.raises(RecipeError, match=r"set coding.format to another format"):
        SPEC.build(SPEC.load("tiny"), tokenizer)
