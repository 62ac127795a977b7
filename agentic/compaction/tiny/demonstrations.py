"""Scripts the rollouts of the `tiny` preset's warm start. Their annotator tells the truth and keeps anything.

He reads to the last page and then answers from what his context says. Of every summary he draws the animals at random
from those that his context names, in the question, a summary or a page, and writes what it says of them. So the policy
learns to act, to read, to write summaries and to answer from them; which facts are worth keeping, RL must find out.

Now and then he guesses what he does not know. Such a turn is never shown, but what follows it is: a page overrules it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from agentic.compaction.prompts import END, INSTRUCTIONS, NEXT, REQUEST
from agentic.compaction.tiny.tasks import FACT
from agentic.compaction.tiny.words import THINGS
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Completion, Sampling

UNKNOWN = "unknown"
ANSWER = "\\boxed{{{}}}"
FACTS_OF_A_SUMMARY = 2


class AimlessAnnotator:
    """A policy that acts and answers well, and whose summaries keep facts drawn at random with `rng`.

    As often as `guess` says, he writes a thing instead of UNKNOWN; `guessed` says for each of his turns whether he did.
    """

    def __init__(self, tokenizer: Tokenizer, rng: Random, guess: float = 0.0):
        self.tokenizer = tokenizer
        self.rng = rng
        self.guess = guess
        self.guessed: list[bool] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        reply = write_reply(self.rng, self.tokenizer.decode(prompt_ids))
        self.guessed.append(UNKNOWN in reply and self.rng.random() < self.guess)
        if self.guessed[-1]:
            reply = reply.replace(UNKNOWN, self.rng.choice(THINGS))
        ids = (*encode_text(self.tokenizer, reply), self.tokenizer.eos_token_id)
        return Completion(ids, (0.0,) * len(ids), "stop")


def write_reply(rng: Random, prompt: str) -> str:
    """Write the annotator's reply to a prompt, from this text alone."""
    question, _, history = prompt.partition(INSTRUCTIONS)
    asked = re.findall(r"the (\w+) have", question)[0]
    known = dict(re.findall(r" (\w+) has (\w+)\.", history))  # of two facts about one animal the later one holds
    if history.rpartition("<|im_end|>")[0].endswith(REQUEST):
        named = sorted({asked, *known})
        return write_facts(rng.sample(named, min(FACTS_OF_A_SUMMARY, len(named))), known)
    return ANSWER.format(write_facts([asked], known)) if END in history else NEXT


def write_facts(animals: Sequence[str], known: dict[str, str]) -> str:
    return "".join(FACT.format(animal, known.get(animal, UNKNOWN)) for animal in animals)
