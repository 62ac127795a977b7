"""Tests that requirements*.txt (pins) and pyproject.toml (bounds) name the same packages and agree on versions."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
UNPINNED = {"triton"}
"""PyTorch for CUDA pins it."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(file: str) -> dict[str, str]:
    """Return package -> version of a requirements file, without the files that it includes."""
    lines = [line.strip() for line in (ROOT / file).read_text().splitlines()]
    wanted = [Requirement(line) for line in lines if line and not line.startswith(("#", "-r "))]
    versions = {}
    for requirement in (r for r in wanted if r.name not in UNPINNED):
        (pin,) = requirement.specifier
        assert pin.operator == "==", f"{file}: {requirement} is not pinned"
        versions[canonicalize_name(requirement.name)] = pin.version
    return versions


def bounds(*extras: str, base: bool = True) -> dict[str, Requirement]:
    """Return package -> bound of pyproject.toml, for the dependencies (`base`) and some extras."""
    lines = PROJECT["dependencies"] * base + [line for e in extras for line in PROJECT["optional-dependencies"][e]]
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}


def assert_pins_meet(bounds: dict[str, Requirement], versions: dict[str, str]) -> None:
    for package, version in versions.items():
        assert version in bounds[package].specifier, f"{package} {version} does not meet {bounds[package]}"


def test_cpu_pins_are_the_dependencies_and_the_cpu_extra() -> None:
    assert pins("requirements.txt").keys() == bounds("cpu").keys()
    assert_pins_meet(bounds("cpu"), pins("requirements.txt"))


def test_dev_pins_are_the_dev_extra() -> None:
    assert pins("requirements-dev.txt").keys() | UNPINNED == bounds("dev", base=False).keys()
    assert_pins_meet(bounds("dev", base=False), pins("requirements-dev.txt"))


def test_gpu_pins_meet_the_bounds_and_leave_torch_to_the_image() -> None:
    versions = pins("requirements-gpu.txt")
    assert bounds("gpu", base=False).keys() <= versions.keys()
    assert "torch" not in versions
    assert_pins_meet(bounds("gpu"), versions)
