"""Recalls an earlier memory of the rollout by words that the policy wrote (ReMemR1).

Paper: "Look Back to Reason Forward: Revisitable Memory for Long-Context LLM Agents", arXiv 2509.23040, whose code
(github.com/syr-cn/ReMemR1, on verl) we read and did not copy.

The next prompt shows, beside the memory, the one of the earlier memories that shares the largest part of its words with
the query (Jaccard, as the released code). So what an update dropped is not lost. The final prompt shows what the last
update asked for.

Departures: the memory that the next prompt shows anyway is not searched; the released code leaves it out unless it was
written twice. Of equally good memories it takes any one, we the latest. A recalled memory goes back as the ids that
were sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core.rewards.answers import WORD
from core.text.tokenizer import Ids, Tokenizer

_COMMON = frozenset("a an and at by for from in of on or the to with yes no".split())
"""Lists words that any text may hold, so that they are no part of an answer."""


def find_memory(query: str, earlier: Sequence[Ids], shown: Ids, tokenizer: Tokenizer) -> Ids:
    """Return the one of the `earlier` memories that fits the query best, the latest of equals; () if none fits.

    `shown` is the memory that the prompt holds anyway.
    """
    wanted = split_words(query)
    best: tuple[float, Ids] = (0.0, ())
    for memory in dict.fromkeys(reversed(earlier)) if wanted else ():
        words = split_words(tokenizer.decode(memory))
        score = len(wanted & words) / len(wanted | words)
        if memory != shown and score > best[0]:
            best = score, memory
    return best[1]


def reward_recall(answers: Sequence[str], prompt: str, old: str, new: str, found: str) -> float:
    """Return what one update earns: the share of the answers' words that it added, less what it dropped, and recalled.

    `prompt` is the whole prompt of the update, `old` and `new` are the memories before and after it, and `found` is
    what its query found. The paper gives advantages of these rewards among the turns of the same number a weight of 0.2
    beside 0.8 for the outcome: here `algorithm.adv_estimator=turn_grpo`, `algorithm.turn_coef=0.25`, which is the same
    up to 0.8. As there, a word earns each time that it is recalled or added again. Its reward for the right format has
    no counterpart: a note of ours is right in any form.
    """
    written = share_of_words(answers, new) - share_of_words(answers, old)
    recalled = share_of_words(answers, f"{found} {prompt}") - share_of_words(answers, prompt)
    return written + max(0.0, recalled)


def share_of_words(answers: Iterable[str], text: str) -> float:
    """Return the share of an answer's words that stand in a text, as the mean over the answers that have words."""
    known, wanted = split_words(text), [split_words(answer) - _COMMON for answer in answers]
    shares = [len(words & known) / len(words) for words in wanted if words]
    return sum(shares) / len(shares) if shares else 0.0


def split_words(text: str) -> set[str]:
    """Return the words of a text in lower case, without punctuation; of scripts without spaces, the characters."""
    return set(WORD.findall(text.lower()))
