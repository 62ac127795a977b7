"""Makes the `tiny` preset's start model.

python -m agentic.compaction.tiny.start_model --out FOLDER     # writes FOLDER/model
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from agentic.compaction.prompts import END, HEADING, INSTRUCTIONS, NEXT, REQUEST
from agentic.compaction.tiny.demonstrations import ANSWER, UNKNOWN
from agentic.compaction.tiny.tasks import FACT, QUESTION
from agentic.compaction.tiny.words import ANIMALS, THINGS
from core.train import start_model


def build(folder: Path, seed: int) -> Path:
    """Write the start model, which depends on `seed` alone, to `folder`."""
    return start_model.build(folder, train_tokenizer(), seed)


def train_tokenizer(vocab_size: int = 832) -> PreTrainedTokenizerBase:
    return start_model.train_tokenizer(_corpus(), words=(*ANIMALS, *THINGS, UNKNOWN), tags=(), vocab_size=vocab_size)


def _corpus() -> Iterator[str]:
    for _ in range(20):
        yield " " + " ".join((*ANIMALS, *THINGS, UNKNOWN))
        yield "\n".join((QUESTION + INSTRUCTIONS, FACT, NEXT, END, REQUEST, HEADING, ANSWER))
        yield "user\nassistant\nsystem\ntool\n"


def main() -> None:
    options = start_model.parse_options("Write the tiny preset's start model.")
    build(options.out / "model", options.seed)


if __name__ == "__main__":
    main()
