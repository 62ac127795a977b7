"""What was published: the protocol of a benchmark as settings, and how an evaluation of ours differs from it.

Departures are computed from the settings of both; none is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness.plan import EvalCell, EvaluationError
from core.report import PublishedScore
from core.runs.files import hold_lock
from core.runs.run_folder import RunFolder

Settings = Mapping[str, Any]
"""Maps the name of a setting to its value, in the words in which a departure is told."""


@dataclass(frozen=True)
class Protocol:
    """Describes how published scores were measured.

    A score of ours stands beside a published one only if both have equal `essential` settings. Where another setting
    differs, the table says so.
    """

    name: str
    settings: Settings
    essential: frozenset[str]

    def covers(self, ours: Settings) -> bool:
        """Return whether scores under the settings `ours` may stand beside the published ones."""
        return all(ours.get(name) == self.settings[name] for name in self.essential)

    def list_departures(self, ours: Settings) -> list[str]:
        """Return a line with both values for each setting that differs, or that only one of the two has."""
        names = dict.fromkeys([*self.settings, *ours])
        return [
            f"{name}: {_show(ours.get(name))}; published: {_show(self.settings.get(name))}"
            for name in names
            if ours.get(name) != self.settings.get(name)
        ]


def read_scores(benchmark: str, data: str | None = None) -> list[PublishedScore]:
    """Return the published scores beside a benchmark's code, those of one data set or of all.

    Its published.yaml has groups with the fields of PublishedScore, and `percent` of each length, or of all data.
    """
    path = Path(__file__).parents[1] / benchmark / "published.yaml"
    return [
        PublishedScore(**fields, length=length, score=percent / 100)
        for fields in yaml.safe_load(path.read_text(encoding="utf-8"))
        for found in [fields.pop("percent")]  # for all lengths, or of each
        for length, percent in (found.items() if isinstance(found, dict) else [(0, found)])
        if data in (None, fields["data"])
    ]


def mark_cell(cell: EvalCell, protocol: Protocol, ours: Settings, published_as: str | None = None) -> EvalCell:
    """Return the cell with notes on which protocol it follows, how it departs, and which published model it has."""
    name = {"published_as": published_as} if published_as else {}
    notes = {"protocol": protocol.name if protocol.covers(ours) else None, "departures": protocol.list_departures(ours)}
    return replace(cell, notes={**cell.notes, **name, **notes})


def compare_cells(
    folder: RunFolder,
    cells: Sequence[EvalCell],
    describe: Callable[[EvalCell], tuple[Protocol, Settings] | None],
    rows: Sequence[PublishedScore],
    *,
    departures: Sequence[str] = (),
    published_as: str | None = None,
    evaluated: str = "trained",
) -> list[EvalCell]:
    """Save the published scores; return the cells with notes on their protocols and how they depart from them.

    `describe` returns a cell's published protocol and its own settings; None where nothing was published. `departures`
    are those of the recipe. `published_as` is the published model that the model of the variant `evaluated` stands for.

    Raises:
        EvaluationError: no score of these data was published of a model of that name.
    """
    known = dict.fromkeys(row.model or row.name for row in rows)
    if published_as and known and published_as not in known:
        raise EvaluationError(f"--published-as {published_as}: not one of the published models: {', '.join(known)}")
    marked = []
    for cell in cells:
        if compared := describe(cell):
            theirs, ours = compared
            cell = mark_cell(cell, theirs, ours, published_as if cell.variant == evaluated else None)
        marked.append(cell)
    save_published(folder, rows, (), of_recipe=departures)
    return marked


def save_published(
    folder: RunFolder,
    rows: Sequence[PublishedScore],
    departures: Sequence[str],
    gone: Sequence[str] = (),
    of_recipe: Sequence[str] | None = None,
) -> None:
    """Save what the report shows beside our scores: published scores, and departures that no single result has.

    What earlier calls saved about other data stays, but for departures that begin with one of `gone`. Those of the
    recipe, where they are given, take the place of earlier ones. Another process may save to the folder meanwhile.
    """
    with hold_lock(folder.evaluation_path / ".published.lock", wait_s=10.0):
        earlier, data = folder.published, {row.data for row in rows}
        others = [row for row in earlier["rows"] if row["data"] not in data]
        kept = [line for line in earlier["departures"] if not line.startswith(tuple(gone))]
        own = earlier["of_recipe"] if of_recipe is None else of_recipe
        folder.save_published([*map(asdict, rows), *others], list(dict.fromkeys([*departures, *kept])), own)


def _show(value: Any) -> str:
    if value is None:
        return "not set"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
