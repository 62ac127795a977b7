"""Defines a recipe's `slime` section, which describes the cluster, for slime and for its sibling vime.

It types what the launcher needs itself or what must agree with the recipe. Any other flag of slime goes into `flags`.
What the common sections say (rollout sizes, clips, KL, rates, steps) is rendered from them and never repeated here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import PositiveInt, model_validator

from core.options import Section

Scalar = bool | int | float | str

_SECRET = re.compile(r"(^|_)(secret|password|passwd|credentials?|(api|access|private|wandb)_key)(_|$)|(^|_)token$")
"""Finds names of what must not be written into files: HF_TOKEN and WANDB_API_KEY, not TOKENIZERS_PARALLELISM."""


class CheckpointSection(Section):
    """Names the checkpoint folders, which every node must see."""

    hf: str
    """Names the model in Hugging Face format: the engine serves it, and the tokenizer is read from it."""
    ref_load: str
    """Names the same model in Megatron's torch_dist format: training starts there, and the KL term refers to it."""
    save: str | None = None
    """Names where checkpoints go, and where the same command goes on; while it is empty, training starts from
    `ref_load`. None: the folder `torch_dist` of the run."""


class ServedModel(Section):
    """Describes a frozen model beside the policy, with a router of its own."""

    path: str
    gpus: PositiveInt
    gpus_per_engine: PositiveInt | None = None
    """None: as the policy's."""
    overrides: Mapping[str, Scalar] = {}
    """Sets fields of SGLang's ServerArgs; on vime, of vLLM's AsyncEngineArgs."""


class ServingSection(Section):
    gpus_per_engine: PositiveInt = 1
    models: Mapping[str, ServedModel] = {}


class RaySection(Section):
    head: str = "127.0.0.1"
    """Names the address of the head node; with several nodes, the one by which the others reach it."""
    dashboard_port: PositiveInt = 8265
    """Takes the jobs. Whoever reaches it can run code, so it listens on `head` alone."""


class SlimeSection(Section):
    framework: Literal["slime", "vime"] = "slime"
    """Names what trains: slime with SGLang, or vime with vLLM. `--backend` sets it."""
    root: str | None = None
    """Names the folder of its source. None: /root/slime or /root/vime, as in its image."""
    megatron: str = "/root/Megatron-LM"
    model: str
    """Names a file in slime's scripts/models, such as qwen2.5-7B: the architecture as Megatron's arguments."""
    checkpoint: CheckpointSection
    nodes: PositiveInt = 1
    """Counts the nodes that train."""
    gpus_per_node: PositiveInt = 8
    colocate: bool = True
    """Lets rollout and training take turns on the same GPUs. If false, each has its own GPUs and both run at once."""
    rollout_gpus: PositiveInt | None = None
    """Counts the GPUs that serve the policy and further models. None means the
    GPUs that train; only a colocated job may leave it out."""
    context_parallel: PositiveInt = 1
    """Counts the GPUs that share `optimizer.max_tokens_per_pack` tokens of a sequence."""
    rows: Literal["container", "fan_out"] = "container"
    """Hands slime one container Sample for each rollout, or one Sample for each trained turn or segment
    (slime's own fan-out)."""
    sglang: ServingSection = ServingSection()
    """Describes the rollout servers; vime's are vLLM's."""
    ray: RaySection = RaySection()
    roles: Mapping[str, str] = {}
    """Maps a role to a name in `sglang.models`, which replaces the role's address under `roles` of the recipe."""
    services: Mapping[str, str] = {}
    """Maps a name to a URL that must answer before the job starts. Servers under `roles` are checked in any case."""
    num_epoch: PositiveInt | None = None
    """Counts passes over the training data, instead of `run.steps` batches of rollouts."""
    eval_name: str = "dev"
    """Names `data.eval` in slime's logs."""
    env: Mapping[str, str] = {}
    """Adds environment variables to the job. A recipe is written into files, so it holds no secrets."""
    env_from: tuple[str, ...] = ()
    """Names variables, such as HF_TOKEN, that the job gets from where it is started; they are written nowhere."""
    flags: Mapping[str, Scalar | tuple[Scalar, ...]] = {}
    """Passes any other flag to slime, `--flag: value`: true for a flag without a value, false to leave one out."""

    @property
    def source(self) -> str:
        return self.root or f"/root/{self.framework}"

    @property
    def train_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def serving_gpus(self) -> int:
        return self.rollout_gpus or self.train_gpus

    @property
    def all_nodes(self) -> int:
        """Return the number of nodes of the Ray cluster."""
        gpus = max(self.train_gpus, self.serving_gpus) if self.colocate else self.train_gpus + self.serving_gpus
        return -(-gpus // self.gpus_per_node)

    @property
    def policy_gpus(self) -> int:
        """Return the number of GPUs that serve the policy: those that further models leave."""
        return self.serving_gpus - sum(model.gpus for model in self.sglang.models.values())

    @model_validator(mode="after")
    def _sizes_fit(self) -> SlimeSection:
        if not self.colocate and self.rollout_gpus is None:
            raise ValueError("colocate is false, so rollout needs GPUs of its own; set slime.rollout_gpus")
        if self.policy_gpus < 1:
            raise ValueError(
                f"sglang.models take {self.serving_gpus - self.policy_gpus} of {self.serving_gpus} rollout GPUs and "
                "leave none to the policy; raise slime.rollout_gpus or give the models fewer"
            )
        own = self.sglang.gpus_per_engine
        served = {"policy": (self.policy_gpus, own)}
        served |= {name: (model.gpus, model.gpus_per_engine or own) for name, model in self.sglang.models.items()}
        for name, (gpus, per_engine) in served.items():
            if gpus % per_engine:
                raise ValueError(f"{name}: {gpus} GPUs do not make whole engines of {per_engine} GPUs")
        return self

    @model_validator(mode="after")
    def _secrets_are_named_alone(self) -> SlimeSection:
        for name in self.env:
            if _SECRET.search(name.lower()):
                raise ValueError(f"env.{name}: a recipe holds no secrets; export {name}, and name it in slime.env_from")
        for flag in self.flags:
            if _SECRET.search(flag.lower().replace("-", "_")):
                raise ValueError(
                    f"flags.{flag}: a recipe holds no secrets; give it as a variable, named in slime.env_from"
                )
        return self

    @model_validator(mode="after")
    def _names_are_known(self) -> SlimeSection:
        if "policy" in self.sglang.models:
            raise ValueError("sglang.models.policy: the policy is checkpoint.hf; give the further model another name")
        for role, model in self.roles.items():
            if model not in self.sglang.models:
                known = ", ".join(self.sglang.models) or "none"
                raise ValueError(f"roles.{role} is {model!r}, which is not in sglang.models (known: {known})")
        if wrong := [flag for flag in self.flags if not flag.startswith("--")]:
            raise ValueError(f"flags.{wrong[0]}: write the flag as slime does, with its leading --")
        return self
