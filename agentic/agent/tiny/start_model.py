"""Makes the `tiny` preset's start model, whose chat template has tools in Hermes' format.

python -m agentic.agent.tiny.start_model --out FOLDER     # writes FOLDER/model
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from transformers import PreTrainedTokenizerBase

from agentic.agent.tiny.demonstrations import demonstrate
from agentic.agent.tiny.world import LOOK_UP, NAMES, RELATIONS, THINGS
from core.train import start_model


def build(folder: Path, seed: int) -> Path:
    """Write the start model, which depends on `seed` alone, to `folder`."""
    return start_model.build(folder, train_tokenizer(), seed)


def train_tokenizer(vocab_size: int = 768) -> PreTrainedTokenizerBase:
    words = (*RELATIONS, *THINGS, *NAMES)
    return start_model.train_tokenizer(
        _corpus(), words=words, vocab_size=vocab_size, chat_template=start_model.TOOL_TEMPLATE
    )


def _corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(200):
        yield " " + " ".join((*RELATIONS, *THINGS, *NAMES))
        shown = demonstrate(rng)
        yield f"{LOOK_UP.name}(thing)\n{shown.question}{shown.call}{shown.result}{shown.answer}"
    yield "user\nassistant\nsystem\ntool\n"


def main() -> None:
    options = start_model.parse_options("Write the tiny preset's start model.")
    build(options.out / "model", options.seed)


if __name__ == "__main__":
    main()
