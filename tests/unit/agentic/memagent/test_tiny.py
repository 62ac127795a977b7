"""The tiny preset's start model: its folder loads as what was trained, and its first layer looks back as wired."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentic.memagent import prompts
from agentic.memagent.tiny import start_model
from agentic.memagent.tiny.words import KEYS, NOISE, VALUES
from core.text.tokenizer import encode_text, load_tokenizer, special_ids

WORDS = st.sampled_from([*KEYS[:9], *VALUES[:9], *NOISE[:9], *start_model.RULER_NOISE, "123", "7 4", "é漢", "zyzzyva"])
TAGS = st.sampled_from([*start_model.TAGS, "<|im_start|>", "<|im_end|>", "<|endoftext|>"])
SPACES = st.sampled_from(["", " ", "\n", "\n\n", ".\n"])


@pytest.fixture(scope="module")
def folder(memagent_model: Path) -> Path:
    return memagent_model


@pytest.fixture(scope="module")
def trained() -> Any:
    """The tokenizer as it was before it was saved."""
    return start_model.train_tokenizer()


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


@given(st.lists(st.one_of(WORDS, TAGS, SPACES, st.text(max_size=6)), max_size=12).map("".join))
def test_the_saved_tokenizer_gives_the_ids_of_the_trained_one(trained, tokenizer, text):
    assert tokenizer.encode(text) == trained.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer(text, split_special_tokens=True) == trained(text, split_special_tokens=True)


def test_the_saved_tokenizer_has_the_names_of_the_trained_one(trained, tokenizer):
    assert tokenizer.get_vocab() == trained.get_vocab()
    assert tokenizer.chat_template == trained.chat_template
    assert special_ids(tokenizer) == special_ids(trained)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_every_key_and_value_is_one_token_of_its_own(tokenizer):
    ids = [encode_text(tokenizer, f" {word}") for word in (*KEYS, *VALUES)]
    assert {len(word) for word in ids} == {1}
    assert len(set(ids)) == len(KEYS) + len(VALUES)
    assert not set(KEYS) & set(VALUES)
    assert not set(NOISE) & {*KEYS, *VALUES}


def test_words_stay_whole_wherever_a_turn_puts_them(tokenizer):
    for key, value in zip(KEYS, reversed(VALUES), strict=False):
        (key_id,), (value_id,) = (encode_text(tokenizer, f" {word}") for word in (key, value))
        texts = (start_model.NEEDLE.format(key=key, value=value), f" {key} is: {value}", f" {key} is: {value}.")
        for ids in (encode_text(tokenizer, text) for text in texts):
            assert (ids.count(key_id), ids.count(value_id)) == (1, 1)
        assert encode_text(tokenizer, start_model.QUESTION.format(key=key)).count(key_id) == 1
        assert encode_text(tokenizer, start_model.ANSWER.format(value=value)).count(value_id) == 1


def test_too_small_a_vocabulary_names_a_word_in_pieces():
    with pytest.raises(ValueError, match=r"vocab_size=300 leaves \d+ words in pieces, such as '\w+': raise it"):
        start_model.train_tokenizer(vocab_size=300)


@given(st.lists(st.one_of(TAGS, WORDS, SPACES, st.text("</>|promlecti_", max_size=9)), max_size=12).map("".join))
def test_no_document_writes_a_tag(tokenizer, text):
    ids = encode_text(tokenizer, text)
    assert not set(ids) & special_ids(tokenizer)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("order", ["official", "prefix_friendly"])
def test_the_compact_prompt_has_each_tag_once(tokenizer, order):
    slots = {name: encode_text(tokenizer, f" {name}") for name in ("problem", "section", "memory")}
    prompt = prompts.update_template(tokenizer, "compact", order, gate=False).render(**slots)
    for tag in start_model.TAGS:
        (tag_id,) = tokenizer.encode(tag)
        assert prompt.count(tag_id) == 1


def test_weights_follow_the_seed_alone(folder, tmp_path):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    again, other = start_model.build(tmp_path / "again", seed=0), start_model.build(tmp_path / "other", seed=1)
    assert torch.get_rng_state().equal(state)
    first, second, third = (load_file(path / "model.safetensors") for path in (folder, again, other))
    assert all(first[name].equal(second[name]) for name in first)
    assert not all(first[name].equal(third[name]) for name in first)


def test_the_model_is_as_small_as_it_says(model, tokenizer):
    assert 0.6e6 < sum(p.numel() for p in model.parameters()) < 0.8e6
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id


def test_heads_of_the_first_layer_look_one_to_four_tokens_back(model, tokenizer):
    ids = torch.randint(len(tokenizer), (4, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, *later = model(ids, output_attentions=True).attentions
    # Mean attention at each distance, from positions that have all of them before them: [heads, 9].
    by_distance = torch.stack([first.diagonal(-d, 2, 3)[..., 8:].mean(dim=(0, 2)) for d in range(9)], dim=1)
    assert by_distance.argmax(dim=1).tolist() == [1, 4, 2, 3]
    assert by_distance.max(dim=1).values.min() > 0.7
    for attention in later:  # nothing is wired there
        assert attention[:, :, 8:].max(dim=3).values.mean() < 0.3


def test_later_layers_give_back_what_their_values_take(model):
    """Output after value projection keeps what the values hold and adds nothing: a projection, times the group size."""
    groups = model.config.num_attention_heads // model.config.num_key_value_heads
    for layer in model.model.layers[1:]:
        values = layer.self_attn.v_proj.weight.view(model.config.num_key_value_heads, -1, model.config.hidden_size)
        passed = layer.self_attn.o_proj.weight @ values.repeat_interleave(groups, dim=0).flatten(0, 1) / groups
        torch.testing.assert_close(passed @ passed, passed, atol=1e-5, rtol=0)
        torch.testing.assert_close(passed, passed.T, atol=1e-5, rtol=0)
        assert passed.trace().item() == pytest.approx(values.shape[0] * values.shape[1], abs=1e-3)


def test_the_command_writes_model_and_word_lists(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tiny", "--out", str(tmp_path)])
    start_model.main()
    assert (tmp_path / "keys.txt").read_text().split() == list(KEYS)
    assert (tmp_path / "values.txt").read_text().split() == list(VALUES)
    assert load_tokenizer(tmp_path / "model").get_vocab() == load_tokenizer(folder).get_vocab()
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_folder_that_cannot_be_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["tiny", "--out", str(tmp_path / "file" / "x")])
    with pytest.raises(SystemExit):
        start_model.main()
    assert f"error: --out {tmp_path / 'file' / 'x'}: cannot be written (Not a directory)" in capsys.readouterr().err
