"""Scores of a response to a RULER task, official and strict side by side.

The official score is the published one; it uses the first answer alone where MemAgent does, and is not rounded to two
digits for each sample as there, which matters for f1 and for thirds of fwe alone. The strict score looks for
whole words, of any accepted answer, so it may be above the official one where a question has several answers. A missing
response (None: the request failed) or a missing answer phrase scores 0 and stays in the denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

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


def _of_first(find: Callable[[str, str], float]) -> Callable[[str, Sequence[str]], float]:
    return lambda prediction, answers: find(prediction, answers[0])


_WORDS = {"em": _of_first(qa.em), "f1": _of_first(qa.f1)}
_SCORES: Mapping[str, Mapping[str, Callable[[str, Sequence[str]], float]]] = {
    "string_match_all": {"score": qa.string_match_all, "strict": qa.strict_string_match_all},
    "string_match_part": {
        "score": qa.string_match_part,
        "strict": qa.strict_string_match_part,
        "sub_em": _of_first(qa.sub_em),
        **_WORDS,
    },
    "sub_em": {"score": _of_first(qa.sub_em), "strict": partial(qa.max_over, qa.strict_sub_em), **_WORDS},
}


def score(task: Task, response: str | None, read: ReadAnswer = find_boxed) -> dict[str, float]:
    """Return scores in 0..1. `score` and `strict` are the task's own metric; `boxed` is MemAgent's training reward.

    Text up to `</think>` is not part of the answer.
    """
    metric = task.metadata.get("metric", "sub_em")
    prediction = None if response is None else read(response.rpartition("</think>")[2].strip())
    scores = {name: find(prediction, task.answers) if prediction else 0.0 for name, find in _SCORES[metric].items()}
    boxed = {} if read is extract_the_answer_is else {"boxed": boxed_reward(response or "", task.answers)}
    return scores | boxed
