"""The sections that every recipe has. A method subclasses `Recipe` with a section of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from core.algorithms.aggregate import LossUnit
from core.algorithms.grpo import GRPOConfig
from core.config.slime import SlimeSection
from core.options import Device, Section, Share

Decay = Annotated[float, Field(ge=0, lt=1)]


class ModelSection(Section):
    path: str
    """Folder or hub id of the model that training starts from."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Device = "auto"
    max_model_len: PositiveInt | None = None


class DataSection(Section):
    train: str
    eval: str | None = None
    shuffle: bool = True


class RolloutSection(Section):
    tasks_per_step: PositiveInt
    group_size: PositiveInt
    temperature: PositiveFloat = 1.0
    top_p: Share = 1.0
    top_k: int = Field(-1, ge=-1)
    concurrency: PositiveInt = 512
    """Trajectories in flight."""
    deadline_s: PositiveFloat = 3600.0
    """A trajectory that takes longer fails with `deadline`."""
    filter: Literal["none", "zero_std"] = "none"
    """`zero_std` drops groups whose rewards are all equal (DAPO's dynamic sampling) and samples other tasks instead."""
    filter_rounds: PositiveInt = 3
    """At most so many rounds of sampling for one step when groups were dropped."""


class AlgorithmSection(Section):
    std_norm: bool = True
    """Divide the group's advantages by their standard deviation (GRPO) or not (Dr. GRPO)."""
    credit: Literal["broadcast", "split"] = "broadcast"
    """Every turn gets the trajectory's advantage, or the advantage divided by the number of turns."""
    advantage_clip: PositiveFloat | None = None
    """No advantage is beyond +- this."""
    min_group_std: NonNegativeFloat = 0.0
    """Groups whose rewards deviate less are not trained."""
    merge_turns: bool = False
    """A turn whose prompt goes on from all the ids of the turn before it shares its row: one row for a whole
    conversation that only grows, masked where nothing was sampled."""
    loss_unit: LossUnit = "rollout"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    kl_coef: float = 0.0
    kl_kind: Literal["k1", "k2", "k3", "low_var_kl"] = "low_var_kl"
    entropy_coef: float = 0.0
    tis: tuple[float, float] | None = None
    tis_mode: Literal["clamp", "mask"] = "clamp"
    steps_per_batch: PositiveInt = 1
    """Optimizer steps on each batch of rollouts."""

    def grpo(self) -> GRPOConfig:
        names = ("clip_low", "clip_high", "dual_clip", "kl_coef", "kl_kind", "entropy_coef", "tis", "tis_mode")
        return GRPOConfig(**{name: getattr(self, name) for name in names})

    def rows(self) -> dict[str, Any]:
        """How groups become rows (core/rollout/rows.py)."""
        names = ("std_norm", "credit", "advantage_clip", "min_group_std", "merge_turns")
        return {name: getattr(self, name) for name in names}

    @model_validator(mode="after")
    def _coefficients_in_range(self) -> AlgorithmSection:
        self.grpo()
        return self


class OptimizerSection(Section):
    lr: NonNegativeFloat
    warmup_steps: NonNegativeInt = 0
    decay: Literal["constant", "linear", "cosine"] = "constant"
    decay_steps: PositiveInt | None = None
    beta1: Decay = 0.9
    beta2: Decay = 0.98
    weight_decay: NonNegativeFloat = 0.1
    clip_grad: PositiveFloat = 1.0
    max_tokens_per_pack: PositiveInt = 16384
    bf16_autocast: bool = True
    """On CUDA only."""
    recompute: bool = False
    """Keep only each layer's input for the backward pass: much less memory, a third more time."""

    @model_validator(mode="after")
    def _decay_has_an_end(self) -> OptimizerSection:
        if self.decay != "constant" and self.decay_steps is None:
            raise ValueError(f"decay {self.decay} needs decay_steps, the step at which the rate reaches 0")
        return self


class EngineSection(Section):
    kv_tokens: PositiveInt = 65536
    prefix_tokens: NonNegativeInt | None = None
    block_size: PositiveInt = 16
    prefill_budget: PositiveInt = 8192
    threads: PositiveInt | None = None
    """PyTorch threads; None leaves PyTorch's own choice."""


class WarmStartSection(Section):
    """Supervised cold start of a small model made from nothing, before RL: what a method's warm_start.py draws."""

    seed: int = 0
    steps: NonNegativeInt = 800
    """Steps on demonstrations."""
    batch_size: PositiveInt = 32
    lr: NonNegativeFloat = 2e-3

    @property
    def total_steps(self) -> int:
        """With those on drills, where a method has some."""
        return self.steps

    @model_validator(mode="after")
    def _takes_a_step(self) -> Self:
        if not self.total_steps:
            raise ValueError("all its steps are 0; to start without it set `warm_start: null`")
        return self


class RunSection(Section):
    steps: PositiveInt
    parallel_seeds: PositiveInt = 1
    """Seeds that train at the same time, each in its own process."""
    seeds: tuple[NonNegativeInt, ...] = Field((0,), min_length=1)
    eval_every: NonNegativeInt = 0
    eval_tasks: PositiveInt = 64
    eval_temperature: NonNegativeFloat = 1.0
    eval_top_p: Share = 0.7
    save_every: PositiveInt = 10
    trajectories_every: NonNegativeInt = 10
    """Every so many steps one group's trajectories are written out whole."""
    trackers: tuple[Literal["wandb", "tensorboard"], ...] = ()
    tracker_mode: Literal["offline", "online"] = "offline"

    @model_validator(mode="after")
    def _seeds_differ(self) -> RunSection:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)} name one twice; each has a folder of its own")
        return self


class Recipe(Section):
    """What every method's recipe has. A method adds its own section."""

    method: str
    preset: str
    follows: str
    """Which source this preset reproduces, and in a word how faithfully."""
    departures: tuple[str, ...] = ()
    model: ModelSection
    data: DataSection
    rollout: RolloutSection
    algorithm: AlgorithmSection
    optimizer: OptimizerSection
    engine: EngineSection = EngineSection()
    warm_start: WarmStartSection | None = None
    run: RunSection
    roles: Mapping[str, str] = {}
    """Further roles: name -> `http://host:port` of a server that speaks SGLang's wire, `model:FOLDER_OR_HUB_ID` for a
    frozen model in this process, or `python:package.module.function`. `policy` is always the model being trained."""
    slime: SlimeSection | None = None
    """The cluster, for `--engine slime`."""

    @model_validator(mode="after")
    def _evaluation_has_tasks(self) -> Recipe:
        if self.run.eval_every and self.data.eval is None:
            raise ValueError("run.eval_every needs data.eval, a file of held-out tasks; set that, or run.eval_every=0")
        return self

    @model_validator(mode="after")
    def _roles_have_a_place(self) -> Recipe:
        if "policy" in self.roles:
            raise ValueError("roles.policy is always the model being trained; give the server another name")
        for role, place in self.roles.items():
            if not place.startswith(("http://", "https://", "model:", "python:")):
                raise ValueError(f"roles.{role} is {place!r}; use http://HOST:PORT, model:PATH or python:a.b.f")
        return self

    def dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json")
