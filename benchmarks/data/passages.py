"""Pool the paragraphs of multi-hop tasks into one corpus, which a search has to find the right ones in.

    tokentrue data passages data/hotpotqa-tasks data/2wiki data/musique --out corpus.jsonl

A folder is that of `tokentrue data download hotpotqa-tasks` or a like set. The paragraphs of all its splits are taken,
each once. The first line of a passage is its title.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data.sets import join_sentences
from core.data import DataError, read_records
from core.data.files import write_records
from core.options import show_errors


@show_errors(DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    passages = dict.fromkeys(text for folder in options.folders for text in read_passages(folder))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_records(options.out, [{"id": str(number), "contents": text} for number, text in enumerate(passages)])
    print(f"{options.out}: {len(passages):,} passages")
    return 0


def read_passages(folder: Path) -> Iterator[str]:
    """Yield the paragraphs of all tasks of a folder. Raises DataError if a task has none, or no file is there."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise DataError(f"{folder}: no tasks. Fix: download one: tokentrue data download hotpotqa-tasks")
    for file in files:
        for location, record in read_records(file):
            paragraphs = record.get("metadata", {}).get("paragraphs")
            if not paragraphs:
                raise location.error("metadata.paragraphs", "is missing", "take a set of questions over paragraphs")
            for paragraph in paragraphs:
                yield f"{paragraph['title']}\n{join_sentences(paragraph['sentences'])}"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue data passages", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="of tokentrue data download musique")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    return parser
