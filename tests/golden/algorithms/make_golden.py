"""Writes slime.json: what slime's own code answers on small inputs, for test_slime_numbers.py to compare with.

    SLIME_ROOT=<checkout of github.com/THUDM/slime> python -m tests.golden.algorithms.make_golden [--check]

Runs on a CPU. Packages that slime imports and that are not here are replaced by stand-ins (slime_rig.py of
tests/contract/backends); every number comes from slime's functions. `--check` writes nothing and fails if the stored
numbers differ from slime's by more than float32 rounding.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import chain, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tests.contract.backends.slime_rig import slime_at

GOLDEN = Path(__file__).with_name("slime.json")
VOCABULARY = 5
STATS = "pg_loss entropy_loss pg_clipfrac ppo_kl kl_loss tis tis_clipfrac train_rollout_logprob_abs_diff".split()
TIS = [0.7, 1.3]
KL_TIS = {"kl_loss_coef": 0.1, "tis": [0.0, 1.3]}
ALL = {
    "clip_ratio_low": 0.1,
    "clip_ratio_high": 0.3,
    "clip_ratio_c": 1.2,
    "kl_loss_coef": 0.1,
    "entropy_coef": 0.05,
    "tis": TIS,
}
# (name, unit, config, optional: the sampling temperature, or the micro-batches of row indices instead of all in one)
GRPO_CASES: list[tuple[Any, ...]] = [
    ("plain", "rollout", {}),
    ("clip_higher", "rollout", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3}),
    ("clip_ratio_c", "rollout", {"clip_ratio_c": 1.2}),
    *((kind, "rollout", {"kl_loss_coef": 0.1, "kl_loss_type": kind}) for kind in ("k1", "k2", "k3")),
    ("low_var_kl", "rollout", {"kl_loss_coef": 0.1}),
    ("entropy", "rollout", {"entropy_coef": 0.05}),
    ("tis_clamp", "rollout", {"tis": TIS}),
    ("tis_mask", "rollout", {"tis": TIS, "tis_mode": "mask"}),
    ("temperature", "rollout", {"kl_loss_coef": 0.1, "entropy_coef": 0.05}, {"temperature": 0.7}),
    ("micro_batches", "rollout", {"kl_loss_coef": 0.1}, {"micro_batches": [[4, 0], [2, 5], [1, 6, 3]]}),
    ("turn", "turn", KL_TIS),
    ("token", "token", KL_TIS),
    ("token_micro_batches", "token", {"clip_ratio_c": 3.0}, {"micro_batches": [[4, 0], [2, 5, 1, 6]]}),
    ("everything", "rollout", ALL, {"temperature": 1.3}),
]


def make_loss_args(config: Mapping[str, Any], **others: Any) -> SimpleNamespace:
    """Make slime's arguments of a loss with these settings of `AlgorithmSection`."""
    tis_low, tis_high = config.get("tis") or (None, None)
    mask = config.get("tis_mode") == "mask"
    return SimpleNamespace(
        **{
            "loss_type": "policy_loss",
            "advantage_estimator": "grpo",
            "eps_clip": config.get("clip_ratio_low", 0.2),
            "eps_clip_high": config.get("clip_ratio_high", 0.2),
            "eps_clip_c": config.get("clip_ratio_c"),
            "use_kl_loss": True,
            "kl_coef": 0,
            "kl_loss_coef": config.get("kl_loss_coef", 0.0),
            "kl_loss_type": config.get("kl_loss_type", "low_var_kl"),
            "use_unbiased_kl": False,
            "entropy_coef": config.get("entropy_coef", 0.0),
            "use_tis": tis_high is not None,
            "tis_clip_low": tis_low,
            "tis_clip": tis_high,
            "custom_tis_function_path": "slime.backends.megatron_utils.loss.icepop_function" if mask else None,
            "custom_advantage_function_path": None,
            "normalize_advantages": False,
            "use_opd": False,
            "get_mismatch_metrics": False,
            "use_opsm": False,
            "use_rollout_logprobs": False,
            "calculate_per_token_loss": False,
            "rollout_temperature": 1.0,
            "rollout_top_p": 1.0,
            "log_probs_chunk_size": -1,
            "allgather_cp": False,
            "recompute_loss_function": False,
            **others,
        }
    )


def compute_kl(slime: Any) -> dict[str, Any]:
    x = [-30.0, -20.0, -5.0, -2.625, -2.5, -1.0, -0.125, -0.0078125, 0.0, 0.0078125, 0.125, 1.0, 5.0, 10.5, 12.0, 30.0]
    numbers: dict[str, Any] = {"x": x}
    for kind in ("k1", "k2", "k3", "low_var_kl"):
        log_ratio = torch.tensor(x, requires_grad=True)
        kl = slime.ppo_utils.compute_approx_kl(log_ratio, torch.zeros(len(x)), kind)
        kl.sum().backward()
        numbers[kind] = {"value": kl.tolist(), "grad": read_gradient(log_ratio, len(x))}
    return numbers


def compute_policy_loss(slime: Any) -> dict[str, Any]:
    log_ratio = [-3.0, -0.5, -0.25, -0.2, -0.125, -0.0625, 0.0, 0.0625, 0.125, 0.2, 0.25, 0.5, 1.0, 1.25, 3.0]
    bounds = [(0.2, 0.2, None), (0.2, 0.3, None), (0.1, 0.05, None), (1.0, 4.0, None), (0.2, 0.2, 3.0), (0.2, 0.3, 1.5)]
    cases = []
    for (low, high, dual), advantage in product(bounds, (-2.0, -0.1, 0.0, 1.5)):
        x = torch.tensor(log_ratio, requires_grad=True)
        loss, clipped = slime.ppo_utils.compute_policy_loss(-x, torch.full((len(x),), advantage), low, high, dual)
        loss.sum().backward()
        case = {
            "config": {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": dual},
            "advantage": advantage,
        }
        cases.append(case | {"value": loss.tolist(), "grad": read_gradient(x, len(x)), "clipped": clipped.tolist()})
    return {"log_ratio": log_ratio, "cases": cases}


def compute_tis(slime: Any) -> dict[str, Any]:
    log_ratio = [-5.0, -1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 0.65, 0.75, 1.0, 5.0]
    x = torch.tensor(log_ratio)
    functions = {"clamp": slime.loss.vanilla_tis_function, "mask": slime.loss.icepop_function}
    cases = []
    for low, high in ((0.0, 2.0), (0.5, 2.0), (0.5, 5.0)):
        for mode, function in functions.items():
            weights, _, _ = function(
                SimpleNamespace(tis_clip_low=low, tis_clip=high),
                pg_loss=torch.ones_like(x),
                train_log_probs=[x],
                rollout_log_probs=[torch.zeros_like(x)],
                loss_masks=[torch.ones_like(x)],
            )
            cases.append({"low": low, "high": high, "mode": mode, "weights": weights.tolist()})
    return {"log_ratio": log_ratio, "cases": cases}


def compute_advantages(slime: Any) -> list[dict[str, Any]]:
    """Run batches of equal groups through the rollout manager's reward post-processing."""
    batches = [
        [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]],
        [[0.25, -1.5, 3.0], [10.0, 10.5, 9.0]],
        [[1.0, 1.0, 1.0, 1.0]],
        [[0.7]],
        [[1.0, 0.0]],
    ]
    cases = []
    for groups, std_normalization in product(batches, (True, False)):
        size = len(groups[0])
        args = SimpleNamespace(
            advantage_estimator="grpo",
            rewards_normalization=True,
            grpo_std_normalization=std_normalization and size > 1,  # what slime's argument check does to a group of one
            n_samples_per_prompt=size,
            rollout_batch_size=len(groups),
            reward_key=None,
        )
        samples = [slime.Sample(reward=reward) for group in groups for reward in group]
        manager = SimpleNamespace(args=args, custom_reward_post_process_func=None)
        _, advantages = slime.rollout_manager._post_process_rewards(manager, samples)
        cases.append({"groups": groups, "std_normalization": std_normalization, "advantages": advantages})
    return cases


def make_rows() -> list[dict[str, Any]]:
    """Make three rollouts of 1, 3 and 3 rows; masks have holes, and the row at index 3 has no trained token.

    `logits` are those that predict each response token.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = [(0, "1111"), (1, "101"), (1, "11111"), (1, "00"), (2, "11"), (2, "0110"), (2, "111")]
    advantages = {0: 1.1, 1: -0.8, 2: -0.3}
    rows = []
    for rollout_id, mask in shapes:
        length = len(mask)
        tokens = torch.randint(VOCABULARY, (2 + length,), generator=generator)
        logits = torch.randn(length, VOCABULARY, generator=generator)
        noise = torch.randn(3, length, generator=generator)
        logprobs = logits.log_softmax(-1).gather(-1, tokens[2:, None]).squeeze(-1)
        old = logprobs + 0.4 * noise[0]
        rollout = old + 0.4 * noise[1]
        reference = logprobs + 0.8 * noise[2]
        reference[-1] += 4.0 if rollout_id == 0 else 0.0  # KL beyond the clamp of low_var_kl
        row: dict[str, Any] = {"rollout_id": rollout_id, "tokens": tokens.tolist()}
        row |= {"loss_mask": [int(bit) for bit in mask], "advantage": advantages[rollout_id]}
        for name, x in (("logits", logits), ("old", old), ("rollout", rollout), ("reference", reference)):
            row[name] = (x * 1024).round().div(1024).tolist()  # short to write, exact in float32
        rows.append(row)
    return rows


def compute_grpo(slime: Any, rows: list[dict[str, Any]], case: dict[str, Any]) -> dict[str, Any]:
    """Compute loss, statistics and gradients of one optimizer step; micro-batches add up like Megatron's.

    slime counts rows without a trained token as a part under `turn` and as one token under `token`; there it gets none.
    """
    per_token, per_rollout = case["unit"] == "token", case["unit"] == "rollout"
    kept = [index for index, row in enumerate(rows) if per_rollout or any(row["loss_mask"])]
    micro_batches = case.get("micro_batches", [kept])
    order = list(chain.from_iterable(micro_batches))
    assert sorted(order) == kept
    parts = len({row["rollout_id"] for row in rows}) if per_rollout else len(kept)
    temperature = case.get("temperature", 1.0)
    args = make_loss_args(case["config"], calculate_per_token_loss=per_token, rollout_temperature=temperature)
    logits = {index: torch.tensor(rows[index]["logits"], requires_grad=True) for index in kept}
    logprobs: list[torch.Tensor] = []
    compute = slime.loss.get_log_probs_and_entropy

    def compute_and_hold(*args: Any, **kwargs: Any) -> Any:
        empty, result = compute(*args, **kwargs)
        for x in result["log_probs"]:
            x.retain_grad()
        logprobs.extend(result["log_probs"])
        return empty, result

    loss, normalizer, stats = torch.zeros(()), 0.0, dict.fromkeys(STATS, 0.0)
    with patch.object(slime.loss, "get_log_probs_and_entropy", compute_and_hold):
        for indices in micro_batches:
            scaled, tokens, log = slime.loss.loss_function(
                args,
                to_batch([rows[index] for index in indices], rows if per_rollout else None),
                len(micro_batches),
                parts,
                torch.cat([with_prompt(logits[index]) for index in indices])[None],
            )
            loss = loss + (scaled if per_token else scaled / len(micro_batches))
            normalizer += float(tokens) if per_token else 0.0
            for name, value in zip(log["keys"], log["values"][1:].tolist(), strict=True):
                if name in stats:
                    stats[name] += value
    if per_token:
        loss = loss / normalizer
    loss.backward()
    count = normalizer if per_token else parts
    row_logprobs = dict(zip(order, logprobs, strict=True))
    if "tis" not in case["config"]:
        del stats["tis"], stats["tis_clipfrac"]
    return {
        "loss": loss.item(),
        "stats": {name: value / count for name, value in stats.items()},
        "grad_logprobs": [read_gradient(row_logprobs.get(index), len(row["old"])) for index, row in enumerate(rows)],
        "grad_logits": [
            read_gradient(logits.get(index), len(row["old"]), VOCABULARY) for index, row in enumerate(rows)
        ],
    }


def with_prompt(logits: torch.Tensor) -> torch.Tensor:
    """Return all positions of a row with two prompt tokens; those that predict no response token are zero."""
    zeros = torch.zeros(1, VOCABULARY)
    return torch.cat([zeros, logits, zeros])


def to_batch(rows: list[dict[str, Any]], siblings: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Make slime's micro-batch of `rows`; `siblings` are all rows of the step if rollouts are the unit, else None."""

    def rollout_mask_sum(rollout_id: int) -> torch.Tensor:
        return torch.tensor(sum(sum(row["loss_mask"]) for row in siblings or () if row["rollout_id"] == rollout_id))

    def column(name: str) -> list[torch.Tensor]:
        return [torch.tensor(row[name]) for row in rows]

    return {
        "unconcat_tokens": column("tokens"),
        "total_lengths": [len(row["tokens"]) for row in rows],
        "response_lengths": [len(row["old"]) for row in rows],
        "loss_masks": [mask.float() for mask in column("loss_mask")],
        "advantages": [torch.full((len(row["old"]),), row["advantage"]) for row in rows],
        "log_probs": column("old"),
        "rollout_log_probs": column("rollout"),
        "ref_log_probs": column("reference"),
        "rollout_mask_sums": [rollout_mask_sum(row["rollout_id"]) for row in rows] if siblings else None,
    }


def read_gradient(x: torch.Tensor | None, *shape: int) -> Any:
    return (torch.zeros(shape) if x is None or x.grad is None else x.grad).tolist()


def make(root: Path) -> dict[str, Any]:
    rows = make_rows()
    commit = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    cases = [dict(name=name, unit=unit, config=config, **dict(*more)) for name, unit, config, *more in GRPO_CASES]
    with slime_at(root, data_parallel=1) as slime:
        return {
            "slime": commit.stdout.strip(),
            "torch": torch.__version__,
            "kl": compute_kl(slime),
            "policy_loss": compute_policy_loss(slime),
            "tis": compute_tis(slime),
            "advantages": compute_advantages(slime),
            "grpo": {"rows": rows, "cases": [case | {"expected": compute_grpo(slime, rows, case)} for case in cases]},
        }


def dump(value: Any) -> str:
    """Write one line for each record: an element of a list of objects, or a value that is no object."""
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(key)}:{dump(each)}" for key, each in value.items()) + "\n}"
    if isinstance(value, list) and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(each, separators=(",", ":")) for each in value) + "\n]"
    return json.dumps(value, separators=(",", ":"))


def find_difference(ours: Any, theirs: Any, path: str = "") -> str | None:
    """Return where two trees of numbers first differ by more than float32 rounding; None if nowhere."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        children = [(ours[key], theirs[key], f"{path}/{key}") for key in ours]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        children = [(a, b, f"{path}/{index}") for index, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    elif isinstance(ours, float) and isinstance(theirs, float):
        return None if math.isclose(ours, theirs, rel_tol=1e-6, abs_tol=1e-6) else f"{path}: {ours} != {theirs}"
    else:
        return None if ours == theirs else f"{path}: {ours!r} != {theirs!r}"
    return next(filter(None, (find_difference(*child) for child in children)), None)


def main() -> str | None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the stored numbers instead of writing them")
    check = parser.parse_args().check
    if not (root := os.environ.get("SLIME_ROOT")):
        return "set SLIME_ROOT to a checkout of slime"
    numbers = json.loads(json.dumps(make(Path(root))))
    if not check:
        GOLDEN.write_text(dump(numbers) + "\n")
        return None
    stored = json.loads(GOLDEN.read_text())
    found = find_difference({**stored, "slime": "", "torch": ""}, {**numbers, "slime": "", "torch": ""})
    return f"{GOLDEN.name} differs from slime: {found}" if found else None


if __name__ == "__main__":
    sys.exit(main())
