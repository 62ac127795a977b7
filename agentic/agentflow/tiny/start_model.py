"""Makes the `tiny` preset's start model.

    python -m agentic.agentflow.tiny.start_model --out FOLDER     # writes FOLDER/model

The tags of the compact prompts are special tokens of its tokenizer, so no question and no result can forge one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from transformers import PreTrainedTokenizerBase

from agentic.agentflow.tiny.demonstrations import draw_demonstration
from agentic.agentflow.tiny.facts import WORDS
from core.train import start_model

TAGS = ("<step>", "<analysis>", "<memory>", "<final>", "<command>", "<verify>")


def build(folder: Path, seed: int) -> Path:
    """Write the start model, which depends on `seed` alone, to `folder`."""
    return start_model.build(folder, train_tokenizer(), seed)


def train_tokenizer(vocab_size: int = 704) -> PreTrainedTokenizerBase:
    return start_model.train_tokenizer(_corpus(), words=WORDS, tags=TAGS, vocab_size=vocab_size)


def _corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(600):
        turn = draw_demonstration(rng)
        yield f"{turn.question}{turn.memory}{turn.completion} {' '.join(WORDS)}"
    yield "CONTINUE STOP\nuser\nassistant\nsystem\n"


def main() -> None:
    options = start_model.parse_options("Write the tiny preset's start model.")
    build(options.out / "model", options.seed)


if __name__ == "__main__":
    main()
