"""Which evaluation gives a published row its score: its command, the models that it asks, and how to get its data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentic.agentflow.config import AgentFlowRecipe
from agentic.agentflow.rollout import SPEC as AGENTFLOW
from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.rollout import SPEC as TOOLORCHESTRA
from benchmarks.aime.published import SLIME, published_scores
from benchmarks.data.prepare import SETS
from benchmarks.harness.published import read_scores
from benchmarks.localization.evaluate import DATA as LOCALIZATION_SETS
from benchmarks.questions.evaluate import DATA as QUESTION_SETS
from benchmarks.ruler.published import AVERAGE, LONG_WINDOW
from benchmarks.ruler.tasks import TEN_TASKS
from core.report import PublishedScore

FROZEN, CODER = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Coder-7B-Instruct"
MODELS = {
    name.rpartition("/")[2]: name
    for name in (
        "BytedTsinghua-SIA/RL-MemoryAgent-7B",
        "BytedTsinghua-SIA/RL-MemoryAgent-14B",
        "LMIS-ORG/MemAgent_Slime_Agentic_Qwen2.5_7B",
        "AgentFlow/agentflow-planner-7b",
        "LMIS-ORG/AgentFlow_Slime_Agentic_Qwen2.5_7B",
        "nvidia/Orchestrator-8B",
        "LMIS-ORG/ToolOrchestra_Slime_Agentic_Qwen3_8B",
        FROZEN,
        "Qwen/Qwen2.5-7B-Instruct-1M",
        "Qwen/Qwen2.5-14B-Instruct-1M",
        CODER,
        "Qwen/Qwen3-8B",
        *(f"OpenHands/CodeScout-{size}" for size in ("1.7B", "4B", "14B")),
    )
}
"""Maps the names of models in published tables to their hub ids."""


@dataclass(frozen=True)
class Places:
    """Says where an evaluation finds its data and tau2-bench."""

    data: Path = Path("data")
    tau2_python: str = "TAU2/bin/python"
    tau2_data: str = "TAU2_DATA"


@dataclass(frozen=True)
class Evaluation:
    """Describes what gives published rows their scores, without the addresses of servers."""

    benchmark: str
    """Names a subcommand of `tokentrue evaluate`."""
    model: str
    """Names the evaluated model by its hub id."""
    options: str
    """Holds the evaluator's other options, but for the addresses of servers."""
    models: tuple[str, ...]
    """Names the models that must be served, the evaluated one first."""
    data: tuple[str, ...] = ()
    """Names the sources that it reads (`_locate`)."""
    keys: tuple[str, ...] = ()
    """Names the files with the keys of the models that are asked for over a paid interface."""

    @property
    def command(self) -> str:
        """Return the command, without the addresses of servers."""
        return f"tokentrue evaluate {self.benchmark} --model {self.model} {self.options}"


def list_published() -> list[PublishedScore]:
    """Return every published score of every benchmark."""
    aime = []
    for preset in ("published", "seed"):
        budget = AGENTFLOW.load(preset).agentflow.planner.next_step.max_tokens
        aime += [row for row in published_scores("aime24", budget) if (row.protocol == SLIME) == (preset == "seed")]
    others = [row for benchmark in ("tau2", "questions", "localization") for row in read_scores(benchmark)]
    return [*read_scores("ruler"), *aime, *others]


def find_evaluation(row: PublishedScore, places: Places) -> Evaluation | None:
    """Return what measures a row; None where its model or its protocol cannot be had."""
    model = MODELS.get(row.model or row.name)
    if model is None or row.variant == "single" or row.protocol == "not stated":
        return None
    if row.data.startswith("ruler"):
        return _ruler(row, model, places)
    if row.data == "aime24":
        return _aime(row, model, places)
    of_file = f"--data {places.data / row.data}.jsonl --protocol {row.data} --seeds 0"
    if row.data in LOCALIZATION_SETS:
        return Evaluation("localize", model, of_file, (model,), (row.data,))
    local, keys = _list_experts("published" if row.data in QUESTION_SETS else "paper")
    if row.data in QUESTION_SETS:
        sources = (row.data, f"{row.data}-corpus")
        return Evaluation("questions", model, of_file, (model, *local), sources, keys)
    options = (
        f"--protocol {row.protocol} --variants {row.protocol} --user gpt-5 --judge gpt-5 "
        f"--tau2-python {places.tau2_python} --tau2-data {places.tau2_data} --trials 1"
    )
    # Of the recipe's experts the published conversations ask this one, beside those behind the paid interface.
    experts = () if row.protocol == "standard" else ("Qwen/Qwen3-32B",)
    return Evaluation("tau2", model, options, (model, *experts), ("tau2",), keys)


def _aime(row: PublishedScore, model: str, places: Places) -> Evaluation:
    preset, samples = ("seed", 1) if row.protocol == SLIME else ("published", 3)
    file = places.data / "aime24.jsonl"
    data = file if file.is_file() else "aime24"
    options = f"--preset {preset} --variants {row.variant} --data {data} --k {samples}"
    if row.variant == "agent-untrained":
        options += f" --untrained {model}"
    models = tuple(dict.fromkeys((model, *_list_roles(AGENTFLOW.load(preset)).values())))
    return Evaluation("aime", model, options, models)


def _list_roles(recipe: AgentFlowRecipe) -> dict[str, str]:
    """Map the frozen roles of a recipe to the models that play them; nobody serves GPT-4o."""
    roles = dict.fromkeys(role.role for _, role in recipe.agentflow.every_role())
    return {role: CODER if role == "coder" else FROZEN for role in roles if role != "policy"}


def _ruler(row: PublishedScore, model: str, places: Places) -> Evaluation:
    source, option = "memagent-eval", "data"
    files = places.data / source
    if row.data == AVERAGE and not all(list(files.glob(f"eval_{task}_*.json")) for task in TEN_TASKS):
        source = option = "essays"
    options = f"--preset published --variants {row.variant} --{option} {places.data / source} --seeds 0"
    if row.data == AVERAGE:
        options += f" --task {AVERAGE}"
    if row.protocol is not None and row.protocol.endswith("990K"):
        options += f" --window {LONG_WINDOW.prompt_tokens} {LONG_WINDOW.answer_tokens}"
    if row.variant == "untrained":
        options += f" --untrained {model}"
    return Evaluation("ruler", model, options, (model,), (source,))


@cache
def _list_experts(preset: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the models of ToolOrchestra's preset that must be served, and the files with the keys of the others."""
    recipe: ToolOrchestraRecipe = TOOLORCHESTRA.load(preset)
    models = recipe.toolorchestra.models
    keys = dict.fromkeys(str(model.api_key_file) for model in models.values() if model.api_key_file)
    return tuple(name for name, model in models.items() if not model.api_key_file), tuple(keys)


def find_lacking(evaluation: Evaluation, places: Places) -> list[str]:
    """Return a line for everything that an evaluation reads and that is missing, and for its retrieval service."""
    lines = []
    for name in evaluation.data:
        if not name.endswith("-corpus"):
            path, how = _locate(name, places)
            lines += [] if path.exists() else [f"{path}: missing. Get it: {how}"]
        else:
            file = getattr(SETS[name], "file", name)
            lines.append(
                f"retrieval service: tokentrue data download {name} --out {places.data}; tokentrue serve retrieval "
                f"--corpus {places.data}/{file}; then --set toolorchestra.search.url=URL"
            )
    lines += [
        f"{key}: the key of the models behind paid interfaces" for key in evaluation.keys if not Path(key).is_file()
    ]
    return lines


def _locate(name: str, places: Places) -> tuple[Path, str]:
    """Return where a source lies, and how to get it."""
    data = places.data
    if name == "memagent-eval":
        return data / name, (
            "copy eval_50.json to eval_6400.json of the hub's BytedTsinghua-SIA/hotpotqa, or build them with "
            "MemAgent's taskutils/memory_data"
        )
    if name == "essays":
        return data / name, f"tokentrue data download essays --out {data}"
    if name == "tau2":
        return Path(places.tau2_data), "see benchmarks/tau2/README.md; name it with --tau2-python and --tau2-data"
    if name in LOCALIZATION_SETS:
        return data / f"{name}.jsonl", (
            f"tokentrue data codescout ROWS --repositories CLONES --checkouts CHECKOUTS --out {data}/{name}.jsonl, "
            f"with the rows of the hub's OpenHands/SWE-bench_{name.rpartition('-')[2].title()}-locagent"
        )
    file, download = data / f"{name}.jsonl", f"tokentrue data download {name} --out {data}"
    if digest := QUESTION_SETS.get(name):
        download = f"copy evaluation/{name}.jsonl of NVlabs/ToolOrchestra (git-lfs; sha256 {digest}), or {download}"
    return file, download
