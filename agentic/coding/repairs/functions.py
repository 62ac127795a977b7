"""Draws the functions of a made-up repository: reports on records, and helpers for numbers, lists and texts.

Each function says in its docstring what is right. Functions with the same syntax tree, but for names, texts and
docstring, differ in words alone, so all of them belong to one split.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random
from typing import Any, Literal, get_args

from agentic.coding.repairs import helpers

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

DrawArguments = Callable[[Random], list[Any]]

RECORDS = (
    ("order", "total"), ("book", "pages"), ("ticket", "price"), ("parcel", "weight"), ("song", "length"),
    ("flight", "delay"), ("room", "size"), ("player", "score"), ("lesson", "minutes"), ("tool", "cost"),
    ("plant", "height"), ("letter", "postage"), ("boat", "speed"), ("meal", "calories"), ("game", "rounds"),
)  # fmt: skip
"""Names what a report is about, and the number that each record has."""

COMPARISONS = {"at least": ">=", "above": ">", "at most": "<=", "below": "<", "equal to": "==", "other than": "!="}
SIMPLE_WORDS = ("at least", "below", "equal to", "other than")
"""Says how single functions compare. All six words took longer to learn (docs/LOG.md)."""
VALUES = {
    "{field}": "{x}['{field}']",
    "{field} times count": "{x}['{field}'] * {x}['count']",
    "{field} plus extra": "{x}['{field}'] + {x}['extra']",
    "{field} minus extra": "{x}['{field}'] - {x}['extra']",
}
REPORTS = {
    "count": (
        "Count the {xs} whose {value} is {words} the limit.",
        "found = 0\nfor {x} in {xs}:\n    if {code} {sign} limit:\n        found += 1\nreturn found",
    ),
    "total": (
        "Add up the {field} of the {xs} whose {value} is {words} the limit.",
        "total = 0\nfor {x} in {xs}:\n    if {code} {sign} limit:\n        total += {x}['{field}']\nreturn total",
    ),
    "list": (
        "List the names of the {xs} whose {value} is {words} the limit.",
        "found = []\nfor {x} in {xs}:\n    if {code} {sign} limit:\n        found.append({x}['name'])\nreturn found",
    ),
    "first": (
        "Return the place of the first of the {xs} whose {value} is {words} the limit, or -1.",
        "for place, {x} in enumerate({xs}):\n    if {code} {sign} limit:\n        return place\nreturn -1",
    ),
    "last": (
        "Return the place of the last of the {xs} whose {value} is {words} the limit, or -1.",
        "found = -1\nfor place, {x} in enumerate({xs}):\n    if {code} {sign} limit:\n        found = place\n"
        "return found",
    ),
    "any": (
        "Say whether any of the {xs} has a {value} {words} the limit.",
        "for {x} in {xs}:\n    if {code} {sign} limit:\n        return True\nreturn False",
    ),
    "percent": (
        "Return the percentage of the {xs} whose {value} is {words} the limit; 0 if there are none.",
        "found = 0\nfor {x} in {xs}:\n    if {code} {sign} limit:\n        found += 1\n"
        "return 100 * found // len({xs}) if {xs} else 0",
    ),
    "most": (
        "Return the largest {field} of the {xs} whose {value} is {words} the limit, or 0.",
        "best = 0\nfor {x} in {xs}:\n    if {code} {sign} limit:\n        best = max(best, {x}['{field}'])\n"
        "return best",
    ),
}
UNSEEN_REPORTS = {
    "least": (
        "Return the smallest {field} of the {xs} whose {value} is {words} the limit, or 0.",
        "found = []\nfor {x} in {xs}:\n    if {code} {sign} limit:\n        found.append({x}['{field}'])\n"
        "return min(found, default=0)",
    ),
    "parts": (
        "Count the {xs} whose {value} is {words} the limit, and then the others.",
        "found = [0, 0]\nfor {x} in {xs}:\n    if {code} {sign} limit:\n        found[0] += 1\n    else:\n"
        "        found[1] += 1\nreturn found",
    ),
    "line": (
        "Write the names of the {xs} whose {value} is {words} the limit in one line.",
        "found = ''\nfor {x} in {xs}:\n    if {code} {sign} limit:\n        found += {x}['name'] + ' '\n"
        "return found.strip()",
    ),
}
"""Holds the reports of the size `unseen`, which are in no split."""


def _numbers(rng: Random, least: int = 0, most: int = 8) -> list[int]:
    return [rng.randint(0, 9) for _ in range(rng.randint(least, most))]


def _pair(rng: Random) -> list[int]:
    low = rng.randint(0, 9)
    return [low, low + rng.randint(1, 5)]


DRAWS: Mapping[Callable[..., Any], DrawArguments] = {
    helpers.clamp: lambda rng: [rng.randint(-5, 20), *_pair(rng)],
    helpers.take_page: lambda rng: [_numbers(rng), rng.randint(1, 4), rng.randint(1, 4)],
    helpers.take_block: lambda rng: [_numbers(rng), rng.randint(0, 3), rng.randint(1, 4)],
    helpers.count_pages: lambda rng: [_numbers(rng), rng.randint(1, 4)],
    helpers.list_changes: lambda rng: [_numbers(rng, 2)],
    helpers.sum_windows: lambda rng: [_numbers(rng, 3), rng.randint(1, 3)],
    helpers.run_totals: lambda rng: [_numbers(rng, 1)],
    helpers.rotate: lambda rng: [_numbers(rng, 4), rng.randint(0, 4)],
    helpers.take_top: lambda rng: [_numbers(rng, 2), rng.randint(1, 4)],
    helpers.shorten: lambda rng: ["abcdefghij"[: rng.randint(0, 10)], rng.randint(3, 8)],
    helpers.take_off: lambda rng: [rng.randint(1, 900), rng.randint(1, 60)],
    helpers.overlap: lambda rng: [*_pair(rng), *_pair(rng)],
    helpers.is_within: lambda rng: [rng.randint(0, 14), *_pair(rng)],
    helpers.is_between: lambda rng: [rng.randint(0, 14), *_pair(rng)],
    helpers.count_down: lambda rng: [rng.randint(0, 9)],
    helpers.share_out: lambda rng: [rng.randint(0, 60), rng.randint(1, 7)],
    helpers.middle: lambda rng: [_numbers(rng, 1)],
    helpers.pad_left: lambda rng: ["abcdef"[: rng.randint(0, 6)], rng.randint(1, 9)],
}
"""Maps a helper to what draws its arguments."""


@dataclass(frozen=True, slots=True)
class MadeFunction:
    """Holds one right function, and what draws its arguments."""

    name: str
    source: str
    draw: DrawArguments


EMPTY = {"list": "[]", "first": "-1", "last": "-1", "any": "False"}
"""Says what a report of no records returns, where that is not 0."""


def write_report(kind: str, words: str, value: str, record: str, field: str, *, guarded: bool = False) -> MadeFunction:
    """Write one report; `kind` is a key of REPORTS or UNSEEN_REPORTS, `words` of COMPARISONS, and `value` of VALUES.

    With `guarded` it begins with an answer for no records, so that its other lines have other numbers.
    """
    doc, body = {**REPORTS, **UNSEEN_REPORTS}[kind]
    texts = {"x": record, "xs": f"{record}s", "field": field, "words": words, "sign": COMPARISONS[words]}
    texts |= {"value": value.format(field=field), "code": VALUES[value].format(x=record, field=field)}
    name = f"{kind}_{record}s_{words.replace(' ', '_')}"
    body = f"if not {{xs}}:\n    return {EMPTY.get(kind, '0')}\n{body}" if guarded else body
    lines = body.format(**texts).replace("\n", "\n    ")
    source = f'def {name}({record}s, limit):\n    """{doc.format(**texts)}"""\n    {lines}'

    def draw(rng: Random) -> list[Any]:
        records = [
            {
                "name": f"{record}{place}",
                field: rng.randint(0, 6),
                "count": rng.randint(0, 3),
                "extra": rng.randint(0, 3),
            }
            for place in range(rng.randint(0, 5))
        ]
        return [records, rng.randint(0, 7)]

    return MadeFunction(name, tidy(source), draw)


def tidy(source: str) -> str:
    """Write a function as `ast.unparse` does, so that a mutation changes no other line."""
    return ast.unparse(ast.parse(source))


@cache
def reports_of(split: Split) -> tuple[tuple[str, str, str], ...]:
    """List the reports of a split as (kind, words, value). Each comparison and each value is in every split."""
    every = list(product(REPORTS, COMPARISONS, VALUES))
    Random("reports").shuffle(every)
    return tuple(_share(every, split))


@cache
def helpers_of(split: Split) -> tuple[MadeFunction, ...]:
    every = [MadeFunction(helper.__name__, tidy(inspect.getsource(helper)), draw) for helper, draw in DRAWS.items()]
    Random("helpers").shuffle(every)
    return tuple(_share(every, split))


def _share(every: Sequence[Any], split: Split) -> Sequence[Any]:
    """Return the share of a split: of five, three for training and one each for dev and test."""
    places = {"train": (0, 1, 2), "dev": (3,), "test": (4,)}[split]
    return [item for place, item in enumerate(every) if place % 5 in places]


def draw_report(
    rng: Random,
    split: Split,
    record: tuple[str, str],
    *,
    words: str | None = None,
    guarded: bool = False,
    unseen: bool = False,
) -> MadeFunction:
    """Draw a report of a split; with `words`, one that compares so. With `unseen` it is of a kind that no split has."""
    every = tuple(product(UNSEEN_REPORTS, COMPARISONS, VALUES)) if unseen else reports_of(split)
    reports = [report for report in every if words in (None, report[1])]
    return write_report(*rng.choice(reports), *record, guarded=guarded)
