"""slime's own source, from the checkout at SLIME_ROOT, in a process without a GPU, SGLang, Megatron or a Ray cluster.

What slime imports beyond this environment is stood in for; Ray's object store and lock are the identity and a mock. All
rollout, conversion, scheduling and loss code is slime's.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.contract.backends.slime_settings import DATA_PARALLEL

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # slime compiles its losses; the first call would take a minute


class MockModule(ModuleType):
    """A module whose public names are mocks, each the same at every look."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        vars(self)[name] = MagicMock()
        return vars(self)[name]


class MockImporter(MetaPathFinder, Loader):
    """Imports mocks for packages that slime wants and its tests do not need.

    Whatever is installed is taken as it is: this importer is asked last.
    """

    packages = ("megatron", "sglang", "sglang_router", "mbridge", "pybase64", "pylatexenc", "zstandard", "openai")

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        known = isinstance(sys.modules.get(package), MockModule) if package else name in self.packages
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return MockModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def slime_at(root: Path, data_parallel: int = DATA_PARALLEL) -> Iterator[Any]:
    """slime importable, with `rollout_manager` and `loss` at hand; gone from this process afterwards."""
    patch, importer = pytest.MonkeyPatch(), MockImporter()
    patch.syspath_prepend(str(root))
    patch.setitem(os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    sys.meta_path.append(importer)
    before = set(sys.modules)
    try:
        rollout = importlib.import_module("slime.ray.rollout")
        patch.setattr(rollout, "ray", SimpleNamespace(put=lambda value: value, get=lambda value: value))
        patch.setattr(rollout, "Lock", MagicMock())
        patch.setattr("slime.backends.sglang_utils.server_control.ABORT_RETRY_INTERVAL_SECONDS", 0.05)
        loss = importlib.import_module("slime.backends.megatron_utils.loss")
        parallel = {
            "get_context_parallel_world_size": lambda: 1,
            "get_data_parallel_world_size": lambda with_context_parallel: data_parallel,
            "get_tensor_model_parallel_group": lambda: None,
            "is_pipeline_last_stage": lambda: True,
        }
        for name, function in parallel.items():
            patch.setattr(loss.mpu, name, function)
        yield SimpleNamespace(
            rollout_manager=rollout.RolloutManager.__ray_metadata__.modified_class,
            sglang_rollout=importlib.import_module("slime.rollout.sglang_rollout"),
            fully_async=importlib.import_module("slime.rollout.fully_async_rollout"),
            loss=loss,
            ppo_utils=importlib.import_module("slime.utils.ppo_utils"),
            Sample=importlib.import_module("slime.utils.types").Sample,
        )
    finally:
        importlib.import_module("slime.rollout.fully_async_rollout")._stop_global_worker()
        sys.meta_path.remove(importer)
        for name in set(sys.modules) - before:
            if name.split(".")[0] in ("slime", *MockImporter.packages):
                del sys.modules[name]
        patch.undo()
