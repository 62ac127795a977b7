"""Makes the world of the preset `tiny`: small repositories, and issues that say what goes wrong, not where.

A repository has files of functions. A topic such as `amber` has three functions in three files: one gets the amber
total computed, one gets it shown and one stored, as their docstrings say. An issue reads *The amber total comes out
wrong. The brisk total is fine.* So two decisions are left: which topic to search for, and what its function does. A
total that comes out wrong is computed wrong, one that appears twice is shown wrong, and one that vanishes overnight is
stored wrong. Topics, functions and files belong to one split each.

The searcher of the warm start knows the form and chooses by chance. It repeats what the issue says of either topic, and
searches for a docstring: what any function does with it. Then it answers with any function that it has seen, whose line
it repeats, or searches once more first. Its repositories are made up, with the words of all splits, and its issues have
nothing to do with any bug. So nobody tells the policy which topic to search for, what a symptom means, or when to stop.

| baseline | what it does |
|---|---|
| aimless-search | the searcher of the warm start plays, without mistakes |
| first-word | searches for where the first topic of the issue is computed, and answers with that |
| first-file | answers with the first function of the first file |
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from random import Random
from typing import Any

from agentic.codescout.config import CodeScoutRecipe
from agentic.codescout.prompts import BASH, FINISH
from agentic.codescout.rollout import CodeScout, SearchTask, read_task
from core.policy.base import Policy, Roles
from core.text.tokenizer import Tokenizer
from core.types import Sampling, Task, Trajectory
from core.worlds import SPLITS, TOOL_TEMPLATE, Example, Split, TextPolicy, World, write_call

TOPICS = """
    amber ample basic blank bold brief brisk broad calm clean clear crisp daily dense early exact extra fair final firm
    flat fresh front gross hourly inner joint large late legal light local lower major mean minor monthly narrow net
    outer plain prime quick rapid raw regular rough shared short silent simple slow small solid spare special steady
    sudden tidy upper urgent usual weekly yearly
    """.split()
VERBS = """
    adjust apply attach bake bind blend build carry cast chain clip close collect combine cover cut divide draft draw
    drop enter expand extract fill fix fold form gather glue grind group grow handle join lift link load mark match melt
    merge mix move order pack paste peel pick place plan pour press pull push raise reach refine rinse roll scale seal
    send shift slice sort spin split spread stack stir sweep swap tie trace trim turn twist unite wash weave wind wrap
    """.split()
NOUNS = """
    anchor basket bell bench bottle bridge brush bucket button cabin camera candle carpet castle chair clock compass
    cradle crown curtain desk engine feather fence flute forest garden harbor hammer helmet island jacket kettle ladder
    lantern market meadow mirror needle office orchard paddle pencil piano pillow ribbon river saddle shovel spoon
    station table tunnel valley wagon window
    """.split()
ROLES = {"computed": "comes out wrong", "shown": "appears twice", "stored": "vanishes overnight"}
"""Maps what a function does to the symptom of its bug."""
IDLE = ("checked", "copied")
"""Names what further functions of a topic do in larger repositories; no symptom is theirs."""
FORMS = (
    "The {topic} total {symptom}. The {other} total is fine.",
    "The {other} total is fine. But the {topic} total {symptom}.",
)
SEARCH = "grep -B1 'the {} total {}' *.py"
"""Shows the docstrings of a topic and a role, each with the line before it, which is that of `def`."""
FIRST_FILE = "head -2 *.py | head -3"
SEARCHES = 2
"""Limits the searches of the searcher; he looks for nothing twice."""
STOP = 0.7
"""Says how often the searcher answers after one search."""
_HIT = re.compile(r"^(\w+\.py)-def (\w+)\(", re.MULTILINE)


def divide(words: Sequence[str]) -> Mapping[Split, tuple[str, ...]]:
    """Give half of the words to training, a quarter to dev and a quarter to test."""
    places = {"train": (0, 2, 4, 6), "dev": (1, 5), "test": (3, 7)}
    return {split: tuple(w for i, w in enumerate(words) if i % 8 in places[split]) for split in SPLITS}


TOPICS_OF, VERBS_OF, NOUNS_OF = divide(TOPICS), divide(VERBS), divide(NOUNS)
ALL = TOPICS, VERBS, NOUNS


def draw_repository(
    rng: Random, topics: Sequence[str], verbs: Sequence[str], nouns: Sequence[str], files: int, idle: Sequence[str] = ()
) -> tuple[dict[str, str], dict[tuple[str, str], tuple[str, str]]]:
    """Return the files, path -> text, and for each (topic, role) the path and name of its function.

    The functions of a topic are in different files, as long as there are enough.
    """
    roles = (*ROLES, *idle)
    paths = [f"{noun}.py" for noun in rng.sample(nouns, files)]
    names = iter(rng.sample(verbs, len(topics) * len(roles)))
    parts: dict[str, list[str]] = {path: [] for path in paths}
    where = {}
    for topic in topics:
        homes = rng.sample(paths, min(files, len(roles)))
        for number, role in enumerate(rng.sample(roles, len(roles))):
            path, name = homes[number % len(homes)], next(names)
            parts[path].append(f'def {name}(rows):\n    """Gets the {topic} total {role}."""\n    return rows\n')
            where[topic, role] = path, name
    for functions in parts.values():
        rng.shuffle(functions)
    return {path: "\n\n".join(functions) for path, functions in parts.items() if functions}, where


def draw_task(
    rng: Random, split: Split, name: str, *, topics: int = 2, files: int = 4, idle: Sequence[str] = ()
) -> Task:
    """Draw a repository and an issue about it."""
    drawn = rng.sample(TOPICS_OF[split], topics)
    contents, where = draw_repository(rng, drawn, VERBS_OF[split], NOUNS_OF[split], files, idle)
    topic, other = drawn[:2]
    role = rng.choice(list(ROLES))
    path, function = where[topic, role]
    statement = rng.choice(FORMS).format(topic=topic, other=other, symptom=ROLES[role])
    place = f"{path}:{function}"
    changes = {"edited_modules": [place], "edited_entities": [place]}
    metadata = {"kind": role, "repository": contents, "file_changes": [{"file": path, "changes": changes}]}
    return Task(name, statement, (place,), metadata=metadata)


def write_search(command: str) -> str:
    return write_call(BASH.name, command=command)


def write_answer(path: str, function: str) -> str:
    """Write the line of the function that was chosen, and the call that answers with it.

    The line binds the function to its file, which a policy this small does not do from afar. The space in the call lets
    the name be one token, as it is behind `def`.
    """
    call = write_call(FINISH.name, locations=[{"file": path, "function_name": f" {function}"}])
    return f"{path}-def {function}\n{call}"


def list_topics(text: str) -> list[str]:
    """Return the topics of the issue in a prompt's text, in its order."""
    return [*dict.fromkeys(re.findall(r"[Tt]he (\w+) total", text.partition("<tool_call>")[0]))]


def write_look(text: str, topic: str, role: str) -> str:
    """Write what the issue in `text` says of the topic, and the search for its function of that role.

    What it says stands before the search for the same reason as the line before the answer.
    """
    said = re.findall(rf"[Tt]he ({topic} total [^.]*)\.", text)[0]
    return f"the {said}\n{write_search(SEARCH.format(topic, role))}"


def write_turn(rng: Random, prompt: str) -> str:
    """Write the searcher's turn after a prompt, from this text alone."""
    choices = [*product(list_topics(prompt), ROLES)]
    left = [each for each in choices if SEARCH.format(*each) not in prompt]
    found = _HIT.findall(prompt)
    if found and (len(choices) - len(left) == SEARCHES or rng.random() < STOP):
        return write_answer(*rng.choice(found))
    return write_look(prompt, *rng.choice(left))


def write_first_word(rng: Random, prompt: str) -> str:
    found = _HIT.findall(prompt)
    return write_answer(*found[0]) if found else write_look(prompt, list_topics(prompt)[0], "computed")


def write_first_file(rng: Random, prompt: str) -> str:
    found = re.search(r"==> (\w+\.py) <==\ndef (\w+)\(", prompt)
    return write_answer(*found.groups()) if found else write_search(FIRST_FILE)


def write_right_turn(task: Task, prompt: str) -> str:
    """Write the right search, and then the right answer."""
    path, _, function = task.answers[0].partition(":")
    found = _HIT.search(prompt)
    return write_answer(path, function) if found else write_look(prompt, find_topic(task), task.metadata["kind"])


def find_topic(task: Task) -> str:
    """Return the topic that is not fine."""
    return next(t for t in list_topics(task.question) if f"he {t} total is fine" not in task.question)


class MadeUpCodeScout(CodeScout):
    """The method, with a grep of ours in the place of the workspace: the warm start runs no commands."""

    async def start(self, workspace: Any, search: SearchTask) -> None:
        return

    async def run_command(self, command: str, search: SearchTask, workspace: Any) -> tuple[str, bool]:
        words = shlex.split(command)[2]
        return grep_with_line_before(words, {path: text.decode() for path, text in search.files.items()}), False


def grep_with_line_before(words: str, files: Mapping[str, str]) -> str:
    """Print what `grep -B1 WORDS *.py` prints, for words that are in no two lines that follow each other."""
    shown = []
    for path, text in sorted(files.items()):
        lines = text.splitlines()
        shown += [f"{path}-{lines[n - 1]}\n{path}:{line}\n" for n, line in enumerate(lines) if words in line]
    return "--\n".join(shown)


def draw_made_up(rng: Random) -> Task:
    """Draw a task with the words of all splits, whose issue says nothing of the repository's bug."""
    topics, verbs, nouns = ALL
    drawn = rng.sample(topics, 2)
    contents, where = draw_repository(rng, drawn, verbs, nouns, 4)
    statement = rng.choice(FORMS).format(topic=drawn[0], other=drawn[1], symptom=rng.choice(list(ROLES.values())))
    path, _ = where[drawn[0], "shown"]
    metadata = {"repository": contents, "file_changes": [{"file": path, "changes": {}}]}
    return Task("demonstration", statement, (path,), metadata=metadata)


def demonstrate(rng: Random, recipe: CodeScoutRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Let the searcher play rollouts in new repositories, and yield the turns of each."""
    method = MadeUpCodeScout(recipe, tokenizer)
    searcher = TextPolicy(tokenizer, partial(write_turn, rng))
    while True:
        yield play(method, draw_made_up(rng), searcher)


def play(method: CodeScout, task: Task, searcher: Policy) -> list[Example]:
    """Return the turns of a rollout as examples."""
    trajectory = asyncio.run(method.rollout(task, Roles({"policy": searcher}), Sampling()))
    return [(turn.prompt_ids, turn.completion.token_ids) for turn in trajectory.turns]


def solve_tasks(rng: Random, recipe: CodeScoutRecipe, tokenizer: Tokenizer, tasks: Sequence[Task]) -> Iterator[Example]:
    """Yield the turns of the right search and answer of every task."""
    method = MadeUpCodeScout(recipe, tokenizer)
    for task in tasks:
        yield from play(method, task, TextPolicy(tokenizer, partial(write_right_turn, task)))


class ScriptedSearch(CodeScout):
    """Lets `write` play the policy; its commands are run as the policy's are."""

    def __init__(self, recipe: CodeScoutRecipe, tokenizer: Tokenizer, write: Callable[[Random, str], str]):
        super().__init__(recipe, tokenizer)
        self.write = write

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        rng = Random(f"{task.task_id}-{sampling.seed}")
        searcher = TextPolicy(self.tokenizer, partial(self.write, rng))
        return await super().rollout(task, Roles({"policy": searcher}), sampling)


def write_corpus() -> Iterator[str]:
    rng = Random(0)
    for number in range(120):
        yield "\n".join((" " + " ".join((*TOPICS, *VERBS)), *(f"{noun}.py" for noun in NOUNS)))
        task = draw_made_up(rng)
        files = read_task(task).files
        yield f"{BASH.name}(command){FINISH.name}(locations)\nuser\nassistant\nsystem\ntool\n{task.question}"
        topic, role = list_topics(task.question)[number % 2], rng.choice(list(ROLES))
        shown = grep_with_line_before(
            f"the {topic} total {role}", {path: text.decode() for path, text in files.items()}
        )
        said = write_look(task.question, topic, role)
        yield f"{said}{shown}{write_answer(*rng.choice(_HIT.findall(shown)))}"
        yield f'{write_search(FIRST_FILE)}==> {rng.choice(NOUNS)}.py <=="""{" ".join(IDLE)}'


WORLD = World(
    words=(*TOPICS, *VERBS),
    corpus=write_corpus,
    vocab_size=1040,
    chat_template=TOOL_TEMPLATE,
    domains={"usual": draw_task, "larger": partial(draw_task, topics=4, files=8, idle=IDLE)},
    demonstrate=demonstrate,
    solve=solve_tasks,
    baselines={
        "aimless-search": partial(ScriptedSearch, write=write_turn),
        "first-word": partial(ScriptedSearch, write=write_first_word),
        "first-file": partial(ScriptedSearch, write=write_first_file),
    },
)
