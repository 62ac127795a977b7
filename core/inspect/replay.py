"""Train on recorded steps again, in a fresh process, and compare with what the run wrote.

RUN is a run folder, or a bundle that `tokentrue inspect bundle` made of one. The replay begins at the newest checkpoint
before step N that has its optimizer's state, or else at the start model, and takes the recorded rollouts of every step
after it: it makes rows, does forward, loss and backward, and steps the optimizer. On the machine of the run all numbers
and the weights must be equal to the last bit, and the exit status is 1 if they are not.

--reward scores the rollouts again and lists the rewards that change. `method` runs the method's own code on the
recorded completions, tools and graders included; module.function is called with each rollout that did not fail
(core.runs.record.RecordedRollout) and returns its reward. With another reward, or with --what-if, there is nothing to
be equal to: the numbers of both are printed, and the exit status is 0.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from core.config import Recipe
from core.data.files import sha256
from core.engine import flush_subnormals, lora, weights
from core.hub import resolve
from core.inspect.rescore import ReplayError, ScoreGroup, open_score
from core.options import make_command_parser, show_errors
from core.rollout.method import MethodSpec, method_spec
from core.rollout.rows import rows_from_groups
from core.runs.files import Record, jsonable
from core.runs.inputs import collect_versions
from core.runs.record import RecordedRollout, describe_row, read_rollouts, split_advantages
from core.runs.run_folder import RunFolder, list_checkpoints
from core.train import SampledBatch, checkpoint, make_trainer
from core.types import Group, Row, Trajectory, Turn

SUMS = "SHA256SUMS"
"""Names the file of a bundle that holds the checksums, as `sha256sum` writes them. It has one more line than there are
files: the weights after the step."""
TASKS = "tasks.jsonl"
"""Names the file of a bundle that holds the tasks of its steps."""
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}
"""Bounds how far loss and gradient norm may be off on another machine: relative to 1, or to the number if larger."""
SAME_MACHINE = ("torch", "cpu", "cpus", "gpu")
"""Lists the facts of versions.json on which the last bits of a step depend."""
SHOWN = ("loss", "grad_norm")


class Comparison(NamedTuple):
    """A number of the run and of the replay. `run` is None where the run wrote none."""

    name: str
    run: Any
    replay: Any

    def is_close(self, tolerance: float) -> bool:
        """Say whether both are equal, up to `tolerance` relative to the larger of 1 and the number."""
        if self.run == self.replay or self.run is None:
            return True
        if isinstance(self.run, str) or self.replay is None:
            return False
        return bool(abs(self.run - self.replay) <= tolerance * max(1.0, abs(self.run)))


class ReplayedStep(NamedTuple):
    """Holds what one step gave: all statistics of the trainer, and the rollouts before and after they were scored."""

    step: int
    numbers: list[Comparison]
    recorded: list[RecordedRollout]
    scored: list[Trajectory]

    def changes(self) -> Iterator[tuple[str, str]]:
        """Yield the tasks of the rollouts that are others now, with what changed."""
        for old, new in zip(self.recorded, self.scored, strict=True):
            before = old.trajectory()
            if (new.reward, new.status) != (old.reward, old.status):
                why = f" ({new.failure}: {new.log.get('error', '')})" if new.failure and not old.failure else ""
                yield old.task_id, f"reward {old.reward} -> {new.reward}{why}"
            elif [_ids(turn) for turn in new.turns] != [_ids(turn) for turn in before.turns]:
                yield old.task_id, f"{len(before.turns)} turns -> {len(new.turns)} turns, or in another order"


class Replay:
    """Replays the steps of one seed of a run folder up to `last`. `recipe` may differ from the run's own."""

    def __init__(self, folder: RunFolder, recipe: Recipe, seed: int, last: int):
        if recipe.trained_roles:
            raise ReplayError(f"a replay trains one policy, and roles.{recipe.trained_roles[0]} is trained, too")
        self.folder = folder
        self.recipe = recipe
        self.seed = seed
        self.last = last
        saved = list_checkpoints(folder.checkpoints_path(seed))
        usable = [path for path in saved if (path / checkpoint.STATE).is_file() and _step_of(path) < last]
        self.checkpoint = max(usable, default=None)
        self.first = 1 if self.checkpoint is None else _step_of(self.checkpoint) + 1

    @cached_property
    def start(self) -> Path:
        """Return the folder of the model that the run began with."""
        warm_start = self.folder.path / "warm_start"
        return warm_start if warm_start.is_dir() else resolve(self.recipe.model.path)

    @cached_property
    def recorded(self) -> dict[int, list[list[RecordedRollout]]]:
        """Return the recorded groups of each step from `first` to `last`. Raises ReplayError if a step has none."""
        steps: dict[int, list[list[RecordedRollout]]] = {step: [] for step in range(self.first, self.last + 1)}
        path = self.folder.rollouts_path(self.seed)
        rollouts = (r for r in read_rollouts(path) if r.stage == "train" and r.step in steps)
        for (step, _), group in itertools.groupby(rollouts, key=lambda rollout: (rollout.step, rollout.group)):
            steps[step].append(list(group))
        if missing := [step for step, groups in steps.items() if not groups]:
            raise ReplayError(
                f"{path}: step {missing[0]} is not recorded, and a replay of step {self.last} begins at step "
                f"{self.first}; train with run.record_every=1, or choose a step soon after a checkpoint"
            )
        return steps

    async def run(self, score: ScoreGroup) -> AsyncIterator[ReplayedStep]:
        """Yield each step, with its groups scored by `score`; the last one compares the weights too.

        Raises:
            ReplayError: a step is missing, or a row made of a record is not the one that was trained.
        """
        logged = {r["step"]: r for r in self.folder.read_metrics(self.seed) if r["stage"] == "train"}
        recorded = self.recorded
        model = weights.load(self.start, self.recipe.model.dtype, self.recipe.model.device, self.recipe.model.lora)
        trainer = make_trainer(self.recipe, model, self.seed, self.start)
        if self.checkpoint is not None:
            trainer.load_state(checkpoint.load(self.checkpoint, model)["trainer"])
        for step, groups in recorded.items():
            self._check_rows(groups)
            scored = [await score(group) for group in groups]
            rows = make_rows(self.recipe, scored)
            stats = jsonable(trainer.grpo_step(rows))
            record: Record = logged.get(step, {})
            numbers = [Comparison(name, record.get(name), value) for name, value in stats.items()]
            if step == self.last:
                with tempfile.TemporaryDirectory() as target:
                    weights.save(model, Path(target), self.start, lora.merge_weights(model))
                    after = sha256(Path(target) / "model.safetensors")
                numbers.append(Comparison("weights", self._expected_weights(), after))
            flat = itertools.chain.from_iterable
            yield ReplayedStep(step, numbers, list(flat(groups)), list(flat(scored)))

    def _check_rows(self, groups: Sequence[Sequence[RecordedRollout]]) -> None:
        """Make the rows of the recorded rewards under the run's own recipe, and compare them with those recorded."""
        own = method_spec(self.recipe.method).load(str(self.folder.path / "config.yaml"))
        rows: defaultdict[int, list[Row]] = defaultdict(list)
        kept = _keep(own, [[rollout.trajectory() for rollout in group] for group in groups])
        for row in rows_from_groups(kept, **own.algorithm.row_options()):
            rows[row.rollout_id].append(row)
        # Filtered groups come after those that were trained, so the numbers of rollouts are places in the record.
        for number, rollout in enumerate(rollout for group in groups for rollout in group):
            made = [describe_row(r.tokens, r.loss_mask, r.logprobs, ()) for r in rows[number]]
            ours = [(row.ids_crc32, row.trained, row.logprobs_crc32) for row in made]
            theirs = [(row.ids_crc32, row.trained, row.logprobs_crc32) for row in rollout.rows]
            by_turn = {i: t.trained_advantage for i, t in enumerate(rollout.turns) if t.trained_advantage is not None}
            trained = split_advantages(rows[number], [len(turn.sampled) for turn in rollout.turns])
            if ours != theirs or (made and trained != (rollout.advantage, by_turn)):
                raise ReplayError(
                    f"step {rollout.step}, task {rollout.task_id!r}: the record makes other rows, or another "
                    f"advantage, than the run trained on; `tokentrue inspect drift {self.folder.path} --tokenizer "
                    f"{self.start}` says more"
                )

    def _expected_weights(self) -> str | None:
        path = self.folder.checkpoints_path(self.seed) / f"step-{self.last:06d}" / "model.safetensors"
        if path.is_file():
            return sha256(path)
        return read_sums(self.folder.path).get(path.relative_to(self.folder.path).as_posix())

    def same_machine(self) -> bool:
        """Say whether this machine is one on which the run trained."""
        versions = self.folder.versions
        here = collect_versions()
        return any(
            all(there.get(name) == here[name] for name in SAME_MACHINE)
            for there in (versions, *versions.get("resumed_with", []))
        )


def make_rows(recipe: Recipe, groups: Sequence[Group]) -> list[Row]:
    """Return the rows that a step trains on, of all groups that it sampled."""
    return rows_from_groups(_keep(recipe, groups), **recipe.algorithm.row_options())


def _keep(recipe: Recipe, groups: Sequence[Group]) -> list[Group]:
    batch = SampledBatch()
    batch.add(groups, recipe.algorithm)
    batch.keep_some()
    return batch.groups


def read_sums(folder: Path) -> dict[str, str]:
    """Return file name -> checksum of a bundle; empty for a run folder."""
    path = folder / SUMS
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def check_sums(folder: Path) -> None:
    """Raise ReplayError if a file of a bundle is not the one that it was made with."""
    for name, digest in read_sums(folder).items():
        path = folder / name
        if path.is_file() and sha256(path) != digest:
            raise ReplayError(f"{path} has changed since the bundle was made; copy it again, or delete {folder / SUMS}")


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _ids(turn: Turn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return turn.prompt_ids, turn.completion.token_ids


def find_last_step(folder: RunFolder, seed: int) -> int:
    """Return the last step that was trained. Raises ReplayError if none was."""
    steps = [record["step"] for record in folder.read_metrics(seed) if record["stage"] == "train"]
    if not steps:
        raise ReplayError(f"{folder.path}: seed {seed} has no training step")
    return max(steps)


@show_errors(OSError, ValueError, status=2)
@flush_subnormals()
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    folder = RunFolder(options.run_dir)
    check_sums(folder.path)
    seed = folder.choose_seed(options.seed)
    last = options.step or find_last_step(folder, seed)
    spec = method_spec(folder.config["method"])
    recipe = spec.load(str(folder.path / "config.yaml"), options.what_if)
    if recipe.inference.threads:
        torch.set_num_threads(recipe.inference.threads)
    return asyncio.run(replay_and_print(Replay(folder, recipe, seed, last), spec, options.reward, options.what_if))


async def replay_and_print(replay: Replay, spec: MethodSpec, reward: str | None, what_if: Sequence[str]) -> int:
    """Replay and print what came out; return the exit status."""
    begin = replay.start if replay.checkpoint is None else replay.checkpoint
    print(f"seed {replay.seed}, steps {replay.first} to {replay.last} from {begin}")
    same = replay.same_machine()
    if not same:
        print(f"not the run's machine or torch ({', '.join(SAME_MACHINE)} of versions.json)")
    tolerance = 0.0 if same else TOLERANCE[replay.recipe.model.dtype]
    changed, differs = bool(what_if), False
    tasks = replay.folder.path / TASKS
    async with open_score(reward, spec, replay.recipe, replay.seed, replay.start, tasks) as score:
        async for step in replay.run(score):
            changed = print_changes(step, bool(reward)) or changed
            differs = print_numbers(step, tolerance, exact=same) or differs
    if changed:
        print("not compared: the rewards or the recipe differ from the run's")
        return 0
    if differs:
        print("NOT equal to the run")
        return 1
    print("equal to the run" if same else f"within {tolerance:g} of the run")
    return 0


def print_changes(step: ReplayedStep, scored: bool) -> bool:
    """Print the rollouts that scoring has changed; return whether there are any."""
    changes = list(step.changes())
    for task_id, text in changes:
        print(f"step {step.step} task {task_id!r}: {text}")
    if scored:
        total = len(step.recorded)
        rewards = [
            [r.reward or 0.0 for r in rollouts if r.status != "failed"] for rollouts in (step.recorded, step.scored)
        ]
        before, after = (sum(values) / max(1, len(values)) for values in rewards)
        print(
            f"step {step.step} scored again: {len(changes)} of {total} rollouts changed, reward {before:g} -> {after:g}"
        )
    return bool(changes)


def print_numbers(step: ReplayedStep, tolerance: float, exact: bool) -> bool:
    """Print loss, gradient norm, weights and what else differs; return whether the step is not the run's."""
    differs = False
    for number in step.numbers:
        if number.name == "weights" and not exact:
            continue  # AdamW makes a whole step of a rounded sign, so their bits mean nothing elsewhere
        close = number.is_close(tolerance)
        differs = differs or not close
        if number.name in (*SHOWN, "weights") or not close:
            was = "not written" if number.run is None else number.run
            verdict = "" if number.run is None else "equal" if number.run == number.replay else "differs"
            print(f"step {step.step} {number.name:<10} run {was}  replay {number.replay}  {verdict}".rstrip())
    return differs


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("inspect replay", __doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="a folder that a run has left, or a bundle")
    parser.add_argument("--step", type=int, metavar="N", help="the last step to train on again (default: the last one)")
    parser.add_argument("--seed", type=int, help="which seed, if there are several")
    parser.add_argument("--reward", metavar="FUNCTION", help="`method`, or module.function of a recorded rollout")
    parser.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the recipe, such as algorithm.clip_ratio_high=0.3",
    )
    return parser
