"""The evaluator with a method of one call and a scripted policy, whose scores are known."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agentic.memagent.rollout import SPEC, MemAgent
from benchmarks.harness.plan import EvaluationError
from benchmarks.heldout import evaluate as command
from benchmarks.heldout.evaluate import HeldoutPlan, evaluate
from core.data import write_jsonl
from core.inspect.view import write_record_view
from core.policy.base import PolicyError, Roles
from core.rollout.method import Method, RolloutError
from core.runs.evaluation import EvalResult
from core.runs.record import read_rollouts
from core.runs.run_folder import RunFolder
from core.text.tokenizer import encode_text
from core.types import Sampling, Task, Trajectory, Turn
from core.worlds import World

from ..conftest import ScriptedModels

TASKS = [Task(f"t{i}", f"green {i}", (str(i),), "", {"kind": "odd" if i % 2 else "even"}) for i in range(6)]


class Echo(Method):
    """Says what the policy says; right when that is `right`. Task 5 fails, task 4 calls no tool."""

    closed = 0

    def __init__(self, tokenizer: Any, right: str):
        self.tokenizer, self.right = tokenizer, right

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        if task.task_id == "t5":
            raise RolloutError("lost", "no answer")
        prompt = encode_text(self.tokenizer, task.question)
        completion = await roles["policy"].generate(prompt, sampling)
        reply = self.tokenizer.decode(completion.token_ids)
        right = float(reply == self.right)
        metrics = {"strict": right * float(task.task_id != "t0"), "cost": 2.5}
        metrics |= {"calls_search": 1.0} if task.task_id != "t4" else {}
        turns = (Turn("solver", prompt, completion, trained=True),)
        return Trajectory(task.task_id, turns, "completed", right, metrics=metrics, log={"answer": reply})

    async def close(self) -> None:
        Echo.closed += 1


@dataclass
class Setup:
    """Evaluates models by variant on TASKS, with changes."""

    folder: RunFolder
    models: ScriptedModels

    async def evaluate(
        self,
        named: dict[str, str],
        *,
        seeds: tuple[int, ...] = (0,),
        build: Any = lambda recipe, tokenizer: Echo(tokenizer, "green"),
        tasks: list[Task] = TASKS,
        labels: tuple[str, ...] = ("kind", "absent"),
        **plan: Any,
    ) -> list[EvalResult]:
        conditions: Any = {"settings": {"data": {"file": "dev"}}, "data": "dev", "length": 0}
        conditions |= {"sampling": Sampling(), "deadline_s": 10.0}
        cells = [
            self.models.make_cell(self.folder, model, variant=variant, seed=seed, n=len(tasks), **conditions)
            for seed in seeds
            for variant, model in named.items()
        ]
        await evaluate(HeldoutPlan(self.folder, self.models, cells, dict.fromkeys(named, build), tasks, labels, **plan))
        return self.folder.evaluations()


@pytest.fixture
def setup(folder: RunFolder, tokenizer: Any) -> Setup:
    """Each model says its own name."""
    models = ScriptedModels(lambda *_: encode_text(tokenizer, models.opened[-1]), tokenizer, context=64)
    return Setup(folder, models)


async def test_scores_measures_labels_and_failures_of_every_task(setup):
    Echo.closed = 0
    trained, untrained = await setup.evaluate({"trained": "green", "untrained": "blue"})
    assert trained.scores == {"official": [1, 1, 1, 1, 1, 0], "strict": [0, 1, 1, 1, 1, 0]}
    assert untrained.scores["official"] == [0.0] * 6
    assert trained.measures == {"cost": [2.5] * 5 + [None], "calls_search": [1, 1, 1, 1, 0, None]}
    assert trained.labels == {"kind": ["even", "odd"] * 3}
    assert (trained.failures, trained.turns) == ({"lost": 1}, [1, 1, 1, 1, 1, 0])
    assert trained.predictions == ["green"] * 5 + [None]
    assert (trained.length, trained.model, trained.notes["task_ids"][0]) == (0, "green", "t0")
    assert Echo.closed == 2


async def test_a_result_says_which_tasks_ask_one_question_and_that_they_chose_the_checkpoint(setup):
    tasks = [replace(task, metadata={"question_id": i // 2 if i < 4 else None}) for i, task in enumerate(TASKS)]
    named = {"trained": "green", "trained-greedy": "green", "untrained": "blue"}
    trained, greedy, untrained = await setup.evaluate(named, tasks=tasks, chosen_by="dev")
    assert trained.notes["question_ids"] == ["0", "0", "1", "1", "t4", "t5"]
    assert [each.notes["departures"] for each in (trained, greedy, untrained)] == [["dev"], ["dev"], []]


async def test_every_trajectory_is_saved_beside_its_result(setup):
    await setup.evaluate({"trained": "green"})
    path = setup.folder.evaluation_path / "trained__dev__0__seed-0.jsonl.gz"
    records = {record.task_id: record for record in read_rollouts(path)}
    assert records.keys() == {task.task_id for task in TASKS}
    done, lost = records["t1"], records["t5"]
    assert (done.source, done.reward, done.metrics["cost"], done.log) == ("trained", 1.0, 2.5, {"answer": "green"})
    assert done.decode(done.prompts[0]) == "green 1"
    assert (lost.status, lost.failure, lost.log["error"]) == ("failed", "lost", "no answer")
    assert write_record_view(path, setup.folder.path / "view.html") == len(TASKS)


async def test_a_saved_cell_gets_the_labels_that_a_later_call_asks_for(setup):
    await setup.evaluate({"trained": "green"}, labels=())
    (result,) = await setup.evaluate({"trained": "green"}, labels=("kind",))
    assert (result.labels, setup.models.opened) == ({"kind": ["even", "odd"] * 3}, ["green"])
    tasks = [replace(task, metadata={**task.metadata, "more": "x"}) for task in TASKS[:4]]
    with pytest.raises(EvaluationError, match="of 6 tasks without more; to label them give --tasks 6"):
        await setup.evaluate({"trained": "green"}, labels=("kind", "more"), tasks=tasks)


async def test_a_task_without_a_score_of_its_own_scores_its_reward_beside_tasks_with_one(setup):
    class Mixed(Echo):
        async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
            done = await super().rollout(task, roles, sampling)
            own = {"official": 0.5, "answer_logprob": -0.5} if task.task_id == "t2" else {}
            return replace(done, metrics={**done.metrics, **own})

    (result,) = await setup.evaluate({"trained": "green"}, build=lambda recipe, tokenizer: Mixed(tokenizer, "green"))
    assert result.scores["official"] == [1, 1, 0.5, 1, 1, 0]
    assert result.measures["reward"] == [1.0] * 5 + [None]
    assert result.measures["answer_logprob"] == [None, None, -0.5, None, None, None], "who has none has no 0"


async def test_a_reward_that_is_no_score_is_refused_with_its_fix(setup):
    class Paid(Echo):
        async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
            return replace(await super().rollout(task, roles, sampling), reward=3.0)

    with pytest.raises(EvaluationError, match=r"scores\.official\.0: .* equal to 1\. .*metrics\['official'\]"):
        await setup.evaluate({"trained": "green"}, build=lambda recipe, tokenizer: Paid(tokenizer, "green"))


@pytest.fixture
def run(model: Path, tmp_path: Path) -> RunFolder:
    """A run that was never trained."""
    write_jsonl(tmp_path / "dev.jsonl", [replace(task, context="The grass is green.") for task in TASKS])
    recipe = SPEC.load("tiny", [f"model.path={model}", f"data.eval={tmp_path / 'dev.jsonl'}", "run.seeds=[3]"])
    return RunFolder.create(tmp_path / "run", recipe.dump())


@pytest.fixture
def own_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """MemAgent's world as it might be."""
    baselines = {"reader": lambda recipe, tokenizer: MemAgent(recipe.memagent, tokenizer)}
    monkeypatch.setattr("agentic.memagent.world.WORLD", World(baselines=baselines))


def test_a_methods_own_variant_run_with_the_model_that_training_starts_from(run, model, own_variant, capsys):
    assert command.main(["memagent", "--run", str(run.path), "--variants", "reader", "untrained", "--tasks", "2"]) == 0
    reader, untrained = run.evaluations()
    assert (reader.variant, reader.seed, reader.n, reader.model) == ("reader", 3, 2, str(model))
    assert reader.scores == untrained.scores, "the same method, model and seeds"
    assert reader.sampling["temperature"] == SPEC.load("tiny").run.eval_temperature
    departures = json.loads((run.path / "published.json").read_text())["of_recipe"]
    assert departures == SPEC.load("tiny").list_departures()
    assert "untrained · dev · seed 3: official" in capsys.readouterr().out


def test_tasks_that_chose_the_checkpoint_are_told_from_others(run, own_variant, tmp_path):
    def prepare(*words: str) -> str:
        options = ["memagent", "--run", str(run.path), "--variants", "reader", *words]
        return command.prepare(command.make_parser().parse_args(options)).chosen_by

    assert prepare("--set", "run.keep=best").startswith("dev: its first 64 tasks chose the checkpoint (run.keep=best)")
    (tmp_path / "test.jsonl").write_bytes((tmp_path / "dev.jsonl").read_bytes())
    assert prepare() == prepare("--set", "run.keep=best", "--data", str(tmp_path / "test.jsonl")) == ""


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("reward=tests.kit.save_model", "settings.reward was None, is now 'tests.kit.save_model'"),
        ("model.max_model_len=900", "settings.model.max_model_len was None, is now '900'"),
    ],
)
def test_a_saved_cell_is_not_taken_for_one_of_another_reward_or_context(change, named, run, own_variant, capsys):
    words = ["memagent", "--run", str(run.path), "--variants", "reader", "--tasks", "2"]
    assert command.main(words) == 0
    assert command.main(words) == 0, "the same once more is there"
    capsys.readouterr()
    assert command.main([*words, "--set", change]) == 1
    assert named in capsys.readouterr().err


def test_what_failed_with_a_dead_server_runs_again_only_when_asked(run, monkeypatch):
    class Flaky(Method):
        alive = False

        async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
            if task.task_id == "t0" and not Flaky.alive:
                raise PolicyError("unavailable", "the server has ended")
            return Trajectory(task.task_id, (), "completed", 1.0)

    monkeypatch.setattr("agentic.memagent.world.WORLD", World(baselines={"reader": lambda *_: Flaky()}))
    words = ["memagent", "--run", str(run.path), "--variants", "reader", "--tasks", "2"]
    assert command.main(words) == 0
    Flaky.alive = True
    assert command.main(words) == 0
    (result,) = run.evaluations()
    assert (result.scores["official"], result.failures) == ([0.0, 1.0], {"unavailable": 1}), "a result is kept"
    assert command.main([*words, "--retry-failed"]) == 0
    (result,) = run.evaluations()
    assert (result.scores["official"], result.failures) == ([1.0, 1.0], {})


def make_plan(*words: str) -> HeldoutPlan:
    return command.prepare(command.make_parser().parse_args(["memagent", *words]))


def model_words(model: Path, folder: Path) -> list[str]:
    """Return the words for a model without a run."""
    named = {"--model": model, "--preset": "tiny", "--data": folder / "dev.jsonl", "--out": folder / "evaluated"}
    return [str(word) for option in named.items() for word in option]


@pytest.mark.parametrize(
    ("words", "variants"),
    [
        ((), ["trained"]),
        (("--untrained", "BASE"), ["trained", "untrained", "untrained-greedy"]),
        (("--variants", "reader"), ["reader"]),
        (("--variants", "trained", "trained-greedy"), ["trained", "trained-greedy"]),
    ],
)
def test_a_model_without_a_run_takes_all_tasks_and_no_variant_of_the_tiny_presets(
    words, variants, run, model, own_variant, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(command, "TASKS_OF_A_RUN", 4)
    plan = make_plan(*model_words(model, tmp_path), *words)
    assert [(cell.seed, cell.variant) for cell in plan.cells] == [(seed, v) for seed in range(3) for v in variants]
    assert all((cell.sampling.temperature == 0) == cell.variant.endswith("-greedy") for cell in plan.cells)
    assert len(plan.tasks) == len(TASKS)
    assert "note" not in capsys.readouterr().out


def test_a_model_without_a_run_keeps_the_dtype_that_it_began_with(run, model, tmp_path, monkeypatch):
    timed = iter(["bfloat16", "float32"])
    monkeypatch.setattr("core.train.memory.choose_dtype", lambda config, device: (next(timed), "it is fast here"))
    for _ in range(2):
        make_plan(*model_words(model, tmp_path), "--set", "model.dtype=auto")
        assert RunFolder(tmp_path / "evaluated").config["model"]["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("words", "count", "note"),
    [
        ((), 4, r"of \S+dev.jsonl the first 4 tasks are taken, and it has more; see --tasks"),
        (("--tasks", "6"), 6, ""),
        (("--tasks", "9"), 6, "has 6 tasks, which are all taken"),
    ],
)
def test_a_file_that_is_cut_is_told(words, count, note, run, own_variant, monkeypatch, capsys):
    monkeypatch.setattr(command, "TASKS_OF_A_RUN", 4)
    plan = make_plan("--run", str(run.path), "--variants", "untrained", *words)
    assert [task.task_id for task in plan.tasks] == [task.task_id for task in TASKS[:count]]
    out = capsys.readouterr().out
    assert re.search(note, out) if note else not out


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("memagent --run RUN", "no checkpoint. Train seed 3 first"),
        ("memagent --run RUN --variants dearest", "unknown variant 'dearest'; memagent has: trained, trained-greedy"),
        ("memagent --model M --policy-key-file key", "--policy-key-file goes with --policy-url"),
        ("memagent --model M --variants untrained", "that training started from: --untrained"),
        ("memgent --run RUN", "no method 'memgent'.*agentflow, codescout, coding, compaction, memagent"),
        ("memagent --run RUN --variants untrained --data /no.jsonl", "/no.jsonl: no such file"),
        ("memagent --run RUN --variants untrained --by kind nolabel", "--by nolabel.*there are: kind"),
        ("agentflow --run RUN --variants untrained", "method is 'memagent', and this is 'agentflow'"),
    ],
)
def test_bad_input_is_named_with_its_fix(call, message, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # where a call without --run begins its folder
    assert command.main([str(run.path) if word == "RUN" else word for word in call.split()]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert re.search(message, error), error


def test_files_of_one_name_get_names_of_their_own(tmp_path: Path) -> None:
    odd = tmp_path / "a=b.jsonl"
    odd.touch()
    assert command.name_data("data/mbpp/test.jsonl") == ("test", "data/mbpp/test.jsonl")
    assert command.name_data("fix=data/humanevalfix/test.jsonl") == ("fix", "data/humanevalfix/test.jsonl")
    assert command.name_data(str(odd)) == ("a=b", str(odd))
