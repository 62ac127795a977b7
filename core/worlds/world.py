"""Defines a method's made-up world, from which its preset `tiny` comes: words, tasks, demonstrations and baselines.

A method has one in its world.py, as WORLD, and any further one in a module of its own. It is small enough to be learned
in minutes, and nobody has read about it. From it come the start model and the data files (command.py), the warm start,
the supervised baseline and the baselines of `tokentrue evaluate heldout`.

This module imports no PyTorch, so a program may import a world to look up its facts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

from core.config import RecipeError, SupervisedSection, WarmStartSection
from core.data.files import task_to_record
from core.data.tasks import read_tasks
from core.rollout.method import Method, find_package
from core.runs.evaluation import EvalResult
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Completion, Sampling, Task

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

Example = tuple[Sequence[int], Sequence[int]]
"""Pairs prompt ids with completion ids; the loss is on the completion."""

GROUP = 8
"""Counts the batches of demonstrations that are drawn at once, so that each can hold examples of similar length."""
MISSES = 1000
"""Says after how many draws in a row without a new task a split counts as exhausted."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}"
    "{{ tool.function.name }}({{ tool.function.parameters.properties | join(', ') }})\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Has tools in Hermes' format. A tool is shown as its name and the names of its arguments: a model this small reads no
JSON schema."""


def write_call(name: str, **arguments: object) -> str:
    """Write a call as TOOL_TEMPLATE shows it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True, kw_only=True)
class World:
    """Describes a made-up world. A world for a model that exists already needs no words and no corpus."""

    words: Sequence[str] = ()
    """Lists the words that are one token each, with the space before them. Copying drills repeat them."""
    tags: Sequence[str] = ()
    """Lists special tokens: text from outside that looks like one is spelled in pieces."""
    plain_tokens: Sequence[str] = ()
    """Lists further tokens, which are text."""
    corpus: Callable[[], Iterable[str]] | None = None
    """Yields the texts on which the tokenizer of the start model is trained. None: there is no start model."""
    vocab_size: int = 0
    """Bounds how many tokens the corpus gives, its 256 bytes included. Too many do no harm: training stops when nothing
    is left to merge."""
    chat_template: str = CHAT_TEMPLATE

    passages: Callable[[], Iterable[dict[str, str]]] | None = None
    """Yields what the retrieval service finds, each with `id` and `contents`."""
    word_lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Maps the names of text files to the words in them, one a line."""

    splits: Sequence[str] = SPLITS
    domains: Mapping[str, Callable[[Random, Any, str], Task | None]] = field(default_factory=dict)
    """Maps the names of domains to functions that draw a task from (random numbers, split, name of the task), or None
    if the drawn one does not fit. GRPO trains on the first domain; the others are outside of its distribution."""
    rewrites: Mapping[str, Callable[[Task], Task]] = field(default_factory=dict)
    """Maps the names of further domains to functions that change the tasks of the first."""
    identify: Callable[[Task], Hashable] = lambda task: (task.question, task.context)
    """Returns what no two tasks of a file share."""
    to_record: Callable[[Task], dict[str, Any]] = task_to_record

    copies_digits: bool = False
    """Lets copying drills repeat digits, too, each four times as often as a word."""
    lookup: Callable[[Random], tuple[str, str]] | None = None
    """Draws a look-up drill: facts as a prompt, and the same facts in another order."""
    demonstrate: Callable[[Random, Any, Any], Iterator[Sequence[Example]]] | None = None
    """Yields demonstrations without end, each with its turns, from (random numbers, recipe, tokenizer)."""
    in_order: bool = False
    """Keeps demonstrations, and the solutions of shuffled tasks, in the order in which they come, instead of by length:
    a batch then holds first and last turns of tasks of all kinds."""
    solve: Callable[[Random, Any, Any, Sequence[Task]], Iterable[Example]] | None = None
    """Yields the turns of a whole right rollout of every task, from (random numbers, recipe, tokenizer, tasks)."""
    draw_supervised: Callable[[SupervisedSection, Any, Any], Iterator[Sequence[Example]]] | None = None
    """Yields the batches of the supervised baseline, where `solve` does not say enough."""

    baselines: Mapping[str, Callable[[Any, Any], Method]] = field(default_factory=dict)
    """Maps the names of baselines to functions that make a Method from (recipe, tokenizer)."""
    compare: Callable[[Sequence[EvalResult]], Sequence[EvalResult]] | None = None
    """Adds to the results of several variants on the same tasks what only their comparison tells."""

    def train_tokenizer(self) -> Any:
        """Train the tokenizer of the start model."""
        from core.worlds import start_model

        return start_model.train_tokenizer(self)

    def build_model(self, folder: Path, seed: int = 0, family: str = "qwen2") -> Path:
        """Write the start model, which depends on `seed` and `family` alone, to `folder`."""
        from core.worlds import start_model

        return start_model.build(folder, self.train_tokenizer(), seed, family)

    def draw_tasks(self, split: str, count: int, seed: int = 0, domain: str | None = None) -> list[Task]:
        """Draw `count` different tasks of a split, by default of the first domain.

        Raises:
            ValueError: the split has too few, or is none of `splits`, or `count` is below 1.
        """
        if split not in self.splits or count < 1:
            raise ValueError(f"no {count} tasks of split {split}: take 1 or more of {', '.join(self.splits)}")
        rng = Random(f"{split}-{seed}")
        rewrite = self.rewrites.get(domain or "")
        draw = self.domains[next(iter(self.domains)) if rewrite or domain is None else domain]
        tasks: dict[Hashable, Task] = {}
        misses = 0
        while len(tasks) < count and misses < MISSES:
            task, before = draw(rng, split, f"{split}-{len(tasks):05d}"), len(tasks)
            if task is not None:
                tasks.setdefault(self.identify(task), task)
            misses = misses + 1 if len(tasks) == before else 0
        if len(tasks) < count:
            raise ValueError(f"split {split} has fewer than {count} different tasks; ask for fewer")
        return [rewrite(task) for task in tasks.values()] if rewrite else list(tasks.values())

    def draw_warm_start(
        self, config: WarmStartSection, recipe: Any, tokenizer: Tokenizer
    ) -> Iterator[Sequence[Example]]:
        """Yield batches: copying drills, look-up drills, then demonstrations without end."""
        rng, size = Random(config.seed), config.batch_size
        if config.copy_steps:
            ids = [encode_text(tokenizer, f" {word}")[0] for word in self.words]
            ids += encode_text(tokenizer, "0123456789") * 4 if self.copies_digits else ()
        for _ in range(config.copy_steps):
            yield [_draw_copying_drill(rng, ids) for _ in range(size)]
        for _ in range(config.lookup_steps):
            assert self.lookup is not None, "run_warm_start has seen to it"
            drills = [self.lookup(rng) for _ in range(size)]
            yield [(encode_text(tokenizer, prompt), encode_text(tokenizer, said)) for prompt, said in drills]
        assert self.demonstrate is not None, "run_warm_start has seen to it"
        yield from draw_batches(rng, self.demonstrate(rng, recipe, tokenizer), size, in_order=self.in_order)

    def draw_solutions(
        self, config: SupervisedSection, recipe: Any, tokenizer: Tokenizer
    ) -> Iterator[Sequence[Example]]:
        """Yield batches of whole right rollouts of the training tasks without end."""
        if self.draw_supervised is not None:
            yield from self.draw_supervised(config, recipe, tokenizer)
        assert self.solve is not None, "run_supervised has seen to it"
        rng = Random(config.seed)
        tasks = read_tasks(recipe.data.train, require_context=False)
        if self.in_order:
            rng.shuffle(tasks)
        if not (turns := list(self.solve(rng, recipe, tokenizer, tasks))):
            raise RecipeError("supervised: `solve` of the WORLD yields no turn for the tasks of data.train")
        while True:
            yield from cut_batches(rng, turns, config.batch_size, in_order=self.in_order)


def find_world(method: str, name: str = "world") -> World | None:
    """Return WORLD of the method's module `name`, or of any module if that has a dot; None if there is no such module.

    Raises:
        RecipeError: no method, or a module without WORLD.
    """
    path = name if "." in name else f"{find_package(method)}.{name}"
    try:
        found = find_spec(path)
    except ModuleNotFoundError as error:
        if not path.startswith(f"{error.name}."):  # not a package before the last dot, but what that imports
            raise
        found = None
    if found is None:
        return None
    world: World | None = getattr(import_module(path), "WORLD", None)
    if world is None:
        raise RecipeError(f"world: {path} has no WORLD. Fix: name the module of {method} that has one")
    return world


def draw_batches(
    rng: Random, demonstrations: Iterator[Sequence[Example]], size: int, *, in_order: bool = False
) -> Iterator[list[Example]]:
    """Yield batches of `size` turns as long as there are demonstrations for a round of them."""
    count, turns = size if in_order else GROUP * size, list[Example]()
    for played in demonstrations:
        turns += played
        if len(turns) < count:
            continue
        yield from cut_batches(rng, turns[:count], size, in_order=in_order)
        turns = []


def cut_batches(rng: Random, examples: Iterable[Example], size: int, *, in_order: bool = False) -> list[list[Example]]:
    """Make batches of `size` in random order.

    Unless they are kept in order, examples of similar length come together, so attention pads little.
    """
    ordered = list(examples) if in_order else sorted(examples, key=lambda example: len(example[0]))
    batches = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    rng.shuffle(batches)
    return batches


def encode_turn(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return the ids of a completion that ends: its text, then the end token."""
    return (*encode_text(tokenizer, text), tokenizer.eos_token_id)


class TextPolicy:
    """A policy whose reply is what `write` makes of the text of the prompt; `encode` turns it into ids."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        write: Callable[[str], str],
        encode: Callable[[Tokenizer, str], tuple[int, ...]] = encode_turn,
    ):
        self.tokenizer, self.write, self.encode = tokenizer, write, encode

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        ids = self.encode(self.tokenizer, self.write(self.tokenizer.decode(prompt_ids)))
        return Completion(ids, (0.0,) * len(ids), "stop")


def _draw_copying_drill(rng: Random, token_ids: Sequence[int]) -> Example:
    """Draw 8 to 24 of the `token_ids` as a prompt and repeat them as its completion.

    Copying, once learned, makes extraction easy.
    """
    sequence = tuple(rng.choices(token_ids, k=rng.randint(8, 24)))
    return sequence, sequence
