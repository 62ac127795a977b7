"""The stream of tasks: every task once an epoch, the same order wherever it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.rollout.stream import TaskStream
from core.types import Task


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


def test_an_empty_data_set_is_an_error():
    with pytest.raises(ValueError, match="no tasks"):
        TaskStream([], shuffle=True, seed=0)
