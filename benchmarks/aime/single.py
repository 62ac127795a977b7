"""The single call: one prompt, one completion, no tools. What an agent must beat under the same budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.policy.base import Roles
from core.rollout.method import Method, RolloutError
from core.text.template import TokenTemplate
from core.text.tokenizer import encode_text
from core.types import Sampling, Task, Trajectory, Turn

MESSAGE = "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Asks for a box, as the last prompt of an agent does; the published baseline was not asked."""


class SingleCall(Method):
    """The question as a user message, answered in at most `max_new_tokens` tokens."""

    def __init__(self, tokenizer: Any, max_new_tokens: int):
        self.tokenizer, self.max_new_tokens = tokenizer, max_new_tokens
        self.template = TokenTemplate(tokenizer, MESSAGE, slots=("question",))

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        prompt = self.template.render(question=encode_text(self.tokenizer, task.question))
        stop = (self.tokenizer.eos_token_id,)
        request = replace(sampling, max_new_tokens=self.max_new_tokens, stop_token_ids=stop)
        completion = await roles["policy"].generate(prompt, request)
        if completion.finish_reason == "abort":
            raise RolloutError("aborted", f"the engine aborted task {task.task_id}")
        return Trajectory(
            task_id=task.task_id,
            turns=(Turn("single", prompt, completion, trained=False),),
            status="truncated" if completion.finish_reason == "length" else "completed",
            metrics={"turns": 1},
            log={"answer": str(self.tokenizer.decode(completion.token_ids, skip_special_tokens=True))},
        )
