"""Defines MemAgent's section of a recipe and the folder of its presets."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import NonNegativeFloat, PositiveInt, model_validator

from agentic.memagent.gates import EARLY
from agentic.memagent.prompts import EMPTY_MEMORY, AnswerFormat, Order, Style
from core.config import Recipe, Section

PRESETS = Path(__file__).parent / "presets"


class MemAgentSection(Section):
    chunk_tokens: PositiveInt = 5000
    max_memory_tokens: PositiveInt = 1024
    max_final_tokens: PositiveInt = 1024
    max_chunks: PositiveInt = 512
    overlong: Literal["error", "truncate_middle"] = "error"
    """Says what happens to a document of more than `max_chunks` chunks: the rollout fails, or the document loses those
    of its middle, nearly as in the official trainer, which counts tokens."""
    align: Literal["none", "sentence", "document"] = "none"
    """Says where a chunk may end: anywhere, between sentences, or between documents (`Document N:` after a blank
    line)."""
    prompt_style: Style = "official"
    prompt_order: Order = "official"
    answer_format: AnswerFormat = "boxed"
    """Says how the final prompt asks for the answer, which decides where the reward looks for it."""
    empty_memory: str = EMPTY_MEMORY
    """Stands in the first prompt in place of a memory. Small models may copy the published words into their own."""
    gate_update: bool = False
    """Lets the policy keep its memory by writing the one word KEEP."""
    gate_exit: bool = False
    """Lets the policy end the reading by the word STOP behind its memory."""
    gate_rewards: bool = False
    """Rewards both gates by where the evidence stands, as GRU-Mem does (gates.py)."""
    recall: bool = False
    """Lets the policy see an earlier memory again by the word RECALL and what to look for, as ReMemR1 (recall.py)."""
    recall_reward: bool = False
    """Rewards an update for the words of the answer that it adds to the memory or recalls."""
    information_reward: NonNegativeFloat = 0.0
    """Weighs what a right rollout earns for how likely its answer was, among those of its group (information.py)."""
    train_update: bool = True
    train_final: bool = True

    @model_validator(mode="after")
    def _rewards_have_their_options(self) -> Self:
        if self.gate_rewards and not (self.gate_update or self.gate_exit):
            raise ValueError("gate_rewards needs a gate; set gate_update=true or gate_exit=true")
        if self.recall_reward and not self.recall:
            raise ValueError("recall_reward needs recall=true")
        if self.information_reward >= 1 + EARLY * (self.gate_rewards and self.gate_exit):
            raise ValueError(
                "information_reward could put right rollouts below wrong ones; set it below 1, or below "
                f"{1 + EARLY} beside what gate_rewards gives for the end of the reading"
            )
        return self


class MemAgentRecipe(Recipe):
    memagent: MemAgentSection

    @model_validator(mode="after")
    def _rewards_of_turns_are_read(self) -> Self:
        """Refuse rewards that nothing reads."""
        estimator, section = self.algorithm.adv_estimator, self.memagent
        rewarded = section.recall_reward or (section.gate_rewards and section.gate_update)
        if rewarded and estimator not in ("turn_grpo", "gigpo", "gae"):
            raise ValueError(
                f"memagent rewards its turns, which algorithm.adv_estimator={estimator} does not read; set it to "
                "turn_grpo, and algorithm.turn_coef to 0.111 (gate_rewards) or 0.25 (recall_reward)"
            )
        if self.reward is not None and (section.information_reward or (section.gate_rewards and section.gate_exit)):
            raise ValueError(
                "reward replaces that of the rollout, to which gate_rewards and information_reward add; leave one out"
            )
        return self
