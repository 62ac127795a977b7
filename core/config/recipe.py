"""Defines the sections that every recipe has. A method subclasses `Recipe` and adds a section of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from core.algorithms.coefficients import BATCH_ESTIMATORS, TURN_ESTIMATORS, WITHOUT_MEAN, GRPOConfig
from core.config.clusters import SlimeSection, VerlSection
from core.options import EMBEDDED_ONLY, FUNCTION, Device, Section, Share
from core.types import POLICY, AdvEstimator, LossAgg, RowUnit

LINEAR_MAPS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TRAINED = "trained"
"""Marks a role that is another policy in training, from the same start."""
SERVER_URL = r"^(vllm\+)?https?://"
ServerURL = Annotated[str, Field(pattern=SERVER_URL)]
MomentDecay = Annotated[float, Field(ge=0, lt=1)]


class LoRASection(Section):
    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    """Sets the strength of the adapters: what they add is scaled by alpha / rank."""
    targets: tuple[str, ...] = Field(LINEAR_MAPS, min_length=1)
    """Lists the linear maps, by their names in the model's layers, that get an adapter."""
    load_in_4bit: Annotated[bool, EMBEDDED_ONLY] = False
    """Keeps the linear maps below in 4 bits (NF4, arXiv 2305.14314), in sampling too; head and experts stay whole."""


class ModelSection(Section):
    path: str
    """Names the folder or hub id of the model that training starts from."""
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    """Sets the number format of the weights. `auto` asks the machine which one is fast; a run keeps the answer."""
    device: Device = "auto"
    max_model_len: PositiveInt | None = None
    """Limits prompt plus completion of one call, in tokens. None: the limit of the model's config."""
    lora: Annotated[LoRASection | None, EMBEDDED_ONLY] = None
    """Trains low-rank adapters instead of all weights, in the warm start and the baselines too."""
    compile: Annotated[bool, EMBEDDED_ONLY] = False
    """Compiles layers by torch.compile: it needs a C++ compiler, and 5 to 60 s. On a CPU only the trainer's layers."""

    @model_validator(mode="after")
    def _four_bits_are_not_compiled(self) -> Self:
        if self.lora is not None and self.lora.load_in_4bit and self.compile:
            raise ValueError("compile: not with lora.load_in_4bit; set one of the two to false")
        return self


class DataSection(Section):
    train: str
    eval: str | None = None
    shuffle: bool = True
    sampler: Annotated[Literal["epoch", "curriculum"], EMBEDDED_ONLY] = "epoch"
    """Says which tasks a step takes: each once an epoch, or more of those whose rollouts earned unlike rewards when a
    step last took them (core/rollout/stream.py)."""

    @model_validator(mode="after")
    def _a_curriculum_draws(self) -> Self:
        if self.sampler == "curriculum" and not self.shuffle:
            raise ValueError("sampler=curriculum draws tasks at random; set data.shuffle=true, or data.sampler=epoch")
        return self


class RolloutSection(Section):
    tasks_per_step: PositiveInt
    group_size: PositiveInt
    """Counts the rollouts of one task, whose rewards are compared."""
    temperature: PositiveFloat = 1.0
    top_p: Share = 1.0
    top_k: int = Field(-1, ge=-1)
    concurrency: PositiveInt = 512
    """Limits the trajectories in flight."""
    deadline_s: PositiveFloat = 3600.0
    """Limits the wall time of a trajectory. One that takes longer fails with `deadline`."""
    ahead: Annotated[NonNegativeInt, EMBEDDED_ONLY] = 0
    """Says how many steps sampling may run ahead of training: a rollout that step k trains on begins after step
    k - 1 - `ahead`, and a slow one is waited for, until `deadline_s`. 0 samples and trains in turn. All limits in
    seconds, tools included, go on while a pack is trained."""


class AlgorithmSection(GRPOConfig):
    """Says how rewards become advantages and rows, and holds the coefficients of the loss."""

    name: str
    """Names an algorithm of core/algorithms/named.py. Its values hold where the preset writes none."""
    adv_estimator: AdvEstimator = "grpo"
    """Names the rule by which rewards become advantages (core/algorithms/advantages.py)."""
    std_normalization: bool = True
    """Divides the advantages of a group by their standard deviation (GRPO) or not (Dr. GRPO). The other estimators than
    grpo, turn_grpo and gigpo do not."""
    split_advantage: bool = False
    """Gives every turn the advantage of its trajectory divided by the number of turns, instead of all of it."""
    turn_coef: NonNegativeFloat = 1.0
    """Weighs the advantage of a turn beside that of its rollout, for turn_grpo and gigpo."""
    gamma: Share = 1.0
    """Discounts what later turns earn, by turn, for gigpo and gae."""
    advantage_clip: PositiveFloat | None = None
    """Limits the advantage of every rollout to +- this. Estimators that change it afterwards refuse the key."""
    min_group_std: NonNegativeFloat = 0.0
    """Leaves out groups whose rewards have a smaller standard deviation."""
    dynamic_sampling: bool = False
    """Drops groups whose rewards are all equal and samples other tasks instead (DAPO; verl's `filter_groups`)."""
    max_num_gen_batches: PositiveInt = 3
    """Limits the rounds of sampling of one step when groups are dropped."""
    rows: RowUnit = "turn"
    """Makes one training row of every turn, or one of a whole segment: turns of which each prompt begins with all ids
    of the turn before. Tokens that the policy did not sample are masked."""
    loss_agg: LossAgg = "rollout"
    """Says what weighs the same in the loss of a batch: a rollout, a turn, a token; `constant` divides by a length."""
    max_response_length: PositiveInt | None = None
    """Sets the length of a rollout, in trained tokens, that loss_agg=constant divides by, and beyond which
    `overlong_buffer_len` takes 1 from the reward. It cuts no rollout: the method does."""
    overlong_buffer_len: PositiveInt | None = None
    """Lowers the reward of a long rollout for its advantage, by 0 to 1 over the last so many tokens before
    `max_response_length` (DAPO). Reports show the reward without it."""
    overlong_filter: bool = False
    """Trains on no rollout that was cut at a limit; its reward stays in its group's statistics (DAPO)."""
    update_group_size: Annotated[int, Field(ge=2)] | None = None
    """Trains on so many rollouts of each group, those whose rewards differ most (PODS); the others are only sampled."""
    num_steps_per_rollout: PositiveInt = 1
    """Counts the optimizer steps on each batch of rollouts. The first clips nothing but with dppo: its ratios are 1."""

    @model_validator(mode="before")
    @classmethod
    def _overlay_the_named_algorithm(cls, values: Any) -> Any:
        # Imported here: a method's file imports the recipe, and needs no algorithm before a preset is read.
        from core.algorithms.named import ALGORITHMS

        if not isinstance(values, Mapping) or "name" not in values:
            return values
        if values["name"] not in ALGORITHMS:
            raise ValueError(f"name {values['name']!r} is no known algorithm; known: {', '.join(ALGORITHMS)}")
        defaults = {key: value for key, (value, _) in ALGORITHMS[values["name"]].items()}
        return {**defaults, **values}

    @model_validator(mode="after")
    def _estimator_uses_what_is_set(self) -> Self:
        estimator = self.adv_estimator
        unused = {
            "turn_coef": estimator not in ("turn_grpo", "gigpo"),
            "vf_coef": estimator != "gae",
            "gamma": estimator not in ("gigpo", "gae"),
            "advantage_clip": estimator in (*BATCH_ESTIMATORS, *TURN_ESTIMATORS),
            "split_advantage": estimator == "gae",
            "dynamic_sampling": estimator in (*TURN_ESTIMATORS, *WITHOUT_MEAN),  # groups that agree may teach
            "min_group_std": estimator in (*TURN_ESTIMATORS, *WITHOUT_MEAN),
        }
        for key in (key for key, is_unused in unused.items() if is_unused):
            if getattr(self, key) != (default := type(self).model_fields[key].default):
                raise ValueError(f"{key} has no place in adv_estimator={estimator}; set it to {json.dumps(default)}")
        if estimator == "gae" and not self.vf_coef:
            raise ValueError("adv_estimator=gae needs a value head, which vf_coef trains; set it above 0, such as 0.1")
        if self.kl_coef and self.std_normalization and estimator in ("grpo", "turn_grpo", "gigpo"):
            raise ValueError("std_normalization scales a KL of any size to 1; for kl_coef, set std_normalization=false")
        if self.kl_loss_coef and self.kl_loss_type == "k1":
            raise ValueError(
                "kl_loss_type=k1 has the same gradient whatever the start model is; set kl_loss_coef=0 and kl_coef, "
                "which takes it from the reward, or kl_loss_type=low_var_kl"
            )
        if self.observation_coef and self.rows == "turn":
            raise ValueError("observation_coef is for the tokens between the turns of a row; set rows=segment")
        return self

    @model_validator(mode="after")
    def _lengths_are_known(self) -> Self:
        longest, buffer = self.max_response_length, self.overlong_buffer_len
        if longest is None and (buffer or self.loss_agg == "constant"):
            raise ValueError(
                "max_response_length is missing: loss_agg=constant divides by it, and overlong_buffer_len ends at it; "
                "set it to the trained tokens of the longest rollout"
            )
        if longest and buffer and buffer > longest:
            raise ValueError(f"overlong_buffer_len {buffer} is above max_response_length {longest}; lower it")
        return self

    def row_options(self) -> dict[str, Any]:
        """Return how groups become rows: the options of core.rollout.rows.rows_from_groups."""
        names = "adv_estimator std_normalization split_advantage turn_coef gamma kl_coef advantage_clip min_group_std"
        names += " rows max_response_length overlong_buffer_len overlong_filter update_group_size"
        return {name: getattr(self, name) for name in names.split()}


class OptimizerSection(Section):
    name: Annotated[Literal["adamw", "adamw8bit"], EMBEDDED_ONLY] = "adamw"
    """Says how AdamW keeps its two moments: in float32, or in 8 bits by torchao, which also spares the float32 copies
    of bfloat16 weights."""
    lr: NonNegativeFloat
    lr_warmup_steps: NonNegativeInt = 0
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    lr_decay_steps: PositiveInt | None = None
    """Says after how many optimizer steps a rate falls to 0. None: those of the run, if no batch lacks advantages."""
    beta1: MomentDecay = 0.9
    beta2: MomentDecay = 0.98
    weight_decay: NonNegativeFloat = 0.1
    clip_grad: PositiveFloat = 1.0
    max_tokens_per_pack: PositiveInt = 16384
    """Limits the tokens of one forward and backward pass."""
    bf16_autocast: bool = True
    """Computes in bfloat16 where the weights are float32, on CUDA only."""
    frozen: Annotated[tuple[str, ...], EMBEDDED_ONLY] = ()
    """Lists parts of names of weights that no step changes, such as `mlp.gate.`, the router of a mixture."""
    gradient_checkpointing: bool = False
    """Keeps only each layer's input for the backward pass: much less memory, a third more time."""
    cpu_offload: bool = False
    """Keeps float32 copies of the trained weights, their gradients and both moments in the machine's memory, and steps
    the optimizer on the CPU. The card keeps the weights, in `model.dtype`. Where the model is on a CPU it saves
    nothing."""

    @model_validator(mode="after")
    def _offloaded_moments_are_float32(self) -> Self:
        if self.cpu_offload and self.name == "adamw8bit":
            raise ValueError(
                "cpu_offload is for name=adamw: adamw8bit makes the moments small so that the card holds them; set "
                "optimizer.cpu_offload=false, or optimizer.name=adamw"
            )
        return self


class InferenceSection(Section):
    kv_tokens: PositiveInt = 65536
    """Sizes the KV cache, in tokens. A running sequence takes the room of its prompt and its new tokens; the rest keeps
    the prefixes of earlier ones."""
    max_num_seqs: PositiveInt = 256
    """Limits the sequences that run at once."""
    max_prefill_tokens: PositiveInt = 2048
    """Limits the prompt tokens of one step, in this process alone. A longer prompt is computed in parts."""
    threads: PositiveInt | None = None
    """Sets PyTorch's threads. With None the seeds that train at the same time share the cores."""
    servers: Annotated[tuple[ServerURL, ...], EMBEDDED_ONLY] = ()
    """Lists servers that sample the rollouts instead of this process: SGLang's or `tokentrue serve model`, vLLM's as
    `vllm+http://host:port`, each started with the model that training starts from. They must see the run folder, which
    the weights go through."""
    server_key_file: str | None = None
    """Names the file with the API key of all `servers`. Without it they are asked without a key."""
    replicas: Annotated[NonNegativeInt, EMBEDDED_ONLY] = 0
    """Counts the servers that are started for this run, in place of `servers`. Each gets GPUs of its own: those that
    the trainer leaves are shared out evenly."""
    engine: Literal["embedded", "sglang", "vllm"] = "embedded"
    """Says what the `replicas` run. `embedded` is `tokentrue serve model`."""
    replica_args: str = ""
    """Holds further arguments of each replica's command line, split like a shell would split them."""
    replica_python: str | None = None
    """Names the interpreter that has SGLang or vLLM. None: this one."""

    @property
    def is_served(self) -> bool:
        """Whether servers sample the rollouts, and not this process."""
        return bool(self.servers or self.replicas)


class SupervisedSection(Section):
    """Describes supervised training on demonstrations."""

    seed: int = 0
    steps: NonNegativeInt = 800
    """Counts the steps on demonstrations."""
    batch_size: PositiveInt = 32
    """Counts the turns of one step."""
    lr: NonNegativeFloat = 2e-3
    lr_warmup_steps: NonNegativeInt = 20
    """Counts the first steps, over which the rate rises; after them it falls linearly to 0."""


class WarmStartSection(SupervisedSection):
    """Describes the supervised cold start before RL."""

    copy_steps: NonNegativeInt = 0
    """Counts the steps on copying drills, which come first."""
    lookup_steps: NonNegativeInt = 0
    """Counts the steps on look-up drills, which come second: lists of facts that are repeated in another order."""
    threads: PositiveInt | None = None
    """Sets PyTorch's threads: the cold start runs alone, before the seeds. None takes `inference.threads`."""

    @property
    def total_steps(self) -> int:
        """Return all steps, those on drills included."""
        return self.copy_steps + self.lookup_steps + self.steps

    @model_validator(mode="after")
    def _takes_a_step(self) -> Self:
        if not self.total_steps:
            raise ValueError("all its steps are 0; to start without it set `warm_start: null`")
        return self


class RejectionSection(Section):
    """Describes the training on the start model's own successes (core/train/rejection.py)."""

    lr: NonNegativeFloat
    lr_warmup_steps: NonNegativeInt = 20
    batch_size: PositiveInt = 32
    """Counts the turns of one step."""


class RunSection(Section):
    steps: PositiveInt
    parallel_seeds: PositiveInt = 1
    """Counts the seeds that train at the same time, each in its own process."""
    seeds: tuple[NonNegativeInt, ...] = Field((0,), min_length=1)
    eval_every: NonNegativeInt = 0
    eval_tasks: PositiveInt = 64
    """Limits the held-out tasks of an evaluation while training: the first of `data.eval`, in the order of the file."""
    eval_temperature: NonNegativeFloat = 1.0
    eval_top_p: Share = 0.7
    save_every: PositiveInt = 10
    keep: Annotated[Literal["last", "best"], EMBEDDED_ONLY] = "last"
    """Says which checkpoint is the trained policy: the last one, or the one with the best held-out reward, which is
    then saved at every evaluation that equals or beats those before it."""
    record_every: NonNegativeInt = 1
    """Records all rollouts token by token (core/runs/record.py), every so many steps and at the first. 0: never."""
    trackers: tuple[Literal["wandb", "tensorboard", "mlflow"], ...] = ()
    tracker_mode: Literal["offline", "online"] = "offline"
    """Says whether W&B sends the curves, or keeps them in the run folder."""

    @model_validator(mode="after")
    def _check(self) -> RunSection:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)} name one twice; each has a folder of its own")
        if self.tracker_mode == "online" and "wandb" not in self.trackers:
            raise ValueError("tracker_mode=online is for W&B alone; set run.trackers=[wandb], too")
        return self


class HealthSection(Section):
    """Says when a run warns of itself (core/runs/health.py lists the signs), and when it ends for its bad health."""

    patience: PositiveInt = 3
    """Counts the steps in a row that must show a sign before it is told. Skipped steps, failed rollouts and a reward
    that fell are told at once."""
    end_after: PositiveInt = 3
    """Ends the run after so many steps in a row of which all was skipped, or all rollouts failed."""


class ExperimentSection(Section):
    """Says what `tokentrue run` does around the training. A command begins with `tokentrue` or `python`; no shell runs
    it. `{out}` stands for the run folder, `{method}` for the method as `tokentrue run` was given it."""

    data: Mapping[str, str] = {}
    """Maps each file to the command that makes it, in their order; what is there is not made again. `{file}` stands for
    the file."""
    services: Mapping[str, str] = {}
    """Maps each file of services (`tokentrue serve services`) to the folder of their logs and addresses. They run while
    the run trains and is evaluated."""
    evaluate: Mapping[str, str] = {}
    """Maps names to commands, whose output goes to `evaluate-NAME.log` in the run folder."""
    at_once: PositiveInt = 2
    """Limits the evaluations that run at the same time; they start in their order."""
    report: tuple[str, ...] = ("tokentrue report {out}",)
    """Lists the commands that come last."""
    hours_at_100_gflops: PositiveFloat | None = None
    """Tells how long all of it took, times the machine's speed over 100 GFLOP/s; --dry-run tells the hours here."""

    @model_validator(mode="after")
    def _commands_are_ours(self) -> Self:
        for command in (*self.data.values(), *self.evaluate.values(), *self.report):
            if command.split()[:1] not in (["tokentrue"], ["python"]):
                raise ValueError(f"{command!r} begins neither with tokentrue nor with python")
        return self


class Recipe(Section):
    """Describes a run completely. A method adds its own section."""

    method: str
    preset: str
    follows: str
    """Names the source that this preset reproduces."""
    departures: tuple[str, ...] = ()
    """Lists what differs from that source, for the report. `{optimizer.lr}` stands for the value of that key."""
    model: ModelSection
    data: DataSection
    rollout: RolloutSection
    algorithm: AlgorithmSection
    optimizer: OptimizerSection
    inference: InferenceSection = InferenceSection()
    reward: Annotated[str | None, FUNCTION] = None
    """Names `def reward(task, answer) -> float`, which may be asynchronous, as package.module.function. What it returns
    takes the place of the rollout's own reward. What the method gives its turns stays (`adv_estimator: turn_grpo`)."""
    world: str = "world"
    """Names the module whose World has the demonstrations: WORLD.py in the method's folder, or any module, with dots
    (core/worlds)."""
    warm_start: Annotated[WarmStartSection | None, EMBEDDED_ONLY] = None
    rejection: RejectionSection | None = None
    """Describes the baseline of `--baseline rejection`: what as many rollouts teach without GRPO."""
    supervised: SupervisedSection | None = None
    """Describes the baseline of `--baseline supervised`: whole correct trajectories, which RL does without."""
    run: RunSection
    health: HealthSection = HealthSection()
    roles: Mapping[str, str] = {}
    """Maps each further role to `http://host:port` of a server with SGLang's API, `vllm+http://host:port` of vLLM's,
    `model:FOLDER_OR_HUB_ID` for a frozen model in this process, `python:package.module.function`, or `trained` for
    another policy that learns from its own turns: with weights of its own or, with `model.lora`, adapters of its own.
    `policy` is always a model being trained."""
    role_key_files: Mapping[str, str] = {}
    """Maps a role that is a URL to the file with the API key of its server."""
    slime: SlimeSection | None = None
    """Describes the cluster, for `--backend slime`."""
    verl: VerlSection | None = None
    """Describes the cluster, for `--backend verl`. None takes all defaults."""
    experiment: ExperimentSection | None = None
    """Says how the data are made and what is evaluated. A trained policy does not depend on it."""

    @model_validator(mode="after")
    def _evaluations_can_run(self) -> Recipe:
        if self.run.eval_every and self.data.eval is None:
            raise ValueError("run.eval_every needs data.eval, a file of held-out tasks; set that, or run.eval_every=0")
        if self.run.keep == "best" and not self.run.eval_every:
            raise ValueError("run.keep=best needs held-out evaluations; set run.eval_every, or run.keep=last")
        return self

    @model_validator(mode="after")
    def _rollouts_can_be_trained_on(self) -> Recipe:
        inference = self.inference
        if inference.is_served and min(self.run.parallel_seeds, len(self.run.seeds)) > 1:
            raise ValueError("inference.servers and replicas sample for one seed at a time; set run.parallel_seeds=1")
        if inference.server_key_file is not None and not inference.servers:
            raise ValueError("inference.server_key_file: only inference.servers take a key, and there are none")
        if inference.servers and inference.replicas:
            raise ValueError("inference.replicas are started in place of inference.servers; set one of them only")
        described = inference.engine != "embedded" or inference.replica_args or inference.replica_python
        if described and not inference.replicas:
            raise ValueError(
                "inference.engine, replica_args and replica_python say how replicas run; set inference.replicas"
            )
        is_vllm = inference.engine == "vllm" or any(url.startswith("vllm+") for url in inference.servers)
        if is_vllm and (self.rollout.top_p < 1 or self.rollout.top_k > 0):
            raise ValueError(
                "rollout.top_p and top_k: vLLM's log-probs are of the tokens that they leave, while rows are trained "
                "without them; set them to 1 and -1"
            )
        if self.rollout.ahead and self.algorithm.tis is None and not self.algorithm.loss_mode.startswith("dppo"):
            raise ValueError("rollout.ahead trains on rollouts of older weights; set algorithm.tis, such as [0,2]")
        if self.rollout.ahead and (self.algorithm.dynamic_sampling or self.data.sampler == "curriculum"):
            raise ValueError(
                "rollout.ahead takes the tasks of a step before earlier rollouts are known, by which "
                "algorithm.dynamic_sampling and data.sampler=curriculum choose tasks; set one of them only"
            )
        return self

    @model_validator(mode="after")
    def _model_takes_the_context(self) -> Self:
        limit = self.model.max_model_len
        for name in type(self).model_fields:
            tokens = getattr(getattr(self, name), "context_tokens", None)
            if limit is not None and tokens is not None and limit < tokens:
                raise ValueError(
                    f"{name}.context_tokens is {tokens}, and model.max_model_len={limit} refuses more; lower the first"
                )
        return self

    @model_validator(mode="after")
    def _no_key_is_passed_over(self) -> Self:
        self.fill_departures()  # a {section.key} that names no key is an error
        kept, n, optimizer = self.algorithm.update_group_size, self.rollout.group_size, self.optimizer
        if self.rollout.top_k == 0:
            raise ValueError("rollout.top_k=0 leaves no token to sample; -1 switches it off")
        if kept is not None and kept >= n:
            raise ValueError(f"algorithm.update_group_size={kept} leaves none out of rollout.group_size={n}; lower it")
        if self.algorithm.num_steps_per_rollout > (rollouts := self.rollout.tasks_per_step * (kept or n)):
            raise ValueError(f"algorithm.num_steps_per_rollout: a step trains on {rollouts} rollouts at most; lower it")
        if optimizer.lr_decay_steps and optimizer.lr_scheduler_type == "constant":
            raise ValueError("optimizer.lr_decay_steps has no place in lr_scheduler_type=constant; set it to null")
        steps = self.run.steps * self.algorithm.num_steps_per_rollout
        if optimizer.lr_scheduler_type == "constant":
            return self
        if optimizer.lr_decay_steps is None:
            return self.model_copy(update={"optimizer": optimizer.model_copy(update={"lr_decay_steps": steps})})
        if optimizer.lr_decay_steps < steps:
            raise ValueError(
                f"optimizer.lr_decay_steps is {optimizer.lr_decay_steps}, and run.steps={self.run.steps} takes {steps} "
                "optimizer steps: the last ones would have the rate 0. Set optimizer.lr_decay_steps=null, which ends "
                "the decay with the run, or fewer run.steps: a run that has begun keeps its decay, and ends with it"
            )
        return self

    def fill_departures(self) -> list[str]:
        """Put the recipe's values into `departures`, where {section.key} stands for one."""

        def read(match: re.Match[str]) -> str:
            value: Any = self
            for name in match[1].split("."):
                if value is not None and not hasattr(value, name):
                    raise ValueError(f"departures: {match[0]} names no key of the recipe")
                value = getattr(value, name, None)
            return f"{value:g}" if isinstance(value, float) else str(value)

        return [re.sub(r"\{(\w+(?:\.\w+)+)\}", read, line) for line in self.departures]

    @model_validator(mode="after")
    def _roles_have_a_place(self) -> Recipe:
        if POLICY in self.roles:
            raise ValueError("roles.policy is always the model being trained; give the server another name")
        for role, place in self.roles.items():
            if not re.match(rf"{SERVER_URL}|model:|python:|{TRAINED}$", place):
                raise ValueError(
                    f"roles.{role} is {place!r}; use http://HOST:PORT, model:PATH, python:a.b.f or {TRAINED}"
                )
        if wrong := [role for role in self.trained_roles if not re.fullmatch(r"\w[\w-]*", role) or role == "adapter"]:
            raise ValueError(f"roles.{wrong[0]} is {TRAINED}, and its checkpoint is a folder of that name; rename it")
        if self.trained_roles and (self.inference.is_served or self.rollout.ahead):
            raise ValueError(
                f"roles.{self.trained_roles[0]} is {TRAINED}, which samples in this process between two updates; leave "
                "inference.servers, inference.replicas and rollout.ahead out"
            )
        for role in self.role_key_files:
            if not re.match(SERVER_URL, self.roles.get(role, "")):
                raise ValueError(f"role_key_files.{role}: roles.{role} is no URL, and only servers take a key")
        return self

    @property
    def trained_roles(self) -> tuple[str, ...]:
        """The roles that are trained beside `policy`, each with weights of its own."""
        return tuple(role for role, place in self.roles.items() if place == TRAINED)

    def list_departures(self) -> list[str]:
        """List what differs from the recipe's source, as the preset says, and from the algorithm that it names."""
        from core.algorithms.named import list_departures

        listed = [*self.fill_departures(), *list_departures(self.algorithm)]
        longest, buffer = self.algorithm.max_response_length, self.algorithm.overlong_buffer_len
        context = self.model.max_model_len
        if longest and buffer and context and context <= longest - buffer:
            listed.append(
                f"algorithm.max_response_length is {longest}, and model.max_model_len {context}: no single call is "
                "long enough for the punishment of long answers"
            )
        if longest and not buffer and self.algorithm.loss_agg != "constant":
            listed.append(
                f"algorithm.max_response_length is {longest}, and neither overlong_buffer_len nor loss_agg uses it"
            )
        steps = self.run.steps * self.algorithm.num_steps_per_rollout
        if steps < (rising := self.optimizer.lr_warmup_steps):
            listed.append(f"optimizer.lr_warmup_steps is {rising}, and the run ends before: its rate stays below lr")
        if steps < (falling := self.optimizer.lr_decay_steps or 0):
            listed.append(f"optimizer.lr_decay_steps is {falling}, and the run takes {steps}: its rate stays above 0")
        return listed

    @classmethod
    def complete(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Add to what an earlier version dumped the keys that came later, with their defaults.

        A recipe that is not valid any more, such as one with a key that is gone, gets those of `algorithm` alone.
        """
        fields = AlgorithmSection.model_fields.items()
        neutral = {name: field.default for name, field in fields if not field.is_required()}
        if isinstance(config.get("algorithm"), Mapping):  # what came later, an algorithm of that time did not have
            config = {**config, "algorithm": {**neutral, **config["algorithm"]}}
        try:
            return cls.model_validate(config).dump()
        except ValidationError:
            return config

    def dump(self) -> dict[str, Any]:
        """Return what a run follows from as plain data, which loads again to the same recipe without `experiment`."""
        return self.model_dump(mode="json", exclude={"experiment"})


class ConversationRecipe(Recipe):
    """Describes a run whose rollouts are conversations: rows are segments, or turns with advantages of their own."""

    @model_validator(mode="after")
    def _rows_are_segments(self) -> Self:
        if self.algorithm.rows != "segment" and self.algorithm.adv_estimator not in TURN_ESTIMATORS:
            raise ValueError(
                f"algorithm.rows is {self.algorithm.rows}, and the conversations of {self.method} are trained as "
                "segments; set algorithm.rows=segment"
            )
        return self
