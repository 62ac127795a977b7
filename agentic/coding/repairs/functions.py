"""Draws the functions of a made-up repository: reports on records, and helpers for numbers, lists and texts.

Each function says in its docstring what is right. Its `shape` is its syntax tree without names, texts and docstring:
functions of one shape differ in words alone, so every shape belongs to one split.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random
from typing import Any, Literal, get_args

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
"""Says how single functions compare: a policy that starts from nothing learns four words in minutes."""
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
"""Holds reports for the size `unseen` alone, so that a policy meets functions of which it has seen none."""


def _numbers(rng: Random, least: int = 0, most: int = 8) -> list[int]:
    return [rng.randint(0, 9) for _ in range(rng.randint(least, most))]


def _pair(rng: Random) -> list[int]:
    low = rng.randint(0, 9)
    return [low, low + rng.randint(1, 5)]


HELPERS: tuple[tuple[str, DrawArguments], ...] = (
    (
        'def clamp(value, low, high):\n    """Return the value, but at least low and at most high."""\n'
        "    return max(low, min(value, high))",
        lambda rng: [rng.randint(-5, 20), *_pair(rng)],
    ),
    (
        'def take_page(items, number, size):\n    """Return page `number` of the items; pages count from 1."""\n'
        "    start = (number - 1) * size\n    return items[start:start + size]",
        lambda rng: [_numbers(rng), rng.randint(1, 4), rng.randint(1, 4)],
    ),
    (
        'def take_block(items, number, size):\n    """Return block `number` of the items; blocks count from 0."""\n'
        "    start = number * size\n    return items[start:start + size]",
        lambda rng: [_numbers(rng), rng.randint(0, 3), rng.randint(1, 4)],
    ),
    (
        'def count_pages(items, size):\n    """Return how many pages of that size the items need."""\n'
        "    return (len(items) + size - 1) // size",
        lambda rng: [_numbers(rng), rng.randint(1, 4)],
    ),
    (
        'def list_changes(values):\n    """List each value minus the value before it."""\n'
        "    return [after - before for before, after in zip(values, values[1:])]",
        lambda rng: [_numbers(rng, 2)],
    ),
    (
        'def sum_windows(values, size):\n    """List the sums of all runs of that many values, from left to right."""\n'
        "    return [sum(values[start:start + size]) for start in range(len(values) - size + 1)]",
        lambda rng: [_numbers(rng, 3), rng.randint(1, 3)],
    ),
    (
        'def run_totals(values):\n    """List the sum up to each value, that value included."""\n    total = 0\n'
        "    totals = []\n    for value in values:\n        total += value\n        totals.append(total)\n"
        "    return totals",
        lambda rng: [_numbers(rng, 1)],
    ),
    (
        'def rotate(items, places):\n    """Move so many items from the front to the end."""\n'
        "    return items[places:] + items[:places]",
        lambda rng: [_numbers(rng, 4), rng.randint(0, 4)],
    ),
    (
        'def take_top(values, count):\n    """List the largest values, the largest first."""\n'
        "    return sorted(values, reverse=True)[:count]",
        lambda rng: [_numbers(rng, 2), rng.randint(1, 4)],
    ),
    (
        'def shorten(text, length):\n    """Cut the text to that length; a text that was cut ends in two dots."""\n'
        "    if len(text) <= length:\n        return text\n    return text[:length - 2] + '..'",
        lambda rng: ["abcdefghij"[: rng.randint(0, 10)], rng.randint(3, 8)],
    ),
    (
        'def take_off(price, percent):\n    """Return the price less so many percent of it, in whole cents."""\n'
        "    return price - price * percent // 100",
        lambda rng: [rng.randint(1, 900), rng.randint(1, 60)],
    ),
    (
        'def overlap(start, end, other_start, other_end):\n    """Say whether two spans of days share one; an '
        'end is not part of its span."""\n    return start < other_end and other_start < end',
        lambda rng: [*_pair(rng), *_pair(rng)],
    ),
    (
        'def is_within(value, low, high):\n    """Say whether the value is at least low and below high."""\n'
        "    return low <= value < high",
        lambda rng: [rng.randint(0, 14), *_pair(rng)],
    ),
    (
        'def is_between(value, low, high):\n    """Say whether the value is above low and at most high."""\n'
        "    return low < value <= high",
        lambda rng: [rng.randint(0, 14), *_pair(rng)],
    ),
    (
        'def count_down(count):\n    """List the whole numbers from count down to 1."""\n'
        "    return list(range(count, 0, -1))",
        lambda rng: [rng.randint(0, 9)],
    ),
    (
        'def share_out(amount, people):\n    """Return what each gets of the amount, and the rest."""\n'
        "    return [amount // people, amount % people]",
        lambda rng: [rng.randint(0, 60), rng.randint(1, 7)],
    ),
    (
        'def middle(values):\n    """Return the middle one of the sorted values; of two, the later one."""\n'
        "    return sorted(values)[len(values) // 2]",
        lambda rng: [_numbers(rng, 1)],
    ),
    (
        'def pad_left(text, width):\n    """Fill the text with dots on the left up to the width."""\n'
        "    return '.' * (width - len(text)) + text",
        lambda rng: ["abcdef"[: rng.randint(0, 6)], rng.randint(1, 9)],
    ),
)
"""Pairs the source of a helper with what draws its arguments."""


@dataclass(frozen=True, slots=True)
class MadeFunction:
    """Holds one right function. `record` names what it reports on; a helper has none."""

    name: str
    source: str
    draw: DrawArguments
    record: str = ""

    @property
    def shape(self) -> str:
        return find_shape(self.source)


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

    return MadeFunction(name, tidy(source), draw, record)


def write_helper(source: str, draw: DrawArguments) -> MadeFunction:
    return MadeFunction(source[4 : source.index("(")], tidy(source), draw)


def tidy(source: str) -> str:
    """Write a function as `ast.unparse` does, so that a mutation changes no other line."""
    return ast.unparse(ast.parse(source))


def find_shape(source: str) -> str:
    """Return the syntax tree of a function without its names, texts and docstring."""
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.body = tree.body[1:]
    numbers: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = numbers.setdefault(node.id, str(len(numbers)))
        elif isinstance(node, ast.arg):
            node.arg = numbers.setdefault(node.arg, str(len(numbers)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    tree.name = ""
    return ast.dump(tree)


@cache
def reports_of(split: Split) -> tuple[tuple[str, str, str], ...]:
    """List the reports of a split as (kind, words, value). Each comparison and each value is in every split."""
    every = list(product(REPORTS, COMPARISONS, VALUES))
    Random("reports").shuffle(every)
    return tuple(_share(every, split))


@cache
def helpers_of(split: Split) -> tuple[MadeFunction, ...]:
    every = [write_helper(source, draw) for source, draw in HELPERS]
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
