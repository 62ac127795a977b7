"""What the evaluations read: where each source lies, whether it is whole, and how to get it.

`get_data` fetches what the hub has and checks it. What cannot be fetched is told with its place and the way to get it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.questions.published import DATA as QUESTION_SETS
from benchmarks.table.evaluations import Evaluation, Places
from core.data.files import DataError
from core.data.sets import fetch_hub_file, prepare, sha256

LENGTHS = tuple(50 << place for place in range(8))
"""List the numbers of documents in MemAgent's evaluation files."""


@dataclass(frozen=True)
class Source:
    """Describes one source: a file or folder, what completes it, and how to get it by hand."""

    path: Path
    missing: Callable[[Path], str | None]
    """Says what the path lacks; None: nothing."""
    how: str
    fetch: Callable[[Path], None] | None = None
    """Fetches it. Raises DataError."""


def list_sources(places: Places) -> dict[str, Source]:
    """Map the names that evaluations use to their sources."""
    data = places.data
    sources = {
        "memagent-eval": Source(
            data / "memagent-eval",
            _lacks_eval_files,
            "copy eval_50.json to eval_6400.json of the hub's BytedTsinghua-SIA/hotpotqa, or build them with "
            "MemAgent's taskutils/memory_data",
            _fetch_eval_files,
        ),
        "essays": Source(
            data / "essays",
            lambda path: lacks_file(path) or (None if any(path.glob("*.txt")) else "no .txt file"),
            f"tokentrue data download essays --out {data} [--from FOLDER]",
            lambda path: _prepare("essays", path),
        ),
        "aime24": Source(
            data / "aime24.jsonl",
            lacks_file,
            f"tokentrue data download aime24 --out {data} [--from FILE]",
            lambda path: _prepare("aime24", path),
        ),
        "tau2": Source(
            Path(places.tau2_data),
            lambda path: _lacks_tau2(path, Path(places.tau2_python)),
            "see benchmarks/tau2/README.md; name them with --tau2-python and --tau2-data",
        ),
    }
    for name, known in QUESTION_SETS.items():
        sources[name] = Source(
            data / f"{name}.jsonl",
            lacks_file,
            f"copy evaluation/{name}.jsonl of NVlabs/ToolOrchestra (git-lfs; sha256 {known.sha256}), or tokentrue data "
            f"download {name} --out {data} [--from FILE]",
            lambda path, name=name: _prepare(name, path),  # type: ignore[misc]
        )
    return sources


def get_data(evaluation: Evaluation, places: Places, *, retrieval: bool) -> list[str]:
    """Fetch what an evaluation reads and return a line for everything that is still missing.

    `retrieval` says whether a retrieval service was named.
    """
    sources, lines = list_sources(places), []
    for name in evaluation.data:
        if name.endswith("-corpus"):
            if not retrieval:
                lines.append(
                    f"retrieval service: tokentrue data download {name}; tokentrue serve retrieval --corpus ...; then "
                    "--retrieval URL"
                )
            continue
        source, reason = sources[name], ""
        problem = source.missing(source.path)
        if problem is not None and source.fetch is not None:
            try:
                source.fetch(source.path)
                problem = source.missing(source.path)
            except DataError as error:
                reason = f" ({error})"
        if problem is not None:
            lines.append(f"{source.path}: {problem}. Get it: {source.how}{reason}")
    return lines + [
        f"{key}: the key of the models behind paid interfaces" for key in evaluation.keys if not Path(key).is_file()
    ]


def lacks_file(path: Path) -> str | None:
    """Say that a file or folder is missing, or does not hold what the SHA-256 beside it says."""
    if not path.exists():
        return "missing"
    beside = path.with_name(path.name + ".sha256")
    for line in beside.read_text().splitlines() if beside.is_file() else ():
        digest, name = line.split(maxsplit=1)
        file = path.parent / name
        if not file.is_file() or sha256(file) != digest:
            return f"{'' if file == path else f'{name} '}is not the file that {beside.name} describes"
    return None


def _lacks_eval_files(path: Path) -> str | None:
    lacking = [name for name in (f"eval_{length}.json" for length in LENGTHS) if not (path / name).is_file()]
    return f"no {', '.join(lacking)}" if lacking else None


def _fetch_eval_files(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for length in LENGTHS:
        file = path / f"eval_{length}.json"
        if not file.is_file():
            file.unlink(missing_ok=True)  # a link whose target has gone
            file.symlink_to(fetch_hub_file("BytedTsinghua-SIA/hotpotqa", file.name).absolute())


def _prepare(name: str, path: Path) -> None:
    if not path.exists():
        prepare(name, path.parent)


def _lacks_tau2(data: Path, python: Path) -> str | None:
    if not python.is_file():
        return f"no interpreter {python} with tau2-bench"
    return None if data.is_dir() else "missing"
