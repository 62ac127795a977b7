"""What the evaluations read: where each source lies, and how to get it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.localization.published import DATA as LOCALIZATION_SETS
from benchmarks.questions.published import DATA as QUESTION_SETS
from benchmarks.table.evaluations import Evaluation, Places
from core.data.sets import SETS


def find_lacking(evaluation: Evaluation, places: Places, *, retrieval: bool) -> list[str]:
    """Return a line for everything that an evaluation reads and that is missing.

    `retrieval` says whether a retrieval service was named.
    """
    lines = []
    for name in evaluation.data:
        if not name.endswith("-corpus"):
            path, how = _locate(name, places)
            lines += [] if path.exists() else [f"{path}: missing. Get it: {how}"]
        elif not retrieval:
            file = getattr(SETS[name], "file", name)
            lines.append(
                f"retrieval service: tokentrue data download {name} --out {places.data}; tokentrue serve retrieval "
                f"--corpus {places.data}/{file}; then --retrieval URL"
            )
    lines += [
        f"{key}: the key of the models behind paid interfaces" for key in evaluation.keys if not Path(key).is_file()
    ]
    return lines


def _locate(name: str, places: Places) -> tuple[Path, str]:
    """Return where a source lies, and how to get it."""
    data = places.data
    if name == "memagent-eval":
        return data / name, (
            "copy eval_50.json to eval_6400.json of the hub's BytedTsinghua-SIA/hotpotqa, or build them with "
            "MemAgent's taskutils/memory_data"
        )
    if name == "essays":
        return data / name, f"tokentrue data download essays --out {data}"
    if name == "tau2":
        return Path(places.tau2_data), "see benchmarks/tau2/README.md; name it with --tau2-python and --tau2-data"
    if name in LOCALIZATION_SETS:
        return data / f"{name}.jsonl", (
            f"tokentrue data codescout ROWS --repositories CLONES --checkouts CHECKOUTS --out {data}/{name}.jsonl, "
            f"with the rows of the hub's OpenHands/SWE-bench_{name.rpartition('-')[2].title()}-locagent"
        )
    file, download = data / f"{name}.jsonl", f"tokentrue data download {name} --out {data}"
    if known := {str(each): described for each, described in QUESTION_SETS.items()}.get(name):
        digest = known.sha256
        download = f"copy evaluation/{name}.jsonl of NVlabs/ToolOrchestra (git-lfs; sha256 {digest}), or {download}"
    return file, download
