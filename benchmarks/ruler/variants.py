"""The variants of an evaluation: how a model reads a document before it answers.

| variant | model | reads |
|---|---|---|
| trained | the one evaluated | chunk by chunk, MemAgent's loop |
| untrained | the one it started from | the same |
| untrained-greedy | the same | the same, at temperature 0 |
| rejection | that one, trained on its own successes (core/train/rejection.py) | the same |
| supervised | that one, trained on whole correct trajectories (agentic/memagent/gold.py) | the same |
| trained-, rejection-, supervised-greedy | the same; only if --variants names them | the same, at temperature 0 |
| full-context | the one evaluated | the whole document in one prompt, where all documents of the cell fit |
| empty-document | the one evaluated | MemAgent's loop over one empty section: chance and prior knowledge |

`memagent.answer_format` says how all of them ask for the answer: `boxed`, as in training, or `the_answer_is`, as in the
evaluation behind the published scores. A full-context answer without a box is scored as it stands, so that this
baseline is not failed for its format. With a `Window`, full-context reads as in that evaluation: a prompt that is too
long loses its middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentic.memagent.config import MemAgentSection
from agentic.memagent.prompts import EMPTY_MEMORY, Style
from agentic.memagent.rollout import MemAgent, answer_reward
from benchmarks.harness.run import ask_once
from benchmarks.ruler.score import ReadAnswer, box_or_all
from core.policy.base import Roles
from core.rewards.boxed import find_boxed
from core.rewards.qa import extract_the_answer_is
from core.rollout.method import Method, RolloutError
from core.runs.evaluation import MODEL_VARIANTS
from core.text.tokenizer import Ids, Tokenizer, TokenTemplate, encode_text
from core.types import Sampling, Task, Trajectory

VARIANTS = (*MODEL_VARIANTS, "full-context", "empty-document")

_WHOLE: dict[Style, str] = {
    "official": (
        "You are presented with a problem and an article that may contain the answer to the problem. Please read the "
        "article carefully, answer the problem and put the answer in \\boxed{}.\n\n<problem> \n{problem}\n</problem>"
        "\n\n<article>\n{section}\n</article>\n\nYour answer:\n"
    ),
    # The one prompt with a document that a model of the compact style knows.
    "compact": f"<problem>{{problem}}</problem><section>{{section}}</section><memory>{EMPTY_MEMORY}</memory>",
}


WHOLE_THE_ANSWER_IS = (
    "Please read the following text and answer the question below.\n\n<text>\n{section}\n</text>\n\n{problem}\n\n"
    'Format your response as follows: "Therefore, the answer is (insert answer here)".'
)
"""Holds what the released evaluation asks a model that reads whole documents (method `openai`)."""


@dataclass(frozen=True)
class Window:
    """Limits the tokens of a prompt with a whole document, without the chat template, and those of its answer."""

    prompt_tokens: int
    answer_tokens: int


class ChunkByChunk(MemAgent):
    """Runs MemAgent on documents that were split ahead of time, before the clock starts."""

    def __init__(self, config: MemAgentSection, tokenizer: Tokenizer):
        super().__init__(config, tokenizer)
        self.read_answer: ReadAnswer = find_boxed if config.answer_format == "boxed" else extract_the_answer_is
        self._split: dict[str, tuple[list[Ids], int]] = {}

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Tokenize the documents of the cell."""
        self._split = {}
        for task in tasks:
            try:
                self._split[task.task_id] = super().sections(task)
            except RolloutError:
                continue  # it fails again in its rollout, where failures are counted

    def sections(self, task: Task) -> tuple[list[Ids], int]:
        return self._split[task.task_id] if task.task_id in self._split else super().sections(task)

    def context(self, tasks: Sequence[Task]) -> int:
        """Return the tokens of the longest call, prompt and completion, of these prepared tasks."""
        problem = max(len(encode_text(self.tokenizer, task.question)) for task in tasks)
        section = max((len(ids) for chunks, _ in self._split.values() for ids in chunks), default=0)
        memory = max(self.config.max_memory_tokens, len(self.empty_memory))
        memory *= 2 if self.config.recall else 1  # an earlier one beside it
        update = self.update.length + problem + section + memory + self.config.max_memory_tokens
        return max(update, self.final.length + problem + memory + self.config.max_final_tokens)


class EmptyDocument(ChunkByChunk):
    """Runs MemAgent on one empty section, then asks the question."""

    def prepare(self, tasks: Sequence[Task]) -> None:
        self._split = {task.task_id: ([()], 0) for task in tasks}


class WholeDocument(Method):
    """Asks with the document in one prompt."""

    def __init__(self, config: MemAgentSection, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.new_tokens = config.max_final_tokens
        self.answer_format = config.answer_format
        boxed = config.answer_format == "boxed"
        self.read_answer: ReadAnswer = box_or_all if boxed else extract_the_answer_is
        self.message = _WHOLE[config.prompt_style] if boxed else WHOLE_THE_ANSWER_IS
        self.template = TokenTemplate(tokenizer, self.message, slots=("problem", "section"))
        self._documents: dict[str, Ids] = {}

    def prepare(self, tasks: Sequence[Task]) -> None:
        self._documents = {task.task_id: encode_text(self.tokenizer, task.context) for task in tasks}

    def context(self, tasks: Sequence[Task]) -> int:
        return max(len(self.prompt(task)) for task in tasks) + self.new_tokens

    def prompt(self, task: Task) -> Ids:
        problem = encode_text(self.tokenizer, task.question)
        return self.template.render(problem=problem, section=self._documents[task.task_id])

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        prompt, request = self.prompt(task), replace(sampling, max_new_tokens=self.new_tokens)
        asked = await ask_once(task, roles["policy"], "final", prompt, request, self.tokenizer)
        return replace(asked, reward=answer_reward(self.answer_format, asked.log["answer"], task.answers))


class CutDocument(WholeDocument):
    """Asks with the document in one prompt, whose middle is cut out where it is longer than the window."""

    def __init__(self, config: MemAgentSection, tokenizer: Tokenizer, window: Window):
        super().__init__(config, tokenizer)
        self.new_tokens = window.answer_tokens
        self.prompt_tokens = window.prompt_tokens
        self.template = TokenTemplate(tokenizer, "{message}", slots=("message",))
        self._messages: dict[str, Ids] = {}

    def prepare(self, tasks: Sequence[Task]) -> None:
        self._messages = {}
        for task in tasks:
            message = self.message.replace("{problem}", task.question).replace("{section}", task.context)
            self._messages[task.task_id] = cut_middle(encode_text(self.tokenizer, message), self.prompt_tokens)

    def prompt(self, task: Task) -> Ids:
        return self.template.render(message=self._messages[task.task_id])


Reader = ChunkByChunk | WholeDocument


def make_reader(variant: str, config: MemAgentSection, tokenizer: Tokenizer, window: Window | None = None) -> Reader:
    """Return the reader of one of VARIANTS. `window` is that of full-context."""
    if variant == "full-context":
        return WholeDocument(config, tokenizer) if window is None else CutDocument(config, tokenizer, window)
    return EmptyDocument(config, tokenizer) if variant == "empty-document" else ChunkByChunk(config, tokenizer)


def cut_middle(ids: Ids, limit: int) -> Ids:
    """Return `ids`, or their first and last ones, `limit` together, without a mark between."""
    return ids if len(ids) <= limit else ids[: limit // 2] + ids[len(ids) - (limit - limit // 2) :]
