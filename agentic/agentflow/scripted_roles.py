"""Defines the frozen roles of the preset `tiny`: functions from text to text behind the interface of a policy.

The preset names them as `python:agentic.agentflow.scripted_roles.NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentic.agentflow.world import ToyQuestion, is_result, look_up
from core.config import Recipe
from core.policy.base import PolicyError
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Completion, Sampling


class ScriptedRole:
    """A policy that answers a user's message with `reply(message)`."""

    def __init__(self, tokenizer: Tokenizer, reply: Callable[[str], str]):
        self.tokenizer = tokenizer
        self.reply = reply
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


def executor(recipe: Recipe, tokenizer: Tokenizer) -> ScriptedRole:
    """Make the executor, whose command is the sub-goal."""
    return ScriptedRole(tokenizer, lambda message: message.partition(" : ")[2])


def generator(recipe: Recipe, tokenizer: Tokenizer) -> ScriptedRole:
    """Make the generator, which knows the made-up facts and nothing else."""
    return ScriptedRole(tokenizer, look_up)


def verifier(recipe: Recipe, tokenizer: Tokenizer) -> ScriptedRole:
    """Make the verifier. It stops as soon as there are as many results, right or not, as the form of question needs."""
    return ScriptedRole(tokenizer, give_verdict)


def give_verdict(message: str) -> str:
    question, _, memory = message.removeprefix("<verify>").partition("<memory>")
    results = [line.rpartition(" = ")[2] for line in memory.splitlines()]
    return "STOP" if sum(map(is_result, results)) >= ToyQuestion.read(question).needs else "CONTINUE"
