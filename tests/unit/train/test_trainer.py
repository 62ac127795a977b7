"""The trainer: what one batch means does not depend on how it is cut, and a resumed trainer is the same trainer."""

from __future__ import annotations

import copy
import io
import random
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from core.algorithms.grpo import GRPOConfig
from core.config import LoRASection, OptimizerSection, RecipeError
from core.engine import lora, weights
from core.engine.model import CausalLM
from core.train import trainer as trainer_module
from core.train.packing import pack_rows
from core.train.trainer import POLICY_STATISTICS, Trainer, pack_bytes
from core.types import Row, Sampling
from tests import kit
from tests.unit.conftest import DELTA_NET, gradients, sample_rows


def make_rows(seed: int = 0, rollouts: int = 6, logprob: float = -4.5) -> list[Row]:
    """Rollouts of one to three rows with prompts and responses of uneven length; every third has no advantage."""
    rng = random.Random(seed)
    rows = []
    for rollout in range(rollouts):
        advantage = (0.0, 1.0, -0.5)[rollout % 3]
        for _ in range(rng.randint(1, 3)):
            prompt = tuple(rng.randrange(96) for _ in range(rng.randint(2, 25)))
            response = tuple(rng.randrange(96) for _ in range(rng.randint(1, 8)))
            ones = (1,) * len(response)
            rows.append(Row(prompt + response, ones, (logprob,) * len(response), advantage, rollout))
    return rows


def optimizer(**options) -> OptimizerSection:
    return OptimizerSection(**{"lr": 1e-3, "weight_decay": 0.0, "bf16_autocast": False, **options})


def snapshot(model: CausalLM) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Forwards:
    """Counts the forwards of a model and the tokens in them."""

    def __init__(self, model: CausalLM):
        self.calls = self.tokens = 0
        model.register_forward_pre_hook(self._count)

    def _count(self, module, arguments) -> None:
        self.calls += 1
        self.tokens += len(arguments[0])


def test_recomputed_activations_give_the_same_gradient(any_model):
    kept = gradients(any_model, make_rows(), max_tokens=64)
    again = gradients(any_model, make_rows(), max_tokens=64, checkpointing=True)
    for name, gradient in kept.items():
        torch.testing.assert_close(again[name], gradient, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"num_steps_per_rollout": 3}, {"grpo": GRPOConfig(tis=(0.5, 2.0))}], ids=["plain", "steps", "tis"]
)
def test_rows_without_advantage_see_no_forward(qwen2, options):
    rows = make_rows()
    useful = [row for row in rows if row.advantage]
    seen = []
    for batch in (rows, useful):
        model = weights.load(qwen2)
        trainer, forwards = Trainer(model, optimizer(), **options), Forwards(model)
        stats = trainer.grpo_step(batch)
        assert (stats["rows"], stats["rows_skipped"]) == (len(batch), len(batch) - len(useful))
        seen.append(forwards.tokens)
    assert 0 < len(useful) < len(rows)
    assert seen[0] == seen[1] > 0


@pytest.mark.parametrize("options", [{}, {"num_steps_per_rollout": 2}], ids=["one step", "two steps"])
@pytest.mark.parametrize("loss_agg", ["rollout", "turn", "token"])
def test_statistics_of_the_policy_do_not_shrink_with_the_rows_left_out(qwen2, loss_agg, options):
    """Rows that say the same with and without advantage: leaving six of eight out changes nothing but the loss."""
    (row, *_) = [row for row in make_rows() if row.advantage]
    rows = [replace(row, rollout_id=i, advantage=row.advantage if i < 2 else 0.0) for i in range(8)]
    grpo = GRPOConfig(tis=(0.5, 2.0))
    left_out, kept = (
        Trainer(weights.load(qwen2), optimizer(lr=0.0), config, loss_agg=loss_agg, **options).grpo_step(rows)
        for config in (grpo, GRPOConfig(tis=(0.5, 2.0), kl_loss_coef=1e-12))
    )
    assert (left_out["rows_skipped"], kept["rows_skipped"]) == (6, 0)
    for name in sorted(POLICY_STATISTICS):
        assert left_out[name] == pytest.approx(kept[name], rel=1e-4, abs=1e-6), name
    assert left_out["entropy_loss"] > 1
    if not options:  # a step that has nothing but rows without advantage is not taken
        assert left_out["pg_loss"] == pytest.approx(kept["pg_loss"], rel=1e-4)


def test_a_bound_that_needs_no_advantage_is_not_reached_less_often_for_the_rows_left_out(qwen2):
    """The engine was sure of every token and the trainer is not, so that each is beyond the bound of DPPO."""
    (row, *_) = [row for row in make_rows(logprob=-0.01) if row.advantage == -0.5]
    rows = [replace(row, rollout_id=i, advantage=-0.5 if i < 2 else 0.0) for i in range(8)]
    stats = Trainer(weights.load(qwen2), optimizer(), GRPOConfig(loss_mode="dppo_tv")).grpo_step(rows)
    assert (stats["rows_skipped"], stats["pg_clipfrac"]) == (6, pytest.approx(1.0))


@pytest.mark.parametrize("num_steps_per_rollout", [1, 3])
@pytest.mark.parametrize("rows", [make_rows(), []], ids=["no advantage", "no rows"])
def test_a_batch_without_rows_or_advantage_changes_nothing(qwen2, rows, num_steps_per_rollout):
    model = weights.load(qwen2)
    trainer = Trainer(model, optimizer(), num_steps_per_rollout=num_steps_per_rollout)
    forwards, before = Forwards(model), snapshot(model)
    stats = trainer.grpo_step([replace(row, advantage=0.0) for row in rows])
    assert stats == {"rows": len(rows), "rows_skipped": len(rows)}
    assert forwards.calls == trainer.steps == 0
    assert same(before, snapshot(model))


@pytest.mark.parametrize("settings", [{"vf_coef": 0.1}, {"router_aux_loss_coef": 0.1}])
def test_what_a_model_cannot_learn_is_an_error_of_the_recipe(qwen2, settings):
    """The command ended with a traceback, after the warm start."""
    with pytest.raises(RecipeError, match=rf"algorithm\.{next(iter(settings))} "):
        Trainer(weights.load(qwen2), optimizer(cpu_offload="vf_coef" in settings), GRPOConfig(**settings))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl"])
def test_a_kl_term_without_a_gradient_sees_no_forward(qwen2, kind):
    """Before the first step the model is its reference: without an advantage only k1 has a gradient there."""
    model = weights.load(qwen2)
    trainer = Trainer(model, optimizer(), GRPOConfig(kl_loss_coef=0.1, kl_loss_type=kind))
    forwards, before = Forwards(model), snapshot(model)
    equal = [replace(row, advantage=0.0) for row in make_rows()]
    trainer.grpo_step(equal)
    assert (forwards.calls == 0) == same(before, snapshot(model)) == (kind != "k1")
    trainer.grpo_step(make_rows())
    assert trainer.grpo_step(equal)["rows_skipped"] == 0, "the policy has moved, and the term pulls it back"


def test_skipped_rows_stay_in_the_denominator(qwen2):
    rows = make_rows()
    useful = [row for row in rows if row.advantage]
    rollouts, left = (len({row.rollout_id for row in part}) for part in (rows, useful))
    with_zeros = gradients(qwen2, rows, max_tokens=1 << 20)
    without = gradients(qwen2, useful, max_tokens=1 << 20)
    for name, gradient in without.items():
        torch.testing.assert_close(with_zeros[name], gradient * left / rollouts, atol=1e-7, rtol=1e-4)


def test_kl_is_measured_against_a_reference_that_stays(qwen2):
    model = weights.load(qwen2)
    trainer = Trainer(model, optimizer(lr=1e-2), GRPOConfig(kl_loss_coef=0.1))
    assert trainer.reference is not None
    start = snapshot(model)
    kl = [trainer.grpo_step(make_rows())["kl_loss"] for _ in range(4)]
    assert kl[0] == pytest.approx(0.0, abs=1e-7)
    assert kl[3] > 1e-3
    assert same(start, snapshot(trainer.reference))
    assert not same(start, snapshot(model))
    assert trainer.grpo_step(make_rows())["rows_skipped"] == 0
    assert Trainer(model, optimizer()).reference is None


def make_segments(advantage: float | tuple[float, ...]) -> list[Row]:
    """Rows of several turns: 0 marks what came between them. Of advantages by token each row takes the first ones."""
    rows = []
    for number, bits in enumerate(("11001", "1011", "111", "10000111")):
        rng, mask = random.Random(number), tuple(int(bit) for bit in bits)
        tokens = tuple(rng.randrange(96) for _ in range(5 + number + len(mask)))
        own = advantage[: len(mask)] if isinstance(advantage, tuple) else advantage
        rows.append(Row(tokens, mask, tuple(-4.5 * sampled for sampled in mask), own, number))
    return rows


def find_observed(model: torch.nn.Module, row: Row) -> torch.Tensor:
    """Return the log-probs of the tokens between the turns of a row."""
    start = len(row.tokens) - len(row.loss_mask)
    logprobs = model(torch.tensor([row.tokens])).logits[0].log_softmax(-1)
    places = [start + place for place, sampled in enumerate(row.loss_mask) if not sampled]
    return torch.stack([logprobs[place - 1, row.tokens[place]] for place in places]) if places else logprobs[:0, 0]


@pytest.mark.parametrize("max_tokens", [1, 1 << 20], ids=["four packs", "one pack"])
@pytest.mark.parametrize("advantage", [0.0, (0.5, 0.0, -1.0, 2.0, 1.0, 0.0, -0.5, 1.0)], ids=["without", "by token"])
def test_observations_teach_their_mean_cross_entropy(qwen2, advantage, max_tokens):
    """The gradient is that of plain torch, for rows without an advantage too, and adds to that of the policy."""
    rows = make_segments(advantage)
    plain = AutoModelForCausalLM.from_pretrained(qwen2)
    loss = -torch.cat([find_observed(plain, row) for row in rows]).mean()
    (0.3 * loss).backward()
    expected = {name: p.grad for name, p in plain.named_parameters()}
    config = GRPOConfig(observation_coef=0.3)
    found = gradients(qwen2, rows, max_tokens=max_tokens, grpo=config, loss_agg="token")
    if advantage:
        policy = gradients(qwen2, rows, max_tokens=max_tokens, loss_agg="token")
        assert any(gradient.any() for gradient in policy.values())
        expected = {name: gradient + policy[name] for name, gradient in expected.items()}
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-4)
    trainer = Trainer(weights.load(qwen2), optimizer(max_tokens_per_pack=max_tokens), config, loss_agg="token")
    stats = trainer.grpo_step(rows)
    assert stats["observation_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert stats["loss"] == pytest.approx(stats["pg_loss"] + 0.3 * loss.item(), rel=1e-5)
    assert stats["rows_skipped"] == 0


@pytest.mark.parametrize("steps", [1, 2])
def test_the_policys_statistics_do_not_see_observations(qwen2, steps):
    """What is between the turns has no log-prob of the inference engine, and no entropy of a choice."""
    rows = make_segments(1.0)
    without, with_them = (
        Trainer(weights.load(qwen2), optimizer(lr=0.0), config, num_steps_per_rollout=steps).grpo_step(rows)
        for config in (GRPOConfig(), GRPOConfig(observation_coef=0.3))
    )
    for name in ("pg_loss", "entropy_loss", "train_rollout_logprob_abs_diff", "ppo_kl"):
        assert with_them[name] == pytest.approx(without[name], rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("adapters", [False, True], ids=["all weights", "adapters"])
def test_the_kl_of_a_rollout_is_a_sum_over_its_sampled_tokens(qwen2, reference, adapters):
    model = weights.load(qwen2)
    if adapters:
        lora.add_adapters(model, LoRASection(rank=4, alpha=8))
    trainer = Trainer(model, optimizer(max_tokens_per_pack=40), GRPOConfig(kl_coef=0.1), temperature=0.7)
    assert (trainer.reference is None) == adapters
    with torch.no_grad():
        for parameter in lora.find_trained_parameters(model).values():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.ndim)))
    rows = [replace(row, rollout_id=row.rollout_id // 2) for row in make_segments(1.0)]
    own = trainer.compute_logprobs(rows)
    found = trainer.measure_kl([replace(row, logprobs=tuple(x)) for row, x in zip(rows, own, strict=True)])
    expected = {0: 0.0, 1: 0.0}
    for row, now in zip(rows, own, strict=True):
        start = len(row.tokens) - len(row.loss_mask)
        then = reference(qwen2, row.tokens[:start], row.tokens[start:], 0.7).tolist()
        expected[row.rollout_id] += sum(a - b for a, b, mask in zip(now, then, row.loss_mask, strict=True) if mask)
    assert found == pytest.approx(expected, abs=1e-4)
    assert min(map(abs, expected.values())) > 1e-2
    after = trainer.compute_logprobs(rows)
    assert after == own, "the adapters are back"


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_steps_of_a_batch_share_out_whole_rollouts(qwen2, steps):
    trainer = Trainer(weights.load(qwen2), optimizer(), num_steps_per_rollout=steps, seed=4)
    rows = make_rows(rollouts=11)
    parts = [{row.rollout_id for row in part} for part in trainer._split(rows)]
    assert sorted(rollout for part in parts for rollout in part) == list(range(11))
    assert len(parts) == steps
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sorted(map(id, rows)) == sorted(id(row) for part in trainer._split(rows) for row in part)
    first = trainer._split(rows)
    assert trainer._split(rows) == first
    trainer.steps += steps
    assert trainer._split(rows) != first  # each batch is dealt anew


def test_later_steps_of_a_batch_are_off_policy(qwen2):
    """The old log-probs are those before the first step: the ratio of the second step is no longer 1."""
    rows = [replace(row, advantage=row.advantage or 0.3) for row in make_rows()]
    one = Trainer(weights.load(qwen2), optimizer(lr=5e-2), GRPOConfig(tis=(0.0, 100.0)))
    several = Trainer(weights.load(qwen2), optimizer(lr=5e-2), GRPOConfig(tis=(0.0, 100.0)), num_steps_per_rollout=3)
    assert one.grpo_step(rows)["ppo_kl"] == pytest.approx(0.0, abs=1e-6)
    assert abs(several.grpo_step(rows)["ppo_kl"]) > 1e-3
    assert (one.steps, several.steps) == (1, 3)


def test_on_policy_loss_is_minus_the_mean_advantage(qwen2):
    """Ratio 1 everywhere: with the trainer's own log-probs the loss is known without a model."""
    rows = make_rows()
    trainer = Trainer(weights.load(qwen2), optimizer(), GRPOConfig(tis=(0.0, 1e9)), loss_agg="token")
    own = trainer.compute_logprobs(rows)
    rows = [replace(row, logprobs=tuple(values)) for row, values in zip(rows, own, strict=True)]
    stats = trainer.grpo_step(rows)
    tokens = sum(row.trained_tokens for row in rows)
    expected = -sum(row.advantage * row.trained_tokens for row in rows) / tokens
    assert stats["pg_loss"] == pytest.approx(expected, abs=1e-6)
    assert stats["train_rollout_logprob_abs_diff"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_trainers_log_probs_are_the_engines(any_model, temperature):
    model = weights.load(any_model)
    rng = random.Random(0)
    shared, *others = (tuple(rng.randrange(96) for _ in range(count)) for count in (40, 1, 7, 30))
    prompts = [*others, *[shared] * 3, (*shared, 5)]
    rows = sample_rows(model, prompts, Sampling(temperature=temperature, max_new_tokens=12))
    for row, own in zip(rows, Trainer(model, optimizer(), temperature=temperature).compute_logprobs(rows), strict=True):
        torch.testing.assert_close(torch.tensor(own), torch.tensor(row.logprobs), atol=1e-5, rtol=0)


def test_warm_up_and_decay(qwen2):
    model = weights.load(qwen2)

    def rates(steps: int, **options) -> list[float]:
        trainer = Trainer(model, OptimizerSection(lr=1.0, **options))
        found = []
        for trainer.steps in range(steps):
            found.append(trainer.learning_rate())
        return found

    assert rates(6, lr_warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    linear = rates(8, lr_warmup_steps=2, lr_scheduler_type="linear", lr_decay_steps=6)
    assert linear == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    cosine = rates(6, lr_scheduler_type="cosine", lr_decay_steps=4)
    assert cosine == pytest.approx([1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0], abs=1e-6)


def test_the_rate_reaches_the_weights(qwen2):
    """Adam's first step moves a weight by the learning rate, whatever the gradient's size."""
    model = weights.load(qwen2)
    trainer = Trainer(model, optimizer(lr=1e-3, lr_warmup_steps=4))
    before = snapshot(model)
    stats = trainer.grpo_step(make_rows())
    moved = max((before[name] - p).abs().max().item() for name, p in model.named_parameters())
    assert stats["lr"] == 2.5e-4
    assert moved == pytest.approx(2.5e-4, rel=1e-2)


def test_clipping_bounds_the_gradient_and_reports_it_before(qwen2):
    rows = make_rows()
    model = weights.load(qwen2)
    trainer = Trainer(model, optimizer(clip_grad=0.01))
    norms: list[torch.Tensor] = []
    total = torch.nn.utils.get_total_norm
    trainer.optimizer.register_step_pre_hook(lambda *_: norms.append(total([p.grad for p in model.parameters()])))
    stats = trainer.grpo_step(rows)
    assert stats["grad_norm"] > 0.1
    assert norms[0].item() == pytest.approx(0.01, rel=1e-3)


def test_weight_decay_spares_norms_and_biases(qwen2):
    trainer = Trainer(weights.load(qwen2), optimizer(weight_decay=0.1))
    decayed, spared = trainer.optimizer.param_groups
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in spared["params"]} == {1}
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)


def test_the_supervised_loss_is_a_mean_over_completion_tokens(qwen2, reference):
    examples = [((1, 2, 3), (4, 5, 6)), ((9, 8), (7,))]
    expected = -torch.cat([reference(qwen2, list(p), list(c), 1.0) for p, c in examples]).mean().item()
    for max_tokens in (1, 1000):
        trainer = Trainer(weights.load(qwen2), optimizer(max_tokens_per_pack=max_tokens))
        assert trainer.supervised_step(examples)["loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("examples", [[], [((1, 2), ())]])
def test_without_a_completion_token_there_is_no_supervised_step(qwen2, examples):
    trainer = Trainer(weights.load(qwen2), optimizer())
    before = snapshot(trainer.model)
    assert (trainer.supervised_step(examples), trainer.steps) == ({"loss": 0.0}, 0)
    assert same(before, snapshot(trainer.model))


def test_small_steps_add_up_in_bfloat16(qwen2):
    """Each step is far below the spacing of bfloat16; forty of them are not."""
    model, exact = weights.load(qwen2, "bfloat16"), weights.load(qwen2)
    start = snapshot(exact)
    for each in (model, exact):
        trainer = Trainer(each, optimizer(lr=5e-5))
        for _ in range(40):
            trainer.supervised_step([((1, 2, 3), (4, 5, 6))])
    name = "model.layers.0.mlp.gate_proj.weight"
    wanted, found = (snapshot(each)[name].float() - start[name] for each in (exact, model))
    assert wanted.abs().max() > 1e-3
    assert torch.nn.functional.cosine_similarity(found.flatten(), wanted.flatten(), dim=0) > 0.9


def test_a_bfloat16_model_goes_on_from_float32_weights(qwen2):
    """One small step moves no larger weight visibly from a value of bfloat16, but some of those between two values."""
    name = "model.layers.0.mlp.gate_proj.weight"
    exact = snapshot(weights.load(qwen2))[name]
    moved = {}
    for start in (None, qwen2):
        model = weights.load(qwen2, "bfloat16")
        before = snapshot(model)[name]
        trainer = Trainer(model, optimizer(lr=2e-5), start=start)
        assert torch.equal(trainer.precise_weights()[name], exact if start else before.float())
        trainer.supervised_step([((1, 2, 3), (4, 5, 6))])
        moved[start] = (snapshot(model)[name] != before)[before.abs() > 0.05].float().mean().item()
    assert moved[None] == 0
    assert moved[qwen2] > 0.03


def test_gradients_of_many_packs_add_up_in_bfloat16(qwen2):
    """A bfloat16 sum of equal gradients stops growing at 256 of them."""
    example = ((1, 2, 3), (4, 5, 6))
    one, many = (
        Trainer(weights.load(qwen2, "bfloat16"), optimizer(max_tokens_per_pack=1)).supervised_step([example] * count)
        for count in (1, 288)
    )
    assert many["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-2)


def test_never_more_logits_than_a_chunk(qwen2, monkeypatch):
    monkeypatch.setattr(trainer_module, "LOGITS_PER_CHUNK", 96 * 4)
    model = weights.load(qwen2)
    sizes = []
    model.lm_head.register_forward_hook(lambda module, inputs, logits: sizes.append(len(logits)))
    rows = make_rows()
    Trainer(model, optimizer()).grpo_step(rows)
    trained = sum(row.trained_tokens for row in rows if row.advantage)
    assert max(sizes) == 4
    assert sum(sizes) == 2 * trained  # each chunk once forward, and once again in the backward pass


def test_a_frozen_head_computes_each_chunk_once_and_the_same_gradients(qwen2, monkeypatch):
    rows = make_rows()

    def backward(logits: int, *more: str) -> tuple[list[torch.Tensor], list[int]]:
        monkeypatch.setattr(trainer_module, "LOGITS_PER_CHUNK", logits)
        model, sizes = weights.load(qwen2), []
        lora.add_adapters(model, LoRASection(rank=4, alpha=8, targets=("o_proj", *more)))
        model.lm_head.register_forward_hook(lambda module, inputs, logits: sizes.append(len(logits)))
        next(Trainer(model, optimizer(), temperature=0.7).iterate_grpo_step(rows))
        return [p.grad for p in lora.find_trained_parameters(model).values()], sizes

    (whole, [trained]), (chunked, sizes) = backward(1 << 24), backward(96 * 4)
    assert max(sizes) == 4
    assert sum(sizes) == trained
    assert any(gradient.any() for gradient in whole)
    torch.testing.assert_close(chunked, whole, atol=1e-7, rtol=1e-4)
    (whole, _), (chunked, _) = backward(1 << 24, "lm_head"), backward(96 * 4, "lm_head")  # its adapter is trained
    torch.testing.assert_close(chunked, whole, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pack_bytes_counts_what_a_layer_keeps(own_model, dtype):
    """The second layer adds to the estimate what autograd keeps for it."""
    model = weights.load(own_model, dtype)
    kept, estimated = [], []
    for layers in (2, 1):
        model.model.layers = model.model.layers[:layers]
        found, planned = measure_kept(model, replace(model.config, num_layers=layers), GROUP)
        kept.append(found)
        estimated.append(planned)
    assert estimated[0] - estimated[1] == pytest.approx(kept[0] - kept[1], rel=0.15)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pack_bytes_counts_what_a_delta_net_keeps(tmp_path, dtype):
    options = {**DELTA_NET, "num_hidden_layers": 3, "layer_types": [*["linear_attention"] * 2, "full_attention"]}
    model = weights.load(kit.save_model(tmp_path, 0, Qwen3_5TextConfig, Qwen3_5ForCausalLM, **options), dtype)
    whole, planned = measure_kept(model, model.config, CHUNKS)
    model.model.layers = model.model.layers[1:]
    states = model.config.states._replace(layers=(0,))
    less, planned_less = measure_kept(model, replace(model.config, num_layers=2, states=states), CHUNKS)
    assert planned - planned_less == pytest.approx(whole - less, rel=0.15)


PROMPT = tuple(range(64))
GROUP = [Row((*PROMPT, i, *range(20)), (1,) * 12, (-1.0,) * 12, 1.0, i) for i in range(8)]
CHUNKS = [Row((i, *range(90), *range(38)), (1,), (-1.0,), 1.0, i) for i in range(4)]
"""Holds rows of 128 tokens: the estimate counts no padding."""


def measure_kept(model, config, rows):
    """Return the bytes that autograd keeps of a pack, and those of the estimate."""
    (pack,) = pack_rows(rows, 4096, torch.device("cpu"))
    tokens, trained, keys = len(pack.ids_T), len(pack.predict_R), len(pack.attend.padded.keys)
    storages, alive = {}, []

    def keep(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(pack.ids_T, pack.positions_T, pack.attend, pack.predict_R)
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storages.values()), pack_bytes(config, tokens, trained, keys, dtype=model.dtype)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        (GRPOConfig(), "float32"),
        (GRPOConfig(kl_loss_coef=0.1), "float32"),
        (GRPOConfig(), "bfloat16"),
        (GRPOConfig(vf_coef=0.5), "float32"),
    ],
)
def test_a_resumed_trainer_goes_on_bit_for_bit(qwen2, config, dtype):
    def make() -> Trainer:
        schedule = optimizer(lr=1e-2, lr_warmup_steps=3, lr_scheduler_type="linear", lr_decay_steps=20)
        return Trainer(weights.load(qwen2, dtype), schedule, config, num_steps_per_rollout=2, seed=1)

    whole = make()
    for seed in range(2):
        whole.grpo_step(make_rows(seed))
    saved = io.BytesIO()
    torch.save(whole.state(), saved)
    held = copy.deepcopy(whole.model.state_dict())

    resumed = make()
    resumed.model.load_state_dict(held)
    saved.seek(0)
    resumed.load_state(torch.load(saved, weights_only=True))
    for seed in range(2, 5):
        assert resumed.grpo_step(make_rows(seed)) == whole.grpo_step(make_rows(seed))
    assert resumed.steps == whole.steps == 10
    assert same(snapshot(whole.model), snapshot(resumed.model))


def test_a_step_far_from_the_reference_is_clipped_and_not_skipped(qwen2):
    """k3 grows like exp: here its gradient's squares leave float32, whose clipped step leads back all the same."""
    model = weights.load(qwen2, device="cpu")
    trainer = Trainer(model, optimizer(), GRPOConfig(kl_loss_coef=0.04, kl_loss_type="k3"))
    with torch.no_grad():
        model.lm_head.weight.mul_(35)
    steps = [trainer.grpo_step(make_rows()) for _ in range(2)]
    assert [step["nonfinite_steps"] for step in steps] == [0.0, 0.0]
    assert steps[0]["grad_norm"] > 1e20
    assert steps[1]["kl_loss"] < steps[0]["kl_loss"]


def test_a_value_head_takes_what_it_expects_from_the_returns(qwen2) -> None:
    """Rows hold returns. The head begins at 0, so the first step is that of plain returns, and it learns their mean."""
    rows = [replace(row, advantage=1.0 + row.rollout_id % 2) for row in make_rows()]
    settings = {"lr": 0.05, "lr_warmup_steps": 0, "weight_decay": 0.0}
    with_head = Trainer(weights.load(qwen2), optimizer(**settings), GRPOConfig(vf_coef=1.0), loss_agg="token")
    plain = Trainer(weights.load(qwen2), optimizer(**settings), GRPOConfig(), loss_agg="token")
    first = with_head.grpo_step(rows)
    assert first["pg_loss"] == pytest.approx(plain.grpo_step(rows)["pg_loss"])
    tokens = sum(row.trained_tokens for row in rows)
    squares = sum(row.trained_tokens * row.advantage**2 for row in rows)
    assert first["value_loss"] == pytest.approx(squares / tokens / 2, rel=1e-5)
    losses = [with_head.grpo_step(rows)["value_loss"] for _ in range(30)]
    assert losses[-1] < 0.2 * first["value_loss"]
