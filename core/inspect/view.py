"""Write view.html into a run folder: the tokens of some of its rollouts, with mask, log-probs and advantages.

Without an option it shows the last recorded training step. A single record is a file, or the folder of a gateway,
where rollouts.jsonl.gz is one; the page then stands beside it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from core.inspect.tokens import MAX_ROLLOUTS, write_record_view, write_view
from core.options import show_errors
from core.runs.run_folder import VIEW_FILE, RunFolder


@show_errors(ValueError, OSError, status=2)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if (record := options.run_dir / "rollouts.jsonl.gz").is_file():  # the folder of a gateway
        options.run_dir = record
    wanted = {"task_id": options.task, "step": options.step, "worst": options.worst}
    if options.run_dir.is_file():
        page = options.run_dir.with_name(VIEW_FILE)
        count = write_record_view(options.run_dir, page, **wanted)
    else:
        folder = RunFolder(options.run_dir)
        page = folder.path / VIEW_FILE
        count = write_view(folder, **wanted)
    if not count:
        print(
            f"error: {options.run_dir} has no such rollout; seed-*/metrics.jsonl lists the tasks of each step, and "
            "run.record_every says which steps are recorded",
            file=sys.stderr,
        )
        return 1
    print(f"{page}: {count} rollouts")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue inspect view", description=__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a folder that a run has left, or a record")
    parser.add_argument("--task", metavar="ID", help="the rollouts of this task, over all steps")
    parser.add_argument("--step", type=int, metavar="N", help="the rollouts of this step")
    parser.add_argument(
        "--worst",
        type=int,
        metavar="N",
        help=f"of these the N worst, first those whose reward looks wrong (at most {MAX_ROLLOUTS} are shown)",
    )
    return parser
