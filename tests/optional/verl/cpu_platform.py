"""A platform without an accelerator, which verl does not bring.

VERL_USE_EXTERNAL_MODULES names this module first, and VERL_PLATFORM is cpu: verl's engines read the platform when they
are imported.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.utils import distributed

USAGE = "memory_allocated memory_reserved max_memory_allocated max_memory_reserved".split()
MEMORY = SimpleNamespace(
    **{name: lambda *_: 0 for name in USAGE},
    mem_get_info=lambda *_: (1, 1),
    empty_cache=lambda: None,
    synchronize=lambda: None,
    ipc_collect=lambda: None,
    is_available=lambda: False,
    get_device_name=lambda: "CPU",
    manual_seed=lambda _: None,
    manual_seed_all=lambda _: None,
    get_rng_state=lambda: torch.get_rng_state(),
    set_rng_state=lambda state: torch.set_rng_state(state),
)
"""Stands for torch.cuda."""


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformCUDA):
    """A machine with a processor alone."""

    device_name = "cpu"
    device_module = MEMORY

    def is_available(self) -> bool:
        return False

    def current_device(self) -> Any:
        return "cpu"

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def empty_cache(self) -> None: ...

    def set_allocator_settings(self, settings: str) -> None: ...

    def communication_backend_name(self) -> str:
        return "gloo"


# verl would ask for `cpu:gloo,cpu:gloo`.
distributed.initialize_global_process_group_ray = partial(
    distributed.initialize_global_process_group_ray, backend="gloo"
)
