"""Keeps the calls of a cell as they end, so that a rollout of hours which was killed goes on where it stopped.

A sample is recorded when it ends (samples.py). Sixteen documents of 112K tokens that are read side by side end together
after 380 turns, and until then nothing of them would be on the disk.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.harness.plan import EvalCell, hash_json
from core.policy.base import Policy
from core.runs.files import JsonlLog, read_jsonl
from core.runs.run_folder import RunFolder
from core.types import Completion, Sampling

_COMPLETION = TypeAdapter(Completion)


def calls_path(folder: RunFolder, cell: EvalCell) -> Path:
    """Return the file of a cell's calls, which is deleted when the cell is done."""
    return folder.evaluation_path / f".{Path(cell.file).stem}.calls.jsonl"


class KeptCalls:
    """A policy that asks `policy` for the calls that the log lacks.

    A call is known by its prompt and its sampling, whose seed is that of one turn of one sample, and by the conditions
    of its cell without their code, which has made the prompt.
    """

    def __init__(self, policy: Policy, log: JsonlLog, cell: EvalCell):
        self._policy, self._log = policy, log
        told = {name: value for name, value in cell.fingerprint.items() if not name.startswith("settings.code")}
        self._made_with = hash_json(told)
        # As text, which takes a third of the memory.
        self._known = {
            record["call"]: json.dumps(record["completion"])
            for record in read_jsonl(log.path)
            if record.get("made_with") == self._made_with
        }
        self.left = len(self._known)
        """Counts the calls that a killed process has left."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        call = hash_json([*asdict(sampling).values(), *prompt_ids])
        if kept := self._known.get(call):
            return _COMPLETION.validate_json(kept)
        completion = await self._policy.generate(prompt_ids, sampling, session)
        if completion.finish_reason != "abort":
            with suppress(OSError):  # a full disk, which ends the command when a sample cannot be recorded
                self._log.append({"made_with": self._made_with, "call": call, "completion": asdict(completion)})
        return completion
