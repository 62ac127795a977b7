"""RULER's thirteen tasks by name (scripts/synthetic.yaml), `niah` with free parameters, and `hqa`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import FilePath

from benchmarks.ruler.counts import CommonWords, FrequentWords
from benchmarks.ruler.haystack import Essay
from benchmarks.ruler.hqa import hqa, squad_qa
from benchmarks.ruler.niah import Niah, VariableTracking
from benchmarks.ruler.sample import TaskFamily
from benchmarks.ruler.templates import HQA, QA
from benchmarks.ruler.words import read_lines, read_words
from core.options import argparse_type

NIAH_TASKS: Mapping[str, Mapping[str, Any]] = {
    "niah_single_1": {"haystack": "noise"},
    "niah_single_2": {"haystack": "essay"},
    "niah_single_3": {"haystack": "essay", "value_type": "uuids"},
    "niah_multikey_1": {"haystack": "essay", "num_k": 4},
    "niah_multikey_2": {"haystack": "needle"},
    "niah_multikey_3": {"haystack": "needle", "key_type": "uuids", "value_type": "uuids"},
    "niah_multivalue": {"haystack": "essay", "num_v": 4},
    "niah_multiquery": {"haystack": "essay", "num_q": 4},
}
FAMILIES: Mapping[str, Any] = {"vt": VariableTracking, "cwe": CommonWords, "fwe": FrequentWords}
TEN_TASKS = (*NIAH_TASKS, "vt", "fwe")
"""Lists the tasks of MemAgent's RULER average (arXiv 2507.02259, section 4.4): the eight of NIAH, vt and fwe."""
TASKS = (*NIAH_TASKS, "niah", "vt", "cwe", "fwe", "qa_1", "qa_2", "hqa")

FILE = argparse_type(FilePath)
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "haystack": {"choices": ("noise", "essay", "needle"), "help": "niah: what the needles are hidden in"},
    "key_type": {"choices": ("words", "numbers", "uuids"), "help": "niah"},
    "value_type": {"choices": ("words", "numbers", "uuids"), "help": "niah"},
    "num_k": {"type": int, "help": "niah: keys"},
    "bare_question": {"action": "store_const", "const": True, "help": "niah: ask without RULER's introduction"},
    "placement": {
        "choices": ("uniform", "official"),
        "help": "niah, vt, hqa, qa_2: where needles or gold documents go",
    },
    "noise": {"type": FILE, "metavar": "FILE", "help": "niah, vt: noise, one line of text a line, instead of RULER's"},
    "key_words": {"type": FILE, "metavar": "FILE", "help": "niah: keys of type words, one a line"},
    "value_words": {"type": FILE, "metavar": "FILE", "help": "niah: values of type words, one a line"},
    "essays": {"type": Path, "metavar": "FOLDER", "help": "niah: the essay haystack, .txt files"},
    "squad": {"type": FILE, "metavar": "FILE", "help": "qa_1: SQuAD's dev-v2.0.json"},
    "hotpotqa": {"type": FILE, "metavar": "FILE", "help": "qa_2, hqa: HotpotQA items with paragraphs"},
    "pool": {"type": FILE, "metavar": "FILE", "action": "append", "help": "hqa: more documents; may be repeated"},
}
"""Every option, as the command line takes it. Files are read by `make_family`."""

_FIELDS: Mapping[str, set[str]] = {
    "niah": {"haystack", "key_type", "value_type", "num_k", "bare_question", "placement", "noise", "key_words",
             "value_words", "essays"},
    "vt": {"placement", "noise"},
    "cwe": set(),
    "fwe": set(),
    "qa_1": {"squad"},
    "qa_2": {"hotpotqa", "placement"},
    "hqa": {"hotpotqa", "placement", "pool"},
}  # fmt: skip


def add_task_options(parser: Any) -> None:
    """Add every option of OPTIONS to a parser or a group of one."""
    for name, option in OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **option)


def read_task_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of OPTIONS that a command line gives."""
    return {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}


def allowed_options(task: str) -> set[str]:
    """Return the names of OPTIONS that the task has."""
    return _FIELDS["niah" if task.startswith("niah") else task]


def make_family(task: str, options: Mapping[str, Any] | None = None) -> TaskFamily:
    """Return the family called `task`, with `options` of OPTIONS (files as paths) over its own settings.

    Raises:
        ValueError: an unknown task, an option that the task does not have, or a file that it needs and lacks.
    """
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; known: {', '.join(TASKS)}")
    allowed = allowed_options(task)
    given = dict(options or {})
    if unknown := sorted(given.keys() - allowed):
        raise ValueError(f"task {task} has no option {', '.join(unknown)}; it has: {', '.join(sorted(allowed))}")
    if task in ("qa_1", "qa_2", "hqa"):
        needed = "squad" if task == "qa_1" else "hotpotqa"
        if needed not in given:
            raise ValueError(f"task {task} needs the option `{needed}` (a file)")
        if task == "qa_1":
            return squad_qa(given["squad"])
        file, pools = given.pop("hotpotqa"), given.pop("pool", ())
        return hqa(file, pools, name=task, template=HQA if task == "hqa" else QA, **given)
    for name in given.keys() & {"key_words", "value_words"}:
        given[name] = read_words(given[name])
    if "noise" in given:
        given["noise"] = tuple(line for line in read_lines(given["noise"]) if line)
    if "essays" in given:
        given["essay"] = Essay.from_folder(given.pop("essays"))
    if task in FAMILIES:
        return FAMILIES[task](**given)
    return Niah(**{"name": task, **NIAH_TASKS.get(task, {}), **given})
