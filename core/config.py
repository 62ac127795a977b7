"""Recipes: typed YAML presets with dotted overrides. An unknown key is an error that names the nearest known one.

A method subclasses `Recipe` with a section of its own. `load` reads a preset, applies overrides such as
`optimizer.lr=1e-5`, and checks everything before anything runs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from core.algorithms.aggregate import LossUnit
from core.algorithms.grpo import GRPOConfig

Share = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class RecipeError(ValueError):
    """A preset or an override that cannot be used; the message names file, key and fix."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(Section):
    path: str
    """Folder or hub id of the model that training starts from."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
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
    run: RunSection
    roles: Mapping[str, str] = {}
    """Further roles: name -> URL of a server that speaks SGLang's wire. `policy` is always the model being trained."""

    @model_validator(mode="after")
    def _evaluation_has_tasks(self) -> Recipe:
        if self.run.eval_every and self.data.eval is None:
            raise ValueError("run.eval_every needs data.eval, a file of held-out tasks; set that, or run.eval_every=0")
        return self

    @model_validator(mode="after")
    def _roles_are_servers(self) -> Recipe:
        if "policy" in self.roles:
            raise ValueError("roles.policy is always the model being trained; give the server another name")
        for role, url in self.roles.items():
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"roles.{role} is {url!r}; write it as http://host:port")
        return self

    def dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


R = TypeVar("R", bound=Recipe)


def load(kind: type[R], presets: Path, preset: str, overrides: Sequence[str] = ()) -> R:
    """Read `presets`/`preset`.yaml (or the file `preset` itself), apply `key.path=value` overrides, check all.

    Raises:
        RecipeError: no such preset, broken YAML, an unknown key, or a value of the wrong type.
    """
    path = Path(preset) if preset.endswith((".yaml", ".yml")) else presets / f"{preset}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in presets.glob("*.yaml")))
        raise RecipeError(f"preset {preset!r}: no file {path}. Presets of this method: {known}")
    try:
        values = yaml.load(path.read_text(), Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: must be a mapping of sections")
    for override in overrides:
        _override(values, override)
    values["preset"] = values.get("preset", path.stem)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise RecipeError("\n".join(_explain(kind, path, problem) for problem in error.errors())) from error


def _override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator:
        raise RecipeError(f"override {override!r}: write key.path=value, such as optimizer.lr=1e-5")
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise RecipeError(f"override {override!r}: {parent} is a value, not a section")
    try:
        values[last] = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"override {override!r}: the value is not valid YAML: {error}") from error


def _explain(kind: type[BaseModel], path: Path, problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "missing":
        return f"{path}: {key}: missing; add it"
    if problem["type"] == "value_error":
        return ": ".join(part for part in (str(path), key, str(problem["ctx"]["error"])) if part)
    if problem["type"] != "extra_forbidden":
        return f"{path}: {key}: {problem['msg']} (is {problem['input']!r})"
    section: Any = kind
    for part in location[:-1]:
        annotation = section.model_fields[part].annotation
        section = next((arm for arm in get_args(annotation) if hasattr(arm, "model_fields")), annotation)
    known = list(section.model_fields)
    close = difflib.get_close_matches(location[-1], known, n=1)
    hint = f"did you mean {'.'.join([*location[:-1], close[0]])}?" if close else f"known keys: {', '.join(known)}"
    return f"{path}: {key}: unknown key; {hint}"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-6 as text; this reads it as the number it is."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf)$|^\.nan$"),
    list("-+0123456789."),
)
