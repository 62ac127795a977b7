"""Scores of a response to a RULER task, official and strict side by side.

The official score is the published one; it uses the first answer alone where MemAgent does. The strict score looks for
whole words, of any accepted answer, so it may be above the official one where a question has several answers. A missing
response (None: the request failed) or a missing answer phrase scores 0 and stays in the denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.rewards import qa
from core.rewards.boxed import boxed_reward, find_boxed
from core.rewards.qa import extract_the_answer_is
from core.types import Task

ReadAnswer = Callable[[str], str | None]
"""Finds the answer in a response, after any thoughts; None: there is none."""


def box_or_all(response: str) -> str | None:
    """Return the boxed answer; a response without a box is the answer."""
    boxed = find_boxed(response)
    return response if boxed is None else boxed


def score(task: Task, response: str | None, read: ReadAnswer = find_boxed) -> dict[str, float]:
    """Return scores in 0..1. `score` and `strict` are the task's own metric; `boxed` is MemAgent's training reward.

    Text up to `</think>` is not part of the answer.
    """
    metric = task.metadata.get("metric", "sub_em")
    prediction = None if response is None else read(response.rpartition("</think>")[2].strip())
    scores = _scores(metric, prediction, task.answers) if prediction else dict.fromkeys(_NAMES[metric], 0.0)
    boxed = {} if read is extract_the_answer_is else {"boxed": boxed_reward(response or "", task.answers)}
    return scores | boxed


_NAMES: dict[str, tuple[str, ...]] = {
    "string_match_all": ("score", "strict"),
    "string_match_part": ("score", "strict", "sub_em", "em", "f1"),
    "sub_em": ("score", "strict", "em", "f1"),
}


def _scores(metric: str, prediction: str, answers: Sequence[str]) -> dict[str, float]:
    if metric == "string_match_all":
        return {
            "score": qa.string_match_all(prediction, answers),
            "strict": qa.strict_string_match_all(prediction, answers),
        }
    first = answers[0]
    common = {"em": qa.em(prediction, first), "f1": qa.f1(prediction, first)}
    if metric == "string_match_part":
        return common | {
            "score": qa.string_match_part(prediction, answers),
            "strict": qa.strict_string_match_part(prediction, answers),
            "sub_em": qa.sub_em(prediction, first),
        }
    return common | {
        "score": qa.sub_em(prediction, first),
        "strict": qa.max_over(qa.strict_sub_em, prediction, answers),
    }
