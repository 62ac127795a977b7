"""Attack a reward before you train with it: say which wrong, empty or odd replies it pays, and what to do.

    tokentrue inspect reward my_rewards.py                     # def reward(task, answer) -> float; may be async
    tokentrue inspect reward package.module:score --data train.jsonl
    tokentrue inspect reward --method memagent --preset seed --model FOLDER --data train.jsonl

A reward of your own is called as a recipe's `reward` is. With --method the method plays its rollouts with a policy that
says nothing but the attack; no model is sampled. Without --data some tasks of ours are attacked: numbers and words.

The right answer is tried first, in usual forms (a box, tags, a sentence): attacks use the forms that pay. An attack is
a hole if it pays more than a wrong answer, or, where it holds a part of the right one, more than halfway to what that
pays. A reward that raises, gives no finite number, takes too long or changes its mind is one as well. The exit status
is 1 if there is a hole that --allow does not name.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from core.data import read_tasks
from core.hub import resolve
from core.inspect.attacks import ATTACKS, FORMS, Attack, Case
from core.options import RecipeError, import_function, make_command_parser, show_errors
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rewards.answer_grader import is_accepted
from core.rollout.method import Method, RolloutError, method_spec
from core.rollout.preview import load_without_services
from core.rollout.reward import call_reward
from core.rollout.runner import Runner
from core.text.tokenizer import Tokenizer, load_tokenizer
from core.types import Sampling, Task

Score = Callable[[Task, str], Coroutine[Any, Any, float]]
"""Returns the reward of a reply to a task; raises RolloutError where there is none."""
Judge = Callable[[float], str]
"""Returns the verdict on a reward."""
SHARE = 0.05
"""Counts as nothing: this share of the difference between a right and a wrong answer."""
REPEATS = 3
MOST_FORMS = 4
"""Limits the forms in which a task is attacked."""
CUT = "cut"
"""Names the end of a reply that is longer than the method lets it be: no policy could give it."""
RANKS = ("ok", "same", "partial", "SLOW", "FAILS", "HOLE")
"""Orders the verdicts; those in capitals are faults."""
OWN = {
    "right-answer": "A right answer does not pay: look at the labels, or add --form.",
    "wrong-answer": "A wrong answer pays as much as the right one.",
    "steady": "The same reply gets other rewards: keep no state, and draw nothing.",
}
"""Maps what is tried beside the attacks to what to do."""
QUESTIONS = (
    ("What is 8 times 9?", "72"),
    ("How many days does a common year have?", "365"),
    ("What is 20 minus 48?", "-28"),
    ("What is the charge of an electron in coulombs?", "0.00000000000000000016"),
    ("What is three quarters as a decimal?", "0.75"),
    ("Which city is the capital of France?", "Paris"),
    ("Who wrote The Silent Sea, which listeners of the radio know?", "Ann Listen", "A. Listen"),
    ("Which language did Bjarne Stroustrup make?", "C++"),
)
TASKS = [Task(f"ours-{n}", question, tuple(answers)) for n, (question, *answers) in enumerate(QUESTIONS)]
WORDS = ("Berlin", "17", "Nobody")
"""Lists wrong answers, where the tasks have not enough of them."""


@dataclass(slots=True)
class Finding:
    """Holds what an attack gave: the verdict, the highest reward, and the reply that got it."""

    name: str
    fix: str
    verdict: str = "ok"
    reward: float | None = None
    tried: int = 0
    example: str = ""

    def add(self, verdict: str, reward: float | None, task: Task, reply: str, problem: str = "") -> None:
        """Count a reply, and keep the worst."""
        self.tried += 1
        worse = RANKS.index(verdict) > RANKS.index(self.verdict)
        if worse or (verdict == self.verdict and reward is not None and reward > (self.reward or -math.inf)):
            self.verdict, self.reward = verdict, reward
            shown = f"{reply[:80]!r}{'...' * (len(reply) > 80)}"
            self.example = f"task {task.task_id}, reply {shown}{problem and f': {problem}'}"


class Audit:
    """Attacks one reward. A call that takes longer than `timeout_s` is interrupted."""

    def __init__(self, score: Score, timeout_s: float, forms: Sequence[str] = FORMS):
        self.score = score
        self.timeout_s = timeout_s
        self.forms = forms
        self.runner = asyncio.Runner()
        self.findings = {name: Finding(name, fix) for name, fix in OWN.items()}
        self.findings |= {attack.name: Finding(attack.name, attack.fix) for attack in ATTACKS}

    def call(self, task: Task, reply: str) -> tuple[float | None, str, str]:
        """Return the reward of a reply, or None; the verdict ok, FAILS, SLOW or CUT; and the reason."""
        began, before = time.monotonic(), signal.signal(signal.SIGALRM, _raise_timeout)
        signal.setitimer(signal.ITIMER_REAL, self.timeout_s)
        reward, verdict, problem = None, "FAILS", ""
        try:
            reward, verdict = self.runner.run(self.score(task, reply)), "ok"
        except TimeoutError:
            for left in asyncio.all_tasks(self.runner.get_loop()):
                left.cancel()
        except RolloutError as error:
            verdict, problem = CUT if error.kind == CUT else verdict, str(error)[-200:]
        except SystemExit:
            problem = "it ended the process"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        if time.monotonic() - began >= self.timeout_s:
            return None, "SLOW", f"it took {self.timeout_s:g} s and more"
        return reward, verdict, problem

    def try_reply(self, name: str, task: Task, reply: str, judge: Judge = lambda reward: "ok") -> float | None:
        """Return the reward of a reply, and add what `judge` says of it to a finding."""
        reward, verdict, problem = self.call(task, reply)
        if verdict != CUT:
            self.findings[name].add(verdict if reward is None else judge(reward), reward, task, reply, problem)
        return reward

    def run(self, tasks: Sequence[Task], must_read: bool) -> list[Finding]:
        """Return a finding for each attack. `must_read`: a task whose right answer does not pay is a fault."""
        right, cases = self.findings["right-answer"], list[Case]()
        for task in tasks:
            paying = self.find_forms(task, find_wrong(task, tasks))
            if right.verdict == "SLOW":
                return [right]
            if not paying and task.answers and must_read:
                right.add("HOLE", None, task, task.answers[0])
            cases += paying or ([Case(task, "", find_wrong(task, tasks))] if must_read else [])
        if not cases:
            right.add("HOLE", None, tasks[0], tasks[0].answers[0])
            cases.append(Case(tasks[0], "", WORDS))
        for case in cases:
            self.check_steady(case)
        for case, attack in product(cases, ATTACKS):
            if case.gold or not attack.near:
                self.attack(attack, case)
        for case in cases:  # again, after all that it has seen
            self.check_steady(case)
        return list(self.findings.values())

    def find_forms(self, task: Task, others: Sequence[str]) -> list[Case]:
        """Return the forms in which the right answer pays most; none if it pays in no form."""
        right, cases = self.findings["right-answer"], list[Case]()
        turned = [task, replace(task, answers=task.answers[::-1])][: len(task.answers)]  # no order may matter
        for form in self.forms if task.answers else ():
            case = Case(task, task.answers[0], others, form)
            lows = [self.call(task, case.put(other))[0] for other in others]
            highs = [
                self.try_reply("right-answer", each, case.put(gold)) for each, gold in product(turned, task.answers)
            ]
            if right.verdict == "SLOW":
                return []
            low, paid = max((x for x in lows if x is not None), default=0.0), [x for x in highs if x is not None]
            if paid:
                cases.append(replace(case, low=low, high=max(paid)))
                if min(paid) < max(paid) and min(paid) <= low:
                    right.add("HOLE", min(paid), task, case.put(task.answers[-1]), "another accepted answer pays")
        best = max((case.high for case in cases if case.high > case.low), default=0.0)
        if cases and (worst := max(cases, key=lambda case: case.low)).low >= max(best, 1e-6):
            self.findings["wrong-answer"].add("HOLE", worst.low, task, worst.put(others[0]))
        cases = [case for case in cases if case.high > case.low and case.high == best][:MOST_FORMS]
        for case in cases:
            self.findings["wrong-answer"].add("ok", case.low, task, others[0])
        return cases

    def attack(self, attack: Attack, case: Case) -> None:
        """Try the replies of an attack, until one takes too long."""
        least = case.low + max(SHARE * (case.high - case.low), 1e-6)
        limit = (case.low + case.high) / 2 if attack.near else least

        def judge(reward: float) -> str:
            if reward <= least:
                return "ok"
            return "partial" if reward <= limit else "same" if attack.is_same else "HOLE"

        for answer in attack.write(case):
            if case.gold and not (attack.is_given or attack.is_same) and is_accepted(answer, case.task.answers):
                continue  # it is right
            self.try_reply(attack.name, case.task, answer if attack.is_given else case.put(answer), judge)
            if self.findings[attack.name].verdict == "SLOW":
                return

    def check_steady(self, case: Case) -> None:
        """Ask for the rewards of a right and of a wrong answer again."""
        for _ in range(REPEATS if case.gold else 0):
            right, wrong = case.put(case.gold), case.put(case.wrong[0])
            self.try_reply("steady", case.task, right, lambda reward: "ok" if reward == case.high else "HOLE")
            self.try_reply("steady", case.task, wrong, lambda reward: "ok" if reward <= case.low else "HOLE")


def _raise_timeout(*_: object) -> None:
    raise TimeoutError


def find_wrong(task: Task, tasks: Sequence[Task]) -> list[str]:
    """Return wrong answers: those of other tasks, or ours."""
    others = [each.answers[0] for each in tasks if each.answers]
    return [each for each in (*others, *WORDS) if not is_accepted(each, task.answers)][:3]


def find_reward(name: str) -> Score:
    """Return a user's reward: FILE.py, MODULE or either with :FUNCTION, or package.module.function.

    Raises:
        RecipeError: there is none.
    """
    module, _, function = name.partition(":")
    folder = Path.cwd()
    if module.endswith(".py"):
        folder, module, function = Path(module).resolve().parent, Path(module).stem, function or "reward"
    sys.path.insert(0, str(folder))
    with suppress(ImportError, ValueError):
        function = function or ("reward" if find_spec(module) else "")
    reward = import_function("MODULE", f"{module}.{function}" if function else module)
    return lambda task, reply: call_reward(reward, task, reply)


def play_reply(method: Method, tokenizer: Tokenizer, attacker: str, others: str) -> Score:
    """Return the reward of a method's rollout in which the role `attacker` says the reply, and the others `others`."""

    def speak(text: str) -> ScriptedPolicy:
        text = text.encode(errors="replace").decode()
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        return ScriptedPolicy(lambda *_: ids, decode=tokenizer.decode)

    async def score(task: Task, reply: str) -> float:
        roles = Roles({role: speak(reply if role == attacker else others) for role in ("policy", *method.needs)})
        runner = Runner(method, roles, concurrency=1, deadline_s=math.inf)
        played = await runner.run_one(task, Sampling(seed=0))
        if any(turn.completion.finish_reason == "length" for turn in played.turns):
            raise RolloutError(CUT, "the reply is longer than the method allows")
        if played.reward is None:
            raise RolloutError("failed", f"the rollout fails as {played.failure}: {played.log.get('error', '')}")
        return played.reward

    return score


@show_errors(OSError, RolloutError, ValueError, status=2)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if (options.reward is None) == (options.method is None):
        raise RecipeError("give either MODULE, a reward of your own, or --method")
    forms = [*(form if "{}" in form else f"{form} {{}}" for form in options.form), *FORMS]
    count, data = options.tasks, options.data
    if options.method is None:
        reading = {"require_context": False, "keep_messages": True, "short_answers": False}
        tasks = read_tasks(data, limit=count, **reading) if data else TASKS[:count]  # type: ignore[arg-type]
        return show(Audit(find_reward(options.reward), options.timeout_s, forms).run(tasks, bool(data)), options.allow)
    spec = method_spec(options.method)
    overrides = [*options.overrides, *([f"model.path={options.model}"] if options.model else [])]
    with load_without_services(spec, options.preset, overrides) as recipe:
        ours = [replace(task, context="A page.") for task in TASKS[:count]]
        tasks = read_tasks(data, limit=count, **spec.reading_options(recipe)) if data else ours
        tokenizer = load_tokenizer(resolve(recipe.model.path, weights=False))
        method = spec.build(recipe, tokenizer)
        if options.attacker not in (roles := ("policy", *method.needs)):
            raise RecipeError(f"--attacker {options.attacker} is no role of the recipe, which has {', '.join(roles)}")
        score = play_reply(method, tokenizer, options.attacker, options.others)
        audit = Audit(score, options.timeout_s, forms)
        try:
            return show(audit.run(tasks, bool(data)), options.allow)
        finally:
            audit.runner.run(method.close())


def show(findings: Sequence[Finding], allowed: Sequence[str]) -> int:
    """Print a table, and for each hole an example and what to do. Return 1 if there is one that is not allowed."""
    rows = [("attack", "tried", "reward", "verdict")]
    for each in findings:
        reward = "-" if each.reward is None else f"{each.reward:g}"
        verdict = f"{each.verdict}, allowed" if each.name in allowed and each.verdict.isupper() else each.verdict
        rows.append((each.name, str(each.tried), reward, verdict if each.tried else "not tried"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    bad = [each for each in findings if each.verdict.isupper() and each.name not in allowed]
    for each in bad:
        print(f"{each.verdict} {each.name}: {each.example}\n    {each.fix}")
    print(f"{len(bad)} hole{'s' * (len(bad) > 1)}" if bad else "no hole")
    return 1 if bad else 0


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("inspect reward", __doc__)
    names = [*OWN, *(attack.name for attack in ATTACKS)]
    add = parser.add_argument
    add("reward", nargs="?", metavar="MODULE", help="FILE.py or MODULE, maybe with :FUNCTION (default: reward)")
    add("--method", help="attack a method's own reward: a name in agentic/, or a folder of your own")
    add("--preset", default="tiny", help="a name in presets/ of the method, or a file (default: tiny)")
    add("--model", metavar="FOLDER", help="whose tokenizer the method takes (default: the preset's)")
    add("--data", metavar="FILE", help="tasks with their answers (default: eight of ours)")
    add("--tasks", type=int, default=8, metavar="N", help="attack on the first N tasks (default: 8)")
    add("--form", action="append", default=[], metavar="TEXT", help="a form of an answer, which stands for {}")
    add("--attacker", default="policy", metavar="ROLE", help="the role of the method that says the attack")
    add("--others", default="", metavar="TEXT", help="what the other roles of the method say")
    add("--timeout-s", type=float, default=20.0, metavar="S", help="how long a call may take (default: 20)")
    add("--allow", action="append", default=[], choices=names, metavar="ATTACK", help="a hole that you want")
    add("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe")
    return parser
