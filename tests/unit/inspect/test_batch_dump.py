"""The drift check reads batches of TRL and verl: it finds every planted fault, and nothing in healthy ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from core.inspect.drift import DriftChecker, check_dump
from core.inspect.dumps import read_dump
from core.rollout.rows import rows_from_groups
from core.types import Row, Task
from tests.unit.runs.fake_policy import FakePolicy, run_group

HEALTHY = 1000
REPEATS = 10
FRAMEWORKS = ("trl", "verl")


@pytest.fixture(scope="module")
def policy(tokenizer: Any) -> FakePolicy:
    return FakePolicy(tokenizer)


@dataclass
class Line:
    """One row of a batch, before it is padded."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    logprobs: list[float]
    trainer: list[float]
    padding_trained: int = 0
    """Counts the padding tokens that a fault trains."""
    input_response: list[int] | None = field(default=None)
    """Holds the response in verl's input_ids, if it differs."""


def make_lines(policy: FakePolicy, groups: int, rng: Random, *, straight: bool = False) -> list[Line]:
    lines = []
    for number in range(groups):
        group = run_group(policy, Task(f"t{number}", f"What is {number}?", ("x",)), rng, "3", straight=straight)
        rows = rows_from_groups([group], std_normalization=True, split_advantage=False, rows="segment")
        for rollout, trajectory in enumerate(group):
            for row in (row for row in rows if row.rollout_id == rollout):
                turns = [trajectory.turns[place] for place in row.turns]
                scores = (s for turn in turns for s in policy.score(turn.prompt_ids, turn.completion.token_ids))
                lines.append(as_line(row, scores, rng))
    return lines


def as_line(row: Row, scores: Any, rng: Random) -> Line:
    """The trainer has a log-prob of the tools' text, too."""
    start = len(row.tokens) - len(row.loss_mask)
    trainer = [next(scores) + rng.gauss(0, 1e-3) if mask else -3.0 - rng.random() for mask in row.loss_mask]
    return Line(list(row.tokens[:start]), list(row.tokens[start:]), list(row.loss_mask), list(row.logprobs), trainer)


def pad(lists: Sequence[Sequence[float]], value: float, side: str, dtype: torch.dtype) -> torch.Tensor:
    width = max(map(len, lists)) + 2
    padded = [[*[value] * (width - len(x)), *x] if side == "left" else [*x, *[value] * (width - len(x))] for x in lists]
    return torch.tensor(padded, dtype=dtype)


def write_batch(path: Path, framework: str, lines: Sequence[Line], pad_id: int, *, trainer: bool = True) -> Path:
    """Pad and name as the framework does; tests/optional/dumps has their own code do it."""
    long, real = torch.int64, torch.float32
    prompts = pad([line.prompt for line in lines], pad_id, "left", long)
    prompt_mask = pad([[1] * len(line.prompt) for line in lines], 0, "left", long)
    responses = pad([line.response for line in lines], pad_id, "right", long)
    response_real = pad([[1] * len(line.response) for line in lines], 0, "right", long)
    logprobs = pad([line.logprobs for line in lines], 0.0, "right", real)
    old = pad([line.trainer for line in lines], 0.0, "right", real)
    if framework == "trl":
        whole = pad([[1] * (len(line.response) + line.padding_trained) for line in lines], 0, "right", long)
        batch = {
            "prompt_ids": prompts, "prompt_mask": prompt_mask, "completion_ids": responses,
            "completion_mask": whole[:, : responses.shape[1]],
            "tool_mask": pad([line.mask for line in lines], 1, "right", long),
            "advantages": torch.ones(len(lines)), "num_items_in_batch": torch.tensor(1),
            "sampling_per_token_logps": logprobs, **({"old_per_token_logps": old} if trainer else {}),
        }  # fmt: skip
    else:
        trained = [[*line.mask, *[1] * line.padding_trained] for line in lines]
        inputs = pad([line.input_response or line.response for line in lines], pad_id, "right", long)
        batch = {
            "prompts": prompts, "responses": responses,
            "response_mask": pad(trained, 0, "right", long)[:, : responses.shape[1]],
            "input_ids": torch.cat([prompts, inputs], dim=1),
            "attention_mask": torch.cat([prompt_mask, response_real], dim=1),
            "rollout_log_probs": logprobs, "rm_scores": torch.zeros_like(logprobs),
            **({"old_log_probs": old} if trainer else {}),
        }  # fmt: skip
    torch.save(batch, path)
    return path


def find_kinds(path: Path, policy: FakePolicy) -> set[str]:
    checker = DriftChecker(policy.tokenizer)
    return {drift.kind for _, _, drifts in check_dump(path, checker) for drift in drifts}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_healthy_rollouts_raise_no_alarm(policy: FakePolicy, tmp_path: Path, framework: str) -> None:
    lines = make_lines(policy, HEALTHY // 4, Random(framework))
    assert len(lines) >= HEALTHY
    pad_id = policy.tokenizer.pad_token_id
    whole = write_batch(tmp_path / "step_7.pt", framework, lines, pad_id)
    without = write_batch(tmp_path / "step_8.pt", framework, lines[:100], pad_id, trainer=False)
    assert find_kinds(whole, policy) == find_kinds(without, policy) == set()


def test_the_rollouts_of_a_prompt_are_a_group_in_whatever_order_the_rows_are(
    policy: FakePolicy, tmp_path: Path
) -> None:
    lines = make_lines(policy, 3, Random(0), straight=True)
    Random(1).shuffle(lines)
    path = write_batch(tmp_path / "step_1.pt", "verl", lines, policy.tokenizer.pad_token_id)
    by_group: dict[int, set[tuple[int, ...]]] = {}
    for rollout in read_dump(path):
        by_group.setdefault(rollout.group, set()).add(tuple(rollout.prompts[0]))
    assert [len(prompts) for prompts in by_group.values()] == [1, 1, 1]


# -- faults: each changes one row of a batch whose turns all end by themselves


def turn_spans(line: Line) -> list[tuple[int, int]]:
    edges = [i for i in range(len(line.mask) + 1) if [0, *line.mask, 0][i] != [0, *line.mask, 0][i + 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


def shifted(policy: FakePolicy, line: Line, rng: Random) -> None:
    start, end = rng.choice(turn_spans(line))
    line.logprobs[start:end] = [*line.logprobs[start + 1 : end], -0.01]


def other_weights(policy: FakePolicy, line: Line, rng: Random) -> None:
    start, end = rng.choice(turn_spans(line))
    line.logprobs[start:end] = [x - 1.0 for x in line.logprobs[start:end]]


def lost_logprob(policy: FakePolicy, line: Line, rng: Random) -> None:
    start, end = rng.choice(turn_spans(line))
    line.logprobs[rng.randrange(start, end)] = rng.choice([float("nan"), float("-inf"), 0.25])


def tool_text_trained(policy: FakePolicy, line: Line, rng: Random) -> None:
    line.mask = [1] * len(line.mask)


def mask_begins_early(policy: FakePolicy, line: Line, rng: Random) -> None:
    start, _ = rng.choice(turn_spans(line)[1:])
    line.mask[start - 1] = 1


def mask_begins_late(policy: FakePolicy, line: Line, rng: Random) -> None:
    start, _ = rng.choice(turn_spans(line))
    line.mask[start] = 0


def mask_ends_late(policy: FakePolicy, line: Line, rng: Random) -> None:
    _, end = rng.choice(turn_spans(line)[:-1])
    line.mask[end] = 1


def padding_trained(policy: FakePolicy, line: Line, rng: Random) -> None:
    line.padding_trained = rng.randint(1, 2)


def retokenised(policy: FakePolicy, line: Line, rng: Random) -> None:
    """The ids of a turn are those of its text encoded again, to another number: the mask and the rest move."""
    start, end = rng.choice(turn_spans(line))
    place = rng.randrange(start, end - 1)
    tokens = policy.tokenizer.convert_ids_to_tokens(line.response[place])
    letters = policy.tokenizer.convert_tokens_to_ids([*tokens, "a"])
    line.response[place : place + 1] = letters
    extra = len(letters) - 1
    line.mask[place:place] = [1] * extra
    # The trainer scores the new ids; the engine's log-probs stay as they were, and end too early.
    line.trainer[place : place + 1] = [-12.0 - rng.random()] * len(letters)
    line.logprobs += [0.0] * extra


def other_ids(policy: FakePolicy, line: Line, rng: Random) -> None:
    """The trainer's input has another token. In TRL there is no second copy; only the log-prob tells."""
    start, end = rng.choice(turn_spans(line))
    place = rng.randrange(start, end - 1)
    other = rng.choice([i for i in policy.words if i != line.response[place]])
    line.input_response = [*line.response[:place], other, *line.response[place + 1 :]]
    line.trainer[place] = -25.0


FAULTS: dict[str, tuple[Callable[[FakePolicy, Line, Random], None], set[str]]] = {
    "shifted": (shifted, {"shifted"}),
    "other_weights": (other_weights, {"other_weights"}),
    "lost_logprob": (lost_logprob, {"logprobs"}),
    "tool_text_trained": (tool_text_trained, {"after_end"}),
    "mask_begins_early": (mask_begins_early, {"mask"}),
    "mask_begins_late": (mask_begins_late, {"mask"}),
    "mask_ends_late": (mask_ends_late, {"after_end"}),
    "padding_trained": (padding_trained, {"ids", "after_end"}),
    "retokenised": (retokenised, {"mask", "other_weights", "inconsistent"}),
    "other_ids": (other_ids, {"ids", "other_weights", "shifted"}),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(policy: FakePolicy, tmp_path: Path, framework: str, fault: str) -> None:
    plant, kinds = FAULTS[fault]
    for repeat in range(REPEATS):
        rng = Random(f"{framework}-{fault}-{repeat}")
        lines = make_lines(policy, 2, rng, straight=True)
        plant(policy, rng.choice(lines), rng)
        path = write_batch(tmp_path / f"{repeat}.pt", framework, lines, policy.tokenizer.pad_token_id)
        found = find_kinds(path, policy)
        assert found & kinds, f"{fault} {repeat}: {found}"


def test_a_batch_without_what_is_compared_is_refused(policy: FakePolicy, tmp_path: Path) -> None:
    lines = make_lines(policy, 1, Random(0))
    path = write_batch(tmp_path / "1.pt", "verl", lines, policy.tokenizer.pad_token_id)
    batch = torch.load(path)
    for name, message in (("rollout_log_probs", "no rollout_log_probs"), ("attention_mask", "row 0: .*padding")):
        torch.save({key: value for key, value in batch.items() if key != name}, path)
        with pytest.raises(ValueError, match=message):
            list(read_dump(path))
    torch.save(batch | {"old_log_probs": batch["old_log_probs"][:, :-1]}, path)
    with pytest.raises(ValueError, match="old_log_probs has"):
        list(read_dump(path))


def test_the_plugin_fails_a_test_that_has_drift(
    policy: FakePolicy, model: Path, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    lines = make_lines(policy, 2, Random(0), straight=True)
    write_batch(tmp_path / "healthy.pt", "trl", lines, policy.tokenizer.pad_token_id)
    shifted(policy, lines[0], Random(0))
    write_batch(tmp_path / "faulty.pt", "trl", lines, policy.tokenizer.pad_token_id)
    pytester.makeconftest('pytest_plugins = ["core.inspect.pytest_plugin"]')
    pytester.makepyfile(
        f"""
        from pathlib import Path
        import pytest

        @pytest.mark.parametrize("name", ["healthy", "faulty", "absent"])
        def test_rollouts(assert_no_drift, name):
            assert_no_drift(Path({str(tmp_path)!r}) / (name + ".pt"), tokenizer={str(model)!r})
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["shifted: *faulty.pt train step 0 task 'prompt 0' rollout 0 turn *", "*1 x shifted"])
    result.stdout.fnmatch_lines(["*absent.pt: there is no record*"])
