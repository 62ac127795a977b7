"""A spliced template has the ids that the tokenizer itself makes, and no text can forge a prompt."""

from __future__ import annotations

import copy
import json
import shutil
import threading
import unicodedata

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from core.engine.weights import eos_token_ids
from core.hub import CheckpointError
from core.options import RecipeError
from core.text.tokenizer import (
    TokenTemplate,
    encode_text,
    encode_texts,
    find_tokenizer,
    find_turn_end,
    load_tokenizer,
    special_ids,
    token_bytes,
)

MESSAGE = "Read.\n<problem>{problem}</problem>\n<memory>{memory}</memory>\nGo on:"
WORDS = st.lists(st.sampled_from(["acorn", "hat", "The", "sky", "is", "blue."]), min_size=1, max_size=8).map(" ".join)


@given(WORDS, WORDS)
def test_the_splice_is_the_chat_template_tokenized(tokenizer, problem, memory):
    """Tags are single tokens here, so the pieces meet where the tokenizer cuts anyway."""
    template = TokenTemplate(tokenizer, MESSAGE, ["problem", "memory"])
    filled = MESSAGE.replace("{problem}", problem).replace("{memory}", memory)
    messages = [{"role": "user", "content": filled}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    spliced = template.render(problem=encode_text(tokenizer, problem), memory=encode_text(tokenizer, memory))
    assert list(spliced) == expected


def test_a_template_that_shows_no_text_of_a_message_is_refused_and_names_no_end(tokenizer):
    own = copy.deepcopy(tokenizer)
    own.chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}"
    with pytest.raises(RecipeError, match=r"model\.path: the chat template does not show a message's text"):
        TokenTemplate(own, MESSAGE, ["problem", "memory"])
    assert find_turn_end(own) is None


def test_every_slot_holds_exactly_its_ids(tokenizer):
    template = TokenTemplate(tokenizer, "{a} and {b} and {a}", ["a", "b"])
    empty = template.render(a=(), b=())
    filled = template.render(a=(900, 901), b=(902,))
    assert template.length == len(empty)
    assert len(filled) == len(empty) + 5
    assert [i for i in filled if i in (900, 901, 902)] == [900, 901, 902, 900, 901]
    assert tuple(i for i in filled if i not in (900, 901, 902)) == empty


TAGS = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "</section>", "<memory>", "<|im_", "end|>", "@@problem@@"]
FORGERY = st.lists(st.sampled_from(TAGS) | st.text(max_size=6), max_size=8).map("".join)


@given(FORGERY)
def test_no_text_from_outside_becomes_a_special_id(tokenizer, text):
    ids = encode_text(tokenizer, text)
    assert not special_ids(tokenizer) & set(ids)
    assert encode_texts(tokenizer, [text, "hat"]) == [ids, encode_text(tokenizer, "hat")]


def test_a_tokenizer_without_chat_template_names_folder_and_fix(memagent_model, tmp_path):
    folder = shutil.copytree(memagent_model, tmp_path / "plain")
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(folder)
    assert str(folder) in str(caught.value)
    assert "chat_template.jinja" in str(caught.value)
    assert load_tokenizer(folder, for_chat=False).encode("The sky")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{broken"),
        ("tokenizer.json", '{"added_tokens": 3, "model": {}}'),
        ("tokenizer_config.json", "[]"),
        ("config.json", "{broken"),
    ],
)
def test_a_corrupt_tokenizer_names_its_folder_and_a_corrupt_config_itself(memagent_model, tmp_path, name, content):
    folder = shutil.copytree(memagent_model, tmp_path / "corrupt")
    (folder / name).write_text(content)
    message = r"corrupt/config\.json: not valid JSON" if name == "config.json" else "corrupt: no usable tokenizer"
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(folder)


def test_text_cannot_forge_added_tokens_that_are_not_special(memagent_model):
    tokenizer = load_tokenizer(memagent_model)
    tokenizer.add_tokens(["<tool_call>", "<tool_call>x"], special_tokens=False)
    forged = {tokenizer.convert_tokens_to_ids(text) for text in ("<tool_call>", "<tool_call>x")}
    text = "a <tool_call>x b<tool_call><tool_call>"
    ids = encode_text(tokenizer, text)
    assert not forged & set(ids)
    assert tokenizer.decode(ids) == text


def test_white_space_that_is_an_added_token_is_text(memagent_model):
    """As in Gemma and GPT-NeoX."""
    tokenizer = load_tokenizer(memagent_model)
    tokenizer.add_tokens(["\n\n", "    "], special_tokens=False)
    text = "def f():\n\n    return 1"
    assert list(encode_text(tokenizer, text)) == tokenizer.encode(text, add_special_tokens=False)
    assert not special_ids(tokenizer) & set(tokenizer.convert_tokens_to_ids(["\n\n", "    "]))
    assert b"".join(token_bytes(tokenizer, encode_text(tokenizer, text))) == text.encode()


def test_a_thread_that_encodes_text_does_not_change_the_markup_of_another(tokenizer):
    """transformers keeps `split_special_tokens` in the tokenizer; a shared one would split another thread's markup."""
    markup = "<|im_start|>assistant\n"
    expected, stop = tokenizer.encode(markup, add_special_tokens=False), threading.Event()

    def encode_until_stopped() -> None:
        while not stop.is_set():
            encode_text(tokenizer, "The sky is blue.")

    thread = threading.Thread(target=encode_until_stopped)
    thread.start()
    try:
        encoded = {tuple(tokenizer.encode(markup, add_special_tokens=False)) for _ in range(2000)}
    finally:
        stop.set()
        thread.join()
    assert encoded == {tuple(expected)}


def test_half_a_character_in_a_reply_of_a_tool_is_encoded_as_a_question_mark(tokenizer):
    assert encode_text(tokenizer, "acorn \ud83d hat") == encode_text(tokenizer, "acorn ? hat")


@given(st.text(max_size=30))
def test_the_bytes_of_the_ids_are_the_text_as_the_tokenizer_normalizes_it(tokenizer, text):
    pieces = token_bytes(tokenizer, encode_text(tokenizer, text))
    assert b"".join(pieces) == unicodedata.normalize("NFC", text).encode()


def test_special_and_unknown_ids_have_bytes_too(tokenizer):
    ids = tokenizer.encode("<|im_start|>user\n漢<|im_end|>", add_special_tokens=False)
    pieces = token_bytes(tokenizer, [*ids, len(tokenizer) + 5])
    assert pieces[0] == b"<|im_start|>"
    assert pieces[-1] == b""
    assert b"".join(pieces).decode() == "<|im_start|>user\n漢<|im_end|>"


def test_a_tokenizer_with_byte_fallback_writes_spaces_and_bytes():
    vocabulary = {"<unk>": 0, "<0xE6>": 1, "<0xBC>": 2, "<0xA2>": 3, "▁the": 4, "é": 5, "▁": 6}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    model.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.Fuse()])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=model)
    assert b"".join(token_bytes(wrapped, [4, 6, 5, 1, 2, 3])).decode() == " the é漢"


@pytest.mark.parametrize(
    ("removed", "named"),
    [
        (("tokenizer.json",), "tokenizer.json .or tokenizer.model, or vocab.json with merges.txt. missing"),
        (("tokenizer_config.json",), "tokenizer_config.json missing"),
        (("tokenizer.json", "tokenizer_config.json"), "tokenizer_config.json and tokenizer.json"),
    ],
)
def test_a_folder_without_a_tokenizer_is_refused_by_the_names_of_its_files(memagent_model, tmp_path, removed, named):
    folder = shutil.copytree(memagent_model, tmp_path / "model")
    for name in removed:
        (folder / name).unlink()
    with pytest.raises(CheckpointError, match=named):
        load_tokenizer(folder)
    with pytest.raises(CheckpointError, match=named):
        load_tokenizer(folder, for_chat=False)
    assert find_tokenizer(folder) is None


def test_a_reply_is_read_as_it_was_sampled_whatever_the_tokenizers_files_ask_for(memagent_model, tmp_path):
    """As transformers below 5.10 reads Llama 3's; later ones leave the spaces of its kind of tokenizers alone."""
    folder = shutil.copytree(memagent_model, tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    name = "clean_up_tokenization_spaces"
    asked = {name: True, f"{name}_for_bpe_even_though_it_will_corrupt_output": True}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **asked}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("ls . , don 't", add_special_tokens=False)) == "ls . , don 't"


def test_a_turn_ends_with_the_token_of_the_template_where_the_config_knows_the_end_of_a_document(
    memagent_model, tmp_path, caplog
):
    folder = shutil.copytree(memagent_model, tmp_path / "model")
    turn_end = load_tokenizer(folder).convert_tokens_to_ids("<|im_end|>")
    document_end = load_tokenizer(folder).convert_tokens_to_ids("<|endoftext|>")
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            values = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({**values, "eos_token_id": document_end}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<|endoftext|>"}))
    assert not caplog.messages
    assert load_tokenizer(folder).eos_token_id == turn_end
    assert eos_token_ids(folder) == (document_end, turn_end)
    assert ["<|im_end|>, not with <|endoftext|>" in caplog.messages[0], "both end" in caplog.messages[1]] == [True] * 2
    assert eos_token_ids(memagent_model) == (turn_end,)
