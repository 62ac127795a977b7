"""Every made-up world: words are tokens, splits share no question, and what it shows fits its preset and ends."""

from __future__ import annotations

from itertools import combinations, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from core.config import RecipeError
from core.data import read_tasks
from core.rollout.method import method_spec
from core.text.tokenizer import encode_text, load_tokenizer, special_ids
from core.types import Task
from core.worlds import SPLITS, World, find_world
from core.worlds.command import main

METHODS = sorted(path.parent.name for path in Path(__file__).parents[2].glob("agentic/*/world.py"))
Source = tuple[str, str, str]
WORLDS: list[Source] = [*((method, "world", "tiny") for method in METHODS), ("search_r1", "visits", "visits")]
"""Lists method, module and preset of each."""
SHORT = {"steps": 8, "batch_size": 4}


@pytest.fixture(scope="module", params=WORLDS, ids="-".join)
def source(request: pytest.FixtureRequest) -> Source:
    found: Source = request.param
    return found


@pytest.fixture(scope="module")
def world(source: Source) -> World:
    world = find_world(*source[:2])
    assert world is not None
    return world


@pytest.fixture(scope="module")
def data(source: Source, world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `tokentrue data world` makes, with training tasks where the world draws them."""
    method, module, _ = source
    folder = tmp_path_factory.mktemp(method)
    assert main([method, "--world", module, "--out", str(folder)]) == 0
    if world.domains:
        out = str(folder / "train.jsonl")
        assert main([method, "--world", module, "--split", "train", "--count", "12", "--out", out]) == 0
    return folder


@pytest.fixture(scope="module")
def tokenizer(data: Path) -> Any:
    return load_tokenizer(data / "model")


def test_every_word_is_one_token_of_its_own_and_no_text_forges_a_tag(world: World, tokenizer: Any) -> None:
    ids = [encode_text(tokenizer, f" {word}") for word in world.words]
    assert {len(word) for word in ids} == {1}
    assert len(set(ids)) == len(set(world.words))
    for tag in (*world.tags, "<|im_start|>", "<|im_end|>"):
        forged = encode_text(tokenizer, f"a{tag}b")
        assert not set(forged) & special_ids(tokenizer)
        assert tokenizer.decode(forged) == f"a{tag}b"


def test_the_command_writes_what_the_world_says(source: Source, world: World, data: Path) -> None:
    expected = {"model", *(f"{name}.txt" for name in world.word_lists)}
    expected |= {"corpus.jsonl"} if world.passages else set()
    expected |= {"train.jsonl"} if world.domains else set()
    assert {path.name for path in data.iterdir()} == expected
    for name, words in world.word_lists.items():
        assert (data / f"{name}.txt").read_text().split() == list(words)
    if world.domains:
        tasks = read_tasks(
            data / "train.jsonl", **method_spec(source[0]).reading_options(method_spec(source[0]).load(source[2]))
        )
        assert [task.question for task in tasks] == [task.question for task in world.draw_tasks("train", 12)]


def test_splits_share_no_question_and_follow_the_seed(world: World) -> None:
    for domain in (*world.domains, *world.rewrites):
        drawn = {split: world.draw_tasks(split, 24, domain=domain) for split in SPLITS}
        assert drawn["dev"] == world.draw_tasks("dev", 24, domain=domain)
        for tasks in drawn.values():
            assert len({world.identify(task) for task in tasks}) == 24
        keys = [{world.identify(task) for task in tasks} for tasks in drawn.values()]
        assert not any(one & other for one, other in combinations(keys, 2))


def test_the_warm_start_shows_turns_that_fit_and_follows_its_seed(source: Source, world: World, tokenizer: Any) -> None:
    recipe = method_spec(source[0]).load(source[2])
    config = recipe.warm_start
    short = {name: 2 for name in ("copy_steps", "lookup_steps") if getattr(config, name)} | SHORT
    recipe = recipe.model_copy(update={"warm_start": (config := config.model_copy(update=short))})
    drawn = list(islice(world.draw_warm_start(config, recipe, tokenizer), config.total_steps))
    assert drawn == list(islice(world.draw_warm_start(config, recipe, tokenizer), config.total_steps))
    other = config.model_copy(update={"seed": 1})
    assert drawn != list(islice(world.draw_warm_start(other, recipe, tokenizer), config.total_steps))
    assert [len(batch) for batch in drawn] == [4] * config.total_steps
    drills = config.copy_steps + config.lookup_steps
    for batch in drawn[: config.copy_steps]:
        assert all(prompt == completion for prompt, completion in batch)
    for batch in drawn[config.copy_steps : drills]:
        assert any(prompt != completion for prompt, completion in batch)
    special = special_ids(tokenizer) - {tokenizer.get_vocab()[token] for token in world.plain_tokens}
    for prompt, completion in (example for batch in drawn[drills:] for example in batch):
        assert set(prompt) & special, "the prompt of a rollout has the tags of messages"
        assert not set(completion[:-1]) & special
        assert len(prompt) + len(completion) <= (recipe.model.max_model_len or 1024)


def test_the_supervised_baseline_is_shown_turns_that_fit(
    source: Source, data: Path, world: World, tokenizer: Any
) -> None:
    method, _, preset = source
    recipe = method_spec(method).load(preset, [f"data.train={data / 'train.jsonl'}"])
    if recipe.supervised is None or method == "memagent":  # its test_annotators.py has RULER's tasks
        pytest.skip("the preset has no such baseline, or its tasks are not the world's")
    batches = world.draw_solutions(recipe.supervised.model_copy(update={"batch_size": 4}), recipe, tokenizer)
    for batch in islice(batches, 4):
        for prompt, completion in batch:
            assert len(prompt) + len(completion) <= (recipe.model.max_model_len or 1024)


def test_a_world_that_solves_no_task_is_told_instead_of_waited_for(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "Who?", "answers": ["me"]}\n')
    recipe = method_spec("search_r1").load("tiny", [f"data.train={tmp_path / 'train.jsonl'}"])
    with pytest.raises(RecipeError, match=r"yields no turn for the tasks of data\.train"):
        next(World(solve=lambda *_: iter(())).draw_solutions(recipe.supervised, recipe, None))


def test_the_start_model_follows_its_seed_alone(world: World, data: Path, tmp_path: Path) -> None:
    same, other = (world.build_model(tmp_path / str(seed), seed) / "model.safetensors" for seed in (0, 1))
    assert (data / "model" / "model.safetensors").read_bytes() == same.read_bytes() != other.read_bytes()


def test_a_split_that_is_too_small_is_told_and_a_wrong_name_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw_one(rng: Random, split: str, name: str) -> Task | None:
        return Task(name, "Who?", ("me",)) if rng.random() < 0.5 else None

    monkeypatch.setattr("agentic.retool.world.WORLD", World(domains={"usual": draw_one}))
    out = ["--out", str(tmp_path / "x.jsonl")]
    assert main(["retool", "--split", "dev", "--count", "2", *out]) == 1
    assert "split dev has fewer than 2 different tasks" in capsys.readouterr().err
    assert main(["retool", "--split", "dev", "--count", "0", *out]) == 1
    assert "no 0 tasks of split dev: take 1 or more of" in capsys.readouterr().err
    with pytest.raises(ValueError, match="of split trian: take 1 or more of train, dev, test"):
        World(domains={"usual": draw_one}).draw_tasks("trian", 1)
    assert main(["retool", "--split", "dev", "--count", "1", *out]) == 0
    for wrong, told in (
        (["retool", "--split", "dev", "--domain", "odd"], "--domain odd: retool has usual"),
        (["retool", "--world", "rollout"], "agentic.retool.rollout has no WORLD"),
        (["retool", "--split", "odd"], "--split odd: retool has train, dev, test"),
        (["memagent", "--split", "dev"], "the world of memagent draws no tasks"),
        (["coding", "--split", "dev", "--count", "2", "--seed", "1"], "--seed 1: coding draws the same tasks whatever"),
        (["nobody"], "no method 'nobody' in "),
        (["search_r1", "--world", "odd"], "search_r1 has no odd.py"),
    ):
        with pytest.raises(SystemExit):
            main([*wrong, *out])
        assert told in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["memagent", "--out", str(tmp_path / "file" / "x")]) == 1
    assert "file/x: " in capsys.readouterr().err
