"""Scores answers to questions, officially and, where the official score can be gamed, also strictly.

Official: SQuAD's normalisation, em and f1 as used by HotpotQA; MemAgent's `sub_em` (arXiv 2507.02259, its
taskutils/memory_eval); RULER's `string_match_all` and `string_match_part` (arXiv 2404.06654, scripts/eval).
The official `sub_em` accepts containment either way, so the prediction "the" (empty once normalised) scores 1 and
"19" matches "1995"; RULER's matches are plain substrings, so "1995" contains "19". The strict forms ask for the whole
answer, as whole words, inside a prediction that is not empty; quotes, dashes and accents have one form (answers.py).
In a script without spaces any place between two characters may end a word.

A score is of one sample, from 0 to 1; percentages are the caller's business.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from core.rewards.answers import SPACELESS, SPACELESS_CHARACTER, fold_text, normalize_answer

# Compiled here: a pattern with these scripts takes milliseconds, and every task has another answer.
_IN_WORD, _NO_SPACE = re.compile(rf"[^\W{SPACELESS}]"), re.compile(rf"[^\s{SPACELESS}]")
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def em(prediction: str, answer: str) -> float:
    """Return 1 if both are equal once normalised."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def f1(prediction: str, answer: str) -> float:
    """Return the harmonic mean of word precision and recall; yes/no answers count only as a whole.

    What stands between spaces is a word, as in the official score: Chinese text without spaces is one. The reward
    `agentic.agent.rewards.token_f1` takes its characters for words.
    """
    predicted, expected = normalize_answer(prediction), normalize_answer(answer)
    if predicted != expected and not _CLOSED_ANSWERS.isdisjoint((predicted, expected)):
        return 0.0
    predicted_words, expected_words = predicted.split(), expected.split()
    common = sum((Counter(predicted_words) & Counter(expected_words)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted_words), common / len(expected_words)
    return 2 * precision * recall / (precision + recall)


def sub_em(prediction: str, answer: str) -> float:
    """Return MemAgent's official score: 1 if either contains the other once normalised."""
    predicted, expected = normalize_answer(prediction), normalize_answer(answer)
    return float(expected in predicted or predicted in expected)


def strict_sub_em(prediction: str, answer: str) -> float:
    """Return 1 if the normalised prediction contains the normalised answer as whole words.

    An answer that is nothing but articles and punctuation must be given letter by letter.
    """
    prediction, answer = fold_text(prediction), fold_text(answer)
    predicted, expected = normalize_answer(prediction), normalize_answer(answer)
    if not expected:
        return float(bool(answer.strip()) and prediction.strip().lower() == answer.strip().lower())
    return _contains_whole(predicted, expected, _NO_SPACE)


def string_match_all(prediction: str, answers: Sequence[str]) -> float:
    """Return RULER's official score for needles, vt, cwe and fwe: the share of answers in it, in any case."""
    return _share(_contains, prediction, answers)


def string_match_part(prediction: str, answers: Sequence[str]) -> float:
    """Return RULER's official score for qa: 1 if it contains any answer, in any case."""
    return max_over(_contains, prediction, answers)


def strict_string_match_all(prediction: str, answers: Sequence[str]) -> float:
    """Return the share of answers found as whole words."""
    return _share(_contains_words, prediction, answers)


def strict_string_match_part(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if any answer is found as whole words."""
    return max_over(_contains_words, prediction, answers)


def max_over(score: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    """Return the best score over all accepted answers."""
    _check(answers)
    return max(score(prediction, answer) for answer in answers)


def extract_the_answer_is(response: str) -> str | None:
    """Return what follows the last "the answer is" (in that case); None if the phrase is missing.

    This is MemAgent's official extraction: asterisks and final full stops are dropped.
    """
    _, phrase, answer = response.replace("*", "").rpartition("the answer is")
    if not phrase:
        return None
    for special in ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"):
        answer = answer.replace(special, "")
    return answer.strip().strip(".").strip()


def _share(found: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    _check(answers)
    return sum(found(prediction, answer) for answer in answers) / len(answers)


def _contains(prediction: str, answer: str) -> float:
    return float(answer.lower() in prediction.lower())


def _contains_words(prediction: str, answer: str) -> float:
    prediction, answer = fold_text(prediction).lower(), fold_text(answer).strip().lower()
    return _contains_whole(prediction, answer, _IN_WORD) if answer else 0.0


def _contains_whole(prediction: str, answer: str, joined: re.Pattern[str]) -> float:
    """Return 1 if `answer` is found with no `joined` character beside it; any may stand beside a spaceless script."""
    first, last = (not SPACELESS_CHARACTER.match(edge) for edge in (answer[0], answer[-1]))
    start = prediction.find(answer)
    while start >= 0:
        end = start + len(answer)
        before, after = prediction[max(start - 1, 0) : start], prediction[end : end + 1]
        if not (first and joined.match(before)) and not (last and joined.match(after)):
            return 1.0
        start = prediction.find(answer, start + 1)
    return 0.0


def _check(answers: Sequence[str]) -> None:
    if not answers or isinstance(answers, str):
        raise ValueError(f"answers must be a list with at least one answer, got {answers!r}")
