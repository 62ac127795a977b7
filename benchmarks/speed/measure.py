"""Measure process and wall time of repeated calls, compare medians, and describe the machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.runs.inputs import collect_versions, package_version


@dataclass(frozen=True)
class Timing:
    """Holds the seconds of each repeat, without the warm-up. `cpu_s` counts all threads of the process."""

    cpu_s: tuple[float, ...]
    wall_s: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "cpu_s": statistics.median(self.cpu_s),
            "wall_s": statistics.median(self.wall_s),
            "cpu_s_all": list(self.cpu_s),
            "wall_s_all": list(self.wall_s),
        }


class Stopwatch:
    """Collects laps and drops the first of them, a warm-up."""

    def __init__(self) -> None:
        self.laps: list[tuple[float, float]] = []

    def start(self) -> None:
        self._began = time.process_time(), time.perf_counter()

    def stop(self) -> None:
        cpu, wall = self._began
        self.laps.append((time.process_time() - cpu, time.perf_counter() - wall))

    def timing(self) -> Timing:
        cpu, wall = zip(*self.laps[1:], strict=True)
        return Timing(cpu, wall)


def repeat(call: Callable[[], Any], repeats: int, before: Callable[[], Any] = lambda: None) -> tuple[Any, Timing]:
    """Return the last result of `call` and the time of `repeats` calls after a warm-up; `before` is not timed."""
    watch = Stopwatch()
    for _ in range(repeats + 1):
        before()
        watch.start()
        result = call()
        watch.stop()
    return result, watch.timing()


def ratio(ours: Timing, other: Timing) -> dict[str, float]:
    """Return how many times longer the other side takes; above 1, ours is faster."""
    return {
        clock: statistics.median(getattr(other, clock)) / statistics.median(getattr(ours, clock))
        for clock in ("cpu_s", "wall_s")
    }


def describe_environment(threads: int) -> dict[str, Any]:
    """Return versions, machine and load, for the file of results."""
    return {
        **collect_versions(),
        "trl": package_version("trl"),
        "accelerate": package_version("accelerate"),
        "threads": threads,
        "load_average": list(os.getloadavg()),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
