"""The `tiny` preset's frozen roles: functions from text to text behind the same door as any model.

They are named in the preset as `python:agentic.agentflow.tiny.scripted_roles.NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentic.agentflow.tiny.questions import Question
from agentic.agentflow.tiny.world import ENTITIES, know
from core.config import Recipe
from core.policy.base import PolicyError
from core.text.tokenizer import encode_text
from core.types import Completion, Sampling


class Script:
    """A Policy that answers a user's message with `reply(message)`."""

    def __init__(self, tokenizer: Any, reply: Callable[[str], str]):
        self.tokenizer, self.reply = tokenizer, reply
        message = {"role": "user", "content": "@@"}
        rendered = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        self._before, _, self._after = rendered.partition("@@")

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        message = self.tokenizer.decode(prompt_ids).removeprefix(self._before).removesuffix(self._after)
        try:
            reply = self.reply(message)
        except ValueError as error:
            raise PolicyError("bad_request", str(error)) from error
        ids = (*encode_text(self.tokenizer, reply), self.tokenizer.eos_token_id)
        cut = ids[: sampling.max_new_tokens]
        return Completion(cut, (0.0,) * len(cut), "stop" if cut == ids else "length")


def executor(recipe: Recipe, tokenizer: Any) -> Script:
    """The sub-goal is the command."""
    return Script(tokenizer, lambda message: message.partition(" : ")[2])


def generator(recipe: Recipe, tokenizer: Any) -> Script:
    """Knows the made-up world, and nothing else."""
    return Script(tokenizer, know)


def verifier(recipe: Recipe, tokenizer: Any) -> Script:
    """STOP as soon as there are as many results as a question of that form needs, right ones or not."""
    return Script(tokenizer, verdict)


def verdict(message: str) -> str:
    question, _, memory = message.removeprefix("<verify>").partition("<memory>")
    results = [line.rpartition(" = ")[2] for line in memory.splitlines()]
    return "STOP" if sum(map(is_result, results)) >= Question.read(question).needs else "CONTINUE"


def is_result(text: str) -> bool:
    """Whether it has the form of one: a number or an entity, neither `unknown` nor an error."""
    return text.removeprefix("-").isdigit() or text in ENTITIES
