"""Makes the `tiny` preset's start model and its word lists.

    python -m agentic.memagent.tiny.start_model --out FOLDER     # writes model/, keys.txt and values.txt

The tags of the paper's prompts are special tokens of its tokenizer, so the text of a document can never forge one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from agentic.memagent.prompts import EMPTY_MEMORY
from agentic.memagent.tiny.words import KEYS, NOISE, VALUES
from core.train import start_model

TAGS = tuple(f"<{slash}{name}>" for name in ("problem", "section", "memory") for slash in ("", "/"))
QUESTION = "What is the special magic word for {key} mentioned in the provided text?"
NEEDLE = "One of the special magic words for {key} is: {value}."
RULER_NOISE = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
ANSWER = "\\boxed{{ {value}}}"


def build(folder: Path, seed: int) -> Path:
    """Write the start model, which depends on `seed` alone, to `folder`."""
    return start_model.build(folder, train_tokenizer(), seed)


def train_tokenizer(vocab_size: int = 1280) -> PreTrainedTokenizerBase:
    return start_model.train_tokenizer(_corpus(), words=(*KEYS, *VALUES), tags=TAGS, vocab_size=vocab_size)


def _corpus() -> Iterator[str]:
    for _ in range(20):
        for words in (KEYS, VALUES, NOISE):
            yield " " + " ".join(words)
        yield "\n".join((*RULER_NOISE, EMPTY_MEMORY, NEEDLE, QUESTION, ANSWER))
        yield " ".join((*RULER_NOISE, "unknown", "user", "assistant", "system"))
    yield "user\nassistant\nsystem\n"


def main() -> None:
    options = start_model.parse_options("Write the tiny preset's start model and word lists.")
    build(options.out / "model", options.seed)
    # Words for test needles that no demonstration and no training task has in this place; the drills have them.
    half = len(NOISE) // 2
    lists = {"keys": KEYS, "values": VALUES, "other_keys": NOISE[:half], "other_values": NOISE[half:]}
    for name, words in lists.items():
        (options.out / f"{name}.txt").write_text("\n".join(words) + "\n")


if __name__ == "__main__":
    main()
