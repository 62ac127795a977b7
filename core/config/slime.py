"""A recipe's `slime` section: the cluster.

What the common sections say already (rollout sizes, clips, KL, rates, steps) is rendered from them and never repeated
here. Every default is that of slime's own image and scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from core.options import Section

Share = Annotated[float, Field(gt=0, le=1)]
Scalar = bool | int | float | str


class CheckpointSection(Section):
    """Folders that every node sees."""

    hf: str
    """The model in Hugging Face format: SGLang serves it, and the tokenizer is read from it."""
    ref_load: str
    """The same model in Megatron's torch_dist format: where training starts, and the reference of the KL term."""
    save: str | None = None
    """None: the folder `torch_dist` of the run."""
    load: str | None = None
    """None: `save`, so that the same command goes on where it stopped; while that is empty, `ref_load`."""


class PerfSection(Section):
    """Megatron's parallel sizes. Tokens per GPU are `optimizer.max_tokens_per_pack`, shared by the context ranks."""

    tensor: PositiveInt = 1
    sequence: bool = True
    """Sequence parallelism, which Megatron uses only where `tensor` is above 1."""
    pipeline: PositiveInt = 1
    context: PositiveInt = 1
    expert: PositiveInt = 1
    expert_tensor: PositiveInt = 1
    attention_backend: Literal["flash", "fused", "unfused", "auto"] = "flash"


class ServerGroup(Section):
    """SGLang engines that are alike."""

    worker: Literal["regular", "prefill", "decode", "encoder", "placeholder"] = "regular"
    gpus: PositiveInt
    gpus_per_engine: PositiveInt | None = None
    overrides: Mapping[str, Scalar] = {}
    """Fields of SGLang's ServerArgs."""


class ServedModel(Section):
    """A frozen model beside the policy, with a router of its own."""

    path: str
    groups: tuple[ServerGroup, ...] = Field(min_length=1)


class ServingSection(Section):
    gpus_per_engine: PositiveInt = 1
    mem_fraction: Share | None = None
    context_length: PositiveInt | None = None
    router: Literal["cache_aware", "consistent_hashing", "round_robin", "random", "power_of_two"] | None = None
    """`consistent_hashing` keeps a session on one engine; None leaves it to SGLang's router."""
    policy_groups: tuple[ServerGroup, ...] = ()
    """How the policy's GPUs are split, such as into prefill and decode; when empty, all engines are alike."""
    models: Mapping[str, ServedModel] = {}


class RaySection(Section):
    head: str = "127.0.0.1"
    """Address of the head node; with several nodes, the one by which the others reach it."""
    port: PositiveInt = 6379
    dashboard_port: PositiveInt = 8265
    """Jobs are submitted here. Whoever reaches it can run code, so it listens on `head` alone."""

    @property
    def url(self) -> str:
        return f"http://{self.head}:{self.dashboard_port}"


class SlimeSection(Section):
    root: str = "/root/slime"
    megatron: str = "/root/Megatron-LM"
    model: str
    """A name in slime's scripts/models, such as qwen2.5-7B: the architecture as Megatron's arguments."""
    checkpoint: CheckpointSection
    nodes: PositiveInt = 1
    """Nodes that train."""
    gpus_per_node: PositiveInt = 8
    colocate: bool = True
    """Rollout and training take turns on the same GPUs; if not, they run at once on GPUs of their own."""
    rollout_gpus: PositiveInt | None = None
    """GPUs that serve the policy and further models; None, only when colocated: those that train."""
    perf: PerfSection = PerfSection()
    sglang: ServingSection = ServingSection()
    ray: RaySection = RaySection()
    roles: Mapping[str, str] = {}
    """Role -> a name in `sglang.models`; takes the place of the role's address under `roles` of the recipe."""
    services: Mapping[str, str] = {}
    """Name -> URL that must answer before the job starts. Roles that are servers are asked without being named here."""
    num_epoch: PositiveInt | None = None
    """Passes over the training data, and `run.steps` is not read; None: `run.steps` batches of rollouts."""
    max_response_len: PositiveInt | None = None
    """slime's own limit for one response. A method sets the length of each of its calls, whatever this says."""
    reward_key: str | None = None
    """Rewards travel as {reward_key: reward}; None: as plain numbers."""
    eval_name: str = "dev"
    """What slime's logs call `data.eval`."""
    nvlink: bool = True
    env: Mapping[str, str] = {}
    """Further environment variables of the job."""
    extra: Mapping[str, Scalar | tuple[Scalar, ...]] = {}
    """Last resort: flags that nothing above renders, `--flag: value`; true for a flag without a value."""

    @property
    def train_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def serving_gpus(self) -> int:
        return self.rollout_gpus or self.train_gpus

    @property
    def all_nodes(self) -> int:
        """Nodes of the Ray cluster."""
        gpus = max(self.train_gpus, self.serving_gpus) if self.colocate else self.train_gpus + self.serving_gpus
        return -(-gpus // self.gpus_per_node)

    @property
    def policy_gpus(self) -> int:
        """GPUs that serve the policy: what further models leave."""
        return self.serving_gpus - sum(group.gpus for model in self.sglang.models.values() for group in model.groups)

    @model_validator(mode="after")
    def _sizes_fit(self) -> SlimeSection:
        if not self.colocate and self.rollout_gpus is None:
            raise ValueError("colocate is false, so rollout needs GPUs of its own; set slime.rollout_gpus")
        ranks = self.perf.tensor * self.perf.pipeline * self.perf.context
        if self.train_gpus % ranks:
            raise ValueError(
                f"perf.tensor x pipeline x context is {ranks}, which does not divide the {self.train_gpus} GPUs of "
                f"nodes x gpus_per_node"
            )
        if self.policy_gpus < 1:
            raise ValueError(
                f"sglang.models take {self.serving_gpus - self.policy_gpus} of {self.serving_gpus} rollout GPUs and "
                "leave none to the policy; raise slime.rollout_gpus or give the models fewer"
            )
        return self

    @model_validator(mode="after")
    def _groups_fit(self) -> SlimeSection:
        policy = self.sglang.policy_groups or (ServerGroup(gpus=self.policy_gpus),)
        if sum(group.gpus for group in policy) != self.policy_gpus:
            raise ValueError(
                f"sglang.policy_groups have {sum(group.gpus for group in policy)} GPUs, but rollout_gpus less those of "
                f"sglang.models are {self.policy_gpus}; make them equal"
            )
        served = {"policy": policy, **{name: model.groups for name, model in self.sglang.models.items()}}
        for name, groups in served.items():
            for group in groups:
                engine = group.gpus_per_engine or self.sglang.gpus_per_engine
                if group.gpus % engine:
                    raise ValueError(f"{name}: {group.gpus} GPUs do not make whole engines of {engine} GPUs")
            workers = {group.worker for group in groups}
            if workers & {"prefill", "decode"} and (not workers >= {"prefill", "decode"} or "regular" in workers):
                raise ValueError(f"{name}: has {sorted(workers)}; prefill and decode go together, without others")
        return self

    @model_validator(mode="after")
    def _names_are_known(self) -> SlimeSection:
        if "policy" in self.sglang.models:
            raise ValueError("sglang.models.policy: the policy is checkpoint.hf; give the further model another name")
        for role, model in self.roles.items():
            if model not in self.sglang.models:
                known = ", ".join(self.sglang.models) or "none"
                raise ValueError(f"roles.{role} is {model!r}, which is not in sglang.models (known: {known})")
        if wrong := [flag for flag in self.extra if not flag.startswith("--")]:
            raise ValueError(f"extra.{wrong[0]}: write the flag as slime does, with its leading --")
        return self
