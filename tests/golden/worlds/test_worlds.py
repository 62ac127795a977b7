"""Every world gives the tokenizer, the tasks and the batches from which the numbers of the READMEs came.

worlds.json holds checksums: change it only together with the tables.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ruler.generate import generate
from benchmarks.ruler.niah import Niah
from core.data import write_jsonl
from core.rollout.method import method_spec
from core.text.tokenizer import load_tokenizer
from core.worlds import World, find_world
from core.worlds.needles import KEYS, VALUES

GOLDEN: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("worlds.json").read_text())
WORDS = {"value_type": "words", "key_words": KEYS, "value_words": VALUES}
COUNT = 64


def read_world(method: str) -> World:
    world = find_world(method)
    assert world is not None
    return world


@pytest.mark.parametrize("method", [name for name in GOLDEN if "laptop" not in name])
def test_the_start_model_and_the_tasks_are_the_same(method: str, tmp_path: Path) -> None:
    world = read_world(method)
    model = world.build_model(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    del config["transformers_version"]
    found = {
        "config": hash_text(json.dumps(config, sort_keys=True)),
        "tokenizer": hash_text((model / "tokenizer.json").read_text()),
        "template": hash_text((model / "chat_template.jinja").read_text()),
    }
    tasks = {}
    for name, (split, domain) in GOLDEN[method].get("files", {}).items():
        write_jsonl(tmp_path / name, world.draw_tasks(split, COUNT, domain=domain), world.to_record)
        tasks[name] = zlib.crc32((tmp_path / name).read_bytes())
    assert found == {name: GOLDEN[method][name] for name in found}
    assert tasks == GOLDEN[method].get("tasks", {})


@pytest.mark.parametrize("name", GOLDEN)
def test_the_warm_start_and_the_supervised_baseline_are_the_same(name: str, tmp_path: Path) -> None:
    method, _, preset = name.partition("-")
    model = read_world(method).build_model(tmp_path / "model")
    tokenizer, train = load_tokenizer(model), tmp_path / "train.jsonl"
    if method in ("memagent", "rlm"):
        length, words = (900, {}) if preset else (448, WORDS)
        family = Niah(num_k=4, bare_question=True, **words)
        write_jsonl(
            train, generate(family, length=length, count=COUNT, tokenizer=tokenizer, split="train", budget="document")
        )
    else:
        world = read_world(method)
        write_jsonl(train, world.draw_tasks("train", COUNT), world.to_record)
    room = ["memagent.max_memory_tokens=48", "memagent.max_final_tokens=24"] if preset else []
    recipe = method_spec(method).load(preset or "tiny", [f"data.train={train}", f"model.path={model}", *room])
    world = find_world(method, recipe.world)
    assert world is not None
    config = recipe.warm_start
    batches = islice(world.draw_warm_start(config, recipe, tokenizer), min(50, config.total_steps))
    assert sum_up(batches) == GOLDEN[name]["warm_start"]
    short = {key: 2 for key in ("copy_steps", "lookup_steps") if getattr(config, key)} | {"steps": 16}
    recipe = recipe.model_copy(update={"warm_start": config.model_copy(update=short)})
    config = recipe.warm_start
    batches = islice(world.draw_warm_start(config, recipe, tokenizer), config.total_steps)
    assert sum_up(batches) == GOLDEN[name]["curriculum"]
    if recipe.supervised is not None:
        batches = islice(world.draw_solutions(recipe.supervised, recipe, tokenizer), 50)
        assert sum_up(batches) == GOLDEN[name]["supervised"]


def sum_up(batches: Iterable[Any]) -> int:
    total = 0
    for batch in batches:
        total = zlib.crc32(repr([[list(prompt), list(completion)] for prompt, completion in batch]).encode(), total)
    return total


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
