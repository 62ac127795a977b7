"""The stream of tasks: each once an epoch, or those that disagree more often; the same wherever it is cut."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.rollout.stream import REST, Curriculum, TaskStream, measure_outcomes
from core.types import Task, Trajectory

AGREED, HALF, RARE = (1.0, 0.0), (0.5, 0.5), (0.1, 0.3)


def make_tasks(count: int) -> list[Task]:
    return [Task(f"t{i}", "q", ("a",)) for i in range(count)]


def ids(tasks: list[Task]) -> list[str]:
    return [task.task_id for task in tasks]


@given(st.integers(1, 20), st.integers(1, 4), st.booleans(), st.integers(0, 99), st.data())
def test_no_task_is_skipped_or_repeated_in_an_epoch(size, epochs, shuffle, seed, data):
    stream = TaskStream(make_tasks(size), shuffle=shuffle, seed=seed)
    taken: list[str] = []
    while len(taken) < size * epochs:
        taken += ids(stream.take(data.draw(st.integers(1, 2 * size))))
    for epoch in range(epochs):
        assert sorted(taken[epoch * size : (epoch + 1) * size]) == sorted(ids(make_tasks(size)))


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_a_stream_that_resumes_at_a_cursor_goes_on_as_if_never_cut(size, before, after, shuffle):
    whole = TaskStream(make_tasks(size), shuffle=shuffle, seed=3)
    expected = ids(whole.take(before + after))
    first = TaskStream(make_tasks(size), shuffle=shuffle, seed=3)
    start = ids(first.take(before))
    second = TaskStream(make_tasks(size), shuffle=shuffle, seed=3)
    second.cursor = first.cursor
    assert start + ids(second.take(after)) == expected


def test_epochs_and_seeds_differ_only_when_shuffled():
    def epochs(seed: int, shuffle: bool = True) -> tuple[list[str], list[str]]:
        stream = TaskStream(make_tasks(30), shuffle=shuffle, seed=seed)
        return ids(stream.take(30)), ids(stream.take(30))

    first, second = epochs(0)
    assert first != second
    assert first != epochs(1)[0]
    assert epochs(0, shuffle=False) == (ids(make_tasks(30)),) * 2


def make_curriculum(size: int, seed: int = 0) -> Curriculum:
    return Curriculum(make_tasks(size), seed=seed)


def rollout(task: str, reward: float | None) -> Trajectory:
    status = "failed" if reward is None else "completed"
    return Trajectory(task, (), reward=reward, status=status, failure="timeout" if reward is None else None)


def test_an_outcome_is_mean_and_deviation_of_the_valid_rewards_and_a_task_that_only_failed_has_none():
    groups = [[rollout("a", r) for r in (1.0, 0.0, None, 0.0, 0.0)], [rollout("b", None)], [rollout("c", 0.1)] * 3]
    expected = {"a": (0.25, pytest.approx(0.1875**0.5)), "c": (0.1, 0.0)}
    assert measure_outcomes(groups) == expected


@pytest.mark.parametrize(
    ("outcomes", "again"),
    [
        ({}, 0),
        ({"t0": AGREED, "t1": AGREED}, 0),
        ({"t0": AGREED, "t1": HALF}, 1),
        ({f"t{i}": RARE for i in range(6)}, 2),
        ({f"t{i}": HALF for i in range(18)}, 2),
        ({f"t{i}": HALF for i in range(19)}, 3),
    ],
)
def test_half_of_a_step_are_tasks_that_disagreed_and_half_are_new(outcomes, again):
    """Of twenty tasks four are drawn; where too few are new, the others take their places."""
    for seed in range(40):
        stream = make_curriculum(20, seed)
        for step in range(REST + 1):
            stream.update({} if step else outcomes)
        drawn = ids(stream.take(4))
        seen = [task for task in drawn if task in outcomes]
        assert len(set(drawn)) == 4
        assert len(seen) == again
        assert all(outcomes[task][1] for task in seen)


def test_a_task_rests_after_it_was_drawn():
    """All disagree. None comes again within eight steps while there are others, and four of eight do afterwards."""
    stream, steps = make_curriculum(200), []
    for _ in range(REST + 2):
        steps.append(ids(stream.take(8)))
        stream.update(dict.fromkeys(steps[-1], HALF))
    assert len({task for drawn in steps[: REST + 1] for task in drawn}) == 8 * (REST + 1)
    assert len({*steps[0]} & {*steps[REST + 1]}) == 4


def test_known_tasks_are_drawn_by_their_variance_and_one_that_agreed_a_little():
    """Variances 0, .25 and .09: a tenth of their mean, .34 / 30, is added to each weight."""
    stream, counts = make_curriculum(3), Counter[str]()
    for _ in range(12000):
        stream.update({"t0": AGREED, "t1": HALF, "t2": RARE})
        counts.update(ids(stream.take(1)))
    least, total = 0.34 / 30, 0.34 * 1.1
    shares = {task: count / 12000 for task, count in counts.items()}
    expected = {"t0": least / total, "t1": (0.25 + least) / total, "t2": (0.09 + least) / total}
    assert shares == pytest.approx(expected, abs=0.015)  # three standard errors


def test_without_any_disagreement_known_tasks_are_drawn_alike():
    stream, counts = make_curriculum(3), Counter[str]()
    for _ in range(6000):
        stream.update({f"t{i}": AGREED for i in range(3)})
        counts.update(ids(stream.take(1)))
    assert all(abs(count / 6000 - 1 / 3) < 0.02 for count in counts.values())


def test_more_tasks_than_there_are_come_again_and_no_task_twice_before():
    stream = make_curriculum(3)
    drawn = [*ids(stream.take(2)), *ids(stream.take(5))]  # dynamic sampling takes more for the same step
    assert [sorted(drawn[:3]), sorted(drawn[3:6])] == [["t0", "t1", "t2"]] * 2
    assert stream.cursor == 7


@given(st.integers(1, 12), st.integers(0, 9), st.integers(0, 9), st.integers(0, 99))
def test_a_curriculum_that_resumes_draws_what_it_would_have_drawn(size, before, after, seed):
    def go_on(stream: Curriculum, first: int, last: int) -> list[tuple[list[str], str]]:
        steps = []
        for step in range(first, last):
            drawn = ids(stream.take(3))
            outcomes = {task: [0.5, 0.1 * ((int(task[1:]) + step) % 3)] for task in drawn if int(task[1:]) % 5}
            stream.update(outcomes)
            steps.append((drawn, json.dumps(outcomes)))
        return steps

    whole = go_on(make_curriculum(size, seed), 0, before + after)
    resumed = make_curriculum(size, seed)
    for _, outcomes in whole[:before]:
        resumed.update(json.loads(outcomes))
    resumed.cursor = 3 * before
    assert go_on(resumed, before, before + after) == whole[before:]


def test_the_chance_of_a_draw_is_how_often_a_place_takes_the_task():
    """Of five tasks two are new and three known; a step of two places has one of each, a step of one a known one."""
    counts, chances = Counter[str](), dict[str, float]()
    rounds = 4000
    for seed in range(rounds):
        stream = make_curriculum(5, seed)
        stream.update({"t0": RARE, "t1": HALF, "t2": RARE})
        for _ in range(REST):
            stream.update({})
        drawn = stream.take(2)
        counts.update(ids(drawn))
        chances |= stream.pop_chances(drawn)
        assert stream.pop_chances(drawn) == {}
    assert sum(chances.values()) == pytest.approx(1.0)
    assert {task: count / rounds / 2 for task, count in counts.items()} == pytest.approx(chances, abs=0.012)


def test_an_empty_data_set_is_an_error():
    with pytest.raises(ValueError, match="no tasks"):
        TaskStream([], shuffle=True, seed=0)
