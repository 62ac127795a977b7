"""The `tiny` preset: splits that share no question, and demonstrations that tell neither a meaning nor to compute."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.retool.rollout import SPEC, build
from agentic.retool.tiny import tasks
from agentic.retool.tiny.baselines import BASELINES
from agentic.retool.tiny.demonstrations import demonstrate
from agentic.retool.tiny.supervised import batches as supervised_batches
from agentic.retool.tiny.supervised import solve
from agentic.retool.tiny.tasks import DOMAINS, MEANINGS, OPERATORS, SPLITS, Computation, generate
from agentic.retool.tiny.warm_start import batches, encode
from core.data import read_tasks, write_jsonl
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.text.tokenizer import encode_text
from core.types import Sampling


def test_no_question_is_in_two_splits_and_no_answer_in_its_question() -> None:
    asked = [task for split in SPLITS for domain in DOMAINS for task in generate(split, 60, domain=domain)]
    assert len({task.question for task in asked}) == len(asked) == 540
    for task in asked:
        computation = Computation.read(task.question)
        assert task.metadata["words"] == len(computation.operators)
        code = " ".join(MEANINGS.get(word, word) for word in task.question[len("What is ") : -1].split())
        assert task.answers == (str(eval(code)),)
        assert abs(int(task.answers[0])) > 9
        assert task.answers[0].lstrip("-") not in map(str, computation.numbers)
    assert generate("dev", 9) == generate("dev", 9) != generate("dev", 9, seed=1)


def test_the_command_writes_the_tasks_of_a_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*more: str) -> None:
        words = ["tasks", "--split", "dev", "--out", str(tmp_path / "dev.jsonl"), *more]
        monkeypatch.setattr(sys, "argv", words)
        tasks.main()

    call("--count", "3", "--domain", "longer")
    assert [task.metadata["words"] for task in read_tasks(tmp_path / "dev.jsonl", require_context=False)] == [3] * 3
    with pytest.raises(SystemExit, match="give at most 4096"):
        call("--count", "5000")


def test_operators_of_demonstrations_do_not_depend_on_the_words() -> None:
    """The right operator is shown as rarely as any other one; right conversations come by chance."""
    rng, seen, right, at_once, whole = Random(0), Counter[tuple[str, str]](), 0, 0, 0
    for _ in range(3000):
        shown = demonstrate(rng, answer_at_once=0.3)
        asked = Computation.read(shown.question)
        at_once += not shown.programs
        right += str(asked.translate().compute()) in shown.answer
        for program, printed in shown.programs:
            code = program.removeprefix("<code> ").removesuffix("</code>")
            assert str(eval(code)) == printed
            drawn = Computation.read(f"What is {code}?")
            assert f" {' '.join(map(str, drawn.numbers))} " in f" {' '.join(map(str, asked.numbers))} "
            whole += drawn.numbers == asked.numbers
            if drawn.numbers == asked.numbers:
                seen.update(zip(asked.operators, drawn.operators, strict=True))
    assert at_once / 3000 == pytest.approx(0.3, abs=0.03)
    assert 0.3 < whole / 3000 < 0.7
    assert 0 < right / 3000 < 0.12
    shares = {}
    for word, meaning in MEANINGS.items():
        drawn_for_it = {operator: count for (each, operator), count in seen.items() if each == word}
        assert drawn_for_it.keys() == set(OPERATORS)
        shares[word] = drawn_for_it[meaning] / sum(drawn_for_it.values())
    assert sum(shares.values()) / len(shares) == pytest.approx(1 / len(OPERATORS), abs=0.03)
    assert max(shares.values()) < 1 / len(OPERATORS) + 0.05


def test_the_warm_start_has_programs_and_answers_that_fit_the_preset(tokenizer: Any) -> None:
    recipe = SPEC.load("tiny", ["warm_start.copy_steps=1", "warm_start.steps=8"])
    copies, *made = batches(recipe.warm_start, recipe, tokenizer)
    assert all(prompt == completion for prompt, completion in copies)
    assert all(len(batch) == recipe.warm_start.batch_size for batch in made)
    written = [tokenizer.decode(completion) for batch in made for _, completion in batch]
    programs = [text for text in written if text.startswith("<code>")]
    assert 0.3 < len(programs) / len(written) < 0.7
    assert all(text.endswith("</code>") for text in programs)
    assert all(text.endswith("}<|im_end|>") for text in written if text not in programs)
    turns = [turn for batch in made for turn in batch]
    assert max(len(completion) for _, completion in turns) <= recipe.retool.max_tokens
    assert max(len(prompt) + len(completion) for prompt, completion in turns) <= recipe.retool.context_tokens


async def test_a_demonstrated_turn_has_the_prompt_of_the_rollout(tokenizer: Any, isolation: None) -> None:
    """Played in the method, supervised conversations are right, and their prompts are the demonstrated ones."""
    method = build(SPEC.load("tiny", ["retool.sandbox.timeout_s=60"]), tokenizer)
    for task in generate("train", 3):
        turns = encode(solve(task.question), method.renderer)
        replies = dict(turns)
        policy = ScriptedPolicy(lambda prompt, sampling, known=replies: known[prompt], decode=tokenizer.decode)
        trajectory = await method.rollout(task, Roles({"policy": policy}), Sampling())
        assert (trajectory.reward, len(trajectory.turns)) == (1.0, 2)
        assert [(turn.prompt_ids, turn.completion.token_ids) for turn in trajectory.turns] == turns
    await method.close()


def test_supervised_turns_come_from_the_training_tasks(tokenizer: Any, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", generate("train", 4))
    recipe = SPEC.load("tiny", [f"data.train={tmp_path / 'train.jsonl'}", "supervised.batch_size=8"])
    drawn = next(iter(supervised_batches(recipe.supervised, recipe, tokenizer)))
    answers = {tokenizer.decode(completion) for _, completion in drawn}
    assert {f"\\boxed{{ {task.answers[0]}}}<|im_end|>" for task in generate("train", 4)} < answers
    assert len(drawn) == 8


async def test_baselines_are_scored_by_what_they_leave_out(tokenizer: Any, isolation: None) -> None:
    recipe = SPEC.load("tiny", ["retool.sandbox.timeout_s=60"])
    policy = ScriptedPolicy(
        lambda prompt, sampling: (*encode_text(tokenizer, " 48}"), tokenizer.eos_token_id), decode=tokenizer.decode
    )
    scores, asked = {}, generate("test", 12)
    for name, make in BASELINES.items():
        baseline = make(recipe, tokenizer)
        runs = [await baseline.rollout(task, Roles({"policy": policy}), Sampling(seed=0)) for task in asked]
        scores[name] = sum(run.metrics["official"] for run in runs) / len(runs)
        assert {run.metrics["calls_interpreter"] for run in runs} == ({0} if name == "no-code" else {1})
        if name == "no-code":
            assert {run.log["answer"] for run in runs} == {"\\boxed{ 48}"}
        await baseline.close()
    assert scores["no-code"] <= 0.1
    assert max(scores.values()) < 0.6
