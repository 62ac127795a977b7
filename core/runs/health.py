"""Finds signs that a run is not well, such as rewards that are all equal: what is wrong, in words, and what may help.

A sign is read from the metrics of a step, so it is the same for every backend. A sign whose metrics are missing is not
looked for. The section `health` of the recipe says how patient a run is.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import fmean, pstdev, pvariance
from typing import Any

from core.config import HealthSection
from core.types import CALLS, COUNTED_METRICS, FAILED_CALLS, PARTIAL_METRICS, Completion, Task, Trajectory

Metrics = Mapping[str, Any]
APART = "train_rollout_logprob_abs_diff"
READ = "read rollouts (tokentrue inspect view RUN)"
TREND_TASKS = 16
"""Counts the tasks whose mean reward is compared with the best such mean before."""
REWARD_DROP = 0.2
"""Bounds how far that mean may be below the best, beyond what chance does."""
FAILED_SHARE = 0.25
"""Bounds the share of failed rollouts of a step."""
CUT_OFF, CUT_OFF_RISE = 0.95, 0.5
"""Bound the mean share of a rollout's replies that run to their limit, and its rise above its least."""
LEAST_ENTROPY = 0.003
"""Bounds the entropy, in nats a token."""
LOGPROB_GAP = 0.1
"""Bounds the mean difference between the log-probs of engine and trainer, in nats a token."""
RECOMPUTED = 0.5
"""Bounds `share_recomputed`."""
SHORT = 64
"""Leaves out shorter prompts: of any prompt, the tokens behind the last full page are never kept."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign: `shows` says whether a step has it, `text` what is wrong, in places with the step's metrics, and `fix`
    what may help. One that is not `at_once` takes `health.patience` steps in a row."""

    name: str
    shows: Callable[[Metrics], bool]
    text: str
    fix: str
    at_once: bool = False


SIGNS = (
    Sign(
        "steps_skipped",
        lambda m: m["nonfinite_steps"] > 0,
        "the gradient is not finite: the optimizer step was skipped, and no weight changed",
        "lower the learning rate (optimizer.lr, or lr of the section that trains) or raise lr_warmup_steps, and start "
        "again with --fresh",
        at_once=True,
    ),
    Sign(
        "rollouts_failed",
        lambda m: m["failed"] > FAILED_SHARE,
        "{failed:.0%} of the rollouts failed: {named_failures}",
        "read the first error of each kind, which the log of the run shows",
        at_once=True,
    ),
    Sign(
        "rewards_equal",
        # A value head, or turns, may teach all the same.
        lambda m: m["reward_std"] == 0 and not m.get("pg_loss"),
        "every rollout of the step has the reward {reward:.3g}, so no weight learns from it",
        f"{READ}: is the reward function right, and has the answer the form that it wants? If all tasks are too hard, "
        "take easier ones or a stronger model; if all are solved, the run is done",
    ),
    Sign(
        "no_signal",
        lambda m: m["groups_with_signal"] == 0 < m["reward_std"] and not m.get("pg_loss"),
        "in no group do the rewards differ, so no weight learns from them",
        "take tasks that are solved sometimes, or raise rollout.group_size or rollout.temperature",
    ),
    Sign(
        "no_gradient",
        lambda m: m["grad_norm"] == 0 < m["groups_with_signal"],
        "the rewards differ, and yet the gradient is 0",
        "start again with --fresh and a lower optimizer.lr: such a model says the same whatever it is asked",
    ),
    Sign(
        "reward_fell",
        lambda m: m["fallen"] != "",
        "the mean reward {fallen}",
        f"{READ} of then and now: does the reward of these tasks say the opposite of what it should? If not, lower "
        "optimizer.lr",
        at_once=True,
    ),
    Sign(
        "replies_cut",
        lambda m: m["cut_off"] >= CUT_OFF,
        "on average {cut_off:.0%} of a rollout's replies run to their limit without an end token",
        "see that the chat template ends a reply with a token at which the model stops (eos_token_id); if it does, "
        "raise the method's limit of new tokens",
    ),
    Sign(
        "more_cut",
        lambda m: m["cut_off"] - m["least_cut_off"] > CUT_OFF_RISE,
        "on average {cut_off:.0%} of a rollout's replies are cut off at their limit, and {least_cut_off:.0%} were",
        "raise the method's limit of new tokens, or lower optimizer.lr",
    ),
    Sign(
        "entropy_gone",
        lambda m: m["entropy_loss"] < LEAST_ENTROPY,
        "the entropy is {entropy_loss:.2g} nats a token: the rollouts of a task are nearly the same",
        "lower optimizer.lr, or raise algorithm.entropy_coef, algorithm.kl_loss_coef or rollout.temperature",
    ),
    Sign(
        "engine_apart",
        lambda m: m[APART] > LOGPROB_GAP,
        f"the log-probs of engine and trainer differ by {{{APART}:.2g}} nats a token",
        "run tokentrue inspect drift RUN: the engine may have old weights, or the loss mask may cover what was not "
        "sampled. With rollout.ahead, lower that",
    ),
    Sign(
        "cache_too_small",
        lambda m: m["recomputed"] > RECOMPUTED,
        "{recomputed:.0%} of the tokens that a prompt shares with the one before it were computed again: the "
        "conversations that run at once do not stay in the engine's cache",
        "raise inference.kv_tokens, or the memory of the servers, or let fewer run at once: rollout.concurrency, or "
        "--concurrency of an evaluation",
    ),
    Sign(
        "nothing_observed",
        lambda m: m["observation_loss"] == 0,
        "algorithm.observation_coef teaches nothing: no row has a token between its turns",
        "see that turns go into one row (algorithm.rows), or set it to 0",
    ),
    Sign(
        "turns_unrewarded",
        lambda m: m["rewarded_turns"] == 0,
        "no turn has a reward of its own, so adv_estimator=turn_grpo does what grpo does",
        "let the method reward its turns (Turns.credit), or take another algorithm: the gateway has one reward for all",
    ),
    Sign(
        "policy_untaught",
        lambda m: m["untaught"] != "",
        "no turn of {untaught} is trained, though the recipe says so: its weights stay as they were",
        "see that the method trains the turns of that role (`trained` in its section) and that overlong_filter "
        "leaves some, or freeze it: roles.NAME=model:PATH. Through the gateway `policy` alone is trained",
    ),
    Sign(
        "tools_unused",
        lambda m: m["calls"] == 0,
        "no rollout called a tool; offered are {tools}",
        f"{READ}: does the model write its calls in another form than the prompt asks for? Explain that form, or train "
        "a warm start",
    ),
    Sign(
        "tools_failed",
        lambda m: m[FAILED_CALLS] >= m["calls"] > 0,
        "every call of a tool failed",
        f"{READ}: what do the tools say? Try one by hand",
    ),
)
"""Lists all signs. The report and the summary show them under these names."""

FIXES = {sign.name: sign.fix for sign in SIGNS}


class Health:
    """Follows the signs of one run, step by step.

    `active` maps each sign of the last step to what is wrong. `trained` says whether any step changed a weight.
    """

    def __init__(self, settings: HealthSection):
        self.settings = settings
        self.active: dict[str, str] = {}
        self.trained = False
        self._streaks: Counter[str] = Counter()
        self._means: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=2 * TREND_TASKS))
        self._best: dict[str, float] = {}
        self._spreads: dict[str, list[float]] = defaultdict(list)
        self._least_cut_off = 1.0

    def update(self, metrics: Metrics) -> list[str]:
        """Take the metrics of the next step; return a line for each sign that begins or ends with it."""
        known = {name: value for name, value in metrics.items() if value is not None}
        known |= self._derive(known)
        before, self.active = self.active, {}
        for sign in SIGNS:
            try:
                shown = sign.shows(known)
                self._streaks[sign.name] = self._streaks[sign.name] + 1 if shown else 0
                if shown and (sign.at_once or self._streaks[sign.name] >= self.settings.patience):
                    self.active[sign.name] = sign.text.format_map(known)
            except KeyError:  # the step does not tell, such as of the entropy where no row was trained
                self.active |= {name: text for name, text in before.items() if name == sign.name}
        skipped = known.get("nonfinite_steps")
        self.trained = self.trained or (skipped is not None and skipped < 1)
        self._streaks["all_skipped"] = self._streaks["all_skipped"] + 1 if skipped == 1 else 0
        began = [describe_sign(name, text) for name, text in self.active.items() if name not in before]
        return began + [f"over: {name.replace('_', ' ')}" for name in before if name not in self.active]

    def find_end(self) -> str | None:
        """Say why it is pointless to go on; None where it is not."""
        if (steps := self._streaks["all_skipped"]) < self.settings.end_after:
            return None
        return f"{steps} steps in a row were skipped, for their gradients are not finite. Try: {FIXES['steps_skipped']}"

    def _derive(self, metrics: Metrics) -> Metrics:
        """Return what else signs look at: what came before, the calls of all tools, and failures by name."""
        by_kind = metrics.get("task_rewards", {})
        every = [mean for means in by_kind.values() for mean in means]
        every = Random(0).sample(every, len(every))  # halves of them are compared, and kinds differ
        fallen = (self._compare(kind, means) for kind, means in {**by_kind, "": every}.items())
        self._least_cut_off = min(self._least_cut_off, metrics.get("cut_off", 1.0))
        # Slime's failures are metrics of their own, such as `failures/timeout`.
        parts = (name.partition("failures/") for name in metrics)
        failures = {kind: metrics[f"failures/{kind}"] for _, found, kind in parts if found} | metrics.get(
            "failures", {}
        )
        calls = {name.removeprefix(CALLS): count for name, count in metrics.items() if name.startswith(CALLS)}
        # The rows of `policy` are `rows`, those of another one NAME_rows.
        own = (name for name in metrics if name == "rows" or f"{name}_skipped" in metrics)
        rows = {name.removesuffix("rows").removesuffix("_") or "policy": metrics[name] for name in own}
        taught = any(rows.values()) or metrics.get("groups_with_signal")  # where rewards are equal, another sign tells
        untaught = [name for name, count in rows.items() if not count] if taught else []
        # Of several trained policies the one that is worst counts; the names of its statistics begin with its own.
        worst = {"entropy_loss": min, APART: max}
        by_policy = {name: [v for key, v in metrics.items() if key.endswith(name)] for name in worst}
        return {
            **{name: worst[name](values) for name, values in by_policy.items() if values},
            "fallen": " and ".join(filter(None, fallen)),
            "least_cut_off": self._least_cut_off,
            "untaught": ", ".join(untaught),
            "named_failures": ", ".join(f"{count} x {kind}" for kind, count in failures.items()),
            **({"calls": sum(calls.values()), "tools": ", ".join(calls)} if calls else {}),
        }

    def _compare(self, kind: str, means: Sequence[float]) -> str:
        """Say how far the reward of the last tasks is below the best so far; nothing where chance may do that."""
        tasks, size = self._means[kind], TREND_TASKS
        tasks.extend(means)
        if len(tasks) < 2 * size:
            return ""
        earlier, now = list(tasks)[:size], list(tasks)[size:]
        self._best[kind] = best = max(self._best.get(kind, -math.inf), fmean(earlier))
        # Four standard errors of the difference of two means: the best of many is high by chance, too.
        self._spreads[kind] += [pvariance(earlier), pvariance(now)]
        chance = 4 * math.sqrt(2 * fmean(self._spreads[kind]) / size)
        if best - fmean(now) <= REWARD_DROP + chance:
            return ""
        tasks_named = f"the tasks of kind {kind!r}" if kind else "all tasks"
        return f"of {tasks_named} fell from {best:.2f} to {fmean(now):.2f}"


def describe_sign(name: str, text: str) -> str:
    return f"warning, {name.replace('_', ' ')}: {text}. Try: {FIXES[name]}"


def measure_health(
    tasks: Sequence[Task], trajectories: Sequence[Trajectory], *, comparable: bool = True
) -> dict[str, Any]:
    """Measure what the signs need of the rollouts of a step; `task_rewards` are means by the task's `metadata.kind`.

    They are left out where rewards of two steps are not `comparable`: a reward that compares the rollouts of a group
    falls to 0 as these come to agree.
    """
    valid = [trajectory for trajectory in trajectories if trajectory.status != "failed"]
    rewards: dict[str, list[float]] = defaultdict(list)
    for trajectory in valid:
        rewards[trajectory.task_id].append(trajectory.reward or 0.0)
    by_kind: dict[str, list[float]] = defaultdict(list)
    for task in tasks:
        if task.task_id in rewards:
            by_kind[str(task.metadata.get("kind", ""))].append(fmean(rewards[task.task_id]))
    every = [reward for values in rewards.values() for reward in values]
    cut = [share for trajectory in valid if (share := share_cut_off(trajectory)) is not None]
    failures = Counter(trajectory.failure or "unknown" for trajectory in trajectories if trajectory.status == "failed")
    recomputed = share_recomputed(map(count_continued, valid))
    return {
        "failures": dict(failures),
        "failed": failures.total() / len(trajectories),
        **({"reward_std": pstdev(every)} if every else {}),
        **({"task_rewards": dict(by_kind)} if every and comparable else {}),
        **({"cut_off": fmean(cut)} if cut else {}),
        **({} if recomputed is None else {"recomputed": recomputed}),
    }


def average_metrics(rollouts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average each metric over all rollouts, PARTIAL_METRICS over those that have them; sum COUNTED_METRICS."""
    averages = {}
    for name in sorted({name for metrics in rollouts for name in metrics}):
        values = [metrics[name] for metrics in rollouts if name in metrics]
        count = len(values) if name.startswith(PARTIAL_METRICS) else len(rollouts)
        averages[name] = sum(values) if name in COUNTED_METRICS else sum(values) / count
    return averages


def describe_lengths(trajectories: Sequence[Trajectory]) -> str:
    """Say how long the trained replies of the first step are, and what it means where many are cut off."""
    valid = [trajectory for trajectory in trajectories if trajectory.status != "failed"]
    replies = [turn.completion for trajectory in valid for turn in trajectory.turns if turn.trained]
    if not replies:
        return "no rollout has a trained reply"
    lengths = sorted(len(reply.token_ids) for reply in replies)
    half, most = lengths[(len(lengths) - 1) // 2], lengths[-(-9 * len(lengths) // 10) - 1]
    cut = fmean(map(is_cut, replies))
    text = f"half of the untrained replies have at most {half} tokens, 90% at most {most}; {cut:.0%} are cut off"
    if cut <= 0.1:
        return text
    return f"{text}, and short ones earn more at first. Raise the limit of new tokens, or set algorithm.overlong_filter"


def share_cut_off(trajectory: Trajectory) -> float | None:
    """Return the share of the trained replies that ran to their limit; None without a trained reply."""
    replies = [turn.completion for turn in trajectory.turns if turn.trained]
    return fmean(map(is_cut, replies)) if replies else None


def is_cut(reply: Completion) -> bool:
    """Return whether a reply ran to its limit. One of a single token has a limit of one, which is meant: a choice."""
    return reply.finish_reason == "length" and len(reply.token_ids) > 1


def count_continued(trajectory: Trajectory) -> tuple[int, int]:
    """Count the tokens of prompts with which the next prompt begins, and how many of those the engine had kept.

    Short prompts do not count, nor calls on other weights, for which nothing is kept, nor those of servers that do not
    tell.
    """
    known = kept = 0
    for before, turn in pairwise(trajectory.turns):
        ids, last = before.prompt_ids, turn.completion
        comparable = len(ids) >= SHORT and before.completion.weight_version == last.weight_version
        if last.cached_tokens is not None and comparable and turn.prompt_ids[: len(ids)] == ids:
            known += len(ids)
            kept += min(len(ids), last.cached_tokens)
    return known, kept


def share_recomputed(counts: Iterable[tuple[int, int]]) -> float | None:
    """Return the share of these tokens (`count_continued`) that was computed again; None where there are none."""
    known, kept = map(sum, zip((0, 0), *counts, strict=True))
    return 1 - kept / known if known else None
