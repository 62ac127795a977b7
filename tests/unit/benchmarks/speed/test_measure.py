"""Tests that times leave out the warm-up and that ratios compare medians."""

from __future__ import annotations

from benchmarks.speed.measure import Timing, align_columns, describe_environment, ratio, repeat


def test_repeat_warms_up_once_and_prepares_every_call():
    calls: list[str] = []
    result, timing = repeat(lambda: calls.append("call") or len(calls), 3, before=lambda: calls.append("before"))
    assert calls == ["before", "call"] * 4
    assert result == 8
    assert len(timing.cpu_s) == len(timing.wall_s) == 3
    assert min(timing.wall_s) >= 0


def test_ratio_is_above_one_when_ours_is_faster():
    ours, other = Timing((1.0, 2.0, 30.0), (4.0,)), Timing((5.0, 6.0, 7.0), (2.0,))
    assert ratio(ours, other) == {"cpu_s": 3.0, "wall_s": 0.5}


def test_medians_go_into_the_file_with_every_repeat():
    assert Timing((1.0, 9.0, 2.0), (3.0, 3.0, 4.0)).as_json() == {
        "cpu_s": 2.0, "wall_s": 3.0, "cpu_s_all": [1.0, 9.0, 2.0], "wall_s_all": [3.0, 3.0, 4.0],
    }  # fmt: skip


def test_environment_names_machine_and_versions():
    found = describe_environment(threads=1)
    assert found["cpu"]
    assert found["torch"]
    assert found["threads"] == 1


def test_table_aligns_its_columns():
    assert align_columns(["a", "b"], [["long", "x"]]) == "| a    | b |\n| ---- | - |\n| long | x |"
