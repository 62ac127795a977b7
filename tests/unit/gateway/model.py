"""A scripted model for the gateway's tests: it thinks, talks and calls tools, in tokens no tokenizer would choose."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from core.gateway.session import GatewaySession, SessionSettings
from core.gateway.transcriber import Transcriber
from core.policy.scripted import ScriptedPolicy
from core.rollout.rows import make_rows
from core.text.tokenizer import Ids
from core.types import Row, Sampling, Turn

WORDS = ("hello", " the", " answer", "\n", " is", " 42", " café", " \U0001f40e", ' "quoted"', "  two  spaces", " {x}")


class RandomModel:
    """Writes random answers to any prompt. `policy` logs every prompt that it got."""

    def __init__(self, tokenizer: Any, call_format: str, *, thinking: float = 0.5, calling: float = 0.5, seed: int = 0):
        self.tokenizer = tokenizer
        self.call_format = call_format
        self.thinking = thinking
        self.calling = calling
        self.rng = random.Random(seed)
        one = [{"role": "user", "content": "-"}]
        shown = tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True)
        self.opened = shown.endswith("<think>\n")
        self.policy = ScriptedPolicy(self.respond, logprob=-0.5)

    def respond(self, prompt_ids: Ids, sampling: Sampling) -> list[int]:
        """Return the ids of one answer, with the end token."""
        rng = self.rng
        parts = []
        if self.opened or rng.random() < self.thinking:
            parts += ["" if self.opened else "<think>\n", self.write_words(), "\n</think>\n\n"]
        parts.append(self.write_words())
        if rng.random() < self.calling:
            calls = [self.write_call() for _ in range(1 if self.call_format == "llama3_json" else rng.randint(1, 2))]
            if self.call_format == "llama3_json":
                parts.pop()
            parts += calls
        return [*self.encode("".join(parts)), self.tokenizer.eos_token_id]

    def write_words(self) -> str:
        return "".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(1, 5))).strip() or "hello"

    def write_call(self) -> str:
        arguments: Mapping[str, Any] = {"query": self.write_words(), "count": self.rng.randint(0, 9)}
        if self.call_format == "qwen3_coder":
            inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
            return f"\n<tool_call>\n<function=search>\n{inner}</function>\n</tool_call>"
        key = "parameters" if self.call_format == "llama3_json" else "arguments"
        separators = self.rng.choice([(", ", ": "), (",", ":"), (" , ", " :  ")])
        ascii_only = self.rng.random() < 0.5
        written = json.dumps({"name": "search", key: arguments}, separators=separators, ensure_ascii=ascii_only)
        return written if self.call_format == "llama3_json" else f"\n<tool_call>\n{written}\n</tool_call>"

    def encode(self, text: str) -> list[int]:
        """Encode `text` in pieces of random length, which gives other tokens than encoding it at once."""
        ids: list[int] = []
        while text:
            tags = ("<tool_call>", "</tool_call>", "<think>", "</think>")
            tag = next((tag for tag in tags if text.startswith(tag)), "")
            size = len(tag) or self.rng.randint(1, 6)
            if not tag and "<" in text[1:size]:
                size = text.index("<", 1)
            ids += self.tokenizer.encode(text[:size], add_special_tokens=False)
            text = text[size:]
        return ids


def list_contexts(tokens: Ids, mask: Sequence[int]) -> list[Ids]:
    """Return what stands before each trained span of a row."""
    start = len(tokens) - len(mask)
    return [tokens[: start + i] for i, trained in enumerate(mask) if trained and (i == 0 or not mask[i - 1])]


def check_contexts(calls: Sequence[Any], rows: Sequence[tuple[Ids, Sequence[int]]]) -> None:
    """Assert that every trained token of the rows stands in the very context that the engine saw."""
    prompts = {call.prompt_ids for call in calls}
    for row in rows:
        assert prompts.issuperset(list_contexts(*row)), "a trained span begins where no prompt ended"


def open_session(model: RandomModel, **settings: object) -> GatewaySession:
    transcriber = Transcriber(model.tokenizer)
    wanted = SessionSettings(**{"max_context": 100_000, **settings})  # type: ignore[arg-type]
    return GatewaySession("s", {"policy": model.policy}, transcriber, wanted, Sampling(max_new_tokens=4096))


def trained_spans(rows: Sequence[Row]) -> Counter[tuple[int, ...]]:
    spans: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        start, span = len(row.tokens) - len(row.loss_mask), list[int]()
        for token, trained in zip(row.tokens[start:], row.loss_mask, strict=True):
            if trained:
                span.append(token)
            elif span:
                spans[tuple(span)] += 1
                span = []
        spans[tuple(span)] += bool(span)
    return +spans


def check(model: RandomModel, turns: Sequence[Turn]) -> int:
    """Assert that rows train what was sampled in its own context; return the number of rows."""
    rows = make_rows(turns, "segment")
    assert trained_spans(rows) == Counter(turn.completion.token_ids for turn in turns if turn.trained)
    check_contexts(model.policy.calls, [(row.tokens, row.loss_mask) for row in rows])
    return len(rows)
