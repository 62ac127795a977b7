"""Makes the world of the preset `tiny`: boxes with things in them, and a question about one of the boxes.

The annotator of the demonstrations opens a box drawn at random and answers with what is in it. So the policy learns to
open, to read and to answer; which box to open, RL must find out. `aimless` is the annotator, who makes no mistakes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

from agentic.skeleton.rollout import INSTRUCTIONS, SkeletonRecipe, SkeletonRollout
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.text.tokenizer import Tokenizer
from core.types import Sampling, Task, Trajectory
from core.worlds import SPLITS, Example, Split, World, encode_turn

COLOURS = "black blue brown green orange red white yellow".split()
THINGS = "anchor apple bell bottle broom candle chain clock crown drum flag glove hammer jar key lamp map".split()
QUESTION = "What is in the {} box?"
ANSWER = "\\boxed{{ {}}}"


def draw_task(rng: Random, split: Split, name: str) -> Task | None:
    """Draw what is in the boxes and ask for one; each pair of a colour and its thing is asked in one split only."""
    boxes = {colour: rng.choice(THINGS) for colour in COLOURS}
    asked = rng.choice(COLOURS)
    if (COLOURS.index(asked) + THINGS.index(boxes[asked])) % len(SPLITS) != SPLITS.index(split):
        return None
    context = "\n".join(f"{colour}: {thing}" for colour, thing in boxes.items())
    return Task(name, QUESTION.format(asked), (boxes[asked],), context)


def write_corpus() -> Iterator[str]:
    for _ in range(20):
        yield " " + " ".join((*COLOURS, *THINGS))
        yield "\n".join(("user", QUESTION + INSTRUCTIONS, "assistant", ANSWER, "tool"))


def make_annotator(tokenizer: Tokenizer, rng: Random) -> ScriptedPolicy:
    """Return a policy that opens a box drawn with `rng`, and answers with what is in it."""

    def reply(prompt_ids: tuple[int, ...], sampling: Sampling) -> tuple[int, ...]:
        shown = tokenizer.decode(prompt_ids).partition("<|im_start|>tool\n")[2].partition("<|im_end|>")[0]
        return encode_turn(tokenizer, ANSWER.format(shown.strip()) if shown else f" {rng.choice(COLOURS)}")

    return ScriptedPolicy(reply)


def demonstrate(rng: Random, recipe: SkeletonRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield the annotator's turns on new tasks."""
    method = SkeletonRollout(recipe, tokenizer)
    while True:
        if task := draw_task(rng, "train", "demonstration"):
            roles = Roles({"policy": make_annotator(tokenizer, rng)})
            trajectory = asyncio.run(method.rollout(task, roles, Sampling()))
            yield [(turn.prompt_ids, turn.completion.token_ids) for turn in trajectory.turns]


class AimlessSkeleton(SkeletonRollout):
    """Lets the annotator play the policy."""

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        annotator = make_annotator(self.tokenizer, Random(sampling.seed))
        return await super().rollout(task, Roles({"policy": annotator}), sampling)


WORLD = World(
    words=(*COLOURS, *THINGS),
    corpus=write_corpus,
    vocab_size=512,
    domains={"usual": draw_task},
    demonstrate=demonstrate,
    baselines={"aimless": AimlessSkeleton},
)
