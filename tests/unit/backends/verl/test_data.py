from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from core.backends.verl.data import read_row, write_tasks
from core.data.files import DataError
from core.types import Task


def test_a_task_comes_back_as_it_was_written(tmp_path: Path) -> None:
    tasks = [
        Task("a", "Which?", ("acorn", "nut"), "The grass.", {"depth": [1, 2]}),
        Task("b", "Who?", ("me",), metadata={"other": None}, earlier_messages=({"role": "system", "content": "Be."},)),
    ]
    target = tmp_path / "data" / "train.parquet"
    assert write_tasks(target, tasks, tmp_path) == 2
    rows = pq.read_table(target).to_pylist()
    assert {row["agent_name"] for row in rows} == {"tokentrue"}
    assert rows[1]["prompt"] == [{"content": "Be.", "role": "system"}, {"content": "Who?", "role": "user"}]
    assert [read_row(row, str(target)) for row in rows] == tasks


def test_data_of_others_is_a_prompt_and_its_ground_truth() -> None:
    fields = {"raw_prompt": [{"role": "user", "content": "2 + 2?"}], "reward_model": {"ground_truth": "4"}}
    fields |= {"extra_info": {"index": 3}, "index": 3}
    task = read_row(fields, "/data/gsm8k.parquet")
    assert (task.task_id, task.question, task.answers) == ("gsm8k-3", "2 + 2?", ("4",))


def test_a_broken_record_names_the_file() -> None:
    with pytest.raises(DataError, match=r"/data/x.parquet: record 5: extra_info.task is not JSON"):
        read_row({"extra_info": {"task": "{"}, "index": 5}, "/data/x.parquet")
