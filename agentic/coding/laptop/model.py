"""Writes SmolLM2-135M-Instruct with a chat template of ours, for its own has no tools.

python -m agentic.coding.laptop.model --model runs/data/smollm2-135m-instruct --out runs/data/coding-laptop/model
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from core.train.start_model import TOOL_TEMPLATE


def add_tools(model: Path, out: Path) -> None:
    """Copy a model's folder, with TOOL_TEMPLATE in place of its own chat template. `out` appears whole."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        copy = shutil.copytree(model, Path(scratch) / "model")
        (copy / "chat_template.jinja").write_text(TOOL_TEMPLATE, encoding="utf-8")
        copy.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Give a model's chat template tools.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        add_tools(options.model, options.out)
    except OSError as error:
        parser.error(f"--model {options.model}, --out {options.out}: {error}")


if __name__ == "__main__":
    main()
