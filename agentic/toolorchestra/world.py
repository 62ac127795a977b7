"""Makes the world of the preset `tiny`: questions of five kinds about made-up facts, each with a user's preference.

The table shows the best route for each kind and preference; a wrong answer is worth nothing. A test in
tests/unit/agentic/toolorchestra finds the same routes: it runs every route of up to three calls through the real
experts (scripted_experts.py) and the real reward.

| kind | question | cheap | fast | own (answer-2) |
|---|---|---|---|---|
| easy | What is the first letter of lamp? | answer-3 | answer-1 | answer-2 |
| fact | What is the price of lamp? | search-1, answer-3 | answer-1 | search-1, answer-2 |
| sum | What is 37 plus 48? | answer-2 | answer-1 | answer-2 |
| mixed | What is the price of lamp plus 12? | search-1, answer-2 | answer-1 | search-1, answer-2 |
| hard | What is 37 times 48? | answer-1 | answer-1 | answer-1 |

No question, and no thing or expression in one, is in two splits. The domain `other-preference` has the same questions,
each with another preference, and `other-wishes` has the same preferences in other sentences.

The demonstrations have the right form and show no route. A turn first writes down the kind of the question and what the
user wants. Some users name the tool to call, which is then called. Where a user has a preference instead, chance draws
the call, with or without a search before it. The policy learns to read, to write, and to mind what the user wants. RL
teaches it which expert is good at what, which one is expensive or slow, and what each kind and preference asks for.

| baseline | calls |
|---|---|
| most-expensive | answer-1, which knows and computes everything, for every question |
| search-own | search-1, then answer-2 |
| cheapest | search-1, then answer-3 |
| no-search | answer-3 alone |
| random | a search or none, then any expert, with equal chances |
| best | the best route for the question's kind and the user's preference: an upper bound |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from random import Random
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.prompts import question_messages
from agentic.toolorchestra.reward import Features, make_features, preference_rewards
from agentic.toolorchestra.rollout import ToolOrchestra
from agentic.toolorchestra.scripted_experts import ATTRIBUTES, EXPERTS, THINGS, answer, fact_value, search_query
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import Method
from core.runs.evaluation import EvalResult
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer, encode_text
from core.text.tool_calls import THOUGHT_END
from core.types import CALLS, Sampling, Task, Trajectory
from core.worlds import SPLITS, Example, Split, World, encode_turn

Route = tuple[str, ...]
SEARCH, STRONG, OWN, CHEAP = "search-1", "answer-1", "answer-2", "answer-3"
MODEL_MAPPING = {SEARCH: "scout", STRONG: "sage", OWN: "abacus", CHEAP: "reader"}
PRICES = {"sage": (10.0, 30.0), "abacus": (0.6, 1.8), "reader": (0.2, 0.6), "scout": (0.4, 1.2)}
"""Gives dollars for a million tokens in and out, before a record's own factor."""
FACTORS = (0.8, 1.0, 1.25)


@dataclass(frozen=True, slots=True)
class Preference:
    """Describes what a user cares for: weights of the reward, the share of such users, and ways to say it.

    Nobody says `other_wishes` in training; the domain `other-wishes` asks with them.
    """

    weights: Mapping[str, float]
    share: float
    wishes: tuple[str, ...]
    other_wishes: tuple[str, ...]


PREFERENCES: Mapping[str, Preference] = {
    "cheap": Preference(
        {"accuracy": 0.4, "cost": 1.0},
        0.5,
        (
            "Keep it cheap.", "Spend as little as you can.", "Mind the cost.", "Do not spend much.",
            "I want a cheap answer.", "My money is short.", "Keep the price down.", "Please save money.",
            "A low cost matters most.", "I care about the price.",
        ),
        (
            "Please mind the price.", "I do not want to spend much money.", "The cost matters most to me.",
            "Keep the answer cheap.", "Save as much money as you can.",
        ),
    ),
    "fast": Preference(
        {"accuracy": 0.4, "latency": 1.0},
        0.15,
        (
            "Be quick.", "I am in a hurry.", "Answer fast.", "Do not take long.", "I want a quick answer.",
            "My time is short.", "Keep the wait down.", "Please save time.", "A short wait matters most.",
            "I care about the speed.",
        ),
        (
            "Please hurry.", "I do not want to wait long.", "The speed matters most to me.", "Keep the answer quick.",
            "Save as much time as you can.",
        ),
    ),
    "own": Preference(
        {"accuracy": 0.4, OWN: 1.0, "cost": 0.25},
        0.35,
        (
            f"Use our own model {OWN}.", f"I trust {OWN} most.", f"Leave it to {OWN}.", f"Please ask {OWN}.",
            f"I want an answer of {OWN}.", f"{OWN} is my favourite.",
        ),
        (f"I want you to use {OWN}.", f"Leave the answer to our own {OWN}.", f"{OWN} matters most to me."),
    ),
}  # fmt: skip
BEST: Mapping[str, Mapping[str, Route]] = {
    "easy": {"cheap": (CHEAP,), "fast": (STRONG,), "own": (OWN,)},
    "fact": {"cheap": (SEARCH, CHEAP), "fast": (STRONG,), "own": (SEARCH, OWN)},
    "sum": {"cheap": (OWN,), "fast": (STRONG,), "own": (OWN,)},
    "mixed": {"cheap": (SEARCH, OWN), "fast": (STRONG,), "own": (SEARCH, OWN)},
    "hard": {"cheap": (STRONG,), "fast": (STRONG,), "own": (STRONG,)},
}
REQUESTS = ("Call {alias}.", "{alias}, please.", "Call {alias} and no other.", "Only {alias} will do.")
"""Lists wishes of users who order a tool. No user of a task does; users of the preference `own` name it as a
favourite, and chance draws their calls too."""
REQUESTED = 0.4
"""Sets the share of such users."""


def assign_split(text: str) -> Split:
    """Return the split of a thing or an expression: four in eight belong to training, one to dev, three to test."""
    return Random(f"split of {text}").choice(("train", "train", "train", "train", "dev", "test", "test", "test"))


def write_passages() -> Iterator[dict[str, str]]:
    """Yield a passage for each fact, in the form that core/retrieval reads: a title, then a sentence."""
    for thing in THINGS:
        for attribute in ATTRIBUTES:
            fact = f"{attribute} of {thing}"
            yield {"id": fact, "contents": f"{thing}\nThe {fact} is {fact_value(fact)}."}


_THINGS = {split: [name for name in THINGS if assign_split(name) == split] for split in SPLITS}


def draw_thing(rng: Random, split: Split) -> str:
    return rng.choice(_THINGS[split])


def draw_fact(rng: Random, split: Split) -> str:
    return f"the {rng.choice(ATTRIBUTES)} of {draw_thing(rng, split)}"


def _expression(rng: Random, split: Split, symbol: str) -> str:
    while True:
        expression = f"{rng.randint(10, 99)} {symbol} {rng.randint(10, 99)}"
        if assign_split(expression) == split:
            return expression


def _mixture(rng: Random, split: Split, symbol: str) -> str:
    return f" {symbol} ".join(rng.sample([draw_fact(rng, split), str(rng.randint(10, 99))], 2))


KINDS: Mapping[str, tuple[float, Callable[[Random, Split], str]]] = {
    "easy": (0.14, lambda rng, split: f"the {rng.choice(('first', 'last'))} letter of {draw_thing(rng, split)}"),
    "fact": (0.26, draw_fact),
    "sum": (0.22, lambda rng, split: _expression(rng, split, rng.choice(("plus", "minus")))),
    "mixed": (0.24, lambda rng, split: _mixture(rng, split, rng.choice(("plus", "minus")))),
    "hard": (0.14, lambda rng, split: rng.choice((_expression, _mixture))(rng, split, "times")),
}
"""Maps each kind to its share of the questions and to the function that draws one."""


def draw_task(rng: Random, split: Split, name: str) -> Task:
    """Draw one task of `split`."""
    kind = rng.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
    question = f"What is {KINDS[kind][1](rng, split)}?"
    factor = {model: rng.choice(FACTORS) for model in PRICES}
    metadata = {
        "category": "qa",
        "kind": kind,
        "model_mapping": MODEL_MAPPING,
        "tool_pricing": {
            model: {
                "input_tokens_per_million": round(price[0] * factor[model], 4),
                "output_tokens_per_million": round(price[1] * factor[model], 4),
            }
            for model, price in PRICES.items()
        },
    }
    right = answer(EXPERTS["sage"], question, {})
    preference = rng.choices(list(PREFERENCES), [preference.share for preference in PREFERENCES.values()])[0]
    return set_preference(rng, Task(name, question, (right,), metadata=metadata), preference)


def set_preference(rng: Random, task: Task, name: str, *, other_wishes: bool = False) -> Task:
    """Return the task for a user who has the preference `name`."""
    preference, kind = PREFERENCES[name], task.metadata["kind"]
    user = {
        "preference": name,
        "case": f"{kind}, {name}",
        "instruction": rng.choice(preference.other_wishes if other_wishes else preference.wishes),
        "pref_vec": dict(preference.weights),
    }
    return Task(task.task_id, task.question, task.answers, metadata={**task.metadata, **user})


def with_other_preference(task: Task) -> Task:
    """Return the same question for another user, who has the next of PREFERENCES, or the first after the last."""
    names = list(PREFERENCES)
    following = names[(names.index(task.metadata["preference"]) + 1) % len(names)]
    return set_preference(Random(task.task_id), task, following)


def with_other_wish(task: Task) -> Task:
    """Return the same question for a user who has the same preference and says it as nobody does in training."""
    return set_preference(Random(task.task_id), task, task.metadata["preference"], other_wishes=True)


@dataclass(frozen=True, slots=True)
class RoutingDemonstration:
    """Holds one turn of the orchestrator as text; `lines` are what the rollout gathered before it."""

    task: Task
    lines: tuple[str, ...]
    thought: str
    call: str


def draw_demonstration(rng: Random) -> RoutingDemonstration:
    """Draw one turn on a training task, half of them after a search. What a search finds is made up."""
    task = draw_task(rng, "train", "demonstration")
    call = rng.choice(list(MODEL_MAPPING))
    lines = (make_up_search(rng, task.question),) if rng.random() < 0.5 else ()
    if rng.random() >= REQUESTED:
        return RoutingDemonstration(task, lines, write_thought(task, task.metadata["preference"]), f" {call}")
    wish = {"instruction": rng.choice(REQUESTS).format(alias=call)}
    return RoutingDemonstration(
        replace(task, metadata={**task.metadata, **wish}), lines, write_thought(task, call), f" {call}"
    )


def write_thought(task: Task, wanted: str) -> str:
    return f" {task.metadata['kind']} {wanted}"


def make_up_search(rng: Random, question: str) -> str:
    """Return the line that a rollout keeps of a search: the fact that the question asks for, with a random value."""
    fact = search_query(question)
    if fact == question:
        fact = f"{rng.choice(ATTRIBUTES)} of {draw_thing(rng, 'train')}"
    return f"search {SEARCH} = [1] {fact.rpartition(' ')[2]} The {fact} is {rng.randint(10, 99)}."


def write_corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(400):
        yield " " + " ".join((*ATTRIBUTES, *THINGS))
        turn = draw_demonstration(rng)
        yield f" {turn.task.question} {turn.task.metadata['instruction']}"
        yield "".join(f" {line}\n" for line in turn.lines) + turn.thought + turn.call
    yield "user\nassistant\nsystem\n"


def demonstrate(rng: Random, recipe: ToolOrchestraRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield single turns."""
    renderer = Renderer(tokenizer)
    while True:
        yield [encode(draw_demonstration(rng), renderer)]


def encode(turn: RoutingDemonstration, renderer: Renderer) -> Example:
    """Encode a turn just as the rollout asks the orchestrator."""
    prompt = renderer.render(question_messages("compact", renderer, turn.task, "", turn.lines, None))
    tokenizer = renderer.tokenizer
    thought, end = encode_text(tokenizer, turn.thought), tokenizer.get_added_vocab()[THOUGHT_END]
    return prompt, (*thought, end, *encode_turn(tokenizer, turn.call))


def solve_tasks(
    rng: Random, recipe: ToolOrchestraRecipe, tokenizer: Tokenizer, tasks: Sequence[Task]
) -> Iterator[Example]:
    """Yield the turns of the best routes. Searches find made-up facts."""
    renderer = Renderer(tokenizer)
    for task in tasks:
        yield from (encode(turn, renderer) for turn in write_best_route(rng, task))


def write_best_route(rng: Random, task: Task) -> Iterator[RoutingDemonstration]:
    """Yield the turns of the best route of a task."""
    lines: tuple[str, ...] = ()
    preference = task.metadata["preference"]
    for alias in BEST[task.metadata["kind"]][preference]:
        yield RoutingDemonstration(task, lines, write_thought(task, preference), f" {alias}")
        lines = (make_up_search(rng, task.question),)


class FixedRoute(ToolOrchestra):
    """An orchestrator that makes the calls of `route(task, the rollout's seed)` and asks no policy."""

    def __init__(self, route: Callable[[Task, int | None], Route], recipe: ToolOrchestraRecipe, tokenizer: Tokenizer):
        super().__init__(recipe, tokenizer)
        self.route = route
        self.tokenizer = tokenizer

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        route = self.route(task, sampling.seed)
        aliases = chain(route, repeat(route[-1]))  # an expert that gave no reply is asked again

        def respond(prompt_ids: tuple[int, ...], sampling: Sampling) -> tuple[int, ...]:
            alias = next(aliases)
            return encode_turn(self.tokenizer, f" {alias.partition('-')[0]} {alias}")

        return await super().rollout(task, Roles({"policy": ScriptedPolicy(respond)}), sampling)


def always(*route: str) -> Callable[[ToolOrchestraRecipe, Any], Method]:
    return partial(FixedRoute, lambda task, seed: route)


def random_route(task: Task, seed: int | None) -> Route:
    rng = Random(f"{task.task_id} {seed}")
    return (*((SEARCH,) * rng.randint(0, 1)), rng.choice((STRONG, OWN, CHEAP)))


def best_route(task: Task, seed: int | None) -> Route:
    return BEST[task.metadata["kind"]][task.metadata["preference"]]


def compare_variants(results: Sequence[EvalResult]) -> list[EvalResult]:
    """Return the results of variants on the same tasks, each with `preference_reward` and `best_route` of every task.

    The reward of eq. 1-3 compares rollouts of one task. Here the group of a task has one rollout of each variant.
    `preference_reward` is that reward as a share of the greatest that the user's weights allow. `best_route` is 1 where
    the calls are those of BEST. Results without the labels `kind` and `preference` of this world are left out.
    """
    results = [r for r in results if "kind" in r.labels and set(r.labels.get("preference", ("",))) <= {*PREFERENCES}]
    if not results:
        return []
    rewards: list[list[float | None]] = [[] for _ in results]
    for place in range(results[0].n):
        group = {i: found for i, result in enumerate(results) if (found := read_features(result, place))}
        weights = PREFERENCES[results[0].labels["preference"][place]].weights
        group_rewards = dict(zip(group, preference_rewards(list(group.values()), weights), strict=True))
        for i, column in enumerate(rewards):
            column.append(group_rewards[i] / sum(weights.values()) if i in group_rewards else None)
    return [
        replace(
            result, measures={**result.measures, "preference_reward": column, "best_route": find_best_routes(result)}
        )
        for result, column in zip(results, rewards, strict=True)
    ]


def read_features(result: EvalResult, place: int) -> Features | None:
    """Return what the reward needs of one task; None if its rollout failed."""
    values = {name: column[place] for name, column in result.measures.items()}
    correct, cost, latency = (values.get(name) for name in ("correct", "cost", "latency"))
    if correct is None or cost is None or latency is None:
        return None
    return make_features(correct=correct > 0, cost=cost, latency=latency, calls=_count_calls(values))


def find_best_routes(result: EvalResult) -> list[float | None]:
    """Return for each task whether the calls were those of the best route, no more and no less."""
    column: list[float | None] = []
    for place, (kind, preference) in enumerate(zip(result.labels["kind"], result.labels["preference"], strict=True)):
        values = {name: measure[place] for name, measure in result.measures.items()}
        route = sorted(name for name, count in _count_calls(values).items() for _ in range(count))
        column.append(None if values.get("correct") is None else float(route == sorted(BEST[kind][preference])))
    return column


def _count_calls(values: Mapping[str, float | None]) -> dict[str, int]:
    return {name.removeprefix(CALLS): int(n) for name, n in values.items() if name.startswith(CALLS) and n is not None}


WORLD = World(
    words=(*ATTRIBUTES, *THINGS, *KINDS, *PREFERENCES),
    tags=("<task>", "<wish>", "<seen>"),
    plain_tokens=(THOUGHT_END,),
    corpus=write_corpus,
    vocab_size=640,
    passages=write_passages,
    domains={"usual": draw_task},
    rewrites={"other-preference": with_other_preference, "other-wishes": with_other_wish},
    identify=lambda task: (task.question, task.metadata["instruction"]),
    demonstrate=demonstrate,
    solve=solve_tasks,
    baselines={
        "most-expensive": always(STRONG),
        "search-own": always(SEARCH, OWN),
        "cheapest": always(SEARCH, CHEAP),
        "no-search": always(CHEAP),
        "random": partial(FixedRoute, random_route),
        "best": partial(FixedRoute, best_route),
    },
    compare=compare_variants,
)
