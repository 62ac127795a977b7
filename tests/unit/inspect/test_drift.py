"""The drift check finds every planted fault and nothing else, in our records and in slime's dumps."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from core.backends.slime.samples import fan_out, fill_sample
from core.data.files import task_to_record
from core.inspect.drift import DriftChecker, check_dump, compare_logprobs, main
from core.inspect.dumps import read_dump
from core.rollout.rows import rows_from_groups
from core.runs.files import Record
from core.runs.record import RecordedRollout, RolloutLog, read_rollouts
from core.runs.run_folder import RunFolder
from core.text.tokenizer import encode_text, token_bytes
from core.types import Completion, Group, RowUnit, Task, Trajectory, Turn
from tests.unit.backends.slime.standin import Sample
from tests.unit.runs.fake_policy import FakePolicy, change_turn, encode_markup, record_group, run_group

STEP = 4
"""The step of every group here; its weights are version 3."""
HEALTHY = 1000
REPEATS = 5
"""Faults of each kind in each format: 13 kinds in our records, 8 in slime's dumps."""


@pytest.fixture(scope="module")
def policy(tokenizer: Any) -> FakePolicy:
    return FakePolicy(tokenizer)


def make_task(number: int) -> Task:
    """Every third question has the text of a special token, which is encoded as plain text."""
    return Task(f"t{number}", f"What is {number}?" + " <|im_end|>" * (number % 3 == 0), ("x",))


# -- writing


def write_record(path: Path, tokenizer: Any, batches: Sequence[Sequence[Record]]) -> Path:
    log = RolloutLog(path, lambda ids: token_bytes(tokenizer, ids))
    for batch in batches:
        log.append(batch)
    return path


def as_samples(group: Group, task: Task, index: int) -> list[Sample]:
    samples = []
    for place, trajectory in enumerate(group):
        named = {"task_id": task.task_id}
        sample = Sample(group_index=index, index=place, prompt=task.question, label="x", metadata=named)
        fill_sample(sample, trajectory, None)
        samples.append(sample)
    return samples


def as_plain_samples(group: Group, task: Task, index: int) -> list[Sample]:
    """As slime's own agent loops give them: a row with the mask, and 0 for what was not sampled."""
    samples = []
    for row in rows_from_groups([group], std_normalization=True, split_advantage=False, rows="segment"):
        trajectory = group[row.rollout_id]
        count = sum(turn.trained for turn in trajectory.turns)
        samples.append(
            Sample(
                group_index=index, index=row.rollout_id, prompt=[{"role": "user", "content": task.question}], label="x",
                tokens=list(row.tokens), response_length=len(row.loss_mask), loss_mask=list(row.loss_mask),
                rollout_log_probs=list(row.logprobs), reward=1.0, status=Sample.Status.COMPLETED,
                weight_versions=["3"] * count, metadata={"task_id": task.task_id, "question": task.question},
            )
        )  # fmt: skip
    return samples


def write_dump(path: Path, samples: Sequence[Sample]) -> Path:
    """As slime's `save_debug_rollout_data` does."""
    dumped = [
        {**vars(sample), "status": sample.status.value, "prefix_cache_info": vars(sample.prefix_cache_info)}
        for sample in samples
    ]
    torch.save({"rollout_id": STEP - 1, "samples": dumped}, path)
    return path


def find_drift(path: Path, policy: FakePolicy, *, scored: bool = False) -> list[tuple[str, set[str]]]:
    """Return the task and the kinds of drift of each rollout in a file that has some."""
    checker = DriftChecker(policy.tokenizer, {"3": policy.score} if scored else {})
    found = ((rollout.task_id, {drift.kind for drift in drifts}) for rollout, _, drifts in check_dump(path, checker))
    return [(task, kinds) for task, kinds in found if kinds]


def test_a_dump_of_our_hooks_keeps_the_failures_name_and_all_answers(tmp_path: Path) -> None:
    task = Task("t", "Which?", ("one", "two"))
    sample = Sample(group_index=0, index=0, prompt="Which?", label="one", metadata=task_to_record(task))
    failed = Trajectory("t", (), "failed", failure="deadline", log={"error": "took 9 s"})
    fill_sample(sample, failed, reward_key=None)
    (rollout,) = read_dump(write_dump(tmp_path / "rollout_0.pt", [sample]))
    assert (rollout.failure, rollout.answers, rollout.log) == ("deadline", ["one", "two"], {"error": "took 9 s"})


# -- healthy rollouts


def test_healthy_rollouts_raise_no_alarm(policy: FakePolicy, tmp_path: Path) -> None:
    rng = Random(0)
    tasks = [make_task(number) for number in range(HEALTHY // 4)]
    pairs = [(run_group(policy, task, rng, "3"), task) for task in tasks]
    units: list[RowUnit] = ["segment", "turn"]
    batches = [record_group(policy, task, group, STEP, rng, units[i % 2]) for i, (group, task) in enumerate(pairs)]
    containers = [sample for i, pair in enumerate(pairs) for sample in as_samples(*pair, i)]
    plain = [sample for i, pair in enumerate(pairs) for sample in as_plain_samples(*pair, i)]
    files = [
        write_record(tmp_path / "rollouts.jsonl.gz", policy.tokenizer, batches),
        write_dump(tmp_path / "containers.pt", containers),
        write_dump(tmp_path / "parts.pt", [part for sample in containers for part in fan_out(sample, "segment")]),
        write_dump(tmp_path / "plain.pt", plain),
    ]
    assert [find_drift(path, policy) for path in files] == [[]] * 4
    assert find_drift(files[0], policy, scored=True) == []
    assert min(len(containers), len(plain), sum(map(len, batches))) >= HEALTHY


# -- faults in a trajectory, before it is recorded or dumped: each returns the trajectory with one of them


def conversation(policy: FakePolicy, task: Task, rng: Random) -> list[Trajectory]:
    """Return two rollouts of three trained turns, of which each extends the one before and ends by itself."""
    group = run_group(policy, task, rng, "3", size=2, straight=True)
    return [replace(trajectory, reward=reward) for trajectory, reward in zip(group, (1.0, 0.0), strict=True)]


def shift(values: Sequence[float], rng: Random) -> tuple[float, ...]:
    return (*values[1:], 0.0) if rng.random() < 0.5 else (0.0, *values[:-1])


def shifted(policy: FakePolicy, trajectory: Trajectory, rng: Random) -> Trajectory:
    place = rng.randrange(3)
    return change_turn(trajectory, place, logprobs=shift(trajectory.turns[place].completion.logprobs, rng))


def other_weights(policy: FakePolicy, trajectory: Trajectory, rng: Random) -> Trajectory:
    place = rng.randrange(3)
    flat = tuple(x - 1.0 - rng.random() for x in trajectory.turns[place].completion.logprobs)
    return change_turn(trajectory, place, logprobs=flat)


def newer_version(policy: FakePolicy, trajectory: Trajectory, rng: Random) -> Trajectory:
    return change_turn(trajectory, rng.randrange(3), weight_version="4")


def older_version(policy: FakePolicy, trajectory: Trajectory, rng: Random) -> Trajectory:
    return change_turn(trajectory, rng.randrange(1, 3), weight_version="2")


def lost_logprob(policy: FakePolicy, trajectory: Trajectory, rng: Random) -> Trajectory:
    place = rng.randrange(3)
    values = list(trajectory.turns[place].completion.logprobs)
    values[rng.randrange(len(values))] = rng.choice([float("nan"), float("-inf"), 0.25])
    return change_turn(trajectory, place, logprobs=tuple(values))


def past_the_end(policy: FakePolicy, trajectory: Trajectory, rng: Random) -> Trajectory:
    last = trajectory.turns[2].completion
    ids = (*last.token_ids[:4], policy.tokenizer.eos_token_id, *last.token_ids[4:])
    return change_turn(trajectory, 2, token_ids=ids, logprobs=(*last.logprobs, -0.1))


def forged_special(policy: FakePolicy, trajectory: Trajectory, rng: Random) -> Trajectory:
    """The question is encoded as our own markup is, in every turn."""
    tokenizer, question = policy.tokenizer, make_task(0).question
    honest, forged = encode_text(tokenizer, question), encode_markup(tokenizer, question)
    turns = []
    for turn in trajectory.turns:
        at = next(i for i in range(len(turn.prompt_ids)) if turn.prompt_ids[i : i + len(honest)] == honest)
        turns.append(replace(turn, prompt_ids=(*turn.prompt_ids[:at], *forged, *turn.prompt_ids[at + len(honest) :])))
    return replace(trajectory, turns=tuple(turns))


# -- faults in a recorded rollout


def changed_ids(policy: FakePolicy, record: Record, rng: Random) -> None:
    ids = record["turns"][rng.randrange(3)]["sampled"]
    place = rng.randrange(len(ids) - 1)
    ids[place] = rng.choice([i for i in policy.words if i != ids[place]])


def changed_mask(policy: FakePolicy, record: Record, rng: Random) -> None:
    spans = record["rows"][0]["trained"]
    place, by = rng.randrange(len(spans)), rng.choice([-1, 1])
    start, end = spans[place]
    spans[place] = rng.choice([(start + by, end + by), (start + by, end), (start, end + by)])


def changed_row_logprobs(policy: FakePolicy, record: Record, rng: Random) -> None:
    record["rows"][0]["logprobs_crc32"] += 1


def lost_row(policy: FakePolicy, record: Record, rng: Random) -> None:
    """The turns that are trained stand in no row."""
    record["rows"][0]["turns"] = []


def replace_in_prompt(record: Record, tokenizer: Any, ids: Sequence[int], by: Sequence[int]) -> None:
    """Let the last prompt hold `by` where it holds the ids of the turn before."""
    prompt = RecordedRollout.model_validate(record).prompts[2]
    at = len(RecordedRollout.model_validate(record).prompts[1])
    assert prompt[at : at + len(ids)] == list(ids)
    record["turns"][2] |= {"base": None, "prompt": [*prompt[:at], *by, *prompt[at + len(ids) :]]}


def retokenised(policy: FakePolicy, record: Record, rng: Random) -> None:
    """A word becomes its letters."""
    tokenizer, ids = policy.tokenizer, record["turns"][1]["sampled"]
    split = [i for token in ids for i in split_token(tokenizer, token)]
    assert split != ids
    assert tokenizer.decode(split) == tokenizer.decode(ids)
    replace_in_prompt(record, tokenizer, ids, split)


def split_token(tokenizer: Any, token: int) -> list[int]:
    text = tokenizer.convert_ids_to_tokens(token)
    return [token] if token in tokenizer.all_special_ids else tokenizer.convert_tokens_to_ids(list(text))


def rewritten(policy: FakePolicy, record: Record, rng: Random) -> None:
    ids = record["turns"][1]["sampled"]
    place = rng.randrange(len(ids) - 1)
    other = rng.choice([i for i in policy.words if i != ids[place]])
    replace_in_prompt(record, policy.tokenizer, ids, [*ids[:place], other, *ids[place + 1 :]])


TRAJECTORY_FAULTS: dict[str, tuple[Callable, set[str]]] = {
    "shifted": (shifted, {"shifted"}),
    "other_weights": (other_weights, {"other_weights"}),
    "newer_version": (newer_version, {"version"}),
    "older_version": (older_version, {"version"}),
    "lost_logprob": (lost_logprob, {"logprobs"}),
    "past_the_end": (past_the_end, {"after_end"}),
    "forged_special": (forged_special, {"special_token"}),
}
RECORD_FAULTS: dict[str, tuple[Callable, set[str]]] = {
    "changed_ids": (changed_ids, {"ids"}),
    "changed_mask": (changed_mask, {"mask"}),
    "changed_row_logprobs": (changed_row_logprobs, {"logprobs"}),
    "lost_row": (lost_row, {"mask"}),
    "retokenised": (retokenised, {"retokenised"}),
    "rewritten": (rewritten, {"not_extended"}),
}


@pytest.mark.parametrize("fault", [*TRAJECTORY_FAULTS, *RECORD_FAULTS])
def test_a_fault_in_a_record_is_found_and_named(policy: FakePolicy, tmp_path: Path, fault: str) -> None:
    plant, kinds = (TRAJECTORY_FAULTS | RECORD_FAULTS)[fault]
    for repeat in range(REPEATS):
        rng, task = Random(f"{fault}-{repeat}"), make_task(0)
        group = conversation(policy, task, rng)
        if fault in TRAJECTORY_FAULTS:
            group[0] = plant(policy, group[0], rng)
        records = copy.deepcopy(record_group(policy, task, group, STEP, rng))
        if fault in RECORD_FAULTS:
            for turn in records[0]["turns"]:
                turn |= {name: list(turn[name]) for name in ("sampled", "prompt")}
            plant(policy, records[0], rng)
        path = write_record(tmp_path / f"{repeat}.jsonl.gz", policy.tokenizer, [records])
        found = find_drift(path, policy)
        assert found
        assert found[0][1] & kinds, f"{fault} {repeat}: {found}"


# -- faults in a dump of slime: each changes one Sample, which is ours or plain


def dump_ids(sample: Sample, rng: Random) -> None:
    place = rng.randrange(len(sample.tokens) - sample.response_length, len(sample.tokens))
    sample.tokens[place] += 1


def dump_mask(sample: Sample, rng: Random) -> None:
    assert sample.loss_mask is not None
    start = sample.loss_mask.index(0)
    sample.loss_mask[start - 1 if rng.random() < 0.5 else start] ^= 1


def dump_shift(sample: Sample, rng: Random) -> None:
    assert sample.rollout_log_probs is not None
    sample.rollout_log_probs = list(shift(sample.rollout_log_probs, rng))


def dump_without_logprobs(sample: Sample, rng: Random) -> None:
    sample.rollout_log_probs = None


def dump_whole_mask(sample: Sample, rng: Random) -> None:
    """The tools' text is trained too."""
    sample.loss_mask = [1] * sample.response_length


Faults = dict[str, tuple[Callable | None, Callable | None, bool, bool, set[str]]]
DUMP_FAULTS: Faults = {
    # the change of the trajectory, or of the Sample; whether it is plain; whether a model is needed; the kinds
    "ids": (None, dump_ids, False, False, {"ids"}),
    "mask": (None, dump_mask, True, False, {"mask", "after_end"}),
    "shifted": (None, dump_shift, True, False, {"mask", "inconsistent"}),
    "shifted_turn": (shifted, None, False, True, {"shifted"}),
    "other_weights": (other_weights, None, False, True, {"other_weights"}),
    "version": (older_version, None, False, False, {"version"}),
    "no_logprobs": (None, dump_without_logprobs, True, False, {"logprobs"}),
    "tool_text_trained": (None, dump_whole_mask, True, False, {"after_end"}),
}


@pytest.mark.parametrize("fault", DUMP_FAULTS)
def test_a_fault_in_a_dump_of_slime_is_found_and_named(policy: FakePolicy, tmp_path: Path, fault: str) -> None:
    change_trajectory, change_sample, plain, scored, kinds = DUMP_FAULTS[fault]
    for repeat in range(REPEATS):
        rng, task = Random(f"{fault}-{repeat}"), make_task(0)
        group = conversation(policy, task, rng)
        if fault == "tool_text_trained":  # found where a turn ended by itself
            while group[0].turns[0].completion.finish_reason != "stop":
                group = conversation(policy, task, rng)
        if change_trajectory:
            group[0] = change_trajectory(policy, group[0], rng)
        samples = (as_plain_samples if plain else as_samples)(group, task, 0)
        if change_sample:
            change_sample(samples[0], rng)
        found = find_drift(write_dump(tmp_path / f"{repeat}.pt", samples), policy, scored=scored)
        assert found
        assert found[0][1] & kinds, f"{fault} {repeat}: {found}"


# -- the parts


def test_log_probs_that_differ_by_rounding_are_no_drift() -> None:
    values = [-0.1, -2.0, -0.5, -3.0, -0.01]
    assert compare_logprobs(values, [x + 0.05 for x in values]) is None
    assert compare_logprobs(values, [None] * 5) is None
    assert compare_logprobs(values[:1], [-0.4]) is None
    kinds = [compare_logprobs(values, other) for other in ([*values[1:], 0.0], [0.0, *values[:-1]], [-4.0] * 5)]
    assert [kind[0] for kind in kinds if kind] == ["shifted", "shifted", "other_weights"]


def test_weights_that_change_during_a_turn_or_are_old_are_no_drift(policy: FakePolicy, tmp_path: Path) -> None:
    """As with `rollout.ahead`: the trainer's weights are newer, and so its log-probs are others."""
    rng, task = Random(0), make_task(0)
    group = conversation(policy, task, rng)
    for place, (version, earlier) in enumerate([("1", ()), ("2", (("1", 2),)), ("3", (("2", 3),))]):
        group[0] = change_turn(group[0], place, weight_version=version, earlier_versions=earlier)
    old = tuple(x - 1.0 for x in group[0].turns[0].completion.logprobs)
    group[0] = change_turn(group[0], 0, logprobs=old)
    record = record_group(policy, task, group, STEP, rng)
    path = write_record(tmp_path / "ahead.jsonl.gz", policy.tokenizer, [record])
    assert find_drift(path, policy) == []
    assert [turn.versions for turn in next(read_rollouts(path)).turns] == [["1"], ["1", "2"], ["2", "3"]]
    group[0] = change_turn(group[0], 2, earlier_versions=(("4", 3),))
    path = write_record(tmp_path / "back.jsonl.gz", policy.tokenizer, [record_group(policy, task, group, STEP, rng)])
    assert find_drift(path, policy) == [("t0", {"version"})]


def test_the_weights_of_the_policy_score_no_turn_of_another_one(policy: FakePolicy, tmp_path: Path) -> None:
    rng, task = Random(0), make_task(0)
    group = [other_weights(policy, trajectory, rng) for trajectory in conversation(policy, task, rng)]
    for name, found in (("policy", True), ("critic", False)):
        turned = [replace(t, turns=tuple(replace(turn, policy=name) for turn in t.turns)) for t in group]
        records = [
            {**r, "turns": [{**t, "trainer_logprobs": None} for t in r["turns"]]}
            for r in record_group(policy, task, turned, STEP, rng)
        ]
        path = write_record(tmp_path / f"{name}.jsonl.gz", policy.tokenizer, [records])
        assert any("other_weights" in kinds for _, kinds in find_drift(path, policy, scored=True)) == found


def test_a_token_with_two_log_probs_or_too_much_probability_is_inconsistent(policy: FakePolicy, tmp_path: Path) -> None:
    def rollout(ids: tuple[int, ...], logprobs: tuple[float, ...]) -> Trajectory:
        return Trajectory("t1", (Turn("policy", (5, 6), Completion(ids, logprobs, "length", "3"), True),), reward=1.0)

    rng, task = Random(0), Task("t1", "?", ())
    for name, group, kinds in [
        ("twice", [rollout((7,), (-0.5,)), rollout((7,), (-2.0,))], {"inconsistent"}),
        ("above_one", [rollout((token,), (-0.5,)) for token in (7, 8, 9)], {"inconsistent"}),
        ("healthy", [rollout((7,), (-0.5,)), rollout((7,), (-0.6,)), rollout((8,), (-1.5,))], set()),
    ]:
        # Equal rewards: no advantage, so there are no log-probs of a trainer to compare with.
        path = write_record(tmp_path / name, policy.tokenizer, [record_group(policy, task, group, STEP, rng)])
        assert {kind for _, found in find_drift(path, policy) for kind in found} == kinds


def test_the_command_tells_yes_no_and_unreadable(
    policy: FakePolicy, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, task = Random(0), make_task(0)
    group = conversation(policy, task, rng)
    record = record_group(policy, task, group, STEP, rng)
    healthy = write_record(tmp_path / "healthy.jsonl.gz", policy.tokenizer, [record])
    group[0] = shifted(policy, group[0], rng)
    record = record_group(policy, task, group, STEP, rng)
    faulty = write_record(tmp_path / "faulty.jsonl.gz", policy.tokenizer, [record])
    tokenizer = ["--tokenizer", str(model)]
    assert main([str(healthy), *tokenizer]) == 0
    assert "2 rollouts with" in (output := capsys.readouterr().out)
    assert "no drift" in output
    assert main([str(faulty), *tokenizer]) == 1
    assert "shifted: " in (output := capsys.readouterr().out)
    assert "task 't0' rollout 0 turn" in output
    assert main([str(healthy)]) == 2
    assert "give --tokenizer PATH" in capsys.readouterr().err
    assert main([str(healthy), *tokenizer, "--weights", "9=/nowhere"]) == 2
    assert "--weights 9: no turn was sampled by this version" in capsys.readouterr().err
    evaluated = [{**record, "stage": "eval"} for record in record_group(policy, task, group, STEP, rng)]
    path = write_record(tmp_path / "evaluated.jsonl.gz", policy.tokenizer, [evaluated])
    assert main([str(path), *tokenizer, "--weights", f"{STEP - 1}={model}"]) == 2
    assert f"--weights {STEP - 1}: no turn was sampled by this version that training" in capsys.readouterr().err
    (tmp_path / "empty.jsonl.gz").touch()
    assert main([str(tmp_path / "empty.jsonl.gz"), *tokenizer]) == 2, "nothing was read"
    failed = [{**record, "turns": [], "rows": []} for record in record_group(policy, task, group, STEP, rng)]
    capsys.readouterr()
    path = write_record(tmp_path / "failed.jsonl.gz", policy.tokenizer, [failed])
    assert main([str(path), *tokenizer]) == 2, "no token was checked"
    assert "0 sampled tokens: nothing to check" in capsys.readouterr().out
    (tmp_path / "broken.pt").write_bytes(b"no")
    for path in (tmp_path / "absent.jsonl.gz", tmp_path / "broken.pt"):
        assert main([str(path), *tokenizer]) == 2
        assert path.name in capsys.readouterr().err


def test_weights_of_a_gateway_are_not_those_of_a_step(policy: FakePolicy, tmp_path: Path) -> None:
    """Its sessions are of step 0, and its weights may be numbered from 0."""
    rng, task = Random(0), make_task(1)
    records = record_group(policy, task, conversation(policy, task, rng), 0, rng)
    assert find_drift(write_record(tmp_path / "rollouts.jsonl.gz", policy.tokenizer, [records]), policy) == []


def test_a_dump_cannot_run_code(tmp_path: Path, policy: FakePolicy) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    torch.save({"rollout_id": 0, "samples": [Bomb()]}, tmp_path / "dump.pt")
    with pytest.raises(ValueError, match=r"dump\.pt is no dump"):
        find_drift(tmp_path / "dump.pt", policy)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("warm_start", [False, True])
def test_a_run_names_its_own_model(
    policy: FakePolicy, model: Path, tmp_path: Path, warm_start: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The start model is the recipe's or, after a warm start, that of the folder."""
    path = "gone" if warm_start else str(model)
    folder = RunFolder.create(tmp_path / "run", {"model": {"path": path}, "rollout": {"temperature": 0.7}})
    if warm_start:
        shutil.copytree(model, folder.path / "warm_start")
    rng, task = Random(0), make_task(0)
    records = [record_group(policy, task, conversation(policy, task, rng), STEP, rng)]
    record = write_record(folder.rollouts_path(0), policy.tokenizer, records)
    assert main([str(folder.path)]) == main([str(record)]) == 0
    other = RunFolder.create(tmp_path / "other", {"model": {"path": str(tmp_path)}})
    assert main([str(folder.path), str(other.path)]) == 2
    assert "the dumps are of 2 models" in capsys.readouterr().err
