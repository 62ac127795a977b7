"""Keeps the calls of a cell as they end, so that a rollout of hours which was killed goes on where it stopped.

A sample is recorded when it ends (samples.py). Sixteen documents of 112K tokens that are read side by side end together
after 380 turns, and until then nothing of them would be on the disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.harness.plan import EvalCell
from core.policy.base import Policy
from core.runs.files import JsonlLog
from core.runs.run_folder import RunFolder
from core.types import Completion, Sampling

_COMPLETION = TypeAdapter(Completion)


def calls_path(folder: RunFolder, cell: EvalCell) -> Path:
    """Return the file of a cell's calls, which is deleted when the cell is done."""
    return folder.evaluation_path / f".{Path(cell.file).stem}.calls.jsonl"


class KeptCalls:
    """A policy that asks `policy` for the calls that the log lacks.

    A call is known by its cell's conditions, its prompt and its sampling, whose seed is that of one turn of one sample.
    """

    def __init__(self, policy: Policy, log: JsonlLog, cell: EvalCell):
        self._policy, self._log = policy, log
        self._made_with = json.dumps(cell.fingerprint, sort_keys=True)
        self._known = {record["call"]: record["completion"] for record in log.records()}
        self.taken_up = 0
        """Counts the calls that were not made again."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        named = json.dumps([self._made_with, *asdict(sampling).values(), *prompt_ids])
        call = hashlib.sha256(named.encode()).hexdigest()
        if kept := self._known.get(call):
            self.taken_up += 1
            return _COMPLETION.validate_python(kept)
        completion = await self._policy.generate(prompt_ids, sampling, session)
        if completion.finish_reason != "abort":
            self._log.append({"call": call, "completion": asdict(completion)})
        return completion
