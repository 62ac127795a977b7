"""Named algorithms: the values that a recipe's `algorithm.name` sets, each with its source.

An entry is key -> (value, source); the keys are the fields of `AlgorithmSection` (core/config/recipe.py). A key without
an entry keeps that section's neutral default. A preset overrides what it wants to differ, and `list_departures` names
that.

Where a paper and slime differ: slime divides by the sample's std + 1e-6, where the papers write std(R), and so do we.
slime 0.3 has no overlong rule and no constant length; our hooks give it rewards, rows and divisors that have them
(core/backends/slime/rows.py). A paper's mean over the tokens of a group is one over the batch, in verl, slime and here.
verl's PPO loss has a dual clip of 3 unless told otherwise; here it is where an entry or a preset has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

PPO_CLIP = (0.2, "PPO, arXiv 1707.06347, table 1: epsilon = 0.2 scored best")

ALGORITHMS: Mapping[str, Mapping[str, tuple[Any, str]]] = {
    # DeepSeekMath, arXiv 2402.03300
    "grpo": {
        "std_normalization": (True, "section 4.1.2: A = (r - mean(r)) / std(r)"),
        "loss_agg": ("rollout", "equation 3: 1/G sum_i 1/|o_i| sum_t, one mean for each output"),
        "clip_ratio_low": PPO_CLIP,
        "clip_ratio_high": PPO_CLIP,
        "kl_loss_coef": (0.04, 'section 4.2: "The KL coefficient is 0.04"'),
        "kl_loss_type": ("k3", "equation 4: pi_ref/pi - log(pi_ref/pi) - 1"),
    },
    # Understanding R1-Zero-Like Training, arXiv 2503.20783
    "dr_grpo": {
        "std_normalization": (False, "section 3.2 removes the division by std(R)"),
        "loss_agg": ("constant", "section 3.2 removes 1/|o_i|; listing 1 divides each output's sum by MAX_TOKENS"),
        "max_response_length": (3000, "released code (oat): its generate_max_length. Set that of your rollouts"),
        "clip_ratio_low": PPO_CLIP,
        "clip_ratio_high": PPO_CLIP,
        "kl_loss_coef": (0.0, "trains without the KL term, beta = 0"),
    },
    # DAPO, arXiv 2503.14476, whose script in verl has a dual clip, clip_ratio_c 10, and up to 10 rounds of sampling
    "dapo": {
        "std_normalization": (True, "equation 9: A = (R - mean(R)) / std(R)"),
        "dynamic_sampling": (True, "section 3.2, Dynamic Sampling"),
        "loss_agg": ("token", "section 3.3, Token-Level Policy Gradient Loss; equation 8: 1 / sum_i |o_i|"),
        "max_response_length": (20480, "section 4.1: 16,384 tokens, and 4,096 of the soft punish cache"),
        "overlong_buffer_len": (4096, "section 3.4, Soft Overlong Punishment, equation 13; section 4.1: 4,096 tokens"),
        "overlong_filter": (False, "section 3.4 tries it first; the released script has the soft punishment alone"),
        "clip_ratio_low": (0.2, "section 4.1, Clip-Higher: epsilon_low 0.2"),
        "clip_ratio_high": (0.28, "section 4.1, Clip-Higher: epsilon_high 0.28"),
        "kl_loss_coef": (0.0, "section 2.3, Removing KL Divergence"),
    },
    # Group Sequence Policy Optimization, arXiv 2507.18071, whose section 5.1 takes four steps on each batch: one step
    # alone clips nothing (num_steps_per_rollout)
    "gspo": {
        "loss_mode": ("gspo", "equation 7: s_i, the geometric mean of the ratios of a response"),
        "std_normalization": (True, "equation 6: A = (r - mean(r)) / std(r)"),
        "loss_agg": ("rollout", "equation 5: 1/G sum_i"),
        "clip_ratio_low": (3e-4, "section 5.1: left clipping range 3e-4"),
        "clip_ratio_high": (4e-4, "section 5.1: right clipping range 4e-4"),
        "kl_loss_coef": (0.0, "equation 5 has no KL term"),
    },
    # MiniMax-M1, arXiv 2506.13585, which also has DAPO's length penalty and does not give its lengths
    "cispo": {
        "loss_mode": ("cispo", "equation 4: sg(r) A log pi, with r clipped as in equation 5"),
        "std_normalization": (True, "section 3.1: A is the group-relative advantage of GRPO"),
        "dynamic_sampling": (True, "section 3.1: the dynamic sampling of DAPO"),
        "loss_agg": ("token", "equation 4: 1 / sum_i |o_i|"),
        "clip_ratio_low": (1.0, "section 3.1: no lower bound"),
        "clip_ratio_high": (4.0, "not in the paper; ScaleRL (arXiv 2510.13786) has r at most 5, slime names 4.0"),
        "kl_loss_coef": (0.0, "section 3.1: no KL penalty term"),
    },
    # Divergence PPO, arXiv 2602.04879, with its binary total variation; for dppo_kl both bounds are 0.05
    "dppo": {
        "loss_mode": ("dppo_tv", "equations 12 and 13; appendix E: Binary-TV"),
        "std_normalization": (False, "section 4.1: A = R - mean(R); appendix C.1: without standard deviation"),
        "loss_agg": ("constant", "equation 12: sum_t; its script in verl (dppo_trainer): seq-mean-token-sum-norm"),
        "max_response_length": (16384, "appendix E, table 1. Set that of your rollouts"),
        "clip_ratio_low": (0.2, "appendix E: delta 0.2; 0.15 with LoRA, and in appendix C.1"),
        "clip_ratio_high": (0.2, "appendix E: delta 0.2; 0.15 with LoRA, and in appendix C.1"),
        "clip_ratio_c": (5.0, "appendix E: C = 5 in equation 23; appendix C.1 has no such bound"),
        "kl_loss_coef": (0.0, "equation 12 has no KL term"),
    },
    # Back to Basics, arXiv 2402.14740
    "rloo": {
        "adv_estimator": ("rloo", "section 2.3: r_i less the mean of the others"),
        "loss_agg": ("rollout", "ours; section 2.3 sums over a response's tokens, as constant does"),
        "kl_coef": (0.03, "equation 3: the KL is in the reward; appendix C: beta 0.03, for TL;DR"),
        "kl_loss_coef": (0.0, "the KL is in the reward"),
        "clip_ratio_low": (0.2, "released code (OpenRLHF): PPO's clip; the paper has none"),
        "clip_ratio_high": (0.2, "released code (OpenRLHF): PPO's clip; the paper has none"),
    },
    # REINFORCE++, arXiv 2501.03262, whose KL by token stands in the reward of the whole rollout here
    "reinforce_plus_plus": {
        "adv_estimator": ("reinforce_plus_plus", "released code (OpenRLHF): the reward, normalised over the batch"),
        "loss_agg": ("token", "released code (OpenRLHF): a mean over tokens"),
        "clip_ratio_low": PPO_CLIP,
        "clip_ratio_high": PPO_CLIP,
        "kl_coef": (0.01, "released code (OpenRLHF): algo.kl.init_coef 0.01, k1"),
        "kl_loss_coef": (0.0, "the KL is in the reward"),
    },
    "reinforce_plus_plus_baseline": {
        "adv_estimator": ("reinforce_plus_plus_baseline", "released code (OpenRLHF): r - mean(r), then as above"),
        "loss_agg": ("token", "released code (OpenRLHF): a mean over tokens"),
        "clip_ratio_low": PPO_CLIP,
        "clip_ratio_high": PPO_CLIP,
        "kl_loss_coef": (1e-5, "released script (OpenRLHF, train_reinforce_baseline_hybrid_engine.sh): 1e-5"),
        "kl_loss_type": ("k2", "the same script: k2 as a loss"),
    },
    # GiGPO, arXiv 2505.10978, and its released code (verl-agent), whose means of a group count a rollout once for each
    # turn; here it counts once, as in the paper and the authors' later code (DrMAS)
    "gigpo": {
        "adv_estimator": ("gigpo", "equations 3, 7 and 8: A = A_episode + omega A_step"),
        "std_normalization": (False, "released code: its default is mean_norm; equations 3 and 7 allow both"),
        "turn_coef": (1.0, "appendix E.1: omega 1"),
        "gamma": (0.95, "appendix E.1: gamma 0.95"),
        "loss_agg": ("token", "released code: loss_agg_mode token-mean"),
        "clip_ratio_low": (0.2, "released code: clip_ratio_low 0.2"),
        "clip_ratio_high": (0.2, "released code: clip_ratio_high 0.2"),
        "clip_ratio_c": (3.0, "released code: clip_ratio_c 3.0"),
        "kl_loss_coef": (0.01, "appendix E.1: 0.01; 0.001 for questions with search"),
        "kl_loss_type": ("low_var_kl", "released scripts: kl_loss_type low_var_kl"),
    },
    # MT-GRPO, arXiv 2505.11821 (version 1), and its released code
    "turn_grpo": {
        "adv_estimator": ("turn_grpo", "released code: A_outcome + coefficient A_turn for the turn that calls"),
        "std_normalization": (True, "released code: (r - mean) / (std + 1e-4)"),
        "turn_coef": (1.0, "released code: turn_advantage_coef 1.0"),
        "loss_agg": ("token", "released code: a mean over tokens"),
        "clip_ratio_low": PPO_CLIP,
        "clip_ratio_high": PPO_CLIP,
        "kl_loss_coef": (0.0, "released script (run_mt_grpo.sh): beta 0"),
    },
    # PPO, arXiv 1707.06347, with lambda 1 and a value head on the policy's own layers; verl whitens A and clips values
    "ppo": {
        "adv_estimator": ("gae", "equation 11, with lambda 1"),
        "vf_coef": (0.1, "TRL's default; equation 9 calls it c1"),
        "loss_agg": ("token", "verl's and TRL's: a mean over tokens"),
        "clip_ratio_low": PPO_CLIP,
        "clip_ratio_high": PPO_CLIP,
    },
    # ECHO, arXiv 2605.24517
    "echo": {
        "observation_coef": (0.05, "released config (echo-rl, Qwen3-8B): world_model_coeff 0.05; prime-rl has 0.1"),
        "std_normalization": (True, "GRPO's advantages"),
        "rows": ("segment", "the loss is on what stands between the turns of a row"),
        "loss_agg": ("token", "prime-rl: each term is a mean over its own tokens"),
        "clip_ratio_low": PPO_CLIP,
        "clip_ratio_high": PPO_CLIP,
    },
    # MemAgent, arXiv 2507.02259, and its released trainer where the paper is silent
    "memagent": {
        "std_normalization": (False, "equation 4: A = R_i - mean(R), no std (as Dr. GRPO)"),
        "split_advantage": (False, "equation 4: the same advantage for every conversation and token of a rollout"),
        "loss_agg": ("token", "equation 5: 1 / (sum_i sum_j |o_ij|), over all conversations of the group"),
        "clip_ratio_low": (0.2, "released trainer; no clip-higher"),
        "clip_ratio_high": (0.2, "released trainer; no clip-higher"),
        "clip_ratio_c": (3.0, "released trainer (verl): clip_ratio_c 3.0"),
        "kl_loss_coef": (0.001, "released trainer: kl_loss_coef 0.001 in the loss"),
        "kl_loss_type": ("low_var_kl", "released trainer: kl_loss_type low_var_kl"),
    },
    # AgentFlow, arXiv 2510.05592, and its released train/config.yaml (verl 0.5) where the paper is silent
    "flow_grpo": {
        "std_normalization": (True, "equation 5: A = (R_i - mean(R)) / std(R)"),
        "split_advantage": (False, "section 3: one outcome is broadcast to every turn"),
        "loss_agg": ("rollout_turn", "equation 5: 1/G sum_i 1/T_i sum_t 1/|a_i^t|"),
        "clip_ratio_low": (0.2, "train/config.yaml: clip_ratio_low: 0.2"),
        "clip_ratio_high": (0.3, "train/config.yaml: clip_ratio_high: 0.3"),
        "clip_ratio_c": (3.0, "not in train/config.yaml; verl's default"),
        "kl_loss_coef": (0.001, "section 4.1, appendix C.1: beta 0.001; train/config.yaml: kl_loss_coef: 0.001"),
        "kl_loss_type": ("low_var_kl", "not in train/config.yaml; verl's default"),
    },
    # ToolOrchestra, arXiv 2511.21689, and its released train_orchestrator.sh (a fork of verl) where the paper is silent
    "toolorchestra": {
        "std_normalization": (True, "A = (R - mean(R)) / std(R) over the rollouts of a task"),
        "advantage_clip": (3.0, "released code: advantages clipped to [-3, 3]"),
        "min_group_std": (0.1, "section 3.2, homogeneity filter: groups of reward std below 0.1 are dropped"),
        "loss_agg": ("token", "train_orchestrator.sh: token mean"),
        "clip_ratio_low": (0.2, "train_orchestrator.sh: 0.2"),
        "clip_ratio_high": (0.28, "train_orchestrator.sh: 0.28"),
        "clip_ratio_c": (10.0, "train_orchestrator.sh: 10"),
        "kl_loss_coef": (1e-4, "train_orchestrator.sh: 1e-4"),
        "kl_loss_type": ("k2", "train_orchestrator.sh: mse, which is k2"),
    },
    # slime-agentic: the flags that the scripts of its three methods share, on slime 0.2.2
    "slime_agentic": {
        "std_normalization": (True, "its custom_convert: (r - mean) / (std + 1e-6)"),
        "loss_agg": ("turn", "every turn is a sample, and slime 0.2.2 averages over samples"),
        "clip_ratio_low": (0.2, "--eps-clip 0.2"),
        "clip_ratio_high": (0.3, "--eps-clip-high 0.3"),
        "kl_loss_coef": (0.001, "--use-kl-loss --kl-loss-coef 0.001"),
        "kl_loss_type": ("low_var_kl", "--kl-loss-type low_var_kl"),
    },
}


GROUP_MEANS = {"dapo": "DAPO's equation 8", "cispo": "its equation 4", "memagent": "MemAgent's equation 5"}
"""Names the equations that average over the tokens of a group."""
USERS = {"kl_loss_type": "kl_loss_coef", "max_num_gen_batches": "dynamic_sampling"}
"""Maps a key to the one without which nothing uses it."""


def list_departures(algorithm: BaseModel) -> list[str]:
    """List the keys of a recipe's `algorithm` that differ from those of the algorithm that it names."""
    settings = algorithm.model_dump()
    entries = ALGORITHMS[settings["name"]].items()
    listed = [
        f"algorithm.{key} is {json.dumps(settings[key])}; {settings['name']} has {json.dumps(value)} ({source})"
        for key, (value, source) in entries
        if settings[key] != value
    ]
    for key, user in USERS.items():
        usual = ALGORITHMS[settings["name"]].get(key, [type(algorithm).model_fields[key].default])[0]
        if not settings[user] and settings[key] != usual:
            listed.append(f"algorithm.{key} is {settings[key]}, and without algorithm.{user} nothing uses it")
    if settings["loss_agg"] == "token" and (equation := GROUP_MEANS.get(settings["name"])):
        listed.append(f"one mean over the tokens of a step, as in verl and slime; {equation} has one for each group")
    if size := settings["update_group_size"]:
        listed.append(f"a step trains on the {size} rollouts of a group whose rewards differ most (PODS, 2504.13818)")
    return listed
