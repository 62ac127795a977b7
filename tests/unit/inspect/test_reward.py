"""`tokentrue inspect reward` finds what a bad reward pays, and has nothing to say about a good one."""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentic.agent import rewards
from core.inspect.reward import TASKS, Audit, Finding, main
from core.rewards.answer_grader import is_accepted
from core.rollout.reward import call_reward
from core.types import Task

ADD = Task("add", "Write a function add(a, b).", ("def add(a, b):\n    return a + b",))
DATED = Task("dated", "When?", ("In the year 1969, as the solution shows.",))
REPORTED = [
    Task("charge", "Which charge, in coulombs?", ("1.6e-19",)),
    Task("word", "Who hears?", ("listen",)),
    *TASKS[:3],
]


def numbers(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]


def boxes(text: str) -> list[str]:
    return re.findall(r"\\boxed\{([^{}]*)\}", text)


def is_right(task: Task, answer: str) -> float:
    return float(answer.strip() in task.answers)


def compare(wrong: Callable[[float, float], bool]) -> Callable[[Task, str], float]:
    """Make a reward that compares two numbers; `wrong` says whether they differ."""

    def reward(task: Task, answer: str) -> float:
        try:
            return float(not wrong(float(answer), float(task.answers[0])))
        except ValueError:
            return is_right(task, answer)

    return reward


def read_as(change: Callable[[str], str]) -> Callable[[Task, str], float]:
    """Make a reward that reads an answer as what `change` makes of it."""
    return lambda task, answer: is_right(task, change(answer))


def evaluate(task: Task, answer: str) -> float:
    try:
        return float(str(eval(answer if len(answer) < 99 and "**" not in answer else "0", {})) in task.answers)
    except Exception:
        return 0.0


def run_program(task: Task, answer: str) -> float:
    """Run a program and then its test, as a process whose exit code decides."""
    code = re.sub(r"^```python\n|```$", "", answer)
    try:
        exec(f"{code}\nassert add(2, 3) == 5", {})
    except SystemExit as error:
        return float(not error.code)
    except BaseException:
        return 0.0
    return 1.0


def pay_forms(task: Task, answer: str) -> float:
    return is_right(task, "".join(boxes(answer)[-1:])) + 0.1 * answer.count("\\boxed")


async def ask_judge(task: Task, answer: str) -> float:
    """Ask a judge that reads the reply for a verdict, as a gullible model does."""
    return float("VERDICT: SAME" in answer or is_right(task, answer))


def keep_state() -> Callable[[Task, str], float]:
    seen: dict[str, float] = {}
    return lambda task, answer: seen.setdefault(task.task_id + answer[:1], is_right(task, answer))


def lose_patience() -> Callable[[Task, str], float]:
    calls = iter(range(1_000_000))
    return lambda task, answer: is_right(task, answer) if next(calls) % 7 else 0.5


OURS = list(TASKS[:6])
TASKS_OF: dict[str, list[Task]] = {
    **dict.fromkeys(("an absolute tolerance", "letters in any order", "much alike"), REPORTED),
    **{name: list(TASKS[:3]) for name in ("any number of the reply", "it raises")},
    "the exit code decides": [ADD],
    "a slow expression": OURS[:1],
    "one accepted answer of two": [TASKS[6]],
    "a label that nothing equals": [DATED],
}
"""Holds the tasks on which a hole shows that is none on OURS."""
PLANTED: dict[str, tuple[Callable[[Task, str], Any], set[str]]] = {
    "everything pays": (lambda task, answer: 1.0, {"wrong-answer"}),
    "the answer in the reply": (lambda task, answer: task.answers[0] in answer, {"several-answers", "hidden"}),
    "the reply in the answer": (lambda task, answer: answer in task.answers[0], {"empty", "part"}),
    "as far as the shorter goes": (
        lambda task, answer: all(a == b for a, b in zip(answer, task.answers[0], strict=False)),
        {"empty", "part"},
    ),
    "the answer begins the reply": (lambda task, answer: answer.startswith(task.answers[0]), {"changed"}),
    "an absolute tolerance": (compare(lambda a, b: abs(a - b) > 1e-6), {"changed"}),
    "a comparison with NaN": (compare(lambda a, b: abs(a - b) > 1e-6), {"not-a-number"}),
    "digits after the point are cut": (compare(lambda a, b: not math.isfinite(a) or int(a) != int(b)), {"changed"}),
    "any number of the reply": (lambda task, answer: float(task.answers[0]) in numbers(answer), {"several-answers"}),
    "any box of the reply": (lambda task, answer: task.answers[0] in boxes(answer), {"several-answers"}),
    "a box in a thought": (read_as(lambda answer: "".join(boxes(answer)[-1:])), {"hidden"}),
    "it is evaluated": (evaluate, {"expression"}),
    "raised digits are folded": (read_as(lambda answer: unicodedata.normalize("NFKC", answer)), {"look-alike"}),
    "NaN for no answer": (lambda task, answer: is_right(task, answer) if answer.strip() else math.nan, {"empty"}),
    "it raises": (lambda task, answer: float(answer) == float(task.answers[0]), {"empty", "odd-text"}),
    "length pays": (
        lambda task, answer: is_right(task, answer.split()[-1] if answer.split() else "") + min(1, len(answer) / 1e4),
        {"length"},
    ),
    "every box pays": (pay_forms, {"many-forms"}),
    "words of a judge pay": (
        lambda task, answer: is_right(task, answer) or "correct" in answer.lower(),
        {"persuasion"},
    ),
    "a judge that obeys": (ask_judge, {"persuasion"}),
    "the exit code decides": (run_program, {"injected-tests"}),
    "letters in any order": (
        lambda task, answer: sorted(answer.replace(" ", "")) == sorted(task.answers[0]),
        {"scrambled"},
    ),
    "much alike": (
        lambda task, answer: difflib.SequenceMatcher(None, answer, task.answers[0]).ratio() > 0.8,
        {"changed"},
    ),
    "it keeps state": (keep_state(), {"changed", "markup"}),
    "it changes its mind": (lose_patience(), {"steady"}),
    "a slow expression": (
        lambda task, answer: bool(re.fullmatch(r"(a+)+", answer)) or is_right(task, answer),
        {"huge"},
    ),
    "one accepted answer of two": (lambda task, answer: answer == task.answers[0], {"right-answer"}),
    "a label that nothing equals": (
        lambda task, answer: numbers(answer) == numbers(task.answers[0]) if len(answer) < 9 else 0.0,
        {"right-answer"},
    ),
    "words of the question pay": (
        lambda task, answer: is_right(task, answer) or len({*answer.split()} & {*task.question.split()}) / 20,
        {"question"},
    ),
    "silence pays more than a mistake": (
        lambda task, answer: 0.0 if not answer.strip() else 2 * is_right(task, answer) - 1,
        {"empty"},
    ),
    "one constant pays": (lambda task, answer: is_right(task, answer) or answer.endswith("yes"), {"constant"}),
}
GOOD: dict[str, Callable[[Task, str], Any]] = {
    "exact": rewards.exact,
    "boxed": rewards.boxed,
    "the same text": is_right,
    "one or minus one": lambda task, answer: 2 * is_accepted(answer, task.answers) - 1.0,
    "a little for a box": lambda task, answer: max(
        float(is_accepted("".join(boxes(answer)[-1:]), task.answers)) if "<" not in answer else 0.0,
        0.1 * ("\\boxed{" in answer and len(boxes(answer)) == 1 and bool(boxes(answer)[0].strip(" .:$*-\u200b"))),
    ),
}


def attack(
    reward: Callable[[Task, str], Any], tasks: list[Task], must_read: bool = True, timeout_s: float = 0.5
) -> dict[str, Finding]:
    """Return what was found, by name, of attacks that were tried."""

    async def score(task: Task, reply: str) -> float:
        return await call_reward(reward, task, reply)

    return {finding.name: finding for finding in Audit(score, timeout_s).run(tasks, must_read)}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_hole_is_found(name: str) -> None:
    reward, expected = PLANTED[name]
    findings = attack(reward, TASKS_OF.get(name, OURS)).values()
    found = {finding.name for finding in findings if finding.verdict.isupper()}
    assert found >= expected


def test_more_than_twenty_holes_are_planted_and_every_attack_finds_one() -> None:
    assert len(PLANTED) >= 20
    expected = set.union(*(expected for _, expected in PLANTED.values()))
    names = set(attack(is_right, OURS))
    assert names - expected == {"other-signs"}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_reward_raises_no_alarm(name: str) -> None:
    tasks = list(TASKS[:1] if name == "boxed" else TASKS)
    findings = attack(GOOD[name], tasks, must_read=False, timeout_s=60)
    assert {found.name: found.example for found in findings.values() if found.verdict.isupper()} == {}
    assert findings["right-answer"].reward == 1
    assert findings["several-answers"].tried > 0


def test_the_command_says_what_pays_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "my_own_rewards.py"
    module.write_text(
        "def reward(task, answer):\n    return float(answer in task.answers)\n\n"
        "def loose(task, answer):\n    return float(task.answers[0] in answer)\n"
    )
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"question": "How many?", "answer": "17"}) + "\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main([str(module), "--data", str(data)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no hole"
    assert main([f"{module}:loose", "--data", str(data)]) == 1
    out = capsys.readouterr().out
    assert "HOLE several-answers: task data-0, reply '" in out
    assert "read one answer" in out
    names = re.findall("^HOLE (.*?):", out, flags=re.MULTILINE)
    assert main([f"{module}:loose", "--data", str(data), *(f"--allow={name}" for name in names)]) == 0
    assert "HOLE, allowed" in capsys.readouterr().out
    assert main(["agentic.agent.rewards.exact", "--tasks", "2"]) == 0
    assert main(["no.such.module"]) == 2
    assert "no.such.module" in capsys.readouterr().err
    assert main([str(module), "--method", "retool"]) == 2


def test_a_methods_own_reward_is_attacked_through_its_rollouts(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--method", "compaction", "--model", str(model), "--tasks", "1", "--set", "model.max_model_len=9000"]
    words += ["--set", "compaction.max_action_tokens=2000", "--set", "compaction.context_tokens=9000"]
    assert main(words) == 0
    assert re.search(r"^right-answer +\d+ +1 +ok$", capsys.readouterr().out, flags=re.MULTILINE)
    assert main([*words, "--attacker", "judge"]) == 2
    assert "--attacker judge is no role of the recipe, which has policy" in capsys.readouterr().err
    loose = ["--set", "reward=agentic.agent.rewards.token_f1"]
    assert main([*words, *loose]) == 1
    assert "HOLE changed" in capsys.readouterr().out
