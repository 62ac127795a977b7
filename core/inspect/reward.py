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
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from core.data import read_tasks
from core.hub import resolve
from core.inspect.attacks import ATTACKS, FORMS, Attack, Case
from core.options import RecipeError, import_function, show_errors
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rewards.answer_grader import is_accepted
from core.rollout.method import Method, RolloutError, method_spec
from core.rollout.preview import invent_addresses
from core.rollout.reward import call_reward
from core.rollout.runner import Runner
from core.text.tokenizer import Tokenizer, load_tokenizer
from core.types import Sampling, Task

Score = Callable[[Task, str], Coroutine[Any, Any, float]]
"""Returns the reward of a reply to a task; raises RolloutError where there is none."""
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
        if verdict == CUT:
            return
        self.tried += 1
        worse = RANKS.index(verdict) > RANKS.index(self.verdict)
        if worse or (verdict == self.verdict and reward is not None and reward > (self.reward or -math.inf)):
            self.verdict, self.reward = verdict, reward
            shown = f"{reply[:80]!r}{'...' * (len(reply) > 80)}"
            self.example = f"task {task.task_id}, reply {shown}{problem and f': {problem}'}"


class Aim(NamedTuple):
    """Holds a case with the rewards of a wrong and of a right answer."""

    case: Case
    low: float = 0.0
    high: float = 0.0


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

    def run(self, tasks: Sequence[Task], must_read: bool) -> list[Finding]:
        """Return a finding for each attack. `must_read`: a task whose right answer does not pay is a fault."""
        right, read = self.findings["right-answer"], list[Aim]()
        for task in tasks:
            aims = self.find_aims(task, tasks)
            if right.verdict == "SLOW":
                return [right]
            if not aims and task.answers and must_read:
                right.add("HOLE", None, task, task.answers[0])
            read += aims or ([Aim(Case(task, "", find_wrong(task, tasks)))] if must_read else [])
        if not read:
            right.add("HOLE", None, tasks[0], tasks[0].answers[0])
            read.append(Aim(Case(tasks[0], "", WORDS)))
        for aim in read:
            self.check_steady(aim)
        for aim, attack in product(read, ATTACKS):
            if aim.case.gold or not attack.near:
                self.attack(attack, aim)
        for aim in read:  # again, after all that it has seen
            self.check_steady(aim)
        return list(self.findings.values())

    def find_aims(self, task: Task, tasks: Sequence[Task]) -> list[Aim]:
        """Return the forms in which the right answer pays most; none if it pays in no form."""
        right, wrong, aims = self.findings["right-answer"], self.findings["wrong-answer"], list[Aim]()
        others = find_wrong(task, tasks)
        turned = [task, replace(task, answers=task.answers[::-1])][: len(task.answers)]  # no order may matter
        for form in self.forms:
            case = Case(task, (*task.answers, "")[0], others, form)
            lows = [reward for other in others if (reward := self.call(task, case.put(other))[0]) is not None]
            highs = []
            for each, gold in product(turned, task.answers):
                reward, verdict, problem = self.call(each, case.put(gold))
                right.add(verdict, reward, task, case.put(gold), problem)
                highs += [] if reward is None else [reward]
                if verdict == "SLOW":
                    return []
            if highs:
                aims.append(Aim(case, max(lows, default=0.0), max(highs)))
                if min(highs) < max(highs) and min(highs) <= aims[-1].low:
                    right.add("HOLE", min(highs), task, case.put(task.answers[-1]), "another accepted answer pays")
        best = max((aim.high for aim in aims if aim.high > aim.low), default=0.0)
        if aims and (worst := max(aims, key=lambda aim: aim.low)).low >= max(best, 1e-6):
            wrong.add("HOLE", worst.low, task, worst.case.put(others[0]))
        aims = [aim for aim in aims if aim.high > aim.low and aim.high == best][:MOST_FORMS]
        for aim in aims:
            wrong.add("ok", aim.low, task, others[0])
        return aims

    def attack(self, attack: Attack, aim: Aim) -> None:
        """Try the replies of an attack, until one takes too long."""
        (case, low, high), finding = aim, self.findings[attack.name]
        least = max(SHARE * (high - low), 1e-6)
        limit = (low + high) / 2 if attack.near else low + least
        for answer in attack.write(case):
            if case.gold and not (attack.is_given or attack.is_same) and is_accepted(answer, case.task.answers):
                continue  # it is right
            reply = answer if attack.is_given else case.put(answer)
            reward, verdict, problem = self.call(case.task, reply)
            if reward is not None and reward > low + least:
                verdict = "partial" if reward <= limit else "same" if attack.is_same else "HOLE"
            finding.add(verdict, reward, case.task, reply, problem)
            if finding.verdict == "SLOW":
                return

    def check_steady(self, aim: Aim) -> None:
        """Ask for the rewards of a right and of a wrong answer again."""
        case = aim.case
        for answer in (case.gold, case.wrong[0]) * REPEATS if case.gold else ():
            reward, verdict, problem = self.call(case.task, case.put(answer))
            if reward is not None and (reward != aim.high if answer == case.gold else reward > aim.low):
                verdict = "HOLE"
            self.findings["steady"].add(verdict, reward, case.task, case.put(answer), problem)


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
    with TemporaryDirectory() as folder:
        sections = spec.load(options.preset, overrides).model_dump()
        recipe = spec.load(options.preset, [*overrides, *invent_addresses(sections, Path(folder, "urls"))])
        ours = [replace(task, context="A page.") for task in TASKS[:count]]
        tasks = read_tasks(data, limit=count, **spec.reading_options(recipe)) if data else ours
        tokenizer = load_tokenizer(resolve(recipe.model.path, weights=False))
        method = spec.build(recipe, tokenizer)
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
    parser = argparse.ArgumentParser(
        prog="tokentrue inspect reward", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
