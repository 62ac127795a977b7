"""Plans the memory of a run before it starts, from the recipe and the model's config.json alone.

The plan counts what lies where the model is: in the card's memory on CUDA, in the machine's on the CPU. What
`optimizer.cpu_offload` keeps in the machine's memory beside a card has a plan of its own. Weights, optimizer and KV
cache are exact. A forward or backward pass counts the tensors that the code keeps, for the largest prefill and the
largest pack that the recipe allows; a step that trains fewer tokens needs less.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from core.config import LoRASection, Recipe, RecipeError
from core.config.load import replace_keys
from core.engine import CausalLM, ModelConfig, choose_dtype, footprint, lora, weights
from core.engine.footprint import format_bytes
from core.hub import CheckpointError, check_unquantized, resolve
from core.runs.run_folder import RunFolder
from core.train.optimizer import moment_bytes, needs_float32_copy
from core.train.replicas import describe_replicas
from core.train.trainer import freeze_weights, pack_bytes

PHASES = ("rollout", "update", "loading")
"""Names the phases of a training step; the optimizer needs no more than the passes before it, for it works in place or
on small pieces. Before them, loading is planned where it may need more: whole weights that a CPU packs in 4 bits."""

PROCESS_BYTES = {"cpu": 450_000_000, "cuda": 700_000_000}
"""Says what a process takes before it loads a model: Python's libraries, or CUDA's context and kernels."""

HOST_BYTES = 2_700_000_000
"""Says what a process on CUDA takes of the machine's memory: 2.2 to 2.7 GB beside an H200."""
TORCHAO_BYTES = 70_000_000
"""Says what the libraries of the 8-bit optimizer add to that in the machine's memory."""

COMPILER_BYTES = 410_000_000
"""Says what torch.compile adds on a CPU: its libraries, and the C++ compiler that runs in the first update. The
activations that compiled layers spare are not counted."""


class MemoryItem(NamedTuple):
    """Holds the bytes that one thing takes in each phase."""

    name: str
    rollout: int = 0
    update: int = 0
    loading: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """Lists what a run keeps in memory. `processes` seeds run at once, and each has every item."""

    items: tuple[MemoryItem, ...]
    processes: int = 1

    def total(self, phase: str) -> int:
        """Return the bytes of all items in a phase."""
        return self.processes * sum(getattr(item, phase) for item in self.items)

    @property
    def peak_phase(self) -> str:
        return max(PHASES, key=self.total)

    @property
    def peak(self) -> int:
        """Return the bytes of the phase that needs most."""
        return self.total(self.peak_phase)

    def largest(self) -> str:
        """Name the four largest items of the phase that needs most, with their sizes for all processes."""
        sizes = [(item.name, self.processes * getattr(item, self.peak_phase)) for item in self.items]
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in sorted(sizes, key=lambda p: -p[1])[:4])

    def table(self) -> str:
        """Return the items in GB as lines of text, with a column for each phase."""
        phases = [phase for phase in PHASES if self.total(phase)]
        rows = [(item.name, [getattr(item, phase) for phase in phases]) for item in self.items if any(item[1:])]
        times = f" of {self.processes} seeds at once" if self.processes > 1 else ""
        rows.append((f"sum{times}", [self.total(phase) for phase in phases]))
        width = max(len(name) for name, _ in rows)
        lines = [f"{'GB':{width}}" + "".join(f"{phase:>10}" for phase in phases)]
        lines += [f"{name:{width}}" + "".join(f"{size / 1e9:>10.2f}" for size in sizes) for name, sizes in rows]
        return "\n".join(lines)


def settle_dtype(recipe: Recipe, begun: Path | None) -> Recipe:
    """Replace `model.dtype: auto` by what the run in folder `begun` began with, or else by what is fast here.

    So config.yaml holds the answer, and a run never changes its arithmetic.
    """
    if recipe.model.dtype != "auto":
        return recipe
    if begun is not None and (begun / "config.yaml").is_file():
        dtype, reason = RunFolder(begun).config["model"]["dtype"], f"{begun} began with it"
    else:
        config = weights.load_config(resolve(recipe.model.path, weights=False))
        dtype, reason = choose_dtype(config, weights.find_device(recipe.model.device))
    print(f"model.dtype auto is {dtype}: {reason}", file=sys.stderr)
    return replace_keys(recipe, {"model.dtype": dtype})


def read_configs(recipe: Recipe) -> tuple[ModelConfig, dict[str, ModelConfig]]:
    """Read config.json of the trained model, and of each frozen model in this process, by the roles that it plays."""
    roles: dict[str, list[str]] = defaultdict(list)
    for role, place in recipe.roles.items():
        if place.startswith("model:"):
            roles[place.removeprefix("model:")].append(role)
    folders = {", ".join(names): resolve(path, weights=False) for path, names in roles.items()}
    start = resolve(recipe.model.path, weights=False)
    for folder in (start, *folders.values()):
        check_unquantized(folder)  # only servers, which others run, read such weights
    return weights.load_config(start), {names: weights.load_config(folder) for names, folder in folders.items()}


def check_fit(recipe: Recipe, memory: int | None) -> None:
    """Raise RecipeError if the run needs more than `memory` bytes, or without that more than there are here."""
    config, frozen = read_configs(recipe)
    device = weights.find_device(recipe.model.device)
    available = available_bytes(device) if memory is None else memory
    host = available_bytes(torch.device("cpu")) if memory is None else None
    check_memory(recipe, config, device.type, available, frozen, host)


def describe_memory(recipe: Recipe, memory: int | None) -> list[str]:
    """Return the lines that tell what memory the run needs, or the one that tells why nobody knows.

    With `memory` in bytes, a card is planned for that need not be in this machine.

    Raises:
        RecipeError: the context does not fit the model.
    """
    try:
        config, frozen = read_configs(recipe)
        device = recipe.model.device
        kind = device.split(":")[0] if memory and device != "auto" else weights.find_device(device).type
        available = available_bytes(weights.find_device(device)) if memory is None else memory
        host = available_bytes(torch.device("cpu")) if memory is None else None
        if recipe.model.dtype == "auto" and kind == "cuda" and not torch.cuda.is_available():
            recipe = replace_keys(recipe, {"model.dtype": "bfloat16"})  # what a card that is not here computes fast
        recipe = settle_dtype(recipe, None)
    except (OSError, CheckpointError) as error:
        model = Path(recipe.model.path)
        folders = {Path(file).parent for file in (recipe.experiment.data if recipe.experiment else ())}
        if not model.exists() and folders & {model, model.parent}:
            return [f"no memory plan yet: {model} is not there; experiment.data makes it when the run starts"]
        elsewhere = memory is None and "PyTorch sees no such device" in str(error)
        hint = "; --memory SIZE plans for a card that is not here" if elsewhere else ""
        return [f"no memory plan: {str(error).splitlines()[0]}{hint}"]
    plan = plan_memory(recipe, config, kind, frozen)
    try:
        check_memory(recipe, config, kind, available, frozen, host)
        verdict = f"it fits into {format_bytes(available)}"
    except RecipeError as error:
        verdict = str(error)
    lines = [f"memory on {kind} in {recipe.model.dtype}", *plan.table().splitlines()]
    if beside := plan_host_memory(recipe, config, kind):
        lines += ["memory of the machine, for optimizer.cpu_offload", *beside.table().splitlines()]
    servers = describe_replicas(recipe, config) if memory is None else []
    return [*lines, verdict, *servers]


def plan_memory(
    recipe: Recipe, config: ModelConfig, device: str, frozen: Mapping[str, ModelConfig] = MappingProxyType({})
) -> MemoryPlan:
    """Plan the memory of a run on a kind of device, `cpu` or `cuda`. `model.dtype` must not be `auto` any more.

    `frozen` maps the roles that are frozen models in this process to their configs.
    """
    dtype = getattr(torch, recipe.model.dtype)
    adapted, optimizer = recipe.model.lora is not None, recipe.optimizer
    sizes = trained_sizes(config, recipe.model.lora, recipe.optimizer.frozen)
    count = 1 + len(recipe.trained_roles)  # policies, each with an engine and an optimizer of its own
    four_bits = bool(recipe.model.lora and recipe.model.lora.load_in_4bit)
    base, adapters = footprint.parameter_bytes(config, dtype, four_bits), sum(sizes) * dtype.itemsize
    restored = footprint.restored_bytes(config, dtype) if four_bits else 0
    kept = base + count * adapters if adapted else count * base
    reference = kept if (recipe.algorithm.kl_loss_coef or recipe.algorithm.kl_coef) and not adapted else 0
    process = PROCESS_BYTES[device]
    if device == "cpu":
        process += TORCHAO_BYTES * (optimizer.name == "adamw8bit") + COMPILER_BYTES * recipe.model.compile
    served = recipe.inference.is_served  # then the servers hold caches, and sampling takes nothing here
    kv_tokens, running = recipe.inference.kv_tokens, count_running(recipe)
    sequences = recipe.inference.max_num_seqs
    kv = 0 if served else count * footprint.cache_bytes(config, kv_tokens, dtype)
    states = 0 if served else count * footprint.state_bytes(config, sequences, dtype)
    packed = 0 if served else count * footprint.prepacked_bytes(config, dtype, device, four_bits)
    step = footprint.step_bytes(
        config, dtype, prefilled=recipe.inference.max_prefill_tokens, sequences=running, kv_tokens=kv_tokens
    )
    each = process + base + step + footprint.cache_bytes(config, kv_tokens, dtype)  # a server of ours, where no GPU is
    each += footprint.state_bytes(config, sequences, dtype) + footprint.prepacked_bytes(config, dtype, device)
    beside = recipe.inference.replicas if device == "cpu" and not torch.cuda.is_available() else 0
    pack, holes = largest_pack_bytes(recipe, config, dtype, device)
    ahead = recipe.rollout.ahead > 0  # then rollouts go on between the packs of an update
    stays = device == "cuda" or ahead  # decode graphs have recorded where the cache lies
    items = [_keep("process and libraries", process), _keep("weights", kept), _keep("reference", reference)]
    if four_bits and device == "cpu":  # they are read whole, and packed one by one; a card gets them packed
        items.append(
            MemoryItem("process and whole weights", loading=process + footprint.parameter_bytes(config, dtype))
        )
    if optimizer.cpu_offload and device == "cuda":
        # They leave for the machine's memory one by one; compiled layers return those of half a layer at once.
        items.append(MemoryItem("gradients", update=2 * max(sizes) * dtype.itemsize))
    else:
        items += optimizer_items(recipe, config, dtype)
    for role, other in frozen.items():
        # Such a role has an engine of its own with the recipe's settings.
        size = footprint.parameter_bytes(other, dtype) + footprint.prepacked_bytes(other, dtype, device)
        size += footprint.cache_bytes(other, kv_tokens, dtype) + footprint.state_bytes(other, sequences, dtype)
        items.append(_keep(f"frozen model of {role}", size))
    recorded = 0 if device == "cpu" or served else count * footprint.recorded_bytes(config, running)
    items += [
        _keep("servers of inference.replicas", beside * each),
        _keep("CUDA graphs", recorded),
        MemoryItem("prepacked weights", packed, packed if ahead else 0),
        MemoryItem("KV cache", kv, stays * kv),
        MemoryItem("states of inference.max_num_seqs", states, stays * states),
        MemoryItem("prefill and sampling", rollout=0 if served else step),
        MemoryItem("a weight restored from 4 bits", restored, restored),
        MemoryItem("activations and logits", update=pack),
        MemoryItem("allocator fragmentation", update=holes),
    ]
    return MemoryPlan(tuple(items), min(recipe.run.parallel_seeds, len(recipe.run.seeds)))


def plan_host_memory(recipe: Recipe, config: ModelConfig, device: str) -> MemoryPlan | None:
    """Plan what `optimizer.cpu_offload` takes of the machine's memory; return None if it is off or there is no card."""
    if not recipe.optimizer.cpu_offload or device != "cuda":
        return None
    dtype = getattr(torch, recipe.model.dtype)
    largest = max(trained_sizes(config, recipe.model.lora, recipe.optimizer.frozen)) * dtype.itemsize
    items = [
        _keep("process and libraries", HOST_BYTES),
        *optimizer_items(recipe, config, dtype),
        MemoryItem("gradient or weight on its way", update=largest),
    ]
    return MemoryPlan(tuple(items), min(recipe.run.parallel_seeds, len(recipe.run.seeds)))


def optimizer_items(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> list[MemoryItem]:
    """Return what the optimizer works on beside the weights, for a model of this number format."""
    optimizer, sizes = recipe.optimizer, trained_sizes(config, recipe.model.lora, recipe.optimizer.frozen)
    gradients = 4 * sum(sizes)  # float32 for bfloat16 weights too; policies are trained one after the other
    count = 1 + len(recipe.trained_roles)
    copies = sum(4 * size for size in sizes if needs_float32_copy(optimizer, size, dtype))
    return [
        _keep("float32 copies", count * copies),
        _keep("moments", count * sum(moment_bytes(optimizer, size) for size in sizes)),
        # When rollouts run ahead, they go on between the packs of an update.
        MemoryItem("gradients", gradients if recipe.rollout.ahead else 0, gradients),
    ]


def _keep(name: str, size: int) -> MemoryItem:
    return MemoryItem(name, size, size)


@cache
def make_partly_frozen(config: ModelConfig, frozen: tuple[str, ...]) -> CausalLM:
    """Make a model whose tensors have no data. Raises RecipeError as `freeze_weights`."""
    model = weights.make_empty(config)
    freeze_weights(model, frozen)
    return model


@cache
def trained_sizes(config: ModelConfig, adapters: LoRASection | None, frozen: tuple[str, ...]) -> tuple[int, ...]:
    """Return how many values each trained weight has: those of the adapters, or all that are not frozen."""
    if adapters:
        return tuple(lora.adapter_sizes(weights.make_empty(config), adapters))
    return tuple(weight.numel() for weight in make_partly_frozen(config, frozen).parameters() if weight.requires_grad)


def context_length(recipe: Recipe, config: ModelConfig) -> int:
    """Return the tokens of the longest call: the recipe's limit or the model's.

    Raises:
        RecipeError: the model has fewer positions than the recipe wants, or the KV cache fewer tokens.
    """
    try:
        context = config.context(recipe.model.max_model_len)
    except ValueError as error:
        raise RecipeError(f"model.{error}") from error
    inference = recipe.inference
    # Replicas of our engine are told kv_tokens, unless replica_args says otherwise.
    told = inference.engine == "embedded" and "--kv-tokens" not in inference.replica_args
    if context > inference.kv_tokens and (told or not inference.replicas) and not inference.servers:
        raise RecipeError(
            f"inference.kv_tokens {inference.kv_tokens} is less than the context of {context} tokens; raise it, "
            "or set a smaller model.max_model_len"
        )
    return context


def largest_pack_bytes(recipe: Recipe, config: ModelConfig, dtype: torch.dtype, device: str) -> tuple[int, int]:
    """Return the bytes of the pack with most tokens, and on the CPU those of the holes that its tensors leave.

    The pack counts as if each of its tokens were trained and no two rows shared a prompt. A row is never cut, so a pack
    can be as long as the context.
    """
    tokens = max(recipe.optimizer.max_tokens_per_pack, context_length(recipe, config))
    checkpointing, adapted = recipe.optimizer.gradient_checkpointing, recipe.model.lora is not None
    head = not adapted and make_partly_frozen(config, recipe.optimizer.frozen).lm_head.weight.requires_grad
    pack = pack_bytes(
        config, tokens, tokens, tokens, dtype=dtype, gradient_checkpointing=checkpointing, trains_head=head
    )
    # glibc keeps memory between tensors that stay: 15 % of a pack, measured with `tokentrue speed memory`. Where little
    # memory is asked for, the trainer makes it keep none.
    return pack, 0 if device != "cpu" or checkpointing else int(0.15 * pack)


def count_running(recipe: Recipe) -> int:
    """Return how many sequences run at once."""
    step = recipe.rollout.tasks_per_step * recipe.rollout.group_size * (1 + recipe.rollout.ahead)
    return min(recipe.inference.max_num_seqs, max(step, recipe.run.eval_tasks))


def check_memory(
    recipe: Recipe,
    config: ModelConfig,
    device: str,
    available: int,
    frozen: Mapping[str, ModelConfig],
    host: int | None = None,
) -> None:
    """Refuse a run that needs more than `available` bytes, or that offloads more than `host` bytes to the machine.

    With `host` None the machine's memory is not checked.

    Raises:
        RecipeError: it names the largest items and the keys that make the run fit, or what it needs at least.
    """

    def plan(changed: Recipe) -> MemoryPlan:
        return plan_memory(changed, config, device, frozen)

    planned = plan(recipe)
    if planned.peak <= available:
        _check_host_memory(plan_host_memory(recipe, config, device), host)
        return
    context, can_offload = context_length(recipe, config), _can_offload(recipe, config, device, host)
    ladders = list(_list_ladders(recipe, context, can_offload, config.states is not None))
    settings, peak = find_fitting_settings(recipe, ladders, available, plan)
    shown = " ".join(f"{key}={str(value).lower()}" for key, value in settings.items())
    fix = f"it fits with --set {shown.replace(' ', ' --set ')}"
    if peak > available:
        fix = f"it needs at least {format_bytes(peak)}" + (f", with {shown}" if shown else "")
    if beside := plan_host_memory(replace_keys(recipe, settings), config, device):
        fix += f" and {format_bytes(beside.peak)} of the machine's memory"
    raise RecipeError(
        f"this run needs {format_bytes(planned.peak)} of memory and {format_bytes(available)} are available "
        f"({planned.peak_phase}: {planned.largest()}); {fix}. --dry-run prints the plan; --memory SIZE corrects what "
        "is available"
    )


def _check_host_memory(planned: MemoryPlan | None, host: int | None) -> None:
    if planned is not None and host is not None and planned.peak > host:
        raise RecipeError(
            f"optimizer.cpu_offload needs {format_bytes(planned.peak)} of the machine's memory and "
            f"{format_bytes(host)} are available ({planned.largest()}); set optimizer.cpu_offload=false, with "
            "optimizer.name=adamw8bit or model.lora where the card is too small for it. --dry-run prints the plan. "
            "--memory SIZE, the card's, leaves the machine's unchecked"
        )


def _can_offload(recipe: Recipe, config: ModelConfig, device: str, host: int | None) -> bool:
    """Say whether `optimizer.cpu_offload` is there to be set, and the machine has the memory for it."""
    if recipe.optimizer.cpu_offload or recipe.optimizer.name != "adamw":
        return False
    planned = plan_host_memory(replace_keys(recipe, {"optimizer.cpu_offload": True}), config, device)
    return planned is not None and (host is None or planned.peak <= host)


def find_fitting_settings(
    recipe: Recipe, ladders: Sequence[tuple[str, list[Any]]], available: int, plan: Callable[[Recipe], MemoryPlan]
) -> tuple[dict[str, Any], int]:
    """Find the first setting that makes the plan fit into `available` bytes, or else several that do, each needed.

    `ladders` are the keys to try, each with its values. Returns the keys to set with their values, and the peak of the
    plan with them. If nothing fits, the settings are those of the smallest peak.
    """
    for key, values in ladders:
        for value in values:
            if (peak := plan(replace_keys(recipe, {key: value})).peak) <= available:
                return {key: value}, peak
    settings = {key: values[-1] for key, values in ladders}
    peak = plan(replace_keys(recipe, settings)).peak
    enough = max(available, peak)
    for key, values in ladders:
        # Leave the key out, or take its mildest value, as long as the others suffice.
        others = {name: value for name, value in settings.items() if name != key}
        choices = [others, *({**settings, key: value} for value in values)]
        settings = next(choice for choice in choices if plan(replace_keys(recipe, choice)).peak <= enough)
    return settings, plan(replace_keys(recipe, settings)).peak


def _list_ladders(recipe: Recipe, context: int, can_offload: bool, has_states: bool) -> Iterator[tuple[str, list[Any]]]:
    """Yield the keys that save memory, the least harmful first, each with its values from mild to strong."""
    if not recipe.optimizer.gradient_checkpointing:
        yield "optimizer.gradient_checkpointing", [True]
    halvings = {
        "optimizer.max_tokens_per_pack": (recipe.optimizer.max_tokens_per_pack, context),
        "inference.kv_tokens": (recipe.inference.kv_tokens, context),
        **({"inference.max_num_seqs": (recipe.inference.max_num_seqs, 1)} if has_states else {}),
    }
    for key, (value, least) in halvings.items():
        values = [value >> shift for shift in range(1, value.bit_length()) if value >> shift > least]
        if value > least:
            yield key, [*values, least]
    if can_offload:
        yield "optimizer.cpu_offload", [True]
    if min(recipe.run.parallel_seeds, len(recipe.run.seeds)) > 1:
        yield "run.parallel_seeds", [1]


def available_bytes(device: torch.device) -> int:
    """Return the memory that is free for a run: of the card on CUDA, else of the machine within its cgroup's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min([_free_bytes_of_machine(), *_free_bytes_of_cgroups()])


def _free_bytes_of_machine() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # not Linux: all memory there is


def _free_bytes_of_cgroups(root: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Return what is left below the limit of the process's cgroup and of every group above it, version 1 or 2."""
    free = []
    for line in process.read_text().splitlines() if process.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):  # version 2 names no controller
            continue
        limit_file, used = ("memory.limit_in_bytes", "total_rss") if controllers else ("memory.max", "anon")
        top = root / controllers
        group = top / path.lstrip("/")
        # In a container the path may be the host's; the container's own group is at the top then.
        for folder in (group, *group.parents):
            if folder.is_relative_to(top) and (folder / limit_file).is_file():
                limit = (folder / limit_file).read_text().strip()
                usage = dict(entry.split() for entry in (folder / "memory.stat").read_text().splitlines())
                if limit != "max":
                    free.append(int(limit) - int(usage[used]))
    return free
