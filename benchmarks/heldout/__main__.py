"""Run the command of evaluate.py: `tokentrue evaluate heldout`."""

from __future__ import annotations

import sys

from benchmarks.heldout.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
