"""Files are read as they come: packed, with a byte order mark, CSV, parquet, the hub's; writing leaves nothing half."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.backends.records import main as write_for_framework
from core.data import DataError, read_tasks
from core.data.files import read_records, write_records
from core.data.hub_sets import locate
from core.runs.inputs import hash_inputs

RECORDS = [{"question": 'Who, "he"?\nSay.', "answer": "007"}, {"question": "Wer, ärmer?", "answer": "NA"}]
GSM8K = [{"question": f"How many is {n}?", "answer": f"Count.\n#### {n}"} for n in range(3)]


def write_csv(separator: str) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["question", "answer"], delimiter=separator)
    writer.writeheader()
    writer.writerows(RECORDS)
    return text.getvalue().encode()


LINES = "".join(json.dumps(record, ensure_ascii=False) + "\r\n" for record in RECORDS).encode()
MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", MARK + LINES),
        ("a.json", MARK + json.dumps(RECORDS).encode()),
        ("a.jsonl.gz", gzip.compress(LINES, mtime=0)),
        ("a.json", gzip.compress(MARK + LINES, mtime=0)),
        ("a.csv", write_csv(",")),
        ("a.csv.gz", gzip.compress(MARK + write_csv(","), mtime=0)),
        ("a.tsv", write_csv("\t")),
    ],
)
def test_every_value_stays_the_text_that_it_is(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    tasks = read_tasks(tmp_path / name, require_context=False)
    assert [(task.question, *task.answers) for task in tasks] == [tuple(record.values()) for record in RECORDS]


NESTED = {
    "prompt": [{"role": "user", "content": "Who?"}],
    "reward_model": {"ground_truth": "Bob"},
    "extra_info": {
        "when": datetime(2026, 1, 2, 3, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "tags": [["a"], []],
        "x": None,
    },
}


def write_parquet(path: Path, extra: pa.Table | None = None, **info: Any) -> Path:
    table = pa.Table.from_pylist([NESTED, {**NESTED, "extra_info": {**NESTED["extra_info"], **info}}])
    pq.write_table(table, path)
    return path


def test_nested_types_of_parquet_are_read(tmp_path: Path) -> None:
    table = pa.table(
        {
            "question": pa.array(["Who?"]).dictionary_encode(),
            "answer": pa.array([Decimal("72.00")]),
            "metadata": pa.StructArray.from_arrays(
                [
                    pa.array([[("a", [1])]], pa.map_(pa.string(), pa.list_(pa.int64()))),
                    pa.array([5], pa.timestamp("ns")),
                ],
                ["map", "at"],
            ),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (task,) = read_tasks(tmp_path / "a.parquet", require_context=False)
    assert (task.answers, task.metadata["map"]) == (("72",), {"a": [1]})
    assert task.metadata["at"].isoformat() == "1970-01-01T00:00:00.000000005"


def test_slimes_file_holds_times_as_text(tmp_path: Path) -> None:
    source, target = write_parquet(tmp_path / "a.parquet"), tmp_path / "out.jsonl"
    assert write_for_framework(["slime", str(source), str(target)]) == 0
    written = json.loads(target.read_text().splitlines()[0])["metadata"]["metadata"]
    assert written == {"when": "2026-01-02T03:00:00+00:00", "day": "2026-01-02", "tags": [["a"], []]}


@pytest.mark.parametrize(("value", "kind"), [(float("nan"), "float"), (float("inf"), "float"), (b"\xff", "bytes")])
def test_what_json_cannot_hold_is_named_and_leaves_no_file(
    value: Any, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write_parquet(tmp_path / "a.parquet", x=value), tmp_path / "out.jsonl"
    assert write_for_framework(["slime", str(source), str(target)]) == 1
    error = capsys.readouterr().err
    assert f"error: {source}, record 1: field 'metadata.metadata.x': JSON cannot hold" in error
    assert f"({kind})" in error
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_a_reader_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def records() -> Any:
        yield {"a": 1}
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        write_records(tmp_path / "out.jsonl", records())
    assert list(tmp_path.iterdir()) == []


def save_gsm8k(folder: Path) -> str:
    datasets.Dataset.from_list(GSM8K).save_to_disk(str(folder))
    return str(folder)


def save_files(folder: Path) -> str:
    (folder / "data").mkdir(parents=True)
    for split in ("train", "test"):
        pq.write_table(pa.Table.from_pylist(GSM8K), folder / "data" / f"{split}-00000-of-00001.parquet")
    return f"{folder}:test"


def save_cache(folder: Path) -> str:
    """Fill the cache of `datasets` as a download of openai/gsm8k would."""
    cache, file = folder.parent / "cache", folder.parent / "main.parquet"
    pq.write_table(pa.Table.from_pylist(GSM8K), file)
    datasets.load_dataset("parquet", "main", data_files={"test": str(file)})
    (cache / "parquet").rename(cache / "openai___gsm8k")
    (config,) = (cache / "openai___gsm8k").iterdir()
    config.rename(config.with_name("main"))
    for made in cache.rglob("parquet-test.arrow"):
        made.rename(made.with_name("gsm8k-test.arrow"))
    for info in cache.rglob("dataset_info.json"):
        info.write_text(info.read_text().replace('"dataset_name": "parquet"', '"dataset_name": "gsm8k"'))
    return "openai/gsm8k:main:test"


@pytest.mark.parametrize("save", [save_gsm8k, save_files, save_cache])
def test_data_sets_of_the_hub_are_read(
    save: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (datasets.config, datasets.builder.config):
        monkeypatch.setattr(module, "HF_DATASETS_CACHE", tmp_path / "cache")
    tasks = read_tasks(name := save(tmp_path / "gsm8k"), require_context=False)
    assert [task.answers for task in tasks] == [("0",), ("1",), ("2",)]
    assert hash_inputs({"data.train": locate(name)}, {})


def test_several_splits_are_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    both = datasets.DatasetDict({split: datasets.Dataset.from_list(GSM8K) for split in ("train", "test")})
    both.save_to_disk(str(tmp_path / "both"))
    told = rf"the splits test, train\. Fix: name one of them: ({tmp_path}/both/test)\.$"
    with pytest.raises(DataError, match=told) as named:
        list(read_records(tmp_path / "both"))
    assert len(list(read_records(str(named.value).rpartition(" ")[2].rstrip(".")))) == 3
    save_files(tmp_path / "files")
    with pytest.raises(DataError, match=r"is a folder\. Fix: .*its split: .*files:train\.$") as named:
        list(read_records(tmp_path / "files"))
    assert len(list(read_records(str(named.value).rpartition(" ")[2].rstrip(".")))) == 3
    with pytest.raises(DataError, match=r"cannot be fetched from the hub .*OWNER/NAME:SPLIT"):
        list(read_records(f"{tmp_path / 'files'}:dev"))
