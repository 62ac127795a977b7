"""The `tiny` preset: its words are tokens that no document can forge, its demonstrations teach what they say, its start
model follows the seed."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentic.memagent.rollout import SPEC, MemAgent
from agentic.memagent.world import ANSWER, FACT, UNKNOWN, WORLD, MemoryDemonstration, draw_demonstration, encode
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.text.tokenizer import encode_text
from core.types import Sampling, Task

NEEDLE = re.compile(r"One of the special magic words for (\w+) is: (\w+)\.")


def test_heads_of_the_first_layer_look_one_to_four_tokens_back(tokenizer: Any, tmp_path: Path) -> None:
    folder = WORLD.build_model(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.randint(len(tokenizer), (4, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, *later = model(ids, output_attentions=True).attentions
    # Mean attention at each distance, from positions that have all of them before them: [heads, 9].
    by_distance = torch.stack([first.diagonal(-d, 2, 3)[..., 8:].mean(dim=(0, 2)) for d in range(9)], dim=1)
    assert by_distance.argmax(dim=1).tolist() == [1, 4, 2, 3]
    assert by_distance.max(dim=1).values.min() > 0.7
    assert all(attention[:, :, 8:].max(dim=3).values.mean() < 0.3 for attention in later)


def test_convolutions_of_a_first_delta_net_look_up_to_three_tokens_back(tokenizer: Any, tmp_path: Path) -> None:
    folder = WORLD.build_model(tmp_path / "model", family="qwen3_5_text")
    model, seen = AutoModelForCausalLM.from_pretrained(folder).eval(), []
    model.model.layers[0].linear_attn.out_proj.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    ids = torch.randint(len(tokenizer), (1, 40), generator=torch.Generator().manual_seed(0))
    other = ids.clone()
    other[0, 20] += 1
    with torch.no_grad():
        model(ids), model(other)
    # Positions where a head gives something else than without the change at position 20.
    before, after = (heads.view(40, 4, -1) for heads in seen)
    changed = (before - after).norm(dim=-1) > 0.2 * before.norm(dim=-1)
    assert [(changed[:, head].nonzero().flatten() - 20).tolist() for head in range(4)] == [[1], [2], [3], [0]]


def draw(keep: float, count: int = 1500) -> list[MemoryDemonstration]:
    rng = Random(0)
    return [draw_demonstration(rng, (0, 40), keep) for _ in range(count)]


@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_demonstrations_are_right_and_none_updates_a_memory_that_holds_the_asked_fact(keep: float) -> None:
    others = 0
    for turn in draw(keep):
        (asked,) = re.findall(r"for (\w+) mentioned", turn.question)
        known = {key: value for key, value in re.findall(r" (\w+) is: (\w+)", turn.memory) if value != UNKNOWN}
        if turn.section is None:
            assert turn.completion == ANSWER.format(value=known.get(asked, UNKNOWN))
            continue
        assert asked not in known
        needles = dict(NEEDLE.findall(turn.section))
        others += bool(known) and asked not in needles
        if known and asked not in needles and keep:
            assert turn.completion == turn.memory
        else:
            assert turn.completion == FACT.format(key=asked, value=needles.get(asked, UNKNOWN))
    assert others > 100


async def test_a_demonstration_is_encoded_as_the_rollout_asks_it_and_fits_the_preset(tokenizer: Any) -> None:
    method = MemAgent(SPEC.load("tiny").memagent, tokenizer)
    for turn in draw(0.5, 100):
        prompt, completion = encode(turn, method)
        assert len(completion) <= method.config.max_memory_tokens
        if turn.section is None or len(method.sections(task := Task("t", turn.question, ("a",), turn.section))[0]) > 1:
            continue
        method.empty_memory = encode_text(tokenizer, turn.memory)
        policy = ScriptedPolicy(lambda prompt, sampling, ids=completion: ids)
        await method.rollout(task, Roles({"policy": policy}), Sampling())
        assert policy.calls[0].prompt_ids == prompt
        after = MemoryDemonstration(turn.question, None, turn.completion, "")
        assert policy.calls[1].prompt_ids == encode(after, method)[0]
