"""Makes the `tiny` preset's start model.

python -m agentic.search_r1.tiny.start_model --out FOLDER     # writes FOLDER/model
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from transformers import PreTrainedTokenizerBase

from agentic.search_r1.prompts import INFORMATION, INVALID
from agentic.search_r1.rollout import format_passages
from agentic.search_r1.tiny.demonstrations import ANSWER, SEARCH, draw_question, draw_thing, make_up_facts
from agentic.search_r1.tiny.world import OF_A_PERSON, OF_A_THING, WORDS, write_passage
from core.train import start_model


def build(folder: Path, seed: int) -> Path:
    """Write the start model, which depends on `seed` alone, to `folder`."""
    return start_model.build(folder, train_tokenizer(), seed)


def train_tokenizer(vocab_size: int = 960) -> PreTrainedTokenizerBase:
    words = (*OF_A_THING, *OF_A_PERSON, *WORDS)
    return start_model.train_tokenizer(_corpus(), words=words, vocab_size=vocab_size)


def _corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(100):
        yield " " + " ".join((*OF_A_THING, *OF_A_PERSON, *WORDS))
        thing = draw_thing(rng)
        shown = format_passages(write_passage(thing, make_up_facts(rng, thing)) for _ in range(3))
        yield f"{draw_question(rng)}{SEARCH}{INFORMATION.format(shown)}{ANSWER}"
    yield f"{INVALID}user\nassistant\nsystem\n"


def main() -> None:
    options = start_model.parse_options("Write the tiny preset's start model.")
    build(options.out / "model", options.seed)


if __name__ == "__main__":
    main()
