"""The policy of these conversations, and the check of what became of them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence

from core.gateway import FinishedSession
from core.rollout.rows import make_rows
from core.types import Completion, Sampling
from tests.unit.gateway.model import RandomModel, list_contexts
from tests.unit.gateway.templates import make_tokenizer

TEXTS = ("I look  it up.", "And once more:\ncafé \U0001f40e", 'There are "42" horses.')


class ScriptedModel:
    """Calls tools in its first two answers of a session and answers in the third, in tokens of random pieces."""

    def __init__(self) -> None:
        self.writer = RandomModel(make_tokenizer("qwen3"), "hermes", seed=0)
        self.answers: Counter[str] = Counter()
        self.prompts: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        """Answer the next turn of a session, whose name says how."""
        assert session is not None
        turn = min(self.answers[session], 2)
        self.answers[session] += 1
        self.prompts[session].add(tuple(prompt_ids))
        calls = (2 if "two" in session else 1) * (turn < 2)
        text = f"<think>\nthe {turn}. thought\n</think>\n\n" if "thinking" in session else ""
        text += TEXTS[turn]
        for place in range(calls):
            arguments = json.dumps({"query": f"a  b\n\u00e9 {place}", "count": place}, ensure_ascii=place == 0)
            text += f'\n<tool_call>\n{{"name" :"search",  "arguments": {arguments}}}\n</tool_call>'
        ids = (*self.writer.encode(text), self.writer.tokenizer.eos_token_id)
        return Completion(ids, (-0.5,) * len(ids), "stop")


def check(finished: FinishedSession, prompts: set[tuple[int, ...]]) -> tuple[str, bool]:
    """Describe a session and say whether its rows are exact."""
    rows = make_rows(finished.turns, "segment")
    sampled = sum(len(turn.completion.token_ids) for turn in finished.turns)
    trained = sum(row.trained_tokens for row in rows)
    wrong = sum(ids not in prompts for row in rows for ids in list_contexts(row.tokens, row.loss_mask))
    counters = ", ".join(f"{name} {number}" for name, number in sorted(finished.counters.items()))
    strange = sum(finished.counters.get(name, 0) for name in ("edited", "foreign"))
    exact = trained == sampled > 0 and not wrong and not strange and len(finished.turns) >= 3
    return f"{trained:4} of {sampled:4} tokens, {len(rows)} rows, {wrong} wrong contexts; {counters}", exact
