from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

from core.inspect.view import refresh_view
from core.report import write_report
from core.runs.evaluation import EvalResult
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


def test_the_page_has_every_section_and_loads_nothing(run: RunFolder) -> None:
    refresh_view(run)
    write_report(run)
    page = Page(run)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert [link for link in page.links if not link.startswith("#")] == ["view.html"]
    assert "default-src 'none'" in page.source
    assert "url(" not in page.source
    assert "@import" not in page.source
    for part in ("Evaluation", "Training reward", "Warm start", "drift in training", "Published / ours",
                 "Rollouts", "config.yaml", "time by the clock: ", "chunks of 96 tokens"):  # fmt: skip
        assert part in page.text
    assert page.tags.count("svg") == 7
    assert page.source.index("Did it learn?") < page.source.index("Against what?") < page.source.index("<h2>")


def test_scores_by_length_become_a_picture_for_a_readme(run: RunFolder) -> None:
    write_report(run)
    picture = ElementTree.parse(run.path / "figure.svg")
    text = "".join(picture.getroot().itertext())
    for part in ("full-context", "120K", "trained: ", "length (log scale)"):
        assert part in text
    names = [element.tag.rpartition("}")[2] for element in picture.iter()]
    assert names.count("polygon") == 4, "each variant has its interval"


def test_a_hostile_recipe_is_escaped(empty: RunFolder, hostile: str) -> None:
    empty.update_config({"method": hostile, "preset": hostile})
    log = empty.open_metrics(0)
    for step in (1, 2):
        log.append({"stage": "train", "step": step, hostile: 1.0, "failures": {hostile: 1}})
    empty.save_published([{"name": hostile, "data": hostile, "length": 1, "score": 1.0, "source": hostile}], [hostile])
    write_report(empty)
    Page(empty)


def test_the_figures_at_the_top_show_every_variant(empty: RunFolder) -> None:
    names = ["trained", *(f"baseline-{letter}" for letter in "abcdefghij")]
    for name in names:
        right = {"official": [1.0]}
        empty.save_evaluation(EvalResult(name, "dev", 0, 0, 1, right, [1], [0], 1.0, measures={"calls_x": [1]}))
    write_report(empty)
    text = (empty.path / "report.html").read_text()
    for start in ("Bars: ", "Stacked bars: "):
        assert f'aria-label="{start}{", ".join(names)}"' in text


def test_data_without_lengths_has_a_table_for_each_label(empty: RunFolder, hostile: str) -> None:
    for variant, score in (("untrained", 0.0), ("trained", 1.0)):
        result = EvalResult(variant, "dev", 0, 0, 2, {"official": [score, 0.0]}, [1, 1], [0, 0], 1.0,
                            measures={f"calls_{hostile}": [1, 0]}, labels={"kind": [hostile, "b"]})  # fmt: skip
        empty.save_evaluation(result)
    (empty.path / "figure.svg").write_text("of an earlier headline")
    write_report(empty)
    assert not (empty.path / "figure.svg").exists()
    text = Page(empty).text
    for part in ("change", "+50.0", "dev · by kind", hostile):
        assert part in text
    for part in ("Where its calls go", "dev · calls by kind, before and after", f"trained · {hostile}"):
        assert part in text
