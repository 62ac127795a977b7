"""The plan of memory: its sizes are those of real tensors, and a run that cannot fit is told what would."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen3Config

from core.config import Recipe, RecipeError
from core.config.load import replace_keys
from core.engine import footprint, weights
from core.engine.engine import Engine
from core.engine.lora import add_adapters, find_trained_parameters
from core.engine.model import Linear, ModelConfig
from core.rollout.method import method_spec
from core.train import memory
from core.train.memory import check_memory, plan_host_memory, plan_memory
from core.train.trainer import Trainer
from core.training_options import read_bytes
from core.types import Row, Sampling
from tests.unit.conftest import watch_gradients


def make_config(kind: Any, vocab: int, hidden: int, inner: int, layers: int, heads: int, kv: int, **others: Any) -> Any:
    names = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads".split()
    return kind(**dict(zip(names, (vocab, hidden, inner, layers, heads, kv), strict=True)), **others)


TIED = {"tie_word_embeddings": True}
QWEN2_3B = make_config(Qwen2Config, 151936, 2048, 11008, 36, 16, 2, max_position_embeddings=32768, **TIED)
QWEN2_7B = make_config(Qwen2Config, 152064, 3584, 18944, 28, 28, 4, max_position_embeddings=32768)
QWEN3 = {"head_dim": 128, "max_position_embeddings": 40960}
QWEN3_8B = make_config(Qwen3Config, 151936, 4096, 12288, 36, 32, 8, **QWEN3)
QWEN3_4B = make_config(Qwen3Config, 151936, 2560, 9728, 36, 32, 8, **QWEN3, **TIED)
PUBLISHED = {
    "Qwen/Qwen2.5-3B": QWEN2_3B,
    "Qwen/Qwen2.5-3B-Instruct": QWEN2_3B,
    "Qwen/Qwen2.5-7B": QWEN2_7B,
    "Qwen/Qwen2.5-7B-Instruct": QWEN2_7B,
    "Qwen/Qwen2.5-Coder-7B-Instruct": QWEN2_7B,
    "Qwen/Qwen3-8B": QWEN3_8B,
    "font-info/qwen3-4b-sft-SGLang-RL": QWEN3_4B,
}
"""Maps hub ids to the sizes in their config.json."""
ROOT = Path(__file__).resolve().parents[3]
ONE_GPU = [
    [cell.strip().strip("`") for cell in line.strip("|\n").split("|")]
    for line in (ROOT / "docs/one_machine.md").read_text().splitlines()
    if line.startswith("| `")
]
"""Holds the rows of the table: method, model, GPU, plan of the card and the machine, calls at once, settings."""
OFFLOADED_3B = ["model.lora=null", "optimizer.cpu_offload=true"]


def make_recipe(model: Path, *settings: str) -> Recipe:
    return method_spec("memagent").load("tiny", [f"model.path={model}", "run.parallel_seeds=1", *settings])


def size_of(plan: memory.MemoryPlan, name: str, phase: str = "rollout") -> int:
    return next(getattr(item, phase) for item in plan.items if item.name == name)


def count_bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "part",
    [
        *("run.parallel_seeds=1", "optimizer.cpu_offload=true", "optimizer.frozen=[embed_tokens]"),
        *("optimizer.frozen=[mlp]", "model.lora={rank: 3, targets: [q_proj, down_proj]}"),
    ],
)
def test_what_a_run_keeps_is_exact(any_model, dtype, part):
    """Beside a part that is trained alone nothing has a gradient, a copy or moments, and adapters need no reference."""
    settings = (f"model.dtype={dtype}", part, "algorithm.kl_loss_coef=0.1", "inference.kv_tokens=2000")
    recipe, model = make_recipe(any_model, *settings), weights.load(any_model, dtype, "cpu")
    add_adapters(model, recipe.model.lora)
    plan = plan_memory(recipe, model.config, "cpu")
    trainer = Trainer(model, recipe.optimizer, recipe.algorithm)
    gradients = watch_gradients(trainer)
    trainer.grpo_step([Row(tuple(range(12)), (1,) * 4, (-1.0,) * 4, 1.0, rollout_id=0)])
    adapters = find_trained_parameters(model).values() if recipe.model.lora else ()
    assert size_of(plan, "weights") == count_bytes([*model.parameters(), *adapters])
    assert size_of(plan, "float32 copies") == count_bytes(copy for copy, _ in trainer._copies)
    assert bool(trainer._copies) == (dtype == "bfloat16" or recipe.optimizer.cpu_offload)
    assert size_of(plan, "gradients", "update") == count_bytes(gradients.values())
    trained = [weight for group in trainer.optimizer.param_groups for weight in group["params"]]
    assert (len(trained) < len(list(model.parameters()))) == bool(adapters or recipe.optimizer.frozen)
    moments = [s[name] for s in trainer.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert size_of(plan, "moments") == count_bytes(moments)
    assert (trainer.reference is None) == bool(adapters)
    assert size_of(plan, "reference") == count_bytes(trainer.reference.parameters() if trainer.reference else ())
    engine = Engine(model, max_model_len=recipe.model.max_model_len, kv_tokens=2000)
    engine.submit([1, 2], Sampling(max_new_tokens=1))
    engine.step()
    packed = [
        module.prepacked for module in model.modules() if isinstance(module, Linear) and module.prepacked is not None
    ]
    assert size_of(plan, "prepacked weights") == count_bytes(packed)
    assert size_of(plan, "KV cache") == count_bytes([engine.cache.kv[:, :, engine.cache.page_size :]])
    states = engine.cache.states
    assert size_of(plan, "states of inference.max_num_seqs") == (count_bytes(states.tensors) if states else 0)


def test_a_frozen_head_has_no_gradient_in_the_plan_and_a_name_of_no_weight_is_refused():
    adapted, config = method_spec("memagent").load("one-gpu", []), ModelConfig.from_hf(QWEN2_7B)
    recipe = replace_keys(adapted, {"model.lora": None})
    recipes = (recipe, replace_keys(recipe, {"optimizer.frozen": ("lm_head",)}), adapted)
    whole, frozen, lora = (memory.largest_pack_bytes(each, config, torch.bfloat16, "cuda")[0] for each in recipes)
    assert whole > frozen == lora
    with pytest.raises(RecipeError, match=r"optimizer\.frozen: no weight's name holds 'lm_heads'"):
        plan_memory(replace_keys(recipe, {"optimizer.frozen": ("lm_heads",)}), config, "cuda")


def test_weights_that_will_be_packed_are_planned_whole_while_a_cpu_loads_them():
    config = ModelConfig.from_hf(QWEN2_7B)
    settings = ["model.dtype=bfloat16", "model.lora={rank: 8, load_in_4bit: true}", "inference.kv_tokens=1000"]
    recipe = make_recipe(Path("none"), *settings, "model.max_model_len=500", "optimizer.max_tokens_per_pack=500")
    whole = footprint.parameter_bytes(config, torch.bfloat16) + memory.PROCESS_BYTES["cpu"]
    plan = plan_memory(recipe, config, "cpu")
    assert plan.peak == whole > 1.4 * plan.total("update") > 1.4 * plan.total("rollout")
    assert "(loading: process and whole weights 15.68 GB, " in refuse(recipe, config, whole - 1)
    check_memory(recipe, config, "cpu", whole, {})
    roomy = plan_memory(replace_keys(recipe, {"inference.kv_tokens": 1_000_000}), config, "cpu")
    assert roomy.peak == roomy.total("rollout")
    assert "loading" not in plan_memory(recipe, config, "cuda").table()


@pytest.mark.parametrize("row", ONE_GPU, ids=lambda row: f"{row[0]}-{row[1].partition(';')[0]}-{row[2]}")
def test_a_one_gpu_preset_fits_the_card_and_the_table_tells_its_plan(row, monkeypatch):
    method, model, card, told, calls, settings = row
    told, _, told_of_machine = told.partition("; machine ")
    monkeypatch.setattr(memory, "resolve", lambda path, weights: Path(path))
    monkeypatch.setattr(weights, "load_config", lambda path: ModelConfig.from_hf(PUBLISHED[str(path)]))
    recipe = method_spec(method).load("one-gpu", [word for word in shlex.split(settings) if word != "--set"])
    assert model.startswith(recipe.model.path.split("/")[1]) or method == "retool"
    config, frozen = memory.read_configs(recipe)
    check_memory(recipe, config, "cuda", int(0.9e9 * int(card.removesuffix(" GB"))), frozen)
    assert f"{plan_memory(recipe, config, 'cuda', frozen).peak / 1e9:.1f} GB" == told
    beside = plan_host_memory(recipe, config, "cuda")
    assert (f"{beside.peak / 1e9:.1f} GB" if beside else "") == told_of_machine
    assert recipe.inference.kv_tokens // memory.context_length(recipe, config) == int(calls)
    if not settings:
        preset = (ROOT / f"agentic/{method}/presets/one-gpu.yaml").read_text()
        assert preset.startswith(f"# One card of {card}, ")


def test_every_one_gpu_preset_is_in_the_table():
    presets = {path.parents[1].name for path in ROOT.glob("agentic/*/presets/one-gpu.yaml")}
    assert presets == {method for method, *_, settings in ONE_GPU if not settings}


def test_roles_that_are_one_frozen_model_are_planned_once(monkeypatch):
    monkeypatch.setattr(memory, "resolve", lambda path, weights: Path(path))
    monkeypatch.setattr(weights, "load_config", lambda path: ModelConfig.from_hf(PUBLISHED[str(path)]))
    others = [f"roles.{role}=model:Qwen/Qwen3-8B" for role in ("judge", "verifier")]
    _, frozen = memory.read_configs(method_spec("agentflow").load("one-gpu", others))
    assert sorted(len(roles.split(", ")) for roles in frozen) == [2, 3]
    assert "judge, verifier" in {", ".join(sorted(roles.split(", "))) for roles in frozen}


def test_a_frozen_role_has_weights_and_a_cache_of_its_own(qwen2):
    recipe, config = make_recipe(qwen2), weights.load_config(qwen2)
    plan = plan_memory(recipe, config, "cpu", {"judge": config})
    parts = ("weights", "prepacked weights", "KV cache")
    assert size_of(plan, "frozen model of judge", "update") == sum(size_of(plan, name) for name in parts)


def test_replicas_on_a_machine_without_a_gpu_take_its_memory_too(qwen2, monkeypatch):
    config, alone = weights.load_config(qwen2), ("process and libraries", "weights", "prepacked weights", "KV cache")
    one = plan_memory(make_recipe(qwen2), config, "cpu")
    expected = 2 * sum(size_of(one, name) for name in (*alone, "prefill and sampling"))
    served = make_recipe(qwen2, "inference.replicas=2", "run.seeds=[0]")
    for gpu, size in ((False, expected), (True, 0)):
        monkeypatch.setattr("torch.cuda.is_available", lambda gpu=gpu: gpu)
        assert size_of(plan_memory(served, config, "cpu"), "servers of inference.replicas", "update") == size


def test_seeds_at_once_multiply_the_plan(qwen2):
    config = weights.load_config(qwen2)
    one = plan_memory(make_recipe(qwen2, "run.seeds=[0,1,2]"), config, "cpu")
    two = plan_memory(make_recipe(qwen2, "run.seeds=[0,1,2]", "run.parallel_seeds=2"), config, "cpu")
    lone = plan_memory(make_recipe(qwen2, "run.seeds=[0]", "run.parallel_seeds=2"), config, "cpu")
    assert (two.peak, lone.peak) == (2 * one.peak, one.peak)


@pytest.mark.parametrize("settings", [[], ["rollout.ahead=1", "algorithm.tis=[0,2]", "run.parallel_seeds=2"]])
def test_what_is_offloaded_leaves_the_card_for_the_machine(settings):
    config = ModelConfig.from_hf(QWEN2_3B)
    settings = ["run.seeds=[0,1]", "model.lora=null", *settings]
    recipe = method_spec("memagent").load("one-gpu", settings)
    offloaded = replace_keys(recipe, {"optimizer.cpu_offload": True})
    assert plan_host_memory(recipe, config, "cuda") is None
    before, card = (plan_memory(each, config, "cuda") for each in (recipe, offloaded))
    machine = plan_host_memory(offloaded, config, "cuda")
    assert machine is not None
    moved = {"float32 copies", "moments", "gradients"}
    for phase in memory.PHASES:
        for name in moved:
            assert size_of(machine, name, phase) == size_of(before, name, phase)
        left, rest = ({i: getattr(i, phase) for i in plan.items if i.name not in moved} for plan in (card, before))
        assert left == rest
    largest = 2 * 151936 * 2048
    assert [(i.rollout, i.update) for i in card.items if i.name in moved] == [(0, 2 * largest)]
    assert size_of(machine, "gradient or weight on its way", "update") == largest
    assert machine.processes == card.processes == recipe.run.parallel_seeds


def test_on_a_cpu_offloading_takes_copies_of_float32_weights_and_nothing_else(qwen2):
    config = weights.load_config(qwen2)
    for dtype in ("float32", "bfloat16"):
        recipe = make_recipe(qwen2, f"model.dtype={dtype}")
        offloaded = replace_keys(recipe, {"optimizer.cpu_offload": True})
        assert plan_host_memory(offloaded, config, "cpu") is None
        copies = footprint.parameter_bytes(config, torch.float32) if dtype == "float32" else 0
        assert plan_memory(offloaded, config, "cpu").peak == plan_memory(recipe, config, "cpu").peak + copies


def refuse(recipe: Recipe, config: ModelConfig, available: int, device: str = "cpu", host: int | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        check_memory(recipe, config, device, available, {}, host)
    return str(caught.value)


def test_a_machine_too_small_for_what_is_offloaded_is_told_so_with_key_and_sizes():
    recipe, config = method_spec("memagent").load("one-gpu", OFFLOADED_3B), ModelConfig.from_hf(QWEN2_3B)
    needed = plan_host_memory(recipe, config, "cuda")
    assert needed is not None
    check_memory(recipe, config, "cuda", 24 * 10**9, {}, needed.peak)
    message = refuse(recipe, config, 24 * 10**9, "cuda", needed.peak - 1)
    sizes = f"needs {needed.peak / 1e9:.2f} GB of the machine's memory and {needed.peak / 1e9:.2f} GB are available"
    assert message.startswith(f"optimizer.cpu_offload {sizes} (moments 24.69 GB, ")
    assert "; set optimizer.cpu_offload=false" in message


@pytest.mark.parametrize("host", [None, 64 * 10**9])
def test_offloading_is_told_where_it_makes_a_run_fit(host):
    config = ModelConfig.from_hf(QWEN2_3B)
    recipe = method_spec("memagent").load("one-gpu", ["model.lora=null"])
    message = refuse(recipe, config, 24 * 10**9, "cuda", host)
    assert "; it fits with --set optimizer.cpu_offload=true and 52.70 GB of the machine's memory. " in message


@pytest.mark.parametrize(
    ("settings", "needed_with"),
    [
        (["inference.kv_tokens=256"], "optimizer.gradient_checkpointing=true"),
        (["inference.kv_tokens=256", "optimizer.gradient_checkpointing=true", "optimizer.max_tokens_per_pack=262144"],
         "optimizer.max_tokens_per_pack=131072"),
        (["inference.kv_tokens=4000000", "optimizer.max_tokens_per_pack=224"], "inference.kv_tokens=2000000"),
        (["run.parallel_seeds=2", "run.seeds=[0,1]", "inference.kv_tokens=224", "optimizer.max_tokens_per_pack=224",
          "optimizer.gradient_checkpointing=true"], "run.parallel_seeds=1"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_setting_that_makes_it_fit(qwen2, settings, needed_with):
    recipe, config = make_recipe(qwen2, *settings), weights.load_config(qwen2)
    key, value = needed_with.split("=")
    fitting = plan_memory(make_recipe(qwen2, *settings, needed_with), config, "cpu").peak
    assert f"; it fits with --set {key}={value}. " in refuse(recipe, config, fitting)
    check_memory(make_recipe(qwen2, *settings, needed_with), config, "cpu", fitting, {})


def test_several_settings_are_named_where_none_is_enough(qwen2):
    config = weights.load_config(qwen2)
    recipe = make_recipe(qwen2, "inference.kv_tokens=4000000", "optimizer.max_tokens_per_pack=4000000")
    message = refuse(recipe, config, 2 * memory.PROCESS_BYTES["cpu"])
    settings = message.partition("it fits with --set ")[2].partition(". ")[0].split(" --set ")
    assert len(settings) > 1
    changed = make_recipe(qwen2, "inference.kv_tokens=4000000", "optimizer.max_tokens_per_pack=4000000", *settings)
    check_memory(changed, config, "cpu", 2 * memory.PROCESS_BYTES["cpu"], {})


def test_the_cgroup_with_the_smallest_rest_counts(tmp_path):
    process, root = tmp_path / "cgroup", tmp_path / "fs"
    inner = root / "job" / "step"
    inner.mkdir(parents=True)
    for folder, limit, used in ((inner, "max", 10), (root / "job", "5000", 1200), (root, "9000", 1000)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.stat").write_text(f"anon {used}\nfile 700\n")
    process.write_text("0::/job/step\n")
    assert memory._free_bytes_of_cgroups(root, process) == [3800, 8000]


def test_the_cgroup_of_version_1_is_read_inside_a_container_too(tmp_path):
    process, top = tmp_path / "cgroup", tmp_path / "fs" / "memory"
    top.mkdir(parents=True)
    (top / "memory.limit_in_bytes").write_text("4000\n")
    (top / "memory.stat").write_text("cache 900\ntotal_rss 1500\n")
    process.write_text("4:memory:/docker/0123\n3:cpu:/\n0::/\n")
    assert memory._free_bytes_of_cgroups(tmp_path / "fs", process) == [2500]


@pytest.mark.parametrize(
    ("text", "size"), [("24GB", 24 * 10**9), ("8GiB", 8 << 30), ("1.5 mib", 3 << 19), ("800MB", 8 * 10**8), ("7", 7)]
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert read_bytes(text) == size
