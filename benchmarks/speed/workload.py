"""What is run: seeded checkpoints, and requests as token ids, the same for every side."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
"""Never drawn for prompts; EOS ends nothing here, since every side is told to ignore it."""
SESSION_TURNS = 5
OBSERVATION = 48
"""Tokens that the environment adds between two turns of a session."""


@dataclass(frozen=True)
class SpeedRequest:
    prompt_ids: tuple[int, ...]
    max_new_tokens: int


@dataclass(frozen=True)
class Sample:
    """Holds one sampled completion. `logprobs` is empty when the engine does not report them."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def make_checkpoint(size: str, folder: Path, seed: int = 0) -> Path:
    """Write a random Qwen2 of `size` with a tokenizer that has one word, `t<i>`, for each token id i."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    sizes = SIZES[size]
    tokenizer = Tokenizer(models.WordLevel({word(i): i for i in range(sizes["vocab_size"])}, unk_token=word(PAD)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=word(PAD), eos_token=word(EOS)).save_pretrained(
        folder
    )
    config = Qwen2Config(
        **sizes, max_position_embeddings=2048, tie_word_embeddings=True, initializer_range=0.05,
        bos_token_id=None, eos_token_id=None,
        pad_token_id=None,  # else Hugging Face's embedding has no gradient for a sampled PAD
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return folder


def word(token_id: int) -> str:
    """Return the word of a token. No special word begins another word: tokenizers look for them inside words too."""
    return {PAD: "<pad>", EOS: "<eos>"}.get(token_id, f"t{token_id}")


def regimes(vocab_size: int, *, scale: float = 1.0, seed: int = 0) -> dict[str, list[SpeedRequest]]:
    """Return the requests of each regime; `scale` < 1 makes fewer of them."""
    rng = random.Random(seed)
    requests = max(8, round(64 * scale))
    group = 16 if scale == 1 else 8
    shared = [prompt(rng, vocab_size, 300) for _ in range(requests // group)]
    return {
        "distinct": [SpeedRequest(prompt(rng, vocab_size, 300), 64) for _ in range(requests)],
        "groups": [SpeedRequest(ids, 64) for ids in shared for _ in range(group)],
        "heavy_tailed": [SpeedRequest(prompt(rng, vocab_size, 300), draw_length(rng)) for _ in range(requests)],
        "sessions": [SpeedRequest(prompt(rng, vocab_size, 120), 32) for _ in range(requests // 2)],
    }


def prompt(rng: random.Random, vocab_size: int, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(EOS + 1, vocab_size) for _ in range(length))


def draw_length(rng: random.Random) -> int:
    """Lognormal number of tokens: median 40, one in twenty above 200, within [8, 400]."""
    return max(8, min(400, round(rng.lognormvariate(math.log(40), 1.0))))


def next_turn(samples: Sequence[Sample], vocab_size: int, turn: int) -> list[SpeedRequest]:
    """Return the sessions' next prompts: all so far, and an observation that depends on session and turn alone."""
    return [
        SpeedRequest(
            (*s.prompt_ids, *s.token_ids, *prompt(random.Random(f"{turn}-{i}"), vocab_size, OBSERVATION)),
            len(s.token_ids),
        )
        for i, s in enumerate(samples)
    ]


def step_requests(kind: str, vocab_size: int, groups: int, group_size: int, seed: int = 0) -> list[SpeedRequest]:
    """Return the requests of one GRPO step, group after group.

    `equal`: prompts of 300 tokens, 64 new ones. `uneven`: prompts of 100 to 500 tokens, heavy-tailed completions.
    `distinct`: uneven, and every rollout has a prompt of its own, so that nothing can be shared.
    """
    rng = random.Random(seed)

    def draw() -> tuple[int, ...]:
        return prompt(rng, vocab_size, 300 if kind == "equal" else rng.randint(100, 500))

    requests: list[SpeedRequest] = []
    for _ in range(groups):
        ids = draw()
        for _ in range(group_size):
            ids = draw() if kind == "distinct" else ids
            requests.append(SpeedRequest(ids, 64 if kind == "equal" else min(128, draw_length(rng))))
    return requests


def reward(token_ids: Sequence[int]) -> float:
    """Return a verifiable reward that random models score on: the share of even ids among the first eight tokens."""
    first = token_ids[:8]
    return sum(token % 2 == 0 for token in first) / len(first)
