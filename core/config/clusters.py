"""Defines a recipe's sections `slime`, also for its sibling vime, and `verl`, which describe the cluster.

They type what the launcher needs itself or what must agree with the recipe. Any other setting of slime goes into
`flags`, of verl into `overrides`. What the common sections say (rollout sizes, clips, KL, rates, steps) is rendered
from them and never repeated here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import PositiveInt, model_validator

from core.options import Section

Scalar = bool | int | float | str

_SECRET = re.compile(r"(^|_)(secret|password|passwd|credentials?|(api|access|private|wandb)_key)(_|$)|(^|_)token$")
"""Finds names of what must not be written into files: HF_TOKEN and WANDB_API_KEY, not TOKENIZERS_PARALLELISM."""


class RaySection(Section):
    head: str = "127.0.0.1"
    """Names the address of the head node; with several nodes, the one by which the others reach it."""
    dashboard_port: PositiveInt = 8265
    """Takes the jobs. Whoever reaches it can run code, so it listens on `head` alone."""


class ClusterSection(Section):
    """Has what every backend needs: nodes, how Ray is reached, and the environment of the job."""

    key: ClassVar[str]  # the name of the section in a recipe
    passes: ClassVar[str]  # the name of the field that passes on whatever is not typed
    nodes: PositiveInt = 1
    """Counts the nodes that train."""
    gpus_per_node: PositiveInt = 8
    ray: RaySection = RaySection()
    services: Mapping[str, str] = {}
    """Maps a name to a URL that must answer before the job starts. Servers under `roles` are checked in any case."""
    env: Mapping[str, str] = {}
    """Adds environment variables to the job. A recipe is written into files, so it holds no secrets."""
    env_from: tuple[str, ...] = ()
    """Names variables, such as HF_TOKEN, that the job gets from where it is started; they are written nowhere."""

    @property
    def train_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @model_validator(mode="after")
    def _secrets_are_named_alone(self) -> Self:
        for field, name in ((part, name) for part in ("env", self.passes) for name in getattr(self, part)):
            if _SECRET.search(re.sub("[-.]", "_", name.lower())):
                raise ValueError(f"{field}.{name}: a recipe holds no secrets; name a variable in {self.key}.env_from")
        return self


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


class SlimeSection(ClusterSection):
    key: ClassVar[str] = "slime"
    passes: ClassVar[str] = "flags"
    framework: Literal["slime", "vime"] = "slime"
    """Names what trains: slime with SGLang, or vime with vLLM. `--backend` sets it."""
    root: str | None = None
    """Names the folder of its source. None: /root/slime or /root/vime, as in its image."""
    megatron: str = "/root/Megatron-LM"
    model: str
    """Names a file in slime's scripts/models, such as qwen2.5-7B: the architecture as Megatron's arguments."""
    checkpoint: CheckpointSection
    colocate: bool = True
    """Lets rollout and training take turns on the same GPUs. If false, each has its own; on slime both run at once."""
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
    roles: Mapping[str, str] = {}
    """Maps a role to a name in `sglang.models`, which replaces the role's address under `roles` of the recipe."""
    num_epoch: PositiveInt | None = None
    """Counts passes over the training data, instead of `run.steps` batches of rollouts."""
    eval_name: str = "dev"
    """Names `data.eval` in slime's logs."""
    flags: Mapping[str, Scalar | tuple[Scalar, ...]] = {}
    """Passes any other flag to slime, `--flag: value`: true for a flag without a value, false to leave one out."""

    @property
    def source(self) -> str:
        return self.root or f"/root/{self.framework}"

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
    def _models_have_gpus_and_names(self) -> SlimeSection:
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
        if "policy" in self.sglang.models:
            raise ValueError("sglang.models.policy: the policy is checkpoint.hf; give the further model another name")
        for role, model in self.roles.items():
            if model not in self.sglang.models:
                known = ", ".join(self.sglang.models) or "none"
                raise ValueError(f"roles.{role} is {model!r}, which is not in sglang.models (known: {known})")
        if wrong := [flag for flag in self.flags if not flag.startswith("--")]:
            raise ValueError(f"flags.{wrong[0]}: write the flag as slime does, with its leading --")
        return self


class VerlSection(ClusterSection):
    key: ClassVar[str] = "verl"
    passes: ClassVar[str] = "overrides"
    engine: Literal["vllm", "sglang"] = "vllm"
    """Names what samples."""
    tensor_model_parallel_size: PositiveInt = 1
    """Counts the GPUs of one engine."""
    ulysses_sequence_parallel_size: PositiveInt = 1
    """Counts the GPUs that share a pack of tokens when they train."""
    trainer_mode: Literal["sync", "colocate_async"] = "sync"
    """Names verl's trainer: it samples and trains in turn, or samples ahead and trains on rollouts of older weights."""
    overrides: Mapping[str, Scalar | tuple[Scalar, ...] | None] = {}
    """Passes any other setting to verl, `key.path: value`; + before a path adds a key that verl lacks."""

    @model_validator(mode="after")
    def _settings_fit(self) -> VerlSection:
        for name in ("tensor_model_parallel_size", "ulysses_sequence_parallel_size"):
            if self.train_gpus % getattr(self, name):
                raise ValueError(f"{name} is {getattr(self, name)}, which does not divide {self.train_gpus} GPUs")
        for key in self.overrides:
            if not re.fullmatch(r"\+{0,2}\w+(\.[\w-]+)+", key):
                raise ValueError(f"overrides.{key}: write the whole path of one setting, such as trainer.device")
        return self
