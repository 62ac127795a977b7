"""Tests a small version of the benchmark: every way is measured, and no request fails."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.speed.gateway import format_calls, format_crowd, measure
from benchmarks.speed.gateway_client import BLOCK, DIALOGUES, WORDS


async def test_every_way_to_ask_is_measured():
    result = await measure(2 * BLOCK, 1, 4, 2)
    assert [*result["calls"]] == ["session", *DIALOGUES]
    assert all(len(blocks) == 2 and all(0 < b < a for a, b in blocks) for blocks in result["calls"].values())
    assert "turns 11 to 20" in format_calls(result["calls"])
    for cell in result["crowd"].values():
        assert 0 < cell["p50_ms"] <= cell["p99_ms"]
    assert "4 sessions at once" in format_crowd(result["crowd"], 4)


def test_conversations_have_the_results_of_their_tools():
    replies: dict[str, dict[str, Any]] = {
        "chat": {"choices": [{"message": {"role": "assistant", "tool_calls": [{"id": "c"}]}}]},
        "responses": {"output": [{"type": "function_call", "call_id": "c"}]},
        "anthropic": {"content": [{"type": "tool_use", "id": "c"}]},
    }
    for name, reply in replies.items():
        dialogue = DIALOGUES[name]()
        dialogue.extend(reply)
        assert " ".join(WORDS * 5) in json.dumps(dialogue.body), name
