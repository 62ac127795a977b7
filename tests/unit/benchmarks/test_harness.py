"""The harness that all evaluators share: what is sampled, what is refused, and the statistics of repeated samples."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import pytest
import transformers
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from agentic.memagent.world import WORLD
from benchmarks.aime.evaluate import make_parser as aime
from benchmarks.harness.command import EvalPlan, Evaluator
from benchmarks.harness.models import EvalModels, check_server, is_other_model
from benchmarks.harness.plan import EvalCell, EvaluationError, describe_changes, is_saved
from benchmarks.harness.run import OpenVariant, build_result, evaluate_cell, pool_results
from benchmarks.harness.samples import SampleLog, Samples, drop_failed_samples, flat, read_samples, session_seconds
from benchmarks.harness.statistics import group_means, paired_difference, pass_at, pass_hat
from benchmarks.heldout.evaluate import make_parser as heldout
from benchmarks.ruler.evaluate import make_parser as ruler
from core.config import Recipe
from core.http_client import HTTPClient
from core.policy.base import Roles
from core.policy.sglang import SGLangPolicy
from core.policy.vllm import VLLMPolicy
from core.report import build_summary
from core.report.stats import wilson
from core.rollout.method import Method, RolloutError
from core.runs.evaluation import EvalResult
from core.runs.files import Record, append_batch, read_batches, write_text
from core.runs.record import read_rollouts
from core.runs.run_folder import RunFolder, flatten
from core.text.tokenizer import load_tokenizer
from core.types import Completion, Sampling, Task, Trajectory, Turn
from tests.kit import answer_health, make_recipe, make_sglang_reply, serve_app

from .conftest import CELL, make_sample
from .conftest import make_result as make_plain

TASKS = [Task(f"t{i}", f"question {i}", (str(i),)) for i in range(5)]
SHARED: dict[str, Any] = {
    name: getattr(CELL, name) for name in ("variant", "data", "n", "sampling", "deadline_s", "repeats")
}


class Counting(Method):
    """Answers every task after `turns`, except that `failing` ones fail; counts its rollouts."""

    def __init__(self, failing: Sequence[str] = (), turns: tuple[Turn, ...] = ()):
        self.failing = failing
        self.turns = turns
        self.seeds: list[int | None] = []

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        self.seeds.append(sampling.seed)
        if task.task_id in self.failing:
            raise RolloutError("lost", "no answer")
        return Trajectory(task.task_id, self.turns, reward=1.0, log={"answer": task.task_id})


def make_result(cell: EvalCell, samples: Samples) -> EvalResult:
    official = [sum(sample.reward or 0.0 for sample in of_task) / len(of_task) for of_task in samples]
    return build_result(cell, samples, scores={"official": official})


async def record_without_turns(task: Task, trajectory: Trajectory) -> tuple[Trajectory, Record]:
    """Record what needs no tokenizer."""
    return replace(trajectory, turns=()), {}


async def run(
    folder: RunFolder,
    cell: EvalCell = CELL,
    *,
    failing: Sequence[str] = (),
    turns: tuple[Turn, ...] = (),
    tasks: Sequence[Task] = TASKS,
) -> tuple[EvalResult, int]:
    """The result, and the number of rollouts that it took."""
    method = Counting(failing, turns)
    variant = OpenVariant(method, {}, None)
    result = await evaluate_cell(cell, tasks, folder, lambda: nullcontext(variant), make_result, record_without_turns)
    return result, len(method.seeds)


def serve_json(replies: Mapping[str, Any], key: str | None = None) -> AbstractContextManager[str]:
    """Serve replies by their paths, for those who give the key."""

    async def say(request: web.Request) -> web.Response:
        known = key is None or request.headers.get("Authorization") == f"Bearer {key}"
        return web.json_response(replies[request.path] if known else {}, status=200 if known else 401)

    app = web.Application()
    app.add_routes([web.get(path, say) for path in replies])
    return serve_app(app)


def make_cell(models: EvalModels, folder: RunFolder, model: object = "owner/name") -> EvalCell:
    return models.make_cell(folder, str(model), settings={}, **SHARED)


async def test_finished_samples_are_not_run_again_and_more_repeats_add(folder: RunFolder) -> None:
    first, rollouts = await run(folder)
    assert (rollouts, first.n, first.notes["repeats"]) == (10, 5, 2)
    assert await run(folder) == (first, 0)
    more, rollouts = await run(folder, replace(CELL, repeats=5))
    assert (rollouts, more.scores["official"]) == (15, [1.0] * 5)
    fewer, rollouts = await run(folder)
    assert (rollouts, fewer.turns) == (0, first.turns)
    cell = replace(CELL, variant="other", repeats=1, model="seed-0/checkpoints/step-000002")
    other, rollouts = await run(folder, cell, tasks=TASKS[:3])
    assert (rollouts, other.n) == (3, 3)
    assert {rollout.step for rollout in read_rollouts(SampleLog(folder, cell).path)} == {2}


@pytest.mark.parametrize("change", [lambda lines: lines[:-1], lambda lines: [*lines, lines[-1]]], ids=["lost", "twice"])
async def test_samples_that_are_lost_or_there_twice_are_refused(folder: RunFolder, change: Any) -> None:
    result, _ = await run(folder)
    assert [len(of_task) for of_task in read_samples(folder, result)] == [2] * 5
    path = SampleLog(folder, CELL).path
    path.write_bytes(gzip.compress(b"".join(change(gzip.decompress(path.read_bytes()).splitlines(keepends=True)))))
    with pytest.raises(EvaluationError, match="does not hold samples 0 to 1 of each task once"):
        read_samples(folder, result)


async def test_time_is_the_sum_over_the_sessions(folder: RunFolder) -> None:
    await run(folder)
    result, _ = await run(folder, replace(CELL, repeats=3))
    samples = flat(SampleLog(folder, replace(CELL, repeats=3)).load_samples(TASKS))
    assert {sample.session for sample in samples} == {1, 2}
    assert result.seconds == session_seconds(samples) > max(sample.elapsed for sample in samples)


@pytest.mark.parametrize(("kept", "told"), [(100, ""), (32, "68% of the tokens that a prompt shares with the")])
async def test_conversations_that_were_computed_again_are_told(
    kept: int, told: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Turn("policy", tuple(range(99)), Completion((7,), (-1.0,), "stop", "0"), trained=False)
    completion = Completion((8,), (-1.0,), "stop", "0", cached_tokens=kept)
    second = Turn("policy", (*range(99), 7, 5, 6), completion, trained=False)
    await run(folder, turns=(first, second))
    last = capsys.readouterr().out.splitlines()[-1]
    assert told in last
    assert ("warning, cache too small" in last) == bool(told)


async def test_a_server_that_takes_other_weights_in_the_midst_is_told(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three samples more, after a training has given the server its step 7."""

    async def play(version: str, tasks: Sequence[Task]) -> EvalResult:
        turn = Turn("single", (1,), Completion((2,), (-1.0,), "stop", version), trained=False)
        variant = OpenVariant(Counting(turns=(turn,)), {}, cast(Any, load_tokenizer(tiny)))
        cell = replace(CELL, repeats=None)
        return await evaluate_cell(cell, tasks, folder, lambda: nullcontext(variant), make_result)

    tiny = WORLD.build_model(folder.path / "model", seed=0)
    assert "mixed_weights" not in (await play("default", TASKS[:2])).notes
    told = "samples are of more than one version of weights: single: 7 (3), default (2)"
    assert (await play("7", TASKS)).notes["mixed_weights"] == told
    assert told in capsys.readouterr().err
    assert f"made-up, trained: {told}" in build_summary(folder)["departures"]


async def test_failed_samples_count_and_run_again_only_when_asked(folder: RunFolder) -> None:
    result, _ = await run(folder, failing=["t2"])
    assert (result.scores["official"], result.failures) == ([1.0, 1.0, 0.0, 1.0, 1.0], {"lost": 1})
    assert await run(folder) == (result, 0)
    assert is_saved(CELL, folder)
    drop_failed_samples(folder, [replace(CELL, variant="other"), CELL])
    assert not is_saved(CELL, folder), "a command that leaves out what is saved runs them, too"
    result, rollouts = await run(folder)
    assert (rollouts, result.failures) == (2, {})


def test_a_task_of_which_one_repeat_failed_is_among_the_failures() -> None:
    lost = make_sample("t0", 1, status="failed", failure="timeout")
    samples = [[make_sample("t0", 0), lost], [make_sample("t1", 0), make_sample("t1", 1)]]
    assert build_result(CELL, samples, scores={"official": [0.5, 1.0]}).failures == {"timeout": 1}


def test_a_pool_has_the_measures_that_all_its_results_have() -> None:
    """Or a task's turns would be those of one trial in a domain, and of all trials together in the pool."""
    columns = ({"turns": [3.0], "cost": [1.0]}, {"turns": [None]})
    ids = ({"task_ids": ["t0"]}, {"task_ids": ["t1"]})
    results = [make_plain("trained", f"d{i}", [1.0], measures=columns[i], notes=ids[i]) for i in range(2)]
    pool = pool_results(results, "all")
    assert (pool.measures, pool.scores) == ({"turns": [3.0, None]}, {"official": [1.0, 1.0]})


async def test_a_saved_result_stands_for_the_published_model_that_a_later_call_names(folder: RunFolder) -> None:
    await run(folder)
    notes = {"served": True, "published_as": "M", "protocol": "theirs"}
    assert is_saved(replace(CELL, notes=notes), folder)
    (result,) = folder.evaluations()
    assert (result.notes["published_as"], result.notes["protocol"]) == ("M", "theirs")
    assert "served" not in result.notes, "that is a fact of the call that sampled"


async def test_a_set_up_in_which_nothing_works_is_an_error_and_leaves_nothing(folder: RunFolder) -> None:
    with pytest.raises(EvaluationError, match=r"every sample failed: 10 x lost \(first: no answer\)"):
        await run(folder, failing=[task.task_id for task in TASKS])
    assert folder.evaluations() == []
    assert (await run(folder))[1] == 10


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"settings": {**CELL.settings, "weights": "xyz"}}, r"settings.weights was 'abc', is now 'xyz'"),
        ({"settings": {**CELL.settings, "method": {"budget": 8}}}, "settings.method was '.*', is now '.*'"),
        ({"sampling": Sampling(temperature=0.5)}, r"sampling.temperature was 1\.0, is now 0\.5"),
        ({"model": "n"}, "model was 'm', is now 'n'"),
    ],
)
async def test_samples_of_other_settings_or_weights_are_refused(
    folder: RunFolder, change: dict[str, Any], difference: str
) -> None:
    await run(folder)
    told = rf"seed-0.jsonl.gz: .*otherwise: {difference}. Delete the file to sample again, or choose another folder"
    with pytest.raises(EvaluationError, match=told):
        await run(folder, replace(CELL, **change))


@pytest.mark.parametrize(
    ("place", "named"), [("judge", "role_weights"), ("model/critic", "role_weights"), ("model", "weights")]
)
async def test_samples_are_refused_where_a_model_or_that_of_a_role_was_changed_in_place(
    folder: RunFolder, tmp_path: Path, place: str, named: str
) -> None:
    for name in ("model/critic", "judge"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("model/critic", "judge", "model"):
        (tmp_path / name / "model.safetensors").write_bytes(bytes(100_000))
    roles = {"judge": f"model:{tmp_path / 'judge'}", "critic": "trained", "far": "model:owner/name"}
    models = EvalModels(make_recipe(Recipe, roles=roles), concurrency=1)
    assert (await run(folder, make_cell(models, folder, tmp_path / "model")))[1] == 10
    assert (await run(folder, make_cell(models, folder, tmp_path / "model")))[1] == 0
    (tmp_path / place / "model.safetensors").write_bytes(bytes(50_000) + b"x" * 50_000)
    with pytest.raises(EvaluationError, match=f"otherwise: settings.{named} was '.*', is now '.*'"):
        await run(folder, make_cell(models, folder, tmp_path / "model"))


def test_a_context_above_the_positions_of_a_model_is_an_error_that_names_it(tmp_path: Path) -> None:
    transformers.Qwen2Config(max_position_embeddings=512).save_pretrained(tmp_path)
    with pytest.raises(EvaluationError, match=rf"{tmp_path}: max_model_len 513 is above the 512 positions"):
        EvalModels(make_recipe(Recipe), concurrency=1, context=513).limit(str(tmp_path))


async def test_samples_are_refused_where_the_server_of_a_role_holds_another_model(folder: RunFolder) -> None:
    """Two ports of this machine are one place; a server that says nothing is no other."""

    def ask(url: str) -> EvalCell:
        return make_cell(EvalModels(make_recipe(Recipe, roles={"judge": url}), concurrency=1), folder)

    def hold(path: str) -> AbstractContextManager[str]:
        return serve_json({"/model_info": {"model_path": path}})

    with hold("/hub/models--Qwen--Qwen3-8B/snapshots/0a1b") as first, hold("/there/Qwen3-8B") as same:
        assert (await run(folder, ask(first)))[1] == 10
        assert (await run(folder, ask(same)))[1] == 0
    assert (await run(folder, ask("http://127.0.0.1:9")))[1] == 0
    with hold("/there/Qwen3-0.6B") as other:
        changed = "settings.served model of judge was 'Qwen3-8B', is now 'Qwen3-0.6B'"
        with pytest.raises(EvaluationError, match=changed):
            await run(folder, ask(other))


async def test_a_result_of_another_chat_template_is_not_shown_as_new(folder: RunFolder, tmp_path: Path) -> None:
    template = tmp_path / "model/chat_template.jinja"
    template.parent.mkdir()
    template.write_text("{{ messages }}")
    models = EvalModels(make_recipe(Recipe), concurrency=1)
    before = make_cell(models, folder, template.parent)
    old = replace(before, settings={"weights": before.settings["weights"]}, variant="of an earlier version")
    for cell in (before, old):
        await run(folder, cell)
    assert is_saved(before, folder)
    template.write_text("{{ messages }} /no_think")
    with pytest.raises(EvaluationError, match=r"evaluated otherwise: settings\.tokenizer was '\w+', is now '\w+'"):
        is_saved(make_cell(models, folder, template.parent), folder)
    assert is_saved(replace(make_cell(models, folder, template.parent), variant=old.variant), folder), "it tells none"


async def test_another_text_under_the_same_id_and_a_sample_there_twice_are_refused(folder: RunFolder) -> None:
    await run(folder)
    for change in ({"question": "another"}, {"answers": ("7",)}):
        with pytest.raises(EvaluationError, match="had another text or other answers"):
            await run(folder, tasks=[replace(task, **change) for task in TASKS])
    path = SampleLog(folder, CELL).path
    _, first = next(read_batches(path))
    append_batch(path, first)
    with pytest.raises(EvaluationError, match="there twice"):
        await run(folder)


@pytest.mark.parametrize(
    ("make_parser", "option", "value"),
    [
        (heldout, "--temperature", "-1"),
        (heldout, "--top-p", "2"),
        (heldout, "--concurrency", "0"),
        (ruler, "--deadline", "-1"),
        (ruler, "--seeds", "-1"),
        (aime, "--seed", "-1"),
    ],
)
def test_values_that_no_sampling_has_are_refused(
    make_parser: Any, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All evaluators have these options from one place; some change their defaults."""
    with pytest.raises(SystemExit):
        make_parser().parse_args([option, value])
    assert f"argument {option}: Input should be " in (error := capsys.readouterr().err)
    assert f"(is '{value}')" in error


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_and_pass_hat_are_shares_of_draws(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    draws = list(combinations(right, k))
    assert pass_at(len(right), sum(right), k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_hat(len(right), sum(right), k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_differences_are_paired_over_the_tasks_that_both_have() -> None:
    estimate = paired_difference({"a": 1.0, "b": 0.0}, {"c": 0.5, "b": 1.0})
    assert estimate is not None
    assert (estimate.mean, estimate.low, estimate.n) == (-1.0, -1.0, 1)
    assert estimate.high > 0, "one pair says little"
    assert paired_difference({"a": 1.0}, {"c": 1.0}) is None


async def test_two_processes_never_evaluate_one_cell_at_the_same_time(folder: RunFolder) -> None:
    first, second = SampleLog(folder, replace(CELL, variant="other")), SampleLog(folder, CELL)
    with pytest.raises(EvaluationError, match="another process evaluates trained"):
        await run(folder)
    second.close()
    await run(folder)
    first.close()


def test_a_group_of_zeros_and_ones_has_wilsons_interval_also_in_the_means_over_groups() -> None:
    means = group_means({"none": [0.0] * 114, "all": [1.0] * 50})
    assert (means["none"].low, means["none"].high) == pytest.approx((0.0, wilson(0, 114)[1]))
    assert means["micro"].mean == pytest.approx(50 / 164)
    assert means["macro"].high - 0.5 == pytest.approx(wilson(0, 114)[1] / 2)
    assert 0.5 - means["macro"].low == pytest.approx((1 - wilson(50, 50)[0]) / 2)


@pytest.mark.parametrize(("scheme", "kind"), [("", SGLangPolicy), ("vllm+", VLLMPolicy)])
async def test_a_policys_server_is_asked_in_its_own_words_with_the_key_of_a_file(
    scheme: str, kind: type, tmp_path: Path
) -> None:
    recorded = json.loads((Path(__file__).parents[1] / "policy/vllm_replies.json").read_text())["completion"]

    async def generate(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer open sesame":
            return web.json_response({}, status=401)
        return web.json_response(recorded["reply"]) if request.path == recorded["path"] else make_sglang_reply([7])

    app = web.Application()
    app.router.add_post("/generate", generate)
    app.router.add_post(recorded["path"], generate)
    app.router.add_get("/health", answer_health)
    (tmp_path / "key").write_text("open sesame\n")
    with serve_app(app) as url:
        words = ["memagent", "--model", "m", "--policy-url", scheme + url, "--policy-key-file", str(tmp_path / "key")]
        models = EvalModels.from_options(heldout().parse_args(words), make_recipe(Recipe))
        await check_server(models.urls["m"])
        async with models.policy("m", 64) as policy:
            assert isinstance(policy, kind)
            completion = await policy.generate([1, 2, 3], Sampling(max_new_tokens=3))
    expected = recorded["reply"]["choices"][0]["token_ids"] if scheme else [7]
    assert list(completion.token_ids) == expected


def test_two_folders_of_one_name_are_two_models(tmp_path: Path) -> None:
    for seed in "ab":
        (tmp_path / seed / "step-000160").mkdir(parents=True)
    assert is_other_model(str(tmp_path / "a/step-000160"), str(tmp_path / "b/step-000160"))
    assert not is_other_model(str(tmp_path / "a/step-000160"), str(tmp_path / "b/../a/step-000160"))


@pytest.mark.parametrize("scheme", ["", "vllm+"])
@pytest.mark.parametrize(
    ("served", "named"),
    [
        ("/there/Qwen3-8B/", None),
        ("/hub/models--Qwen--Qwen3-8B/snapshots/0a1b", None),
        ("/there/step-000100", "/there/step-000100"),
    ],
)
def test_a_server_of_another_model_is_told(
    scheme: str, served: str, named: str | None, folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def evaluate(_: EvalPlan) -> str:
        return "evaluated"

    models = {"data": [{"id": "a name", "root": served}]}
    replies: dict[str, Any] = {"/v1/models": models} if scheme else {"/get_model_info": {"model_path": served}}
    (tmp_path / "key").write_text("open sesame\n")
    with serve_json(replies, "open sesame") as url:
        for key in (None, tmp_path / "key"):
            opened = EvalModels(make_recipe(Recipe), 1, urls={"Qwen/Qwen3-8B": scheme + url}, key_file=key)
            evaluator = Evaluator(heldout, lambda _, opened=opened: EvalPlan(folder, opened, ()), evaluate)
            assert evaluator.main(["memagent", "--model", "Qwen/Qwen3-8B", "--policy-url", scheme + url]) == 0
    told = capsys.readouterr().err
    warning = f"warning: {scheme}{url} serves {named}; its scores count as those of Qwen/Qwen3-8B\n"
    assert told == (warning if named else ""), "and a server that says nothing is no other"


async def test_a_call_has_the_time_of_its_sample() -> None:
    """No call had more than 600 seconds, which a long prompt may take on a slow server, whatever --deadline said."""
    async with EvalModels(make_recipe(Recipe), 1, urls={"m": "http://there"}).policy("m", 64) as policy:
        assert cast("HTTPClient", policy)._timeout_s is None


def test_the_number_format_is_a_condition_of_a_model_that_is_loaded_here(folder: RunFolder) -> None:
    def conditions(dtype: str, **places: Any) -> dict[str, Any]:
        recipe = make_recipe(Recipe, model={"path": "none", "dtype": dtype})
        return make_cell(EvalModels(recipe, 1, **places), folder, "m").fingerprint

    here = conditions("float32")
    changes = "settings.dtype was 'float32', is now 'bfloat16'"
    assert describe_changes(here, conditions("bfloat16")) == changes
    served = conditions("bfloat16", urls={"m": "http://there"})
    assert describe_changes(here, served) == describe_changes(served, here) == "", "a server has a format of its own"


def test_edited_code_of_a_reward_is_another_condition(
    tmp_path: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reward_that_is_edited.py"
    file.write_text("def reward(task, text):\n    return 0.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    recipe = make_recipe(Recipe, method="memagent", reward="reward_that_is_edited.reward")

    def conditions(*words: str) -> dict[str, Any]:
        models = EvalModels.from_options(heldout().parse_args(["memagent", "--model", "m", *words]), recipe)
        return flatten(make_cell(models, folder, "m").conditions)

    before = conditions()
    file.write_text("def reward(task, text):\n    return 1.0\n")
    told = describe_changes(before, conditions())
    assert re.fullmatch(r"settings\.code\.reward was '\w+', is now '\w+' \(of code alone: .*\)", told)
    assert describe_changes(before, conditions("--accept-changes")) == ""
    older = {name: value for name, value in before.items() if not name.startswith("settings.code")}
    assert describe_changes(older, before) == "", "a result of an earlier version does not tell its code"


def test_edited_prompts_of_a_benchmark_are_another_condition(
    tmp_path: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.harness.models.__file__", str(tmp_path / "harness" / "models.py"))
    for name in ("templates.py", "released.yaml", "evaluate.py", "published.yaml", "README.md"):
        write_text(tmp_path / "ruler" / name, "before")

    def conditions(*words: str) -> dict[str, Any]:
        options = heldout().parse_args(["memagent", "--model", "m", *words])
        models = EvalModels.from_options(options, make_recipe(Recipe, method="memagent"), "ruler")
        return flatten(make_cell(models, folder, "m").conditions)

    before = conditions()
    for name in ("evaluate.py", "published.yaml", "README.md"):
        write_text(tmp_path / "ruler" / name, "after")
    assert conditions() == before
    write_text(tmp_path / "ruler" / "templates.py", "after")
    told = describe_changes(before, conditions())
    assert re.fullmatch(r"settings\.code_of_benchmark\.templates\.py was .* \(of code alone: .*\)", told)
    assert describe_changes(before, conditions("--accept-changes")) == ""
    older = {name: value for name, value in before.items() if "code_of_benchmark" not in name}
    assert describe_changes(older, before) == "", "a result of an earlier version does not tell it"


async def test_a_result_of_fewer_samples_says_that_it_replaces_one_of_more(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for repeats, tasks in ((3, TASKS), (3, TASKS), (4, TASKS)):
        await run(folder, replace(CELL, repeats=repeats), tasks=tasks)
        assert "note" not in capsys.readouterr().out
    for repeats, tasks, size in ((2, TASKS, "5 tasks x 2 samples"), (2, TASKS[:3], "3 tasks x 2 samples")):
        await run(folder, replace(CELL, repeats=repeats), tasks=tasks)
        assert f"this result of {size} replaces one of more, whose samples stay" in capsys.readouterr().out
