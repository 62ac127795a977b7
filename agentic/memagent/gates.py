"""Rewards the two gates of GRU-Mem: KEEP, which leaves the memory as it was, and STOP, which ends the reading.

Paper: "When to Memorize and When to Stop: Gated Recurrent Memory for Long-Context Reasoning", arXiv 2602.10560,
equations 8 to 13, as two public notes on it give them; we found no code. Each section is known to hold evidence or not.

- An update earns 1 if it keeps the memory after a section without evidence or rewrites it after one with evidence, and
  else -1. It is the turn's reward.
- The reading earns 0 if it ends with the last section with evidence, -0.75 before that, -0.5 after it. It is added to
  the reward of the rollout.
- The advantage is 0.9 times that of the rollout plus 0.1 times that of the turn among those of the same number, both
  without std. Here: `algorithm.adv_estimator=turn_grpo`, `algorithm.turn_coef=0.111`, which is the same up to 0.9.

Departures: the gates are two words, where the paper has three tags and a thought; so there is no reward for a right
format. Evidence is what `find_evidence` says; a rollout without any earns neither reward.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.rewards.answer_grader import holds_answer
from core.types import Task

EARLY, LATE = -0.75, -0.5


def find_evidence(task: Task, sections: Sequence[str]) -> list[bool]:
    """Say of each section whether it holds the value of a needle that the task asks for; [] where none does.

    RULER's needles have a value and HotpotQA's paragraphs their supporting sentences (`metadata.needles`). Without
    needles an accepted answer is the evidence. A text that a section's end cuts in two is not found.
    """
    needles = [needle["value"] for needle in task.metadata.get("needles", ()) if needle.get("queried", True)]
    held = [holds_answer(section, needles or task.answers) for section in sections]
    return held if any(held) else []


def reward_update(kept: bool, evidence: bool) -> float:
    """Return what one update earns (equation 8)."""
    return 1.0 if kept != evidence else -1.0


def reward_exit(read: int, evidence: Sequence[bool]) -> float:
    """Return what ending after `read` sections earns (equation 9); `evidence` is that of all sections."""
    last = max(place for place, holds in enumerate(evidence, 1) if holds)
    return EARLY if read < last else LATE if read > last else 0.0
