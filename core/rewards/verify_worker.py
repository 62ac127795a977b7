"""The process in which math-verify runs: reads {"answer", "labels"} lines, writes `true` or `false` lines.

Started by verify.py as a script; its argument is the time for one comparison in seconds. It ends itself by SIGALRM
soon after that, so that it is gone too when nobody is left to kill it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

MEMORY = 4 << 30
"""Bytes of address space; sympy can ask for all there is."""


def main(timeout_s: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints is taken for a verdict
    from math_verify import parse, verify

    def equal(answer: str, labels: list[str]) -> bool:
        # Both in a box of their own: math-verify would merge several boxes of one text into a set.
        found = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
        wanted = (parse(f"\\boxed{{{label}}}", parsing_timeout=None) for label in labels)
        return any(verify(gold, found, timeout_seconds=None) for gold in wanted)

    equal("\\frac{1}{2}", ["0.5"])  # the first comparison loads half of sympy, which is not the answer's fault
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1.0)
        request = json.loads(line)
        verdict = equal(request["answer"], request["labels"])
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        print("true" if verdict else "false", file=out, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
