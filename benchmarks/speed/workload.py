"""Make the work of all sides: seeded checkpoints, and requests as token ids."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.types import Row

SIZES: Mapping[str, Mapping[str, Any]] = {
    # The `tiny` preset of agentic/memagent.
    "tiny": {
        "vocab_size": 1280, "hidden_size": 128, "intermediate_size": 352,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    "small": {
        "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 688,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip
PAD, EOS = 0, 1
"""Prompts never contain these ids. EOS ends no completion, since every side ignores it."""
SESSION_TURNS = 5
OBSERVATION = 48
"""Counts the tokens that the environment adds between two turns of a session."""


@dataclass(frozen=True)
class GenerationRequest:
    prompt_ids: tuple[int, ...]
    max_new_tokens: int


@dataclass(frozen=True)
class GenerationSample:
    """Holds one sampled completion."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def make_checkpoint(size: str, folder: Path) -> Path:
    """Save a random Qwen2 of `size`, with a tokenizer that has one word, `t<i>`, for each token id i."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    sizes = SIZES[size]
    tokenizer = Tokenizer(models.WordLevel({spell(i): i for i in range(sizes["vocab_size"])}, unk_token=spell(PAD)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=spell(PAD), eos_token=spell(EOS)).save_pretrained(
        folder
    )
    config = Qwen2Config(
        **sizes, max_position_embeddings=2048, tie_word_embeddings=True, initializer_range=0.05,
        bos_token_id=None, eos_token_id=None,
        pad_token_id=None,  # else Hugging Face's embedding has no gradient for a sampled PAD
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return folder


def spell(token_id: int) -> str:
    """Return the word of a token id. No word begins with a special word, since tokenizers find these inside words."""
    return {PAD: "<pad>", EOS: "<eos>"}.get(token_id, f"t{token_id}")


def make_regimes(vocab_size: int, *, scale: float = 1.0) -> dict[str, list[GenerationRequest]]:
    """Return the requests of each regime; `scale` < 1 makes fewer of them."""
    rng = random.Random(0)
    requests = max(8, round(64 * scale))
    group = 16 if scale == 1 else 8
    shared = [draw_prompt(rng, vocab_size, 300) for _ in range(requests // group)]
    return {
        "distinct": [GenerationRequest(draw_prompt(rng, vocab_size, 300), 64) for _ in range(requests)],
        "groups": [GenerationRequest(ids, 64) for ids in shared for _ in range(group)],
        "heavy_tailed": [
            GenerationRequest(draw_prompt(rng, vocab_size, 300), draw_length(rng)) for _ in range(requests)
        ],
        "sessions": [GenerationRequest(draw_prompt(rng, vocab_size, 120), 32) for _ in range(requests // 2)],
        "sections": make_section_requests(vocab_size, groups=max(1, round(4 * scale)), rng=rng),
    }


SECTION_GROUP = 12
"""Counts the rollouts that read one section: twice the group of MemAgent's preset `laptop`."""


def make_section_requests(vocab_size: int, groups: int, rng: random.Random) -> list[GenerationRequest]:
    """Return memory updates in the shapes of MemAgent's preset `laptop`, group after group.

    A group shares 300 tokens (instruction, question and a section of 192); each member adds its memory of 32 tokens and
    the end of the prompt, and writes 32 tokens.
    """
    requests = []
    for _ in range(groups):
        shared = draw_prompt(rng, vocab_size, 300)
        requests += [GenerationRequest(shared + draw_prompt(rng, vocab_size, 40), 32) for _ in range(SECTION_GROUP)]
    return requests


def draw_prompt(rng: random.Random, vocab_size: int, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(EOS + 1, vocab_size) for _ in range(length))


def make_rows(rng: random.Random, vocab_size: int, tokens: int, length: int, trained: int) -> list[Row]:
    """Make rows of `tokens` tokens together that share nothing; of the `length` of each the last `trained` are trained.

    The last token of a row is only predicted, so a row of `length` + 1 ids takes `length` places in a pack.
    """
    return [
        Row(draw_prompt(rng, vocab_size, length + 1), (1,) * trained, (-10.0,) * trained, number % 2 - 0.5, number)
        for number in range(tokens // length)
    ]


def draw_length(rng: random.Random) -> int:
    """Draw a lognormal number of tokens: median 40, one in twenty above 200, within [8, 400]."""
    return max(8, min(400, round(rng.lognormvariate(math.log(40), 1.0))))


def continue_sessions(samples: Sequence[GenerationSample], vocab_size: int, turn: int) -> list[GenerationRequest]:
    """Return the next prompt of each session: its tokens so far, then an observation.

    The observation depends on session and turn alone.
    """
    return [
        GenerationRequest(
            (*s.prompt_ids, *s.token_ids, *draw_prompt(random.Random(f"{turn}-{i}"), vocab_size, OBSERVATION)),
            len(s.token_ids),
        )
        for i, s in enumerate(samples)
    ]


def run_turns(
    generate: Callable[[Sequence[GenerationRequest]], list[GenerationSample]],
    requests: Sequence[GenerationRequest],
    turns: int,
    vocab_size: int,
) -> list[GenerationSample]:
    """Return all samples of all turns. A turn starts when every session has ended the turn before."""
    samples = generate(requests)
    everything = list(samples)
    for turn in range(1, turns):
        samples = generate(continue_sessions(samples, vocab_size, turn))
        everything += samples
    return everything


def make_step_requests(kind: str, vocab_size: int, groups: int, group_size: int) -> list[GenerationRequest]:
    """Return the requests of one GRPO step, group after group.

    `equal`: prompts of 300 tokens, 64 new ones. `uneven`: prompts of 100 to 500 tokens, heavy-tailed completions.
    `distinct`: uneven, and every rollout has a prompt of its own, so that nothing can be shared.
    """
    rng = random.Random(0)

    def draw() -> tuple[int, ...]:
        return draw_prompt(rng, vocab_size, 300 if kind == "equal" else rng.randint(100, 500))

    requests: list[GenerationRequest] = []
    for _ in range(groups):
        ids = draw()
        for _ in range(group_size):
            ids = draw() if kind == "distinct" else ids
            requests.append(GenerationRequest(ids, 64 if kind == "equal" else min(128, draw_length(rng))))
    return requests


def grade(token_ids: Sequence[int]) -> float:
    """Return the reward: the share of even ids among the first eight tokens, on which random models score too."""
    first = token_ids[:8]
    return sum(token % 2 == 0 for token in first) / len(first)
