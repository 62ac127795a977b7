from __future__ import annotations

import weakref
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from core.inspect.tokens import refresh_view
from core.report import write_report
from core.report.trajectories import MAX_CHARACTERS, MAX_TURNS, choose_trajectories, render_trajectory
from core.runs.evaluation import EvalResult
from core.runs.files import JsonlLog
from core.runs.run_folder import RunFolder


class Page(HTMLParser):
    """Parses a page: checks that its tags nest, and collects tags, links and text."""

    def __init__(self, folder: RunFolder):
        super().__init__()
        self.source = (folder.path / "report.html").read_text(encoding="utf-8")
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(self.source)
        assert self._open == []
        assert "<script>" not in self.source

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_has_every_section_and_loads_nothing(run: RunFolder, hostile: str) -> None:
    refresh_view(run)
    write_report(run)
    page = Page(run)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert [link for link in page.links if not link.startswith("#")] == ["view.html"]
    assert "default-src 'none'" in page.source
    assert "url(" not in page.source
    assert "@import" not in page.source
    for part in ("Evaluation", "Training reward", "Warm start", "drift in training", "Published / ours",
                 "Trajectories", "config.yaml", "trained at 120K tokens", "chunks of 96 tokens"):  # fmt: skip
        assert part in page.text
    assert page.tags.count("svg") == 7
    assert page.source.index("Did it learn?") < page.source.index("Against what?") < page.source.index("<h2>")
    assert hostile in page.text, "a model's text is shown as it was written"


def test_a_hostile_recipe_is_escaped(empty: RunFolder, hostile: str) -> None:
    empty.update_config({"method": hostile, "preset": hostile})
    log = empty.open_metrics(0)
    for step in (1, 2):
        log.append({"stage": "train", "step": step, hostile: 1.0, "failures": {hostile: 1}})
    empty.save_published([{"name": hostile, "data": hostile, "length": 1, "score": 1.0, "source": hostile}], [hostile])
    write_report(empty)
    Page(empty)


def test_data_without_lengths_has_a_table_for_each_label_and_its_trajectories(empty: RunFolder, hostile: str) -> None:
    for variant, score in (("untrained", 0.0), ("trained", 1.0)):
        result = EvalResult(variant, "dev", 0, 0, 2, {"official": [score, 0.0]}, [1, 1], [0, 0], 1.0,
                            measures={f"calls_{hostile}": [1, 0]}, labels={"kind": [hostile, "b"]})  # fmt: skip
        log = JsonlLog(empty.save_evaluation(result).with_suffix(".jsonl"))
        for reward in (score, 0.0):
            log.append({"variant": variant, **record("eval", 0, reward), "log": {"steps": [{"tool": hostile}]}})
    write_report(empty)
    text = Page(empty).text
    for part in ("change", "+50.0", "dev · by kind", "trained on dev", "trained · step 0", hostile):
        assert part in text
    for part in ("Where its calls go", "dev · calls by kind, before and after", f"trained · {hostile}"):
        assert part in text


def test_a_long_table_is_folded(empty: RunFolder) -> None:
    labels = [f"k{i}" for i in range(13)]
    scores = {"official": [1.0] * 13}
    empty.save_evaluation(
        EvalResult("trained", "dev", 0, 0, 13, scores, [1] * 13, [0] * 13, 1.0, labels={"kind": labels})
    )
    write_report(empty)
    # One row for each label, and one for all.
    assert "<details><summary>14 rows</summary>" in Page(empty).source


def record(stage: str, step: int, reward: float | None) -> dict:
    return {"stage": stage, "step": step, "reward": reward, "turns": []}


def test_the_best_and_worst_of_the_last_step_come_first() -> None:
    records = [record("train", step, reward) for step in (1, 5) for reward in (0.5, None, 0.0, 1.0)]
    chosen = choose_trajectories(records)
    assert [(r["step"], r["reward"]) for r in chosen] == [(5, 1.0), (5, None), (1, 1.0), (1, None)]
    assert choose_trajectories(records, limit=1) == [record("train", 5, 1.0)]
    assert choose_trajectories([record("train", 1, 1.0)]) == [record("train", 1, 1.0)]


def test_a_trajectory_shows_trained_turns_long_texts_and_its_log() -> None:
    turn = {"prompt": "A" * MAX_CHARACTERS + "B" * 10, "completion": "c", "tokens": 3, "finish_reason": "stop"}
    turns = [{**turn, "role": "update", "trained": True}, {**turn, "role": "final", "trained": False}]
    log = {"steps": [{"code": "a = 1\nprint(a)"}]}
    text = render_trajectory({**record("train", 1, 1.0), "turns": turns, "log": log})
    assert text.count('class="turn trained"') == text.count('class="turn"') == 1
    assert "3 tokens · stop" in text
    assert text.count("[… 10 characters left out …]") == 2
    assert text.count("A") < 2 * MAX_CHARACTERS
    assert "code: |-\n    a = 1\n    print(a)\n" in text


def test_what_is_too_long_for_a_page_is_cut() -> None:
    turns = [{"prompt": "p", "completion": "c"}] * (MAX_TURNS + 5)
    shown = {"question": "Q" * 1_000_000, "answers": ["Z" * 1_000_000], "turns": turns}
    text = render_trajectory({**record("train", 1, 1.0), **shown})
    assert text.count("992,000 characters left out") == 2
    assert "5 further turns" in text
    assert len(text) < 100_000


def test_trajectories_are_chosen_from_a_stream_of_which_few_stay_in_memory() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Tracked(dict):
        __hash__ = object.__hash__  # type: ignore[assignment]

    def stream() -> Iterator[dict]:
        for step in range(100):
            for reward in (0.5, 0.0, 1.0):
                tracked = Tracked(record("train", step, reward))
                alive.add(tracked)
                yield tracked
                assert len(alive) < 10

    assert [(r["step"], r["reward"]) for r in choose_trajectories(stream())] == [
        (99, 1.0),
        (99, 0.0),
        (0, 1.0),
        (0, 0.0),
    ]
