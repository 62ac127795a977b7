"""Families of transformers without a file of ours: log-probs and gradients are transformers', or they are refused.

Each model is tiny and random, made by transformers' own classes, and computed by its own attention (`eager`).
"""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn.utils import get_total_norm
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from core.algorithms.grpo import GRPOConfig
from core.config import LoRASection, OptimizerSection, RecipeError
from core.engine import engine as engine_module
from core.engine import lora, weights
from core.engine.engine import Engine
from core.engine.scores import Scores
from core.hub import CheckpointError
from core.train.packing import PackedAttention, pack_rows
from core.train.trainer import Trainer, run_layers
from core.types import Row, Sampling
from tests.kit import SIZES
from tests.unit.conftest import DELTA_NET, sample_rows

SMALL = SIZES | {"max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
HEADS = {"head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_local_experts": 4}
DEEPSEEK = EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
DEEPSEEK |= {"first_k_dense_replace": 1}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
MULTIPLIERS = {"attention_multiplier": 0.3, "embedding_multiplier": 2.0, "residual_multiplier": 0.5}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "attn_pdrop": 0.5}
SHORT = {"original_max_position_embeddings": 64}
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
LONG = SHORT | {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, **FACTORS, **SHORT}}
WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
WINDOW = {"sliding_window": 8}
TWO_HEADS = {"global_head_dim": 16, "vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 8}
EXACT = {"attn_implementation": "eager", "dtype": torch.float32}
FAMILIES: dict[str, dict[str, Any]] = {
    **{family: {} for family in "Apertus BitNet GPTNeoX Olmo Olmo2 Persimmon Phi Phi3".split()},
    **dict.fromkeys("Arcee Ernie4_5 Gemma Glm Glm4 Helium HunYuanDenseV1 Ministral Ministral3 SeedOss".split(), HEADS),
    **dict.fromkeys(("FlexOlmo", "Olmoe", "Phimoe"), EXPERTS),
    **dict.fromkeys(("Exaone4", "Mistral", "Olmo3"), WINDOW),
    **dict.fromkeys(("Dots1", "Glm4Moe"), HEADS | DEEPSEEK),
    **dict.fromkeys(("Qwen3Next", "Qwen3_5MoeText"), DELTA_NET | HEADS | EXPERTS),
    "Cohere": {"logit_scale": 0.3},
    "Cohere2": HEADS | WINDOW,
    "DeepseekV3": DEEPSEEK | LATENT | {"num_key_value_heads": 4},
    "GPT2": GPT2,
    "Gemma2": HEADS | WINDOW | {"attn_logit_softcapping": 3.0},
    "Gemma3Text": HEADS | WINDOW | {"final_logit_softcapping": 5.0},
    "GptOss": HEADS | EXPERTS | WINDOW,
    "Granite": {"logits_scaling": 8.0, **MULTIPLIERS},
    "GraniteMoe": EXPERTS | {"logits_scaling": 4.0},
    "Mixtral": EXPERTS | {"sliding_window": None},
    "OPT": {"word_embed_proj_dim": 32, "ffn_dim": 48, "dropout": 0.5},
    "Qwen3Moe": HEADS | EXPERTS,
    "Qwen3_5Text": DELTA_NET | HEADS,
    "SmolLM3": {"no_rope_layer_interval": 2},
    "Starcoder2": {"sliding_window": None},
}
OWN_FAMILIES = {"Llama": {"hidden_act": "gelu"}, "Qwen2": WINDOWS, "Qwen3": HEADS | WINDOWS}
"""Has options that our own file of a family does not compute."""
REFUSED = {
    "Gemma4Text": (HEADS | TWO_HEADS, "its layers have different heads"),
    "Qwen2Moe": (EXPERTS | WINDOWS, "layer 0 is sliding_attention, which transformers does not hand to its attention"),
    "Phi3": (LONG, "rope_type 'longrope' depends on the sequence length"),
    "Phimoe": (EXPERTS | WINDOW, "its logits differ from transformers'"),
    "Olmoe": (EXPERTS | WINDOW, "its logits differ from transformers'"),
    "Lfm2": ({"layer_types": ["conv", "full_attention"]}, "layer 0 does not attend to earlier tokens"),
    "Llama4Text": (HEADS | EXPERTS | {"attention_chunk_size": 8}, "its code in transformers fails"),
    "StableLm": ({}, "do not hand arguments to their attention"),
    "Falcon": ({}, "its code in transformers fails"),
    "DiffLlama": ({}, "its logits differ from transformers'"),
}
PROMPTS = [(5, 6, 7, 8, 9, 10, 11, 12, 13, 14), (5, 6, 7, 8, 9, 10, 11, 12, 3), (20, 21, 22)]
SAMPLING = Sampling(max_new_tokens=12, seed=1)


def save_model(family: str, options: dict[str, Any], folder: Path) -> Path:
    """Write a model whose every weight is random: norms and biases too."""
    config = getattr(transformers, f"{family}Config")(**(SMALL | options))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        saved = model.state_dict().keys()
        buffers = [buffer for name, buffer in model.named_buffers() if name in saved]
        for tensor in (*model.parameters(), *buffers):
            tensor.normal_(float(tensor.dim() == 1), 0.2)
        for name, tensor in model.named_parameters():
            if "conv1d" in name:  # else nearly nothing comes through, and the norm behind it makes rounding large
                tensor += 1.0
    model.save_pretrained(folder)
    return folder


def load_theirs(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **EXACT).eval()


def score(theirs: Any, row: Row) -> torch.Tensor:
    """transformers' log-probs of the trained tokens of a row."""
    ids = torch.tensor([row.tokens])
    logprobs = torch.log_softmax(theirs(input_ids=ids, use_cache=False).logits[0].float(), -1)
    first = len(row.tokens) - len(row.loss_mask)
    return logprobs[first - 1 : -1].gather(1, ids[0, first:, None])[:, 0]


def close_to(expected: torch.Tensor, row: Row, model: Any) -> None:
    # transformers' own two ways through a gated delta net, by token and by chunk, differ by up to 1.6e-4 here.
    tolerance = 3e-5 if model.config.states else 1e-5
    torch.testing.assert_close(torch.tensor(row.logprobs), expected, atol=tolerance, rtol=0)


def sample(model: Any, prompts: list[tuple[int, ...]] = PROMPTS, **options: Any) -> list[Row]:
    return sample_rows(model, prompts, SAMPLING, max_model_len=32, page_size=4, **options)


@pytest.mark.parametrize(("family", "options"), (FAMILIES | OWN_FAMILIES).items())
def test_log_probs_and_gradients_are_those_of_transformers(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """In parts, in a batch, after a shared prefix and in a pack; what is saved is what was loaded."""
    folder = save_model(family, options, tmp_path / "start")
    theirs, model = load_theirs(folder), weights.load(folder)
    rows = sample(model, max_prefill_tokens=7)  # the second prompt finds eight tokens of the first in the cache
    for row in rows:
        close_to(score(theirs, row), row, model)
    assert sample(model, PROMPTS[1:2])[0].tokens == rows[1].tokens  # a seed gives the same tokens alone

    trainer = Trainer(model, OptimizerSection(lr=0.0, gradient_checkpointing=True), GRPOConfig())
    [pack] = pack_rows(rows, 4096, model.device)
    trained, _ = trainer._compute_logprobs(model, pack, run_layers(model, pack), 1.0)
    trained.sum().backward()
    sum(score(theirs, row).sum() for row in rows).backward()
    expected = dict(theirs.named_parameters())
    total = get_total_norm([p.grad for p in expected.values() if p.grad is not None])
    for name, parameter in model.named_parameters():
        if expected[name].grad is None:
            assert parameter.grad is None or not parameter.grad.any()
        else:
            assert (parameter.grad - expected[name].grad).norm() < 1e-5 * total, name

    weights.save(model, tmp_path / "saved", folder)
    start, saved = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "saved"))
    assert saved.keys() == start.keys()
    assert all(torch.equal(saved[name], start[name]) for name in start)
    for tensor in model.state_dict().values():
        tensor.zero_()
    weights.load_into(model, tmp_path / "saved")
    assert sample(model)[0].tokens == rows[0].tokens


@pytest.mark.parametrize("family", ["GptOss", "Olmoe", "Qwen3Moe", "Qwen3_5MoeText"])
def test_the_loss_of_unequal_experts_is_that_of_transformers(family: str, tmp_path: Path) -> None:
    """Over two packs; the rows have no advantage, so nothing else has a gradient."""
    folder = save_model(family, FAMILIES[family], tmp_path)
    theirs, model = load_theirs(folder), weights.load(folder)
    rows = [replace(row, advantage=0.0) for row in sample(model)[:2]]
    options = OptimizerSection(lr=0.0, max_tokens_per_pack=24)
    trainer = Trainer(model, options, GRPOConfig(router_aux_loss_coef=0.5, entropy_coef=1e-12))
    kept: dict[str, torch.Tensor] = {}
    trainer._step_optimizer = lambda: kept.update({n: p.grad for n, p in model.named_parameters()}) or {}  # type: ignore[method-assign]
    stats = trainer.grpo_step(rows)
    losses = []
    for row in rows:
        packed = torch.tensor([row.tokens[:-1]])  # nothing depends on the last token
        out = theirs.base_model(input_ids=packed, output_router_logits=True, use_cache=False)
        losses.append((packed.numel(), load_balancing_loss_func(out.router_logits, 4, 2)))
    total = sum(count for count, _ in losses)
    expected = sum(count / total * loss for count, loss in losses)
    assert stats["router_aux_loss"] == pytest.approx(expected.item(), rel=1e-5)
    (0.5 * expected).backward()
    routers = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None and p.shape[0] == 4}
    assert routers
    for name, gradient in routers.items():
        torch.testing.assert_close(kept[name], gradient, atol=1e-6, rtol=1e-3)


def test_frozen_routers_stay_and_the_rest_learns(tmp_path: Path) -> None:
    model = weights.load(save_model("Qwen3Moe", FAMILIES["Qwen3Moe"], tmp_path))
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = Trainer(model, OptimizerSection(lr=1e-2, frozen=("mlp.gate.",)), GRPOConfig(kl_loss_coef=0.1))
    for _ in range(2):
        trainer.grpo_step(sample(model))
    same = {name for name, parameter in model.named_parameters() if torch.equal(parameter, start[name])}
    assert same == {f"model.layers.{i}.mlp.gate.weight" for i in range(2)}
    assert trainer.precise_weights().keys() == start.keys()
    with pytest.raises(ValueError, match=r"optimizer\.frozen: no weight's name holds 'mlp\.router'"):
        Trainer(model, OptimizerSection(lr=1e-2, frozen=("mlp.router",)))
    with pytest.raises(ValueError, match=r"optimizer\.frozen: \['model', 'head'\] leave no weight to train"):
        Trainer(model, OptimizerSection(lr=1e-2, frozen=("model", "head")))
    lora.add_adapters(model, LoRASection(rank=2, targets=("q_proj",)))
    with pytest.raises(ValueError, match=r"With model\.lora all are frozen: leave it out there"):
        Trainer(model, OptimizerSection(lr=1e-2, frozen=("layers.0.",)))
    for family in ("Gemma", "DeepseekV3", "Glm4Moe"):
        other = weights.load(save_model(family, FAMILIES[family], tmp_path / family))
        with pytest.raises(ValueError, match="it is no mixture of experts, or balances them otherwise"):
            Trainer(other, OptimizerSection(lr=0.0), GRPOConfig(router_aux_loss_coef=0.1))


def test_the_other_parts_of_a_model_with_images_stay_as_they_are(tmp_path: Path, caplog: Any) -> None:
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = transformers.Qwen3_5Config(text_config=SMALL | FAMILIES["Qwen3_5Text"], vision_config=vision)
    whole = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    whole.save_pretrained(tmp_path / "start")
    file = tmp_path / "start/model.safetensors"
    start = load_file(file) | {"mtp.fc.weight": torch.ones(2)}  # transformers reads no head of several tokens
    save_file(start, file, metadata={"format": "pt"})
    model = weights.load(tmp_path / "start")
    assert "tensors beside the text model stay as they are, the first is model.visual" in caplog.text
    rows = sample(model)
    Trainer(model, OptimizerSection(lr=1e-2), GRPOConfig()).grpo_step(rows)
    weights.save(model, tmp_path / "saved", tmp_path / "start")
    saved = {name: t for path in weights.weight_files(tmp_path / "saved") for name, t in load_file(path).items()}
    assert saved.keys() == start.keys()
    kept = {name for name in start if torch.equal(saved[name], start[name])}
    assert kept == weights.find_beside(model, tmp_path / "start").keys()
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "saved", **EXACT)
    for row in sample(weights.load(tmp_path / "saved")):
        close_to(score(theirs, row), row, model)
    lora.add_adapters(model, LoRASection(rank=2, targets=("up_proj",)))
    lora.save(model, tmp_path / "adapter", tmp_path / "start")
    assert "load the base with AutoModelForCausalLM" in caplog.text


def test_a_layer_whose_number_another_size_ignores_is_trained(tmp_path: Path) -> None:
    """Glm4Moe ignores layer 46 when it loads: in one of its sizes that predicts several tokens."""
    options = FAMILIES["Glm4Moe"] | {"num_hidden_layers": 47, "first_k_dense_replace": 46}
    folder = save_model("Glm4Moe", options, tmp_path / "start")
    model = weights.load(folder)
    assert not weights.find_beside(model, folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5
    weights.save(model, tmp_path / "saved", folder)
    again = weights.load(tmp_path / "saved")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_model_is_not_saved_over_what_it_has_beside_its_text(tmp_path: Path) -> None:
    folder = save_model("Qwen3_5Text", FAMILIES["Qwen3_5Text"], tmp_path)
    with pytest.raises(ValueError, match="beside its text would be lost; save it into another folder"):
        weights.save(weights.load(folder), folder, folder)


def test_a_step_that_fails_is_computed_again_from_the_beginning(tmp_path: Path, monkeypatch: Any) -> None:
    folder = save_model("Qwen3_5Text", FAMILIES["Qwen3_5Text"], tmp_path)
    model, theirs, calls = weights.load(folder), load_theirs(folder), []

    def fail_at_times(*arguments: Any) -> Any:
        calls.append(0)
        if len(calls) in (1, 4):
            raise MemoryError
        return draw(*arguments)

    draw = engine_module.sample
    monkeypatch.setattr(engine_module, "sample", fail_at_times)
    engine = Engine(model, max_model_len=32, kv_tokens=512, page_size=4)
    requests = [engine.submit(prompt, SAMPLING) for prompt in PROMPTS]
    while engine.has_work():
        with suppress(MemoryError):
            engine.step()
    for request in requests:
        assert request.completion is not None
        tokens = (*request.prompt_ids, *request.output_ids)
        row = Row(tokens, (1,) * len(request.output_ids), tuple(request.logprobs), 1.0, 0)
        close_to(score(theirs, row), row, model)


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_would_be_computed_wrongly_is_refused_by_name(family: str, tmp_path: Path) -> None:
    options, reason = REFUSED[family]
    folder = save_model(family, options, tmp_path)
    with pytest.raises(CheckpointError, match=f"model_type '.*' is not supported: .*{reason}"):
        weights.load(folder)


@pytest.mark.parametrize("family", ["SmolLM3", "Qwen3Moe", "Qwen3_5Text"])
def test_adapters_are_those_of_peft(family: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder = save_model(family, FAMILIES[family], tmp_path / "start")
    model = weights.load(folder)
    targets = ("q_proj", "o_proj", *(("in_proj_qkv", "out_proj") if model.config.states else ()))
    lora.add_adapters(model, LoRASection(rank=4, alpha=8, targets=targets), seed=3)
    rows = sample(model)
    Trainer(model, OptimizerSection(lr=1e-2), GRPOConfig()).grpo_step(rows)
    lora.save(model, tmp_path / "adapter", folder)
    theirs = peft.PeftModel.from_pretrained(load_theirs(folder), tmp_path / "adapter")
    for row in sample(model):
        close_to(score(theirs, row), row, model)


def test_a_checkpointed_layer_is_computed_twice_and_only_where_gradients_are_wanted(tmp_path: Path) -> None:
    model = weights.load(save_model("Olmo2", {}, tmp_path))
    calls = []
    model.get_submodule("model.layers.0.mlp").register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    for checkpointing, count in ((False, 1), (True, 2)):
        trainer = Trainer(model, OptimizerSection(lr=0.0, gradient_checkpointing=checkpointing), GRPOConfig())
        calls.clear()
        trainer.grpo_step([Row((1, 2, 3), (1,), (-4.5,), 1.0, 0)])
        assert calls == [True] * count
    reference = Trainer(model, OptimizerSection(lr=0.0), GRPOConfig(kl_loss_coef=0.1))
    assert reference.grpo_step([Row((1, 2, 3), (1,), (-4.5,), 1.0, 0)])["kl_loss"] < 1e-9


def test_what_a_family_lacks_is_named(tmp_path: Path) -> None:
    model = weights.load(save_model("GPT2", GPT2, tmp_path))
    with pytest.raises(CheckpointError, match=r"no linear map down_proj; name some of lm_head"):
        lora.add_adapters(model, LoRASection(rank=4))
    with pytest.raises(RecipeError, match=r"model.compile is for Qwen2, Qwen2.5, Qwen3 and Llama"):
        Trainer(model, OptimizerSection(lr=0.0), GRPOConfig(), compiled=True)


def test_a_checkpoint_must_hold_every_tensor_and_no_other(tmp_path: Path) -> None:
    folder = save_model("Olmo2", {}, tmp_path)
    model, tensors = weights.load(folder), load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    for changed, says in (({"use_cache": False}, None), ({"rms_norm_eps": 0.5}, "another rms_norm_eps than the model")):
        (folder / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(CheckpointError, match=says) if says else nullcontext():
            weights.read(model, folder)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file(tensors | {"extra": torch.ones(2)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="1 tensors have no place, the first is extra"):
        weights.load(folder)
    save_file({n: t for n, t in tensors.items() if n != name}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"1 tensors are missing, the first is {name}"):
        weights.load(folder)


def test_a_window_in_a_pack_whose_branches_are_padded_far_has_gradients() -> None:
    attend = PackedAttention([40, 45], [8, 2], [0, 1], torch.device("cpu"))
    heads = [torch.randn(95, 2, 4, requires_grad=True) for _ in range(3)]
    attend(0, *heads, Scores(window=3)).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in heads)


@pytest.mark.parametrize("family", ["Mixtral", "Gemma3Text", "SmolLM3", "Qwen3_5Text"])
def test_bfloat16_trains_what_it_samples_and_comes_back_from_a_checkpoint(family: str, tmp_path: Path) -> None:
    folder = save_model(family, FAMILIES[family], tmp_path / "start")
    model = weights.load(folder, "bfloat16")
    stats = Trainer(model, OptimizerSection(lr=1e-3), GRPOConfig(), start=folder).grpo_step(sample(model))
    assert stats["train_rollout_logprob_abs_diff"] < 0.05
    weights.save(model, tmp_path / "saved", folder)
    again = weights.load(tmp_path / "saved", "bfloat16")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_head_that_is_no_embedding_and_whole_numbers_are_refused(tmp_path: Path) -> None:
    folder = save_model("Olmo2", {"tie_word_embeddings": False}, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(CheckpointError, match="tie_word_embeddings: true, and the head is another matrix"):
        weights.load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model.norm.weight is torch.int8: quantized"):
        weights.load(folder)


def test_the_readme_lists_these_families() -> None:
    text = (Path(weights.__file__).parent / "README.md").read_text()
    assert ", ".join(sorted(FAMILIES)) in " ".join(text.split())
    assert all(f"{family}" in text for family in REFUSED)
