"""Makes the `tiny` preset's start model.

python -m agentic.retool.tiny.start_model --out FOLDER     # writes FOLDER/model
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from transformers import PreTrainedTokenizerBase

from agentic.retool.prompts import INTERPRETER
from agentic.retool.tiny.demonstrations import demonstrate
from agentic.retool.tiny.tasks import MEANINGS
from core.train import start_model


def build(folder: Path, seed: int) -> Path:
    """Write the start model, which depends on `seed` alone, to `folder`."""
    return start_model.build(folder, train_tokenizer(), seed)


def train_tokenizer(vocab_size: int = 384) -> PreTrainedTokenizerBase:
    return start_model.train_tokenizer(_corpus(), words=tuple(MEANINGS), vocab_size=vocab_size)


def _corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(200):
        shown = demonstrate(rng, answer_at_once=0.0)
        yield shown.question
        yield "".join(f"{program}{INTERPRETER.format(output=printed)}" for program, printed in shown.programs)
        yield f"{shown.answer}\nuser\nassistant\nsystem\n {' '.join(MEANINGS)}"


def main() -> None:
    options = start_model.parse_options("Write the tiny preset's start model.")
    build(options.out / "model", options.seed)


if __name__ == "__main__":
    main()
