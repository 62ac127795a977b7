"""Makes the `tiny` preset's start model.

    python -m agentic.toolorchestra.tiny.start_model --out FOLDER     # writes FOLDER/model

The tags of the compact prompts are special tokens of its tokenizer, so no question and no result can forge one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from transformers import PreTrainedTokenizerBase

from agentic.toolorchestra.tiny.demonstrations import draw_demonstration
from agentic.toolorchestra.tiny.facts import ATTRIBUTES, THINGS
from agentic.toolorchestra.tiny.tasks import KINDS, PREFERENCES
from core.text.tool_calls import THOUGHT_END
from core.train import start_model

TAGS = ("<task>", "<wish>", "<seen>")


def build(folder: Path, seed: int) -> Path:
    """Write the start model, which depends on `seed` alone, to `folder`."""
    return start_model.build(folder, train_tokenizer(), seed)


def train_tokenizer(vocab_size: int = 640) -> PreTrainedTokenizerBase:
    words = (*ATTRIBUTES, *THINGS, *KINDS, *PREFERENCES)
    tokenizer = start_model.train_tokenizer(_corpus(), words=words, tags=TAGS, vocab_size=vocab_size)
    tokenizer.add_tokens([THOUGHT_END])  # one token, but text: as in Qwen3
    return tokenizer


def _corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(400):
        yield " " + " ".join((*ATTRIBUTES, *THINGS))
        turn = draw_demonstration(rng)
        yield f" {turn.task.question} {turn.task.metadata['instruction']}"
        yield "".join(f" {line}\n" for line in turn.lines) + turn.thought + turn.call
    yield "user\nassistant\nsystem\n"


def main() -> None:
    options = start_model.parse_options("Write the tiny preset's start model.")
    build(options.out / "model", options.seed)


if __name__ == "__main__":
    main()
