from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from core.report import write_report
from core.report.viewer import MAX_CHARACTERS, pick, render_trajectory
from core.runs.evaluation import EvalResult
from core.runs.files import JsonlLog
from core.runs.run_folder import RunFolder

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags nest, and collects tags, attributes and text."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def page(run: RunFolder) -> str:
    write_report(run)
    return (run.path / "report.html").read_text(encoding="utf-8")


def test_the_page_is_one_well_formed_file_that_loads_nothing(page: str) -> None:
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe"} & set(parsed.tags)
    assert all(link.startswith("#") for link in parsed.links)
    assert "default-src 'none'" in page
    assert "url(" not in page
    assert "@import" not in page


def test_every_section_is_there(page: str, hostile: str) -> None:
    parsed = Page(page)
    for title in ("Evaluation", "Training reward", "Warm start", "Failures and drift", "Published / ours",
                  "Trajectories", "config.yaml", "trained at 120K tokens", "chunks of 96 tokens"):  # fmt: skip
        assert title in parsed.text
    assert parsed.tags.count("svg") >= 6
    assert hostile in parsed.text, "a model's text is shown as it was written"
    assert "<script>" not in page


def test_a_hostile_recipe_is_escaped(tmp_path: Path, config: dict, hostile: str) -> None:
    folder = RunFolder.create(tmp_path / "run", {**config, "method": hostile, "preset": hostile})
    log = folder.open_metrics(0)
    for step in (1, 2):
        log.append({"stage": "train", "step": step, hostile: 1.0, "failures": {hostile: 1}})
    folder.save_published([{"name": hostile, "data": hostile, "length": 1, "score": 1.0, "source": hostile}], [hostile])
    write_report(folder)
    text = (folder.path / "report.html").read_text(encoding="utf-8")
    Page(text)
    assert "<script>" not in text


def test_data_without_lengths_has_one_table_a_split_and_its_trajectories(
    tmp_path: Path, config: dict, hostile: str
) -> None:
    folder = RunFolder.create(tmp_path / "run", config)
    for variant, right in (("untrained", 0.0), ("trained", 1.0)):
        result = EvalResult(variant, "dev", 0, 0, 2, {"official": [right, 0.0]}, [1, 1], [0, 0], 1.0,
                            measures={f"calls_{hostile}": [1, 0]}, labels={"kind": [hostile, "b"]})  # fmt: skip
        path = folder.save_evaluation(result).with_suffix(".jsonl")
        log = JsonlLog(path)
        for reward in (right, 0.0):
            log.append({"variant": variant, **record("eval", 0, reward), "log": {"steps": [{"tool": hostile}]}})
    write_report(folder)
    page = (folder.path / "report.html").read_text(encoding="utf-8")
    text = Page(page).text
    assert "<script>" not in page
    for part in ("change", "+50.0", "dev, by kind", "trained on dev", "trained · step 0", hostile):
        assert part in text
    assert "kept per turn" not in text


def test_a_log_is_shown_line_by_line() -> None:
    text = render_trajectory({**record("train", 1, 1.0), "log": {"steps": [{"code": "a = 1\nprint(a)"}]}})
    assert "code: |-\n    a = 1\n    print(a)\n" in text


def record(stage: str, step: int, reward: float | None) -> dict:
    return {"stage": stage, "step": step, "reward": reward, "turns": []}


def test_pick_takes_best_and_worst_of_the_last_step_first() -> None:
    records = [record("train", step, reward) for step in (1, 5) for reward in (0.5, None, 0.0, 1.0)]
    chosen = pick(records)
    assert [(r["step"], r["reward"]) for r in chosen] == [(5, 1.0), (5, None), (1, 1.0), (1, None)]
    assert pick(records, limit=1) == [record("train", 5, 1.0)]
    assert pick([record("train", 1, 1.0)]) == [record("train", 1, 1.0)]


def test_trained_turns_are_told_from_frozen_ones() -> None:
    turn = {"role": "update", "prompt": "p", "completion": "c", "tokens": 3, "finish_reason": "stop"}
    turns = [{**turn, "trained": True}, {**turn, "role": "final", "trained": False}]
    text = render_trajectory({**record("train", 1, 1.0), "turns": turns})
    assert text.count('class="turn trained"') == 1
    assert text.count('class="turn"') == 1
    assert "3 tokens · stop" in text


def test_long_texts_are_cut_and_it_is_said() -> None:
    turn = {"role": "update", "trained": True, "prompt": "A" * MAX_CHARACTERS + "B" * 10, "completion": "c"}
    text = render_trajectory({**record("train", 1, 1.0), "turns": [turn]})
    assert "[… 10 characters left out …]" in text
    assert text.count("A") + text.count("B") < MAX_CHARACTERS + 100
