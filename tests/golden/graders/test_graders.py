"""Every grader that a preset uses gives every pair of pairs.yaml the verdict of the policy in core/rewards/README.md.

differences.txt lists where a published scorer gives another one; run this file as a module to write it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml
from math_verify import parse, verify

from agentic.agent.config import AgentRecipe
from agentic.agentflow.rollout import AgentFlow
from agentic.compaction.rollout import make_trajectory
from agentic.memagent.rollout import answer_reward
from agentic.retool.rollout import ReTool
from agentic.rlm import rollout as rlm_rollout
from agentic.search_r1.rollout import SPEC as SEARCH_R1
from agentic.search_r1.world import WORLD
from benchmarks.aime.problems import make_grade
from core.options import import_by_path
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rewards.answer_grader import AnswerGrader
from core.rewards.boxed import boxed_reward
from core.rewards.math_grader import MathGrader
from core.rewards.qa import em
from core.rollout.method import method_spec
from core.rollout.reward import call_reward
from core.text.tokenizer import encode_text
from core.types import Completion, Sampling, Task, Trajectory, Turn
from tests.golden.is_equiv import is_equiv

HERE = Path(__file__).parent
GRADER = MathGrader(timeout_s=60)
TURN = Turn("act", (1,), Completion((2,), (0.0,), "stop"), True)


class Pair(NamedTuple):
    kind: str
    label: str
    answer: str
    same: bool


def read_pairs() -> list[Pair]:
    kinds = yaml.safe_load((HERE / "pairs.yaml").read_text(encoding="utf-8"))
    return [
        Pair(kind, entry["label"], answer, verdict == "same")
        for kind, entries in kinds.items()
        for entry in entries
        for verdict in ("same", "other")
        for answer in entry[verdict]
    ]


PAIRS = read_pairs()


def box(answer: str) -> str:
    r"""Write the reply of a model that changes its mind, and goes on for more than 300 characters."""
    return rf"<think>\boxed{{0}}</think> Perhaps \boxed{{1}}. No: \boxed{{{answer}}}." + " It follows." * 30


async def retool(task: Task, text: str) -> float:
    method: Any = SimpleNamespace(grader=GRADER, format=SimpleNamespace(count_notes=lambda turns: {}))
    trajectory = await ReTool.make_trajectory(method, task, [TURN], [], text, "answered")
    return trajectory.metrics["official"]


async def agentflow(reward: str, task: Task, text: str) -> float:
    method: Any = SimpleNamespace(config=SimpleNamespace(reward=reward), judges_mathematics=False, grader=GRADER)
    return (await AgentFlow.grade(method, task, Roles({}), text))[0]


async def aime(task: Task, text: str) -> float:
    graded, _ = await make_grade(GRADER)(task, Trajectory(task.task_id, (), log={"answer": text}))
    return graded.reward or 0.0


async def agent(preset: str, task: Task, text: str) -> float:
    recipe: AgentRecipe = method_spec("agent").load(preset)
    return await call_reward(import_by_path(str(next(iter(recipe.agent.agents.values())).reward)), task, text)


async def memagent(task: Task, text: str) -> float:
    return answer_reward("boxed", text, task.answers)


async def compaction(task: Task, text: str) -> float:
    return make_trajectory(task, [TURN], text).reward or 0.0


async def rlm(task: Task, text: str) -> float:
    """Grade a reply with a box, or the value of FINAL."""
    end: Any = "answered" if "boxed" in text else "final"
    return rlm_rollout.make_trajectory(task, [TURN], [], text, end).reward or 0.0


async def toolorchestra(task: Task, text: str) -> float:
    return float((await AnswerGrader().grade(task.question, text, task.answers))[0])


@cache
def open_search_r1() -> tuple[Any, Any]:
    tokenizer = WORLD.train_tokenizer()
    settings = ["search_r1.addresses=null", "search_r1.url=http://127.0.0.1:1", "search_r1.max_tokens=2000"]
    return SEARCH_R1.build(SEARCH_R1.load("tiny", [*settings, "model.max_model_len=null"]), tokenizer), tokenizer


async def search_r1(task: Task, text: str) -> float:
    method, tokenizer = open_search_r1()
    ids = encode_text(tokenizer, f"<answer>{text}</answer>")
    policy = ScriptedPolicy(lambda prompt, sampling: ids, logprob=0.0, decode=tokenizer.decode)
    return (await method.rollout(task, Roles({"policy": policy}), Sampling())).reward


Grade = Callable[[Task, str], Awaitable[float]]
MATHS: dict[str, Grade] = {
    "retool": retool,
    "agentflow math": partial(agentflow, "math"),
    "agentflow boxed": partial(agentflow, "boxed"),
    "agent seed": partial(agent, "seed"),
    "aime": aime,
}
SHORT: dict[str, Grade] = {
    "memagent": memagent,
    "compaction": compaction,
    "rlm": rlm,
    "agent tiny": partial(agent, "tiny"),
    "toolorchestra": toolorchestra,
    "search_r1": search_r1,
}


def list_graders(kind: str) -> dict[str, Grade]:
    return {**(MATHS if kind != "short" else {}), **(SHORT if kind != "math" else {})}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.kind}: {pair.label} | {pair.answer}"[:60])
async def test_all_graders_give_the_verdict_of_the_policy(pair: Pair) -> None:
    task = Task("t", "Which?", ("label of another question", pair.label))
    verdicts = {name: await grade(task, box(pair.answer)) for name, grade in list_graders(pair.kind).items()}
    if pair.kind != "math":
        verdicts |= {
            f"{name}, bare": await grade(task, pair.answer) for name, grade in SHORT.items() if name[0] in "arst"
        }
    assert verdicts == dict.fromkeys(verdicts, float(pair.same))


@pytest.mark.parametrize("name", [*MATHS, *SHORT])
@pytest.mark.parametrize(
    "text",
    [
        r"<think>It is \boxed{25}",
        r"<think>a</think><think>\boxed{25}",
        r"\boxed{25} <think> \boxed{25}</think> no",
        "",
        r"\boxed{2",
        r"\boxed 25}",
    ],
)
async def test_thoughts_are_no_answers_and_neither_is_an_unfinished_box(name: str, text: str) -> None:
    assert await {**MATHS, **SHORT}[name](Task("t", "Which?", ("25",)), text) == 0.0


PUBLISHED: dict[str, tuple[tuple[str, ...], Callable[[str, str], bool]]] = {
    "math-verify": (("number", "words", "math"), lambda label, answer: verify_alone(label, answer)),
    "MATH is_equiv": (("number", "words", "math"), lambda label, answer: is_equiv(answer, label)),
    "MemAgent boxed": (
        ("number", "words", "short"),
        lambda label, answer: boxed_reward(rf"\boxed{{{answer}}}", [label]) > 0,
    ),
    "SQuAD em (Search-R1)": (("number", "words", "short"), lambda label, answer: em(answer, label) > 0),
}


def verify_alone(label: str, answer: str) -> bool:
    gold, found = (parse(rf"\boxed{{{text}}}", parsing_timeout=None) for text in (label, answer))
    return verify(gold, found, timeout_seconds=None)


def list_differences() -> Iterator[str]:
    """Yield a line for each pair that a published scorer judges otherwise."""
    for name, (kinds, judge) in PUBLISHED.items():
        for pair in PAIRS:
            if pair.kind in kinds and judge(pair.label, pair.answer) != pair.same:
                yield f"{name} | {pair.label} | {pair.answer} | {'right' if pair.same else 'wrong'} with us"


def test_every_difference_to_a_published_scorer_is_listed() -> None:
    assert list(list_differences()) == (HERE / "differences.txt").read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    (HERE / "differences.txt").write_text("".join(f"{line}\n" for line in list_differences()), encoding="utf-8")
    asyncio.run(GRADER.close())
