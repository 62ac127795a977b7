"""Writes credit.json: what the code of other projects answers on small inputs, for test_credit_numbers.py.

    python -m tests.golden.algorithms.make_credit [--check] --verl DIR --dppo DIR --gigpo DIR --mt-grpo DIR

Each DIR is a checkout, or for verl the folder that pip installs into: verl 0.9.1, sail-sg/Stable-RL (DPPO's authors),
langfengQ/DrMAS at 3b556f2c (GiGPO's authors) and SiliangZeng/Multi-Turn-RL-Agent (MT-GRPO's authors). Runs on a CPU.
The functions are taken out of their files, so that nothing else of those projects is imported; every number comes from
them. `--check` writes nothing and fails if the stored numbers differ by more than float32 rounding.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import uuid
from collections import defaultdict
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

from tests.golden.algorithms.make_golden import dump, find_difference

GOLDEN = Path(__file__).with_name("credit.json")
AGGS = {"token": "token-mean", "turn": "seq-mean-token-mean"}
"""Maps our `loss_agg` to verl's; a row of verl is a part, as ours is with `turn`."""
LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    ("gspo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3}),
    ("cispo", {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0}),
    ("cispo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}),
    ("dppo_tv", {"clip_ratio_low": 0.15, "clip_ratio_high": 0.15, "clip_ratio_c": 10.0}),
    ("dppo_tv", {"clip_ratio_low": 0.05, "clip_ratio_high": 0.3, "clip_ratio_c": 1.5}),
    ("dppo_kl", {"clip_ratio_low": 0.05, "clip_ratio_high": 0.05, "clip_ratio_c": 10.0}),
    ("dppo_kl", {"clip_ratio_low": 0.01, "clip_ratio_high": 0.2, "clip_ratio_c": 1.5}),
]
AUTHORS_MODES = {"dppo_tv": "dppo_binary_tv", "dppo_kl": "dppo_binary_kl"}


class Settings(SimpleNamespace):
    """Stands in for verl's ActorConfig and for OmegaConf."""

    global_batch_info: ClassVar[dict[str, Any]] = {}

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def take(paths: list[Path], names: list[str], **namespace: Any) -> SimpleNamespace:
    """Return the functions of these names, which files define at any depth, without their decorators."""
    found: dict[str, Any] = {"torch": torch, "np": np, "defaultdict": defaultdict, **namespace}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name in names and node.name not in found:
                node.decorator_list = []
                lazy = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
                module = ast.fix_missing_locations(ast.Module([lazy, node], []))
                exec(compile(module, str(path), "exec"), found)
    return SimpleNamespace(**{name: found[name] for name in names})


def take_losses(root: Path, names: list[str]) -> SimpleNamespace:
    statistics = take(
        [root / "verl/utils/torch_functional.py"], ["masked_sum", "masked_mean", "masked_var", "masked_whiten"]
    )
    own = {"ActorConfig": Settings, "AlgoConfig": type(None), "verl_F": statistics}
    return take([root / "verl/trainer/ppo/core_algos.py"], ["agg_loss", *names], **own)


ROWS = [
    ("11111", [1.5, 1.75, 1.5, 1.0, 0.5], [0.5, 2.5, 0.9, -0.2, 1.2]),
    ("1101", [-0.75, -0.5, -1.0, -0.25], [-1.5, -0.4, 0.0, -2.5]),
    ("111111", [0.5, -0.5, 0.25, 1.0, -1.0, 0.0], [-2.5, 2.5, 0.3, 0.02, -0.02, 1.0]),
    ("00", [2.0, -2.0], [0.5, 0.5]),
    ("011", [-1.0, -2.0, -0.5], [0.0, 2.75, 1.5]),
    ("1111", [1.0, -1.0, 0.5, 0.0], [0.001, -0.002, 0.002, 0.0]),
]
"""Lists for each row its mask, advantages, and how far each log-prob has moved: within and beyond every bound."""


def make_rows() -> list[dict[str, Any]]:
    """Add log-probs to ROWS. Numbers are multiples of 1/1024: short to write, exact in float32."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for mask, advantages, moves in ROWS:
        moved, (first, second) = torch.tensor(moves), torch.rand(2, len(mask), generator=generator)
        old = -0.1 - moved.clamp(min=0.3) - first
        values = {"old": old, "rollout": (old + 0.4 * second - 0.2), "logprobs": old + moved}
        row: dict[str, Any] = {"mask": [int(bit) for bit in mask], "advantages": advantages}
        rows.append(row | {name: (x * 1024).round().div(1024).tolist() for name, x in values.items()})
    return rows


def pad(rows: list[dict[str, Any]], name: str, width: int) -> torch.Tensor:
    return torch.tensor([row[name] + [0.0] * (width - len(row[name])) for row in rows], dtype=torch.float32)


def compute_losses(verl: Path, dppo: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compute loss, clipped share and gradient of each setting.

    verl's DPPO has its ratio to the old policy, which here is the inference engine; its authors' has it there anyway.
    """
    modes = sorted({mode for mode, _ in LOSSES})
    theirs = take_losses(verl, [f"compute_policy_loss_{mode}" for mode in modes])
    authors = take_losses(dppo, ["compute_policy_loss_with_mask", "_compute_token_mask_for_policy_loss"])
    width, cases = max(len(row["mask"]) for row in rows), []
    mask = pad(rows, "mask", width)
    for (mode, config), agg, source in product(LOSSES, AGGS, ("verl", "authors")):
        if source == "authors" and mode not in AUTHORS_MODES:
            continue
        logprobs = pad(rows, "logprobs", width).requires_grad_()
        old, rollout, advantages = (pad(rows, name, width) for name in ("old", "rollout", "advantages"))
        shared: dict[str, Any] = {
            "log_prob": logprobs, "advantages": advantages, "response_mask": mask, "loss_agg_mode": AGGS[agg],
            "config": Settings(clip_ratio=0.2, **config),
        }  # fmt: skip
        if source == "verl":
            function = getattr(theirs, f"compute_policy_loss_{mode}")
            loss, stats = function(old_log_prob=rollout if mode in AUTHORS_MODES else old, **shared)
        else:
            unused = torch.zeros_like(old)
            loss, stats = authors.compute_policy_loss_with_mask(
                old_log_prob=old, rollout_log_prob=rollout, loss_mode=AUTHORS_MODES[mode],
                topk_kl=unused, entropy=unused, **shared,
            )  # fmt: skip
        loss.backward()
        assert logprobs.grad is not None
        gradient = [grad[: len(row["mask"])].tolist() for grad, row in zip(logprobs.grad, rows, strict=True)]
        case = {
            "source": source,
            "mode": mode,
            "config": config,
            "loss_agg": agg,
            "loss": loss.item(),
            "grad": gradient,
        }
        if source == "verl" and agg == "token":  # the authors leave tokens of advantage 0 out of the share
            case["clipped"] = stats["actor/pg_clipfrac"]
        cases.append(case)
    return cases


GROUPS = [[(1.0, "11101"), (0.25, "1"), (-0.5, "110110111")], [(0.0, "1111"), (1.0, "1011")], [(2.0, "11"), (2.0, "1")]]
"""Lists for each task the reward of each rollout, and which tokens of its response are sampled."""


def compute_estimators(verl: Path) -> dict[str, Any]:
    """Compute the advantage of every token of a batch; its reward stands at the last token of a rollout."""
    names = ("rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
    theirs = take_losses(verl, [f"compute_{name}_outcome_advantage" for name in names])
    flat = [(uid, reward, bits) for uid, group in enumerate(GROUPS) for reward, bits in group]
    width = max(len(bits) for _, _, bits in flat)
    mask = torch.tensor([[float(bit) for bit in bits.ljust(width, "0")] for _, _, bits in flat], dtype=torch.float64)
    rewards = torch.zeros_like(mask)
    for row, (_, reward, bits) in enumerate(flat):
        rewards[row, len(bits) - 1] = reward
    found: dict[str, Any] = {"groups": GROUPS}
    for name in names:
        advantages, _ = getattr(theirs, f"compute_{name}_outcome_advantage")(
            token_level_rewards=rewards.clone(), response_mask=mask, config=Settings(gamma=1.0),
            index=np.array([uid for uid, _, _ in flat]),
        )  # fmt: skip
        found[name] = [row[: len(bits)].tolist() for row, (_, _, bits) in zip(advantages, flat, strict=True)]
    return found


STEPS = [
    [
        {"reward": 1.0, "steps": [("start", 0.0, 3), ("door", 0.25, 2), ("start", 0.0, 1), ("key", 0.0, 4)]},
        {"reward": 0.0, "steps": [("start", 0.0, 2), ("door", -0.5, 5)]},
        {"reward": 0.5, "steps": [("start", 0.125, 1), ("key", 0.0, 2), ("door", 0.0, 3)]},
    ],
    [
        {"reward": 0.0, "steps": [("start", 0.0, 1), ("hall", 0.0, 1)]},
        {"reward": 1.0, "steps": [("start", 0.0, 2)]},
    ],
]
"""Lists for each task its rollouts: what the whole earned; of each turn its state, what it earned and its length."""


def compute_gigpo(root: Path) -> dict[str, Any]:
    """Compute the advantage of each turn. In their environments the last step earns the outcome, and an episode the
    sum of its steps."""
    names = ["to_hashable", "episode_norm_reward", "build_step_group", "step_norm_reward"]
    names += ["compute_step_discounted_returns", "compute_gigpo_outcome_advantage"]
    theirs = take([root / "gigpo/core_gigpo.py"], names, uuid=uuid)
    rollouts = [(uid, rollout) for uid, group in enumerate(STEPS) for rollout in group]
    rows = [
        (uid, number, place, state, earned + rollout["reward"] * (place == len(rollout["steps"]) - 1), length)
        for number, (uid, rollout) in enumerate(rollouts)
        for place, (state, earned, length) in enumerate(rollout["steps"])
    ]
    uids, numbers, places, states, rewards, lengths = (list(column) for column in zip(*rows, strict=True))
    totals: defaultdict[int, float] = defaultdict(float)
    for number, reward in zip(numbers, rewards, strict=True):
        totals[number] += reward
    mask = torch.tensor([[float(i < length) for i in range(max(lengths))] for length in lengths])
    scores = torch.zeros_like(mask)
    for row, (number, length) in enumerate(zip(numbers, lengths, strict=True)):
        scores[row, length - 1] = totals[number]
    columns = {"rewards": rewards, "traj_uid": numbers, "active_masks": [1.0] * len(rows), "env_step": places}
    batch = SimpleNamespace(
        non_tensor_batch={name: np.array(column) for name, column in columns.items()}, batch={"input_ids": mask}
    )
    cases = []
    for mode, weight, gamma in (("mean_norm", 1.0, 0.95), ("mean_std_norm", 0.5, 0.95), ("mean_norm", 1.0, 1.0)):
        advantages, _ = theirs.compute_gigpo_outcome_advantage(
            token_level_rewards=scores, step_rewards=theirs.compute_step_discounted_returns(batch, gamma),
            response_mask=mask, anchor_obs=np.array(states, dtype=object), index=np.array(uids),
            traj_index=np.array(numbers), step_advantage_w=weight, mode=mode,
        )  # fmt: skip
        tokens = [row[:length].tolist() for row, length in zip(advantages, lengths, strict=True)]
        case = {"std_normalization": mode == "mean_std_norm", "turn_coef": weight, "gamma": gamma}
        cases.append({**case, "advantages": tokens})
    return {"groups": STEPS, "cases": cases}


TOOL_GROUPS = [[(1.0, 0.5, "11011"), (0.0, 0.25, "10111"), (0.5, 0.5, "111001")], [(0.0, 1.0, "101")] * 3]
"""Lists for each task of each rollout its outcome, what its first turn earned, and which tokens are sampled."""


def compute_mt_grpo(root: Path) -> dict[str, Any]:
    """Compute the advantage of every token for rollouts that call a tool in their first turn.

    `normalised` is theirs, over std + 1e-4; what is assigned to tokens was normalised over std + 1e-6, as ours is.
    """
    files = [root / f"verifiers/trainers/{name}.py" for name in ("grpo_env_trainer", "mt_grpo_env_trainer")]
    theirs = take(files, ["_compute_normalized_advantages", "_assign_advantages"])
    accelerator = SimpleNamespace(device="cpu", process_index=0)
    flat = [rollout for group in TOOL_GROUPS for rollout in group]
    width = max(len(bits) for _, _, bits in flat)
    mask = torch.tensor([[int(bit) for bit in bits.ljust(width, "0")] for _, _, bits in flat])
    outcomes, turns = (torch.tensor([rollout[i] for rollout in flat], dtype=torch.float64) for i in (0, 1))
    size, cases = len(TOOL_GROUPS[0]), []

    def normalise(rewards: torch.Tensor) -> torch.Tensor:
        grouped = rewards.view(-1, size)
        return ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-6)).flatten()

    for weight in (1.0, 0.5):
        trainer = SimpleNamespace(num_generations=size, turn_advantage_coef=weight, accelerator=accelerator)
        normalised = [theirs._compute_normalized_advantages(trainer, x, len(flat))[2] for x in (outcomes, turns)]
        assigned = theirs._assign_advantages(
            trainer, mask, normalise(turns), normalise(outcomes), torch.full_like(turns, torch.nan), [1] * len(flat)
        )
        tokens = [row[: len(bits)].tolist() for row, (_, _, bits) in zip(assigned, flat, strict=True)]
        cases.append({"turn_coef": weight, "normalised": [x.tolist() for x in normalised], "advantages": tokens})
    return {"groups": TOOL_GROUPS, "cases": cases}


def main() -> str | None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("verl", "dppo", "gigpo", "mt-grpo"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="DIR")
    parser.add_argument("--check", action="store_true", help="compare with the stored numbers instead of writing them")
    options = parser.parse_args()
    rows = make_rows()
    made = {
        "torch": torch.__version__,
        "rows": rows,
        "losses": compute_losses(options.verl, options.dppo, rows),
        "estimators": compute_estimators(options.verl),
        "gigpo": compute_gigpo(options.gigpo),
        "mt_grpo": compute_mt_grpo(options.mt_grpo),
    }
    numbers = json.loads(json.dumps(made))
    if not options.check:
        GOLDEN.write_text(dump(numbers) + "\n")
        return None
    stored = json.loads(GOLDEN.read_text())
    found = find_difference({**stored, "torch": ""}, {**numbers, "torch": ""})
    return f"{GOLDEN.name} differs: {found}" if found else None


if __name__ == "__main__":
    sys.exit(main())
