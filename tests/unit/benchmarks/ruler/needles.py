"""A policy that reads needles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from core.text.tokenizer import encode_text
from core.types import Sampling

from ..conftest import Respond

ASKED = re.compile(r"magic word for (\w+) mentioned")


def needle_reader(tokenizer: Any, broken: dict[str, Exception | str] | None = None) -> Respond:
    """Answers right, by way of its memory; for a key in `broken`, with that value or that error instead."""

    def respond(prompt_ids: tuple[int, ...], sampling: Sampling) -> Sequence[int] | Exception:
        text = tokenizer.decode(prompt_ids)
        asked = ASKED.search(text)
        assert asked, text
        section, memory = (re.search(f"<{part}>(.*?)</{part}>", text, re.S) for part in ("section", "memory"))
        if section:
            found = re.search(rf"magic words for {asked[1]} is: (\w+)\.", section[1])
            said = f" {asked[1]} is: {found[1]}" if found else memory[1] if memory else ""
        else:
            assert memory
            value = memory[1].rpartition("is: ")[2]
            wrong = (broken or {}).get(asked[1])
            if isinstance(wrong, Exception):
                return wrong
            said = f"\\boxed{{ {wrong or value}}}"
        return (*encode_text(tokenizer, said), tokenizer.eos_token_id)

    return respond
