"""Compare how well the variants serve what users care for: the preference reward on held-out tasks, and the best route.

    python -m agentic.toolorchestra.tiny.compare RUN_DIR

The reward of eq. 1-3 compares rollouts of one task. Here the group of a task has one rollout of each variant, for each
seed. `preference_reward` is that reward as a share of the greatest that the user's weights allow. `best_route` is 1
where the calls are those of BEST in tasks.py. Both go into the run's evaluations, and from there into the report.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from agentic.toolorchestra.tiny.tasks import BEST, PREFERENCES
from core.report import write_report
from core.rewards.preference import Features, make_features, preference_rewards
from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder, RunFolderError
from core.types import CALLS

Column = Sequence[float | None]


def compare_variants(results: Sequence[EvalResult]) -> list[EvalResult]:
    """Return the variants' results on the same tasks, each with `preference_reward` and `best_route` of every task.

    Raises:
        ValueError: the variants were not evaluated on the same tasks.
    """
    if any(result.notes["task_ids"] != results[0].notes["task_ids"] for result in results):
        sizes = ", ".join(f"{result.variant} on {result.n}" for result in results)
        raise ValueError(f"{results[0].data}, seed {results[0].seed}: not all variants had the same tasks ({sizes})")
    rewards: list[list[float | None]] = [[] for _ in results]
    for place in range(results[0].n):
        group = {i: found for i, result in enumerate(results) if (found := read_features(result, place))}
        weights = PREFERENCES[results[0].labels["preference"][place]].weights
        group_rewards = dict(zip(group, preference_rewards(list(group.values()), weights), strict=True))
        for i, column in enumerate(rewards):
            column.append(group_rewards[i] / sum(weights.values()) if i in group_rewards else None)
    return [
        replace(
            result, measures={**result.measures, "preference_reward": column, "best_route": find_best_routes(result)}
        )
        for result, column in zip(results, rewards, strict=True)
    ]


def read_features(result: EvalResult, place: int) -> Features | None:
    """Return what the reward needs of one task; None if its rollout failed."""
    values = {name: column[place] for name, column in result.measures.items()}
    correct, cost, latency = (values.get(name) for name in ("correct", "cost", "latency"))
    if correct is None or cost is None or latency is None:
        return None
    return make_features(correct=correct > 0, cost=cost, latency=latency, calls=_count_calls(values))


def find_best_routes(result: EvalResult) -> Column:
    """Return for each task whether the calls were those of the best route, no more and no less."""
    column: list[float | None] = []
    for place, (kind, preference) in enumerate(zip(result.labels["kind"], result.labels["preference"], strict=True)):
        values = {name: measure[place] for name, measure in result.measures.items()}
        route = sorted(name for name, count in _count_calls(values).items() for _ in range(count))
        column.append(None if values.get("correct") is None else float(route == sorted(BEST[kind][preference])))
    return column


def _count_calls(values: Mapping[str, float | None]) -> dict[str, int]:
    return {name.removeprefix(CALLS): int(n) for name, n in values.items() if name.startswith(CALLS) and n is not None}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare a run's variants by what their users care for.")
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    options = parser.parse_args(arguments)
    try:
        folder = RunFolder(options.run)
        together: dict[tuple[str, int], list[EvalResult]] = defaultdict(list)
        for result in folder.evaluations():
            together[result.data, result.seed].append(result)
        for results in together.values():
            for result in compare_variants(results):
                folder.save_evaluation(result)
        write_report(folder)
    except RunFolderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyError as error:
        print(f"error: {options.run}: no {error}; evaluate with --by kind preference case first", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"error: {options.run}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
