"""This module makes the tables of a report: scores by length, means by variant, costs, published scores beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from core.report.stats import Estimate, independent_difference, wilson
from core.runs.progress import format_number
from core.types import CALLS

COMPARED = ("untrained", "trained")
"""Names the variants before and after training; a table of means shows the change between them."""

Cell = Mapping[str, Any]
"""Holds the numbers of one variant at one length, as core/report/summary.py describes them."""

Variants = Mapping[str, Mapping[str, Cell]]
"""Maps each variant to its cells by length."""

Table = list[list[str]]
"""Holds a header and then the rows."""


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class PublishedScore:
    """A published score in [0, 1], to compare with our `variant` of the same model under the same protocol.

    `length` is 0 for data without lengths.
    """

    name: str
    data: str
    length: int
    score: float
    source: str
    variant: str = "trained"
    metric: str = "official"
    model: str = ""
    """Names the model that a cell of ours must stand for; empty: `name`."""
    protocol: str | None = None
    """Names the published protocol that our cell must follow; None: none is known."""
    n: int | None = None
    """Counts the tasks behind the score, where that is known."""

    def estimate(self) -> Estimate | None:
        """Return the score with Wilson's interval; None where the number of tasks is not known."""
        return None if self.n is None else Estimate(self.score, *wilson(self.score * self.n, self.n), self.n)

    def find_cell(self, sections: Mapping[str, Any]) -> Cell | None:
        """Return our cell of the same data, variant, length, model and protocol, if it has a score of this metric."""
        cell = sections.get(self.data, {}).get("variants", {}).get(self.variant, {}).get(str(self.length), {})
        same = (cell.get("published_as"), cell.get("protocol")) == (self.model or self.name, self.protocol)
        return cell if same and self.metric in cell else None

    def find_ours(self, sections: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return our score in that cell; its `n` counts tasks, as the published one does: one of all seeds once."""
        cell = self.find_cell(sections)
        return cell and {**cell[self.metric], "n": cell["tasks"]}


def render_table(summary: Mapping[str, Any], published: Sequence[PublishedScore] = ()) -> str:
    """Return the content of table.md."""
    parts = [f"# {summary['method']} · preset {summary['preset']} · seeds {', '.join(map(str, summary['seeds']))}"]
    sections = data_sections(summary)
    for data, section in sections.items():
        for title, table in section_tables(data, section):
            parts += [f"## {title}", markdown(*table)]
    if not sections:
        parts.append("No evaluation yet.")
    if published:
        parts += ["## Published / ours", markdown(*published_table(published, sections))]
    parts += list_notes(sections, published)
    if summary["departures"]:
        parts += ["Departures from the published setting:", "\n".join(f"- {line}" for line in summary["departures"])]
    return "\n\n".join(parts) + "\n"


def data_sections(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Map each data set to its `variants`, `retention`, `retention_fit` and `changes`; the headline's comes first."""
    return {summary["data"]: summary, **summary["other_data"]} if summary["data"] else {}


def format_score(score: Mapping[str, Any] | None) -> str:
    """Format a mean and its interval in per cent: 93.8 (91.2 to 95.9)."""
    if score is None:
        return "–"
    low, high = score["ci95"]
    return f"{100 * score['mean']:.1f} ({100 * low:.1f} to {100 * high:.1f})"


ShowScore = Callable[[Mapping[str, Any] | None], str]
"""Formats a score for the page, the file or the terminal; None stands for a score that does not exist."""


def section_tables(data: str, section: Mapping[str, Any], show: ShowScore = format_score) -> list[tuple[str, Table]]:
    """Return the tables of one data set, each with its title."""
    variants, name = section["variants"], format_data(data)
    if has_lengths(variants):
        tables = [
            (f"{name} · {', '.join(same)} score, mean and 95% CI in %", scores_table(section, same[0], show))
            for same in group_metrics(variants)
        ]
        return [*tables, *_changes_tables(data, section), (f"{name} · cost", cost_table(variants))]
    splits = [
        (f"{name} · by {label}, scores and shares in %", split_table(variants, label, show))
        for label in dict.fromkeys(label for cell in list_cells(variants) for label in cell["by"])
    ]
    means = (f"{name} · means, scores in % with 95% CI", means_table(section, show))
    others = section["changes"].keys() - {COMPARED[0]}  # that one is in the means already
    return [means, *(_changes_tables(data, section) if others else ()), *splits]


def describe_signs(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each sign of bad health."""
    for seed, signs in summary["health"].items():
        for sign in signs:
            steps = f"step {sign['first']}" if sign["steps"] == 1 else f"{sign['steps']} steps from {sign['first']} on"
            yield f"seed {seed}, {steps}, {sign['sign'].replace('_', ' ')}: {sign['text']}. Try: {sign['fix']}"


def describe_kept(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each seed whose trained policy is the best evaluated one, beside the first and the last."""
    for seed, kept in summary["kept"].items():
        first, *_, last = (f"step {step}: {reward:.3f}" for step, reward in [*kept["rewards"].items()] * 2)
        reward = kept["rewards"][str(kept["step"])]
        better = "; the start is better" if kept["rewards"].get("0", reward) > reward else ""
        yield f"seed {seed}: step {kept['step']} has the best held-out reward, {reward:.3f} ({first}, {last}){better}"


def _changes_tables(data: str, section: Mapping[str, Any]) -> list[tuple[str, Table]]:
    title = f"{format_data(data)} · trained minus each other variant, in points, paired by task, 95% CI"
    return [(title, changes_table(section))] if section["changes"] else []


def scores_table(section: Mapping[str, Any], metric: str, show: ShowScore = format_score) -> Table:
    """Show one score by variant and length; the official score also has its fitted retention per turn."""
    variants = section["variants"]
    lengths = list_lengths(variants)
    header = ["variant", *map(format_length, lengths)]
    rows = [
        [variant, *(show(cells.get(str(length), {}).get(metric)) for length in lengths)]
        for variant, cells in variants.items()
    ]
    if metric == "official":
        header.append("r per turn")
        rows = [[*row, format_fit(section["retention_fit"][row[0]])] for row in rows]
    return [header, *rows]


def cost_table(variants: Variants) -> Table:
    """Show what each variant cost at each length."""
    rows = [
        [
            variant,
            format_length(int(length)),
            f"{cell['tasks']:,}",
            f"{cell['tokens_per_task']:,.0f}",
            f"{cell['turns_per_task']:.1f}",
            "–" if cell["policy_tokens_per_1k_tokens"] is None else f"{cell['policy_tokens_per_1k_tokens']:,.0f}",
            "–" if cell["seconds_per_1k_tokens"] is None else f"{cell['seconds_per_1k_tokens']:.3g}",
            format_failures(cell["failures"]),
        ]
        for variant, cells in variants.items()
        for length, cell in cells.items()
    ]
    header = ["variant", "length", "tasks", "tokens / task", "turns / task", "policy tokens / 1K", "s / 1K tokens"]
    return [[*header, "failures"], *rows]


def means_table(section: Mapping[str, Any], show: ShowScore = format_score) -> Table:
    """Show scores, measures and failures by variant, and the change by training, for data without lengths."""
    variants = section["variants"]
    cells = {variant: variants[variant]["0"] for variant in order_variants(variants)}
    # A measure replaces our own number of the same name.
    numbers = {
        variant: {"turns": cell["turns_per_task"], "policy_tokens": cell["policy_tokens_per_task"], **cell["measures"]}
        for variant, cell in cells.items()
    }
    table: Table = []

    def add_row(name: str, texts: Iterable[str], change: str = "") -> None:
        row = [name, *texts]
        table.append([*row[:3], change, *row[3:]] if set(COMPARED) <= cells.keys() else row)

    changes = section["changes"].get(COMPARED[0], {}).get("0", {"measures": {}})
    add_row("", cells, "change")
    for metric in list_metrics(variants):
        change = format_change(changes.get(metric), 100, "+.1f")
        add_row(f"{metric} score", (show(cell.get(metric)) for cell in cells.values()), change)
    for name in dict.fromkeys(
        name for values in numbers.values() for name, value in values.items() if value is not None
    ):
        means = {variant: values.get(name) for variant, values in numbers.items()}
        texts = ("–" if mean is None else format_number(mean) for mean in means.values())
        add_row(name.replace("_", " "), texts, format_change(changes["measures"].get(name), 1, "+.3g"))
    add_row("tasks", (f"{cell['tasks']:,}" for cell in cells.values()))
    add_row("failures", (format_failures(cell["failures"]) for cell in cells.values()))
    return table


def split_table(variants: Variants, label: str, show: ShowScore = format_score) -> Table:
    """Split the scores, and the shares of the calls, by the values of `label`, for data without lengths."""
    cells = {variant: variants[variant]["0"] for variant in order_variants(variants)}
    metrics = list_metrics(variants)
    calls = dict.fromkeys(name for cell in cells.values() for name in cell["measures"] if name.startswith(CALLS))
    table = [[label, "variant", "tasks", *metrics, *(name.removeprefix(CALLS) for name in calls)]]
    for value in (None, *sorted({value for cell in cells.values() for value in cell["by"].get(label, ())})):
        for variant, whole in cells.items():
            part = whole if value is None else whole["by"].get(label, {}).get(value)
            if part is not None:
                counts = [part["measures"].get(name, 0.0) for name in calls]
                shares = [f"{100 * count / sum(counts):.0f}" if sum(counts) else "–" for count in counts]
                scores = [show(part.get(metric)) for metric in metrics]
                table.append(["all" if value is None else value, variant, f"{part['tasks']:,}", *scores, *shares])
    return table


def changes_table(section: Mapping[str, Any]) -> Table:
    """Show what training changed in the official score, by the variant that it is compared with and by length."""
    lengths = list_lengths(section["variants"])
    header = ["trained minus", *(format_length(length) if length else "official score" for length in lengths)]
    rows = [
        [variant, *(format_change(changes.get(str(length), {}).get("official"), 100, "+.1f") for length in lengths)]
        for variant, changes in section["changes"].items()
    ]
    return [header, *rows]


def published_table(published: Sequence[PublishedScore], sections: Mapping[str, Any]) -> Table:
    """Show each published score beside ours of the same model under the same protocol, or a dash without one.

    The interval of the difference is that of two independent means; without a published n there is none.
    """
    rows = []
    for row in published:
        ours, theirs, difference = row.find_ours(sections), row.estimate(), "–"
        if ours is not None:
            low, high = ours["ci95"]
            change = {"mean": ours["mean"] - row.score, "ci95": None}
            if theirs is not None:
                change["ci95"] = independent_difference(Estimate(ours["mean"], low, high, ours["n"]), theirs)
            difference = format_change(change, 100, "+.1f")
        names = [row.name, row.data, format_length(row.length) if row.length else "–", row.metric]
        score = f"{100 * row.score:.1f}" if theirs is None else format_score(theirs.to_json())
        counts = [f"{n:,}" if n else "–" for n in (row.n, ours and ours["n"])]
        rows.append([*names, score, counts[0], format_score(ours), counts[1], difference, row.source])
    header = ["model", "data", "length", "score", "published", "n", "ours", "n", "difference", "source"]
    return [header, *rows]


def list_notes(sections: Mapping[str, Any], published: Sequence[PublishedScore] = ()) -> list[str]:
    """Return what a reader of the tables must know: what their seeds are, and how many comparisons they make."""
    kinds: dict[str, dict[str, None]] = {"training": {}, "sampling": {}}
    compared = sum(row.find_cell(sections) is not None for row in published)
    for section in sections.values():
        for variant, cells in section["variants"].items():
            for cell in cells.values():
                if len(cell["seeds"]) > 1:
                    kinds["training" if len(cell["models"]) > 1 else "sampling"][variant] = None
        for changes in section["changes"].values():
            compared += len(changes)
    notes = []
    if kinds["training"]:
        notes.append(f"Each seed of {', '.join(kinds['training'])} is a training run of its own.")
    if kinds["sampling"]:
        notes.append(
            f"The seeds of {', '.join(kinds['sampling'])} sample one model again: their intervals say nothing about "
            "training it again."
        )
    return [*notes, *note_comparisons(compared)]


def note_comparisons(count: int) -> list[str]:
    """Return a note on how many of so many comparisons chance alone would make; none where there are none."""
    if not count:
        return []
    return [
        f"Comparisons of official scores in the tables: {count}. If nothing differed, about {count / 20:.1f} of their "
        "95% intervals would leave out 0."
    ]


def order_variants(variants: Variants) -> list[str]:
    """Return the untrained variant, the trained one, then the others in their order."""
    return sorted(variants, key=lambda variant: COMPARED.index(variant) if variant in COMPARED else len(COMPARED))


def list_cells(variants: Variants) -> list[Cell]:
    return [cell for cells in variants.values() for cell in cells.values()]


def list_metrics(variants: Variants) -> list[str]:
    """List the scores that any cell has, `official` first."""
    names = dict.fromkeys(
        name
        for cell in list_cells(variants)
        for name, value in cell.items()
        if name != "score" and isinstance(value, Mapping) and "ci95" in value
    )
    return sorted(names, key=lambda name: name != "official")


def group_metrics(variants: Variants) -> list[list[str]]:
    """List the scores, those that are the same in every cell together."""
    groups: dict[str, list[str]] = {}
    for metric in list_metrics(variants):
        groups.setdefault(str([cell.get(metric) for cell in list_cells(variants)]), []).append(metric)
    return list(groups.values())


def list_lengths(variants: Variants) -> list[int]:
    return sorted({int(length) for cells in variants.values() for length in cells})


def has_lengths(variants: Variants) -> bool:
    return any(length > 0 for length in list_lengths(variants))


def format_data(name: str) -> str:
    """Write the name of a data set in words: niah+bare-question=True+num-k=4 is niah (bare question, num k 4)."""
    data, *options = name.split("+")
    words = [option.removesuffix("=True").replace("=", " ").replace("-", " ") for option in options]
    return f"{data} ({', '.join(words)})" if words else data


def format_length(length: int) -> str:
    """Format 7168 as 7K, 7680 as 7.5K and 1048576 as 1M, as --lengths reads them. Other lengths keep all digits."""
    for unit, suffix in ((1024**2, "M"), (1024, "K")):
        if length >= unit and 2 * length % unit == 0:
            return f"{length / unit:g}{suffix}"
    return f"{length:,}"


def format_change(change: Mapping[str, Any] | None, scale: float, form: str) -> str:
    """Format a difference and its interval, times `scale`: +50.0 (+12.1 to +87.9)."""
    if change is None:
        return "–"
    mean = format(scale * change["mean"], form)
    if change["ci95"] is None:
        return mean
    low, high = (format(scale * bound, form) for bound in change["ci95"])
    return f"{mean} ({low} to {high})"


def format_fit(fit: Mapping[str, Any]) -> str:
    """Format retention as 0.9941 (0.9920 to 0.9957), and say of how many lengths at 0 the fit knows nothing."""
    if fit["per_turn"] is None:
        return "–"
    zeros = f"; {fit['zeros']} at 0" if fit["zeros"] else ""
    return f"{fit['per_turn']:.4f} ({fit['low']:.4f} to {fit['high']:.4f}{zeros})"


def format_failures(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in failures.items()) or "0"


def markdown(header: Sequence[str], *rows: Sequence[str]) -> str:
    """Render a Markdown table; it escapes pipes and line breaks inside a cell."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )
