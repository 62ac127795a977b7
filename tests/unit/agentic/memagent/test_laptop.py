"""The cold start of the `laptop` preset: single turns that are right and never show a memory worth keeping."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from agentic.memagent.laptop import NOTHING, WORLD
from agentic.memagent.prompts import EMPTY_MEMORY
from agentic.memagent.rollout import SPEC
from benchmarks.ruler.generate import generate
from benchmarks.ruler.niah import Niah
from core.data import write_jsonl


def read_slot(text: str, tag: str) -> str | None:
    found = re.search(rf"<{tag}>\s*(.*?)\s*</{tag}>", text, re.DOTALL)
    return found and found[1]


def test_turns_are_right_and_none_updates_a_memory_that_holds_anything(tmp_path: Path, tokenizer: Any) -> None:
    family, path = Niah(num_k=4, bare_question=True), tmp_path / "train.jsonl"
    write_jsonl(path, generate(family, length=900, count=20, tokenizer=tokenizer, split="train", budget="document"))
    shown = WORLD.demonstrate(Random(0), SPEC.load("laptop", [f"data.train={path}"]), tokenizer)  # type: ignore[misc]
    kinds = Counter[str]()
    for [(prompt_ids, completion)] in islice(shown, 400):
        prompt, reply = tokenizer.decode(prompt_ids), tokenizer.decode(completion[:-1])
        asked = re.search(r"magic number for (\S+) mentioned", read_slot(prompt, "problem") or "")
        assert asked is not None
        section, memory = read_slot(prompt, "section"), read_slot(prompt, "memory") or ""
        known = re.search(rf"{asked[1]} is:? (\d+)\.", memory if section is None else section)
        if section is None:
            kind, right = "boxed" if known else "unknown", f"\\boxed{{{known[1] if known else 'unknown'}}}"
        else:
            assert memory == EMPTY_MEMORY
            kind = "read" if known else "other keys" if " is: " in section else "noise"
            right = f"The special magic number for {asked[1]} is {known[1]}." if known else NOTHING
        assert reply == right
        kinds[kind] += 1
    assert kinds.keys() == {"read", "other keys", "noise", "boxed", "unknown"}
    assert min(kinds.values()) > 5
    assert 0.1 < (kinds["boxed"] + kinds["unknown"]) / 400 < 0.3
