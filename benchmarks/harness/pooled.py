"""Pools the results of several data sets into one, where what was published is a mean over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.runs.evaluation import EvalResult


def pool_results(results: Sequence[EvalResult], data: str) -> EvalResult:
    """Return the tasks of all `results` side by side, as the data set `data`, with the scores and measures of all.

    The pool follows a published protocol only if all `results` follow the same.
    """
    first = results[0]
    protocols = {result.notes.get("protocol") for result in results}
    counts = [result.policy_tokens for result in results]
    return EvalResult(
        variant=first.variant,
        data=data,
        length=first.length,
        seed=first.seed,
        n=sum(result.n for result in results),
        scores=_join([result.scores for result in results]),
        turns=_chain(result.turns for result in results),
        document_tokens=_chain(result.document_tokens for result in results),
        seconds=sum(result.seconds for result in results),
        failures=dict(sum((Counter(result.failures) for result in results), Counter())),
        model=first.model,
        sampling=first.sampling,
        policy_tokens=None if None in counts else _chain(count for count in counts if count is not None),
        measures=_join([result.measures for result in results]),
        settings={"pooled": [result.data for result in results]},
        notes={
            "published_as": first.notes.get("published_as"),
            "protocol": protocols.pop() if len(protocols) == 1 else None,
            "task_ids": _chain(result.notes["task_ids"] for result in results),
        },
    )


def _join(columns: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    return {name: _chain(of[name] for of in columns) for name in columns[0] if all(name in of for of in columns)}


def _chain(columns: Iterable[Sequence[Any]]) -> list[Any]:
    return [value for column in columns for value in column]
