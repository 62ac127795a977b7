"""The `seed` presets against slime-agentic's own flags, value by value; each difference is meant and told in
docs/cluster.md.

AgentFlow's flags are those of agentflow_qwen25_7b_rl_v2.sh, ToolOrchestra's those of train_orchestra.sh, whole. Of
MemAgent's script only what its README states is known here: those values are compared, and the others are not.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from core.backends.slime import flags
from core.rollout.method import method_spec

ROOT = Path(__file__).resolve().parents[4]

AGENTFLOW = """
--actor-num-nodes 1 --actor-num-gpus-per-node 4 --colocate
--hf-checkpoint /data/Qwen2.5-7B-Instruct --ref-load /data/qwen2.5_7b_dist/ --save /data/AgentFlow_Qwen25-7B-RL/
--save-interval 100
--prompt-data /data/dapo-math-17k/dapo-math-17k.jsonl --input-key prompt --label-key label --rollout-shuffle
--reward-key score --num-epoch 1 --rollout-batch-size 8 --n-samples-per-prompt 8 --rollout-max-response-len 32768
--rollout-temperature 0.7 --global-batch-size 64 --balance-data
--eval-interval 20 --eval-prompt-data aime /data/aime-2024/aime-2024.jsonl --n-samples-per-eval-prompt 1
--eval-max-response-len 32768 --eval-top-p 0.95
--tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1
--expert-model-parallel-size 1 --expert-tensor-parallel-size 1 --recompute-granularity full --recompute-method uniform
--recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu 16384
--advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl --entropy-coef 0.0
--eps-clip 0.2 --eps-clip-high 0.3
--optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98
--rollout-num-gpus-per-engine 4 --sglang-mem-fraction-static 0.75 --sglang-context-length 65536
--attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
--attention-backend flash
--custom-generate-function-path rollout.generate --custom-rm-path rollout.reward_func
--custom-eval-rollout-log-function-path rollout.eval_log
--custom-convert-samples-to-train-data-path custom_convert.custom_convert
"""

MEMAGENT = """
--rollout-batch-size 16 --n-samples-per-prompt 16 --global-batch-size 256 --rollout-temperature 1.0
--lr 1e-6 --lr-decay-style constant --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl
--eps-clip 0.2 --eps-clip-high 0.3 --tensor-model-parallel-size 4 --max-tokens-per-gpu 16384
--sglang-context-length 131072
"""

TOOLORCHESTRA = """
--actor-num-nodes 1 --actor-num-gpus-per-node 4 --colocate
--hf-checkpoint /data/models/qwen3_8b --ref-load /data/qwen3_8b_dist --save /data/checkpoints/orchestra_qwen3_8b_rl
--save-interval 10
--prompt-data data/data_slime_full.jsonl --input-key problem --label-key answer --metadata-key metadata
--tool-key tools --rollout-shuffle --reward-key score --num-epoch 2 --rollout-batch-size 32 --n-samples-per-prompt 8
--rollout-max-response-len 16384 --rollout-temperature 0.7 --global-batch-size 128 --balance-data
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --context-parallel-size 1
--expert-model-parallel-size 1 --expert-tensor-parallel-size 1 --use-dynamic-batch-size --max-tokens-per-gpu 8192
--log-probs-max-tokens-per-gpu 131072 --train-memory-margin-bytes 0 --recompute-granularity full
--recompute-method uniform --recompute-num-layers 1 --recompute-loss-function --log-probs-chunk-size 4096
--advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl --entropy-coef 0.0
--eps-clip 0.2 --eps-clip-high 0.3
--optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98
--rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.5 --sglang-context-length 131072
--sglang-server-concurrency 512
--attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
--attention-backend flash
--custom-generate-function-path rollout.generate --custom-rm-path rollout.reward_func
--custom-convert-samples-to-train-data-path custom_convert.custom_convert
"""

OURS = set(
    "--load --save --prompt-data --eval-prompt-data --eval-temperature --rollout-seed --seed --custom-config-path "
    "--custom-generate-function-path --custom-rm-path --custom-eval-rollout-log-function-path "
    "--custom-convert-samples-to-train-data-path --custom-rollout-log-function-path".split()
)
"""The flags that every preset has otherwise than slime-agentic, or in addition; docs/cluster.md says why."""
DIFFERENCES = {
    "agentflow": OURS | {"--num-gpus-per-node"},
    "memagent": OURS | {"--sglang-server-concurrency"},
    "toolorchestra": OURS
    | set(
        "--num-gpus-per-node --sglang-server-concurrency --input-key --label-key --metadata-key --tool-key "
        "--train-memory-margin-bytes --eval-interval --n-samples-per-eval-prompt --eval-max-response-len "
        "--eval-top-p".split()
    ),
}


def parsed(words: list[str]) -> dict[str, tuple[str, ...]]:
    """Flag -> its values."""
    table: dict[str, tuple[str, ...]] = {}
    for word in words:
        if word.startswith("--"):
            assert word not in table, f"{word} twice"
            table[word] = ()
        else:
            flag = list(table)[-1]
            table[flag] += (word,)
    return table


def rendered(method: str, *overrides: str) -> dict[str, tuple[str, ...]]:
    spec = method_spec(method)
    recipe = spec.load("seed", overrides)
    groups = flags.groups(recipe, flags.Paths(Path("/runs/x")))
    return parsed([word for words in groups.values() for word in words])


@pytest.mark.parametrize(("method", "script"), [("agentflow", AGENTFLOW), ("toolorchestra", TOOLORCHESTRA)])
def test_a_method_differs_from_its_script_where_it_is_said(method: str, script: str) -> None:
    seed, ours = parsed(shlex.split(script)), rendered(method)
    differing = {flag for flag in seed.keys() | ours.keys() if seed.get(flag) != ours.get(flag)}
    assert differing == DIFFERENCES[method]


def test_every_value_that_memagents_readme_states() -> None:
    seed, ours = parsed(shlex.split(MEMAGENT)), rendered("memagent")
    assert {flag: ours.get(flag) for flag in seed} == seed


def test_memagent_differs_from_agentflows_script_in_nothing_that_is_not_said() -> None:
    """The two scripts have one skeleton: what MemAgent's README leaves open is taken from AgentFlow's."""
    stated = parsed(shlex.split(MEMAGENT)).keys()
    open_in_readme = {
        "--num-epoch", "--num-rollout", "--save-interval", "--reward-key", "--actor-num-gpus-per-node",
        "--rollout-max-response-len", "--eval-max-response-len",
    }  # fmt: skip
    skeleton, ours = parsed(shlex.split(AGENTFLOW)), rendered("memagent")
    differing = {flag for flag in skeleton.keys() | ours.keys() if skeleton.get(flag) != ours.get(flag)}
    assert differing - stated == DIFFERENCES["memagent"] | open_in_readme


def test_the_document_tells_every_difference_and_no_other() -> None:
    section = (ROOT / "docs" / "cluster.md").read_text().partition("## What differs")[2].partition("\n## ")[0]
    told = {
        flag for row in re.findall(r"^\| (`--[^|]*)\|", section, re.MULTILINE) for flag in re.findall(r"--[\w-]+", row)
    }
    assert told == {flag for differences in DIFFERENCES.values() for flag in differences}
