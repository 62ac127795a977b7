"""Makes the `tiny` preset's start model, whose chat template has tools in Hermes' format.

python -m agentic.coding.tiny.start_model --out FOLDER     # writes FOLDER/model
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from agentic.coding.prompts import EDIT, INSTRUCTIONS
from agentic.coding.repairs.functions import COMPARISONS, RECORDS, REPORTS, VALUES, write_report
from agentic.coding.repairs.generate import state_problem
from agentic.coding.tiny.demonstrations import DONE, write_edit
from agentic.coding.tools import number_lines
from core.train import start_model


def build(folder: Path, seed: int) -> Path:
    """Write the start model, which depends on `seed` alone, to `folder`."""
    return start_model.build(folder, train_tokenizer(), seed)


def train_tokenizer(vocab_size: int = 768) -> PreTrainedTokenizerBase:
    words = sorted({word for record, field in RECORDS for word in (f"{record}s", field)})
    template = start_model.TOOL_TEMPLATE
    return start_model.train_tokenizer(_corpus(), words=words, vocab_size=vocab_size, chat_template=template)


def _corpus() -> Iterator[str]:
    every = product(REPORTS, COMPARISONS, VALUES)
    for number, (kind, words, value) in enumerate(every):
        record, field = RECORDS[number % len(RECORDS)]
        path, made = f"{record}s.py", write_report(kind, words, value, record, field)
        edited = made.source.replace(f" {COMPARISONS[words]} limit", " < found")
        yield f"{EDIT.name}(path, line, text, last)\n{state_problem(path)}\n{INSTRUCTIONS}"
        yield f"{path}\n{number_lines(made.source)}{write_edit(path, made.source, edited)}edited{DONE}"
    for _ in range(20):
        yield " " + " ".join(f"{record}s {field}" for record, field in RECORDS)
        yield "user\nassistant\nsystem\ntool\n"


def main() -> None:
    options = start_model.parse_options("Write the tiny preset's start model.")
    build(options.out / "model", options.seed)


if __name__ == "__main__":
    main()
