"""The evaluator with scripted policies, whose scores are known, and with a tiny random model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentic.memagent.config import MemAgentSection
from agentic.memagent.rollout import SPEC
from benchmarks.harness.models import EvalModels
from benchmarks.harness.plan import EvaluationError
from benchmarks.ruler import evaluate as command
from benchmarks.ruler.eval_data import EvalData, file_data, ruler_data
from benchmarks.ruler.evaluate import RulerPlan, count_tasks, evaluate, list_ids, make_cells, question_id
from benchmarks.ruler.variants import make_reader
from core.data import DataError, write_jsonl
from core.data.files import write_records
from core.runs.evaluation import EvalResult
from core.runs.files import JsonlLog
from core.runs.run_folder import RunFolder
from core.text.tokenizer import encode_text
from core.types import Sampling, Task

from ..conftest import Respond, ScriptedModels

METHOD = SPEC.load("tiny", ["memagent.max_chunks=100000"]).memagent
VARIANTS = ("trained", "untrained", "full-context", "empty-document")
ASKED = re.compile(r"magic word for (\w+) mentioned")


def needle_reader(tokenizer: Any, broken: dict[str, Exception | str] | None = None) -> Respond:
    """Answers right, by way of its memory; for a key in `broken`, with that value or that error instead."""

    def respond(prompt_ids: tuple[int, ...], sampling: Sampling) -> Sequence[int] | Exception:
        text = tokenizer.decode(prompt_ids)
        asked = ASKED.search(text)
        assert asked, text
        section, memory = (re.search(f"<{part}>(.*?)</{part}>", text, re.S) for part in ("section", "memory"))
        if section:
            found = re.search(rf"magic words for {asked[1]} is: (\w+)\.", section[1])
            said = f" {asked[1]} is: {found[1]}" if found else memory[1] if memory else ""
        else:
            assert memory
            value = memory[1].rpartition("is: ")[2]
            wrong = (broken or {}).get(asked[1])
            if isinstance(wrong, Exception):
                return wrong
            said = f"\\boxed{{ {wrong or value}}}"
        return (*encode_text(tokenizer, said), tokenizer.eos_token_id)

    return respond


async def run(
    models: EvalModels,
    folder: RunFolder,
    model: Path,
    data: EvalData,
    *,
    variants: tuple[str, ...] = VARIANTS,
    seeds: tuple[int, ...] = (0,),
    method: MemAgentSection = METHOD,
) -> dict[tuple[str, int, int], EvalResult]:
    """Evaluate six tasks of each cell, then return the results by variant, length and seed."""
    cells = make_cells(
        models,
        folder,
        {seed: dict.fromkeys(variants, str(model)) for seed in seeds},
        data,
        method,
        count=partial(count_tasks, data, 6),
        sampling=lambda variant: {"sampling": Sampling(temperature=0.7, top_p=0.95), "deadline_s": 60.0},
    )
    await evaluate(RulerPlan(folder, models, cells, method, {data.name: data}))
    return {(r.variant, r.length, r.seed): r for r in folder.evaluations()}


@pytest.fixture
def data(tokenizer: Any) -> EvalData:
    return ruler_data("niah", {}, tiny=True, lengths=(448, 1536), tokenizer=tokenizer)


@pytest.fixture
def short(data: EvalData) -> EvalData:
    return replace(data, lengths=(448,))


async def test_each_variant_reads_the_document_in_its_own_way(tokenizer, model, folder, data):
    cells = await run(ScriptedModels(needle_reader(tokenizer)), folder, model, data)
    every = {(variant, length, 0) for variant in VARIANTS for length in (448, 1536)}
    assert set(cells) == every - {("full-context", 1536, 0)}
    for variant in ("trained", "untrained"):
        for length in (448, 1536):
            result = cells[variant, length, 0]
            assert result.scores["official"] == result.scores["strict"] == [1.0] * 6
            assert all(length - 40 < n <= length for n in result.document_tokens)
            reader = make_reader("trained", METHOD, tokenizer)
            tasks = list(data.tasks(length, 0, 6))
            reader.prepare(tasks)
            assert result.turns == [len(reader.sections(task)[0]) + 1 for task in tasks]
            assert min(result.turns) > length / METHOD.chunk_tokens
    short = cells["full-context", 448, 0]
    assert (short.turns, short.scores["official"]) == ([1] * 6, [1.0] * 6)
    (absence,) = folder.published["departures"]
    told = r"full-context has no score on niah at 1536 tokens: .* to 1,\d\d\d tokens, .*context of 1,024"
    assert re.search(told, absence)
    wide = ScriptedModels(needle_reader(tokenizer), context=2048)
    assert ("full-context", 1536, 0) in await run(wide, folder, model, data, variants=("full-context",))
    assert folder.published["departures"] == [], "it has a score now"
    empty = cells["empty-document", 1536, 0]
    assert (empty.turns, empty.document_tokens, empty.scores["official"]) == ([2] * 6, [0] * 6, [0.0] * 6)


async def test_a_killed_evaluation_makes_no_finished_call_again(tokenizer, model, tmp_path, short, capsys):
    class Killed(BaseException):
        pass

    def die_at(last: int) -> tuple[Respond, list[tuple[int, ...]]]:
        respond, prompts = needle_reader(tokenizer), list[tuple[int, ...]]()

        def count(prompt_ids: tuple[int, ...], sampling: Sampling) -> Any:
            prompts.append(prompt_ids)
            if len(prompts) > last:
                raise Killed
            return respond(prompt_ids, sampling)

        return count, prompts

    def open_folder(name: str) -> RunFolder:
        return RunFolder.create(tmp_path / name, {"method": "memagent", "preset": "tiny"})

    whole, all_prompts = die_at(10_000)
    expected = await run(ScriptedModels(whole), open_folder("whole"), model, short, variants=("trained",))
    killed = open_folder("killed")
    with pytest.raises(Killed):  # four documents are read side by side, and none of them has ended
        await run(ScriptedModels(die_at(11)[0]), killed, model, short, variants=("trained",))
    assert not list(killed.evaluation_path.glob("*.gz"))
    respond, prompts = die_at(10_000)
    found = await run(ScriptedModels(respond), killed, model, short, variants=("trained",))
    assert len(prompts) == len(all_prompts) - 11
    assert "11 calls of a killed process are not made again" in capsys.readouterr().out
    (ours, theirs) = (replace(cells["trained", 448, 0], seconds=0.0, notes={}) for cells in (found, expected))
    assert ours == theirs
    assert not list(killed.evaluation_path.glob(".*.calls.jsonl"))


async def test_a_call_that_cannot_be_kept_fails_no_sample(tokenizer, model, folder, short, monkeypatch):
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JsonlLog, "append", fail)
    found = await run(ScriptedModels(needle_reader(tokenizer)), folder, model, short, variants=("trained",))
    assert found["trained", 448, 0].failures == {}


async def test_each_task_has_its_own_scores(tokenizer, model, folder, short):
    """A longer word that contains the answer is right for the official substring match, wrong for the strict one."""
    tasks = list(short.tasks(448, 0, 6))
    asked = [ASKED.search(task.question)[1] for task in tasks]
    assert len(set(asked)) == 6
    broken = {asked[1]: "nothing", asked[4]: f"x{tasks[4].answers[0]}"}
    models = ScriptedModels(needle_reader(tokenizer, broken))
    result = (await run(models, folder, model, short, variants=("trained",)))["trained", 448, 0]
    assert result.scores["official"] == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert result.scores["strict"] == [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]


async def test_the_documents_of_a_file_are_counted_with_the_tokenizer_that_reads_them(
    tokenizer, model, tmp_path, folder, short
):
    """A file made with another tokenizer holds that one's counts, by which all costs per token would be wrong."""
    tasks = list(short.tasks(448, 0, 6))
    wrong = [replace(task, metadata={**task.metadata, "length": 3}) for task in tasks]
    write_jsonl(tmp_path / "mine.jsonl", wrong)
    mine = file_data(tmp_path / "mine.jsonl", tokenizer=tokenizer)
    results = await run(ScriptedModels(needle_reader(tokenizer)), folder, model, mine, variants=("trained",))
    (result,) = results.values()
    assert result.document_tokens == [task.metadata["length"] for task in tasks]


async def test_seeds_on_one_files_tasks_are_no_further_tasks(tokenizer, model, tmp_path, short):
    """Three seeds with the same answers say as much as one; generated tasks are new for every seed."""
    path = tmp_path / "mine.jsonl"
    write_jsonl(path, short.tasks(448, 0, 6))
    right = needle_reader(tokenizer)
    calls = iter(range(10_000))

    def now_and_then(prompt: tuple[int, ...], sampling: Sampling) -> Any:
        return right(prompt, sampling) if next(calls) % 2 else []

    for name, data, same in (("file", file_data(path, tokenizer=tokenizer), True), ("made", short, False)):
        own = RunFolder.create(tmp_path / name, {"method": "memagent", "preset": "tiny"})
        await run(ScriptedModels(now_and_then), own, model, data, variants=("full-context",), seeds=(0, 1, 2))
        ids = [result.notes["task_ids"] for result in own.evaluations()]
        assert (ids[0] == ids[1] == ids[2]) == same
        assert len({*ids[0]}) == 6


def test_a_question_of_a_file_is_the_same_whatever_its_distractors() -> None:
    first, second = (
        Task(f"hqa-{seed}", "?", ("a",), "c", {"num_docs": 3, "index": 7, "seed": seed}) for seed in range(2)
    )
    assert question_id(first) == question_id(second) == "7"
    assert question_id(replace(first, metadata={**first.metadata, "source_id": "5a8b"})) == "5a8b"
    assert question_id(replace(first, metadata={"index": 7})) == "hqa-0"
    assert list_ids([first, second]) == ["hqa-0", "hqa-1"], "as in a file that joins two: the numbers name no question"


async def test_a_broken_result_is_named_before_anything_runs(tokenizer, model, folder, data):
    models = ScriptedModels(needle_reader(tokenizer))
    folder.evaluation_path.mkdir()
    (folder.evaluation_path / "trained__niah__1536__seed-0.json").write_text('{"variant"')
    told = r"trained__niah__1536__seed-0\.json: the result: Invalid JSON.*Delete the file"
    with pytest.raises(EvaluationError, match=told):
        await run(models, folder, model, data)
    assert models.opened == []


def test_how_many_tasks_are_taken(short):
    counts = [count_tasks(short, tasks, length) for tasks in (None, 24) for length in (7168, 229376)]
    assert counts == [32, 16, 24, 24]


def test_a_file_with_fewer_tasks_than_asked_is_told(short, model, tmp_path, capsys):
    write_jsonl(tmp_path / "mine.jsonl", short.tasks(448, 0, 2))
    words = ["--model", str(model), "--preset", "tiny", "--data", str(tmp_path / "mine.jsonl"), "--tasks", "9"]
    plan = command.prepare(command.make_parser().parse_args([*words, "--out", str(tmp_path / "out")]))
    assert {cell.n for cell in plan.cells} == {2}
    assert capsys.readouterr().out.count("mine at length 448 has 2 tasks, which are all taken") == 1


def test_what_a_run_was_trained_on_is_told(model, tmp_path, capsys):
    paragraphs = [{"title": name, "sentences": [f"{name} is here."]} for name in "ABC"]
    records = [
        {
            "task_id": f"q{number}",
            "question": f"Where {number}?",
            "answers": ["here"],
            "context": "Document 1:\nA\nA is here.",
            "metadata": {"paragraphs": paragraphs, "needles": [{"key": "A", "value": "A is here."}]},
        }
        for number in range(4)
    ]
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    write_records(train, records[2:])
    write_records(test, records)
    run = RunFolder.create(tmp_path / "run", SPEC.load("tiny", [f"data.train={train}"]).dump())
    shutil.copytree(model, run.checkpoints_path(0) / "step-000001")

    def told(*words: str) -> list[str]:
        command.prepare(command.make_parser().parse_args(["--run", str(run.path), "--variants", "trained", *words]))
        return [line for line in capsys.readouterr().out.splitlines() if "data.train" in line]

    assert told("--data", str(test), "--tasks", "2") == []
    (line,) = told("--data", str(test), "--tasks", "3")
    assert line == f"note: {test}: 1 of 3 evaluated questions are in the run's data.train"
    (line,) = told("--task", "hqa", "--hotpotqa", str(test), "--lengths", "448")
    assert line.endswith("2 of 4 questions whose paragraphs may be distractors are in the run's data.train")
    assert line.removeprefix("note: ") in run.published["departures"]


async def test_a_chunk_that_does_not_fit_the_model_is_named(tokenizer, model, folder, data):
    method = SPEC.load("tiny", ["memagent.chunk_tokens=1000"]).memagent
    models = ScriptedModels(needle_reader(tokenizer))
    with pytest.raises(EvaluationError, match=r"has a context of 1024\. Lower memagent.chunk_tokens"):
        await run(models, folder, model, data, variants=("trained",), method=method)


def test_a_training_run_brings_its_models_and_its_recipe(model, tmp_path, capsys):
    run = RunFolder.create(tmp_path / "run", SPEC.load("tiny", ["memagent.chunk_tokens=64"]).dump())
    shutil.copytree(model, run.path / "warm_start")
    for seed, step in ((0, 1), (0, 2), (3, 1)):
        shutil.copytree(model, run.checkpoints_path(seed) / f"step-{step:06d}")
    call = ["--run", str(run.path), "--lengths", "448", "--tasks", "2", "--variants", "trained", "untrained"]
    assert command.main(call) == 0
    assert "tasks · niah 448 · seed 0 2/2" in capsys.readouterr().out, "to make long ones takes long"
    models = {(r.variant, r.seed): r.model for r in run.evaluations()}
    trained = {0: "seed-0/checkpoints/step-000002", 3: "seed-3/checkpoints/step-000001"}
    assert models == {("trained", s): m for s, m in trained.items()} | {("untrained", s): "warm_start" for s in trained}
    assert all(r.settings["memagent"]["chunk_tokens"] == 64 for r in run.evaluations())
    assert (run.path / "report.html").is_file()
    assert command.main([*call, "--seeds", "0", "--set", "memagent.align=none"]) == 0
    aligns = {r.data: r.settings["memagent"]["align"] for r in run.evaluations() if r.seed == 0}
    assert aligns == {"niah": "sentence", "niah+align=none": "none"}
    assert command.main([*call, "--seeds", "0", "--set", "model.dtype=bfloat16"]) == 1
    assert "settings.model.dtype was None, is now 'bfloat16'" in capsys.readouterr().err
    assert command.main([*call, "--seeds", "7"]) == 1
    assert "no checkpoint. Train seed 7 first" in capsys.readouterr().err
    assert command.main([*call, "rejection"]) == 1
    error = capsys.readouterr().err
    assert "variant rejection: seed 0 has no model for it" in error
    assert f"tokentrue train memagent --preset {run.path}/config.yaml --out {run.path} --baseline rejection" in error
    for path in (run.rejection_path(0), run.supervised_path):
        shutil.copytree(model, path / "model")
    assert command.main([*call, "rejection", "supervised", "--seeds", "0"]) == 0
    baselines = {r.variant: r.model for r in run.evaluations()}
    assert (baselines["rejection"], baselines["supervised"]) == ("seed-0/rejection/model", "supervised/model")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "give either --run RUN_DIR or --model ID_OR_PATH"),
        ("--model MODEL --lengths 20", "length 20: niah, sample 0: the smallest sample"),
        ("--model MODEL --variants trained --window 5 5", "--window is for the variant full-context"),
        ("--model MODEL --variants untrained", "variant untrained: no model for it.*--untrained"),
        ("--model MODEL --data /nowhere.jsonl", "/nowhere.jsonl: no such file"),
        ("--model ./nowhere", r"\./nowhere: no such folder"),
        ("--run /nowhere", "/nowhere is not a run folder"),
        ("--run /nowhere --policy-url http://x", "--policy-url goes with --model"),
        ("--model MODEL --policy-url http://127.0.0.1:9", "policy url http://127.0.0.1:9: no answer.*Start a"),
        ("--model MODEL --policy-url localhost:9", "policy url localhost:9.*http://host:port"),
    ],
)
def test_bad_input_is_named_with_its_fix(words, message, model, tmp_path, capsys):
    call = [str(model) if word == "MODEL" else word for word in words.split()]
    call += [] if "--run" in call else ["--preset", "tiny", "--out", str(tmp_path / "out")]
    call += [] if "--lengths" in call or "/nowhere.jsonl" in call else ["--lengths", "448"]
    assert command.main(call) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert re.search(message, error, re.S), error


def test_a_tokenizer_without_chat_template_is_refused(model, tmp_path, capsys):
    bare = shutil.copytree(model, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    assert command.main(["--model", str(bare), "--preset", "tiny", "--out", str(tmp_path / "out")]) == 1
    assert "no chat template" in capsys.readouterr().err


def test_a_task_that_a_file_repeats_is_taken_once(tokenizer, tmp_path, short, capsys):
    """As in every other evaluation."""
    first, second = short.tasks(448, 0, 2)
    write_jsonl(tmp_path / "mine.jsonl", [first, second, replace(first, task_id="again")])
    data = file_data(tmp_path / "mine.jsonl", tokenizer=tokenizer)
    assert data.available(448) == 2
    assert "3 records are 2 different tasks" in capsys.readouterr().err


def test_tasks_of_a_file_are_grouped_by_length(tokenizer, tmp_path):
    made = ruler_data("niah", {}, tiny=True, lengths=(300, 600), tokenizer=tokenizer)
    path = tmp_path / "mine.jsonl"
    write_jsonl(path, [*made.tasks(300, 0, 3), *made.tasks(600, 0, 2)])
    data = file_data(path, tokenizer=tokenizer)
    assert (data.name, data.lengths, data.available(300)) == ("mine", (300, 600), 3)
    assert data.tasks(600, 5, 1) == list(made.tasks(600, 0, 1))
    with pytest.raises(DataError, match=r"no task of length 700\. .* 300, 600"):
        file_data(path, tokenizer=tokenizer, lengths=(700,))
    for name, metric in (("eval_niah_multivalue_7168", "string_match_all"), ("eval_qa_1_7168", "string_match_part")):
        official = tmp_path / f"{name}.json"
        record = {"input": "Who?", "outputs": ["me", "you"], "context": "It was me.", "index": 0, "length": 7168}
        official.write_text(json.dumps([record]))
        data = file_data(official, tokenizer=tokenizer)
        assert next(iter(data.tasks(data.lengths[0], 0, 1))).metadata["metric"] == metric
