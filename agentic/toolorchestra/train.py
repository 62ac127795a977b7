"""Train ToolOrchestra's orchestrator on the embedded engine.

python -m agentic.toolorchestra.train --preset tiny --out runs/toolorchestra-tiny [--set key.path=value ...] [--dry-run]
"""

from __future__ import annotations

import sys

from agentic.toolorchestra.rollout import SPEC
from agentic.toolorchestra.warm_start import warm_start
from core import train


def main(arguments: list[str] | None = None) -> int:
    return train.main(SPEC, warm_start, arguments)


if __name__ == "__main__":
    sys.exit(main())
