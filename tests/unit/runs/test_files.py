from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.runs.files import JsonlLog, read_json, read_jsonl, write_json
from tests import kit

records = st.lists(st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=20)), max_size=3))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=records, torn=st.text(min_size=1, max_size=40).filter(lambda text: "\n" not in text), more=records)
def test_a_torn_last_line_is_dropped_and_nothing_else(tmp_path: Path, written: list, torn: str, more: list) -> None:
    path = tmp_path / "log.jsonl"
    path.unlink(missing_ok=True)
    log = JsonlLog(path)
    for record in written:
        log.append(record)
    log.close()
    with open(path, "a", encoding="utf-8") as file:
        file.write(torn)
    assert list(read_jsonl(path)) == written
    again = JsonlLog(path)
    for record in more:
        again.append(record)
    assert again.records() == written + more
    again.close()


NOT_JSON = ("{", "[" * 100_000, "9" * 5000)
"""Lists what is broken, nested too deeply, or has more digits than Python reads."""


@pytest.mark.parametrize(
    ("text", "problem"), [*((text, "is not (valid )?JSON") for text in NOT_JSON), ("[]", "must be a JSON object")]
)
def test_what_is_broken_names_file_and_line(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=rf"x\.json {problem}.*run again to rebuild it"):
        read_json(tmp_path / "x.json")
    (tmp_path / "log.jsonl").write_text(f'{{"step": 1}}\n{text}\n{{"step": 3}}\n')
    with pytest.raises(ValueError, match=rf"log\.jsonl:2 {problem}.*delete that line"):
        list(read_jsonl(tmp_path / "log.jsonl"))


def test_numbers_that_json_cannot_hold_become_null_in_a_log(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl")
    log.append({"loss": float("nan"), "nested": {"kl": float("inf")}, "kept": 1.5})
    assert log.records() == [{"loss": None, "nested": {"kl": None}, "kept": 1.5}]
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        log.append({"what": object()})


def test_a_full_disk_is_told_and_no_part_of_a_record_stays(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = JsonlLog(path)
    for n in range(20):
        log.append({"n": n, "text": "x" * 3000})
    size = path.stat().st_size
    with kit.room_for(size + 1000), pytest.raises(OSError, match="a record was not written") as raised:
        log.append({"n": 20, "text": "x" * 3000})
    assert (raised.value.filename, path.stat().st_size) == (str(path), size)
    log.append({"n": 20})
    assert [record["n"] for record in read_jsonl(path)] == list(range(21))


def test_a_failed_write_leaves_the_old_file_and_its_room(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    with kit.room_for(65536), pytest.raises(OSError, match="File too large"):
        write_json(path, {"a": "x" * 100_000})
    assert read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]
