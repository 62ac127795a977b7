"""A language model without weights, and conversations with it: the next token follows from a hash of all ids before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import yaml

from core.rollout.rows import rows_from_groups
from core.runs.files import Record, write_text
from core.runs.record import RolloutLog, TrainedRow, record_rollout
from core.text.tokenizer import encode_text, token_bytes
from core.types import Completion, Group, RowUnit, Task, Trajectory, Turn

MIN_TOKENS = 6
"""A completion may end after so many tokens."""


class FakePolicy:
    """Gives each context four next tokens. `seed` stands for the weights."""

    def __init__(self, tokenizer: Any, seed: int = 0):
        self.tokenizer = tokenizer
        self.seed = seed
        self.words = [i for i in range(len(tokenizer)) if i not in tokenizer.all_special_ids]

    def distribution(self, context: int, count: int) -> dict[int, float]:
        """The probabilities after a context, by its hash; `count` tokens of the completion are already there."""
        rng = Random(hash((self.seed, context)))
        tokens = [self.words[int(rng.random() * len(self.words))] for _ in range(4)]
        if count >= MIN_TOKENS:
            tokens[0] = self.tokenizer.eos_token_id
        weights = {token: rng.random() ** 2 + 0.02 for token in tokens}
        total = sum(weights.values())
        return {token: weight / total for token, weight in weights.items()}

    def sample(self, prompt: Sequence[int], rng: Random, version: str, limit: int = 12) -> Completion:
        context, ids, logprobs = hash(tuple(prompt)), list[int](), list[float]()
        while len(ids) < limit:
            choices = self.distribution(context, len(ids))
            (token,) = rng.choices(list(choices), list(choices.values()))
            ids.append(token)
            logprobs.append(math.log(choices[token]))
            context = hash((context, token))
            if token == self.tokenizer.eos_token_id:
                return Completion(tuple(ids), tuple(logprobs), "stop", version)
        return Completion(tuple(ids), tuple(logprobs), "length", version)

    def score(self, prompt: Sequence[int], sampled: Sequence[int]) -> list[float]:
        """The log-probs of a completion; a token that this policy never samples has probability 1e-9."""
        contexts = accumulate(sampled, lambda context, token: hash((context, token)), initial=hash(tuple(prompt)))
        pairs = enumerate(zip(contexts, sampled, strict=False))
        return [math.log(self.distribution(context, i).get(token, 1e-9)) for i, (context, token) in pairs]


def encode_markup(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def run_group(
    policy: FakePolicy, task: Task, rng: Random, version: str, size: int = 4, turns: int = 3, straight: bool = False
) -> Group:
    """Run conversations of one to `turns` turns; some rewrite their history, and some have a turn that is not trained.

    `straight` ones have all turns, trained, of which each extends the one before; no turn is cut off.
    """
    tokenizer = policy.tokenizer
    start, end = (
        encode_markup(tokenizer, text) for text in ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
    )
    middle = encode_markup(tokenizer, "\n<|im_start|>tool\n")
    opening = (*start, *encode_text(tokenizer, task.question), *end)
    group = []
    for _ in range(size):
        made: list[Turn] = []
        prompt = opening
        for _ in range(turns if straight else rng.randint(1, turns)):
            trained = straight or not made or rng.random() < 0.8
            completion = policy.sample(prompt, rng, version, limit=200 if straight else 12)
            made.append(Turn("policy", prompt, completion, trained))
            history = opening if not straight and rng.random() < 0.2 else (*prompt, *completion.token_ids)
            result = encode_text(tokenizer, f"result {rng.randrange(100)} <|im_end|>")
            prompt = (*history, *middle, *result, *end)
        reward = float(rng.random() < 0.5)
        group.append(Trajectory(task.task_id, tuple(made), reward=reward, metrics={"turns": len(made)}))
    return group


def record_group(
    policy: FakePolicy, task: Task, group: Group, step: int, rng: Random, rows: RowUnit = "segment"
) -> list[Record]:
    """Record a group of a training step; the trainer's log-probs are the policy's, but for rounding."""
    made = rows_from_groups([group], std_normalization=True, split_advantage=False, rows=rows)
    records = []
    for number, trajectory in enumerate(group):
        trained = []
        for row in (row for row in made if row.rollout_id == number):
            turns = (trajectory.turns[place] for place in row.turns)
            exact = (score for turn in turns for score in policy.score(turn.prompt_ids, turn.completion.token_ids))
            scores = (score + rng.gauss(0, 1e-3) for score in exact)
            logprobs = [next(scores) if mask else 0.0 for mask in row.loss_mask] if row.advantage else None
            trained.append(TrainedRow(row, logprobs))
        records.append(record_rollout("train", step, 0, task, trajectory, trained))
    return records


def record_run(folder: Path, tokenizer: Any, log_of: Callable[[int], Record]) -> Path:
    """Make a run folder with two recorded steps of MemAgent; `log_of` gives the log of each member of a group."""
    write_text(folder / "config.yaml", yaml.safe_dump({"method": "memagent"}))
    policy, rng = FakePolicy(tokenizer), Random(0)
    log = RolloutLog(folder / "seed-0/rollouts.jsonl.gz", lambda ids: token_bytes(tokenizer, ids))
    for step in (1, 2):
        task = Task(f"t{step}", "What is <b>it</b>?", ("x",))
        records = record_group(policy, task, run_group(policy, task, rng, str(step - 1)), step, rng)
        for place, record in enumerate(records):
            record["log"] = log_of(place)
        log.append(records)
    return folder


def change_turn(trajectory: Trajectory, place: int, **completion: Any) -> Trajectory:
    """Return the trajectory with other values in the completion of one turn."""
    turns = list(trajectory.turns)
    turns[place] = replace(turns[place], completion=replace(turns[place].completion, **completion))
    return replace(trajectory, turns=tuple(turns))
