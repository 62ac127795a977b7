"""Builds the start models of `tiny` presets: a byte-level BPE tokenizer over a method's own words, and a small model.

`build` writes a Hugging Face folder that `AutoTokenizer` and any loader of the family read. The tokenizer is trained
inside `Qwen2Tokenizer` because `AutoTokenizer` replaces every other pre-tokenizer by that class's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerBase, Qwen2Tokenizer

from core.worlds.world import World

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"intermediate_size": 352},
    "qwen3_moe": {
        "moe_intermediate_size": 176,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "head_dim": 32,
        "attention_bias": True,
    },
    "qwen3_5_text": {
        "intermediate_size": 352,
        "head_dim": 32,
        "layer_types": ["linear_attention", "full_attention", "full_attention"],
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
}
"""Maps the families, by model_type, to the sizes that not all have."""


def build(folder: Path, tokenizer: PreTrainedTokenizerBase, seed: int, family: str = "qwen2") -> Path:
    """Write the tokenizer and untrained weights to `folder`; vocabulary, `seed` and family determine the weights."""
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(model_config(tokenizer, family), dtype=torch.float32)
        _prewire(model)
    model.save_pretrained(folder)
    return folder


def train_tokenizer(world: World) -> PreTrainedTokenizerBase:
    """Train the BPE on the world's `corpus`; every word with its leading space becomes one token.

    `tags` are special tokens: one id each, which text encoded with `split_special_tokens=True` never produces.
    `plain_tokens` have an id of their own, too, and are text, as Qwen3's end of a thought.

    Raises:
        ValueError: `vocab_size` leaves a word in pieces.
    """
    assert world.corpus is not None, "only a world with a corpus has a start model"
    base = Qwen2Tokenizer(
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>", *world.tags],
        chat_template=world.chat_template,
    )
    tokenizer = base.train_new_from_iterator(world.corpus(), vocab_size=world.vocab_size, show_progress=False)
    split = [word for word in world.words if len(tokenizer.encode(f" {word}")) != 1]
    if split:
        raise ValueError(
            f"vocab_size={world.vocab_size} leaves {len(split)} words in pieces, such as {split[0]!r}: raise it in "
            "the method's WORLD (too high does no harm), and see that its corpus has each word with a space before it"
        )
    tokenizer.add_tokens(list(world.plain_tokens))
    return tokenizer


def model_config(tokenizer: PreTrainedTokenizerBase, family: str = "qwen2") -> PreTrainedConfig:
    """Return the sizes of a model of 0.6M to 0.8M parameters, or with experts of 1.8M to 1.9M.

    `initializer_range` is 0.05 instead of 0.02, because so small a model learns faster from it.
    """
    return AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **FAMILIES[family],
    )


@torch.no_grad()
def _prewire(model: Any, strength: float = 6.0) -> None:
    """Write in the attention patterns that small transformers learn late, so that copying takes seconds to learn.

    Heads of layer 0 look 1 to 4 tokens back (biases of query and key under the rotary embedding). Where it is a gated
    delta net, its convolutions look 0 to 3 tokens back. In the later layers the output projection undoes the value
    projection, as in mimetic initialization (arXiv 2305.09828). Everything stays trainable.
    """
    config = model.config
    heads, groups = config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads
    width = config.hidden_size // heads
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.2)
    first, *later = model.model.layers
    if hasattr(first, "self_attn"):
        _look_back(first.self_attn, config, strength)
    else:
        _look_back_by_convolution(model.model.embed_tokens.weight, first.linear_attn)
    for attention in (layer.self_attn for layer in later):
        torch.nn.init.orthogonal_(attention.v_proj.weight)
        # The value rows of a key/value head, once for each of the query heads (`groups`) that share it.
        values = attention.v_proj.weight.view(-1, 1, width, config.hidden_size).expand(-1, groups, -1, -1)
        attention.o_proj.weight.copy_(values.reshape(-1, config.hidden_size).T)


def _look_back(first: Any, config: Any, strength: float) -> None:
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    if hasattr(first, "q_norm"):  # half of the coordinates are `strength`, so the norms divide by this
        first.q_norm.weight.fill_(strength / 2**0.5)
        first.k_norm.weight.fill_(strength / 2**0.5)
    # A constant key, and a constant query rotated by `back` positions: their product is largest `back` tokens ago. The
    # two rows of a bias are the first and second coordinates of the rotary pairs.
    frequencies = config.rope_parameters["rope_theta"] ** (-torch.arange(0, width, 2) / width)
    first.k_proj.bias.view(-1, 2, width // 2)[:, 0] = strength
    for head, back in enumerate((1, 4, 2, 3)):
        rotated = torch.stack((torch.cos(back * frequencies), -torch.sin(back * frequencies)))
        first.q_proj.bias.view(heads, 2, -1)[head] = strength * rotated


def _look_back_by_convolution(embeddings_VC: Tensor, first: Any) -> None:
    """Let each head of a gated delta net hand on the value of one of the last tokens, and forget all others."""
    first.A_log.fill_(3.0)  # the memory keeps exp(-exp(3) * softplus(1)) of what it held: nothing
    queries, keys, _ = first.in_proj_qkv.weight.split((first.key_dim, first.key_dim, first.value_dim))
    keys.copy_(queries)  # so a token's query meets its own key
    first.conv1d.weight.zero_()
    first.conv1d.weight[: 2 * first.key_dim, 0, -1] = 1.0
    values = first.conv1d.weight[2 * first.key_dim :, 0].view(first.num_v_heads, -1, first.conv_kernel_size)
    for head, back in enumerate((1, 2, 3, 0)):
        values[head, :, -1 - back] = 1.0
    # The gate multiplies each channel by a number of the present token. A constant in all embeddings holds it open.
    embeddings_VC[:, 0] = 1.0
    first.in_proj_z.weight.zero_()
    first.in_proj_z.weight[:, 0] = 0.2
