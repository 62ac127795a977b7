"""Says where slime and its sibling vime differ, as far as the launcher and the hooks touch them.

vime (github.com/vllm-project/vime) is slime with vLLM in SGLang's place. Its hooks, training data, loss and all flags
that do not concern the rollout engine are slime's. docs/STATUS.md says what was read of its sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, TypeVar

from core.config import RecipeError
from core.config.clusters import SlimeSection
from core.policy.servers import VLLM

T = TypeVar("T")


@dataclass(frozen=True)
class Framework:
    """Describes slime or vime."""

    name: Literal["slime", "vime"]
    """Names its package."""
    engine: Literal["sglang", "vllm"]
    """Names its rollout engine, which begins the engine's flags (`--sglang-...`) and arguments (`sglang_...`)."""
    url_prefix: str
    """Stands before a router's `http://`, so that `make_server_policy` knows the protocol."""
    seed_key: str
    """Names the seed among the sampling parameters that `generate` gets."""
    apart_script: str
    """Names the script that starts a job whose rollout has GPUs of its own; `train.py` starts any other."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Maps a flag or environment variable of slime's engine to that of this one."""

    def flag(self, name: str) -> str:
        return f"--{self.engine}-{name}"

    def module(self, path: str) -> Any:
        """Import a module of its package, such as `rollout.sglang_rollout`."""
        return import_module(f"{self.name}.{path}")

    def router(self, host: str, port: int) -> str:
        """Return the URL of a router as `make_server_policy` takes it."""
        return f"{self.url_prefix}http://{host}:{port}"


SLIME = Framework("slime", "sglang", url_prefix="", seed_key="sampling_seed", apart_script="train_async.py")
VIME = Framework(
    "vime",
    "vllm",
    url_prefix=VLLM,
    seed_key="seed",
    apart_script="train.py",
    renamed={
        "--sglang-mem-fraction-static": "--vllm-gpu-memory-utilization",  # as in vime's scripts/run-*.sh
        "--sglang-context-length": "--vllm-max-model-len",
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    },
)
FRAMEWORKS = {framework.name: framework for framework in (SLIME, VIME)}


def framework_of(args: Any) -> Framework:
    """Tell by its arguments which framework calls a hook."""
    return VIME if hasattr(args, "vllm_router_ip") else SLIME


def framework_flags(slime: SlimeSection) -> dict[str, Any]:
    """Return `slime.flags` by the names of the section's framework. A renamed flag yields to one with its own name.

    Raises:
        RecipeError: a flag is the other engine's, or its value names a function of the other framework.
    """
    framework, sibling = FRAMEWORKS[slime.framework], _sibling(slime)
    flags = _rename(slime.flags, framework)
    for flag, value in flags.items():
        if flag.startswith(sibling.flag("")) and value is not False:
            raise RecipeError(
                f"slime.flags.{flag} is a flag of {sibling.name}, and we know none of {framework.name} for it: leave "
                f"it out (--set slime.flags.{flag}=false) and set a {framework.flag('...')}, or use --backend "
                f"{sibling.name}"
            )
        if isinstance(value, str) and value.startswith(f"{sibling.name}."):
            raise RecipeError(
                f"slime.flags.{flag} is {value}, a function of {sibling.name}; if {framework.name} has it, write "
                + value.replace(sibling.name, framework.name, 1)
            )
    return flags


def framework_environment(slime: SlimeSection) -> dict[str, str]:
    """Return `slime.env` by the names of the section's framework.

    Raises:
        RecipeError: a variable is the other engine's.
    """
    framework, sibling = FRAMEWORKS[slime.framework], _sibling(slime)
    variables = _rename(slime.env, framework)
    if foreign := [name for name in variables if name.startswith(f"{sibling.engine.upper()}_")]:
        raise RecipeError(
            f"slime.env.{foreign[0]} is for the engine of {sibling.name}, and we know none for that of "
            f"{framework.name}: use a preset without it, or --backend {sibling.name}"
        )
    return variables


def _rename(named: Mapping[str, T], framework: Framework) -> dict[str, T]:
    renamed = framework.renamed
    return {renamed.get(name, name): value for name, value in named.items() if renamed.get(name) not in named}


def _sibling(slime: SlimeSection) -> Framework:
    return SLIME if slime.framework == "vime" else VIME
