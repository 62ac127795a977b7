"""Reads what the policy wrote after a section: the memory, and the words of the options that stand behind it.

Without an option, what it wrote is the memory. With them it has these words:

    text               is the new memory
    KEEP               leaves the memory as it was (gate_update)
    ... RECALL words   a line behind either: asks for the earlier memory that these words find (recall)
    ... STOP           last of all: no further section is read (gate_exit)

KEEP and STOP may have marks around them. The memory keeps the sampled ids but for thoughts, special tokens and these
words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agentic.memagent.config import MemAgentSection
from agentic.memagent.gates import find_evidence, reward_exit, reward_update
from agentic.memagent.prompts import KEEP, RECALL, STOP
from agentic.memagent.recall import find_memory, reward_recall
from core.policy.base import Decode
from core.rewards.answers import strip_thoughts
from core.rollout.turns import Turns
from core.text.tokenizer import Ids, Tokenizer, special_ids
from core.text.tool_calls import find_answer
from core.types import Task, Trajectory

_RECALL = re.compile(rf"(?:^[\s*-]*|\b{KEEP}[.*`]*\s+){RECALL}(?!\S)", re.MULTILINE)
"""Matches the word where it begins a line, or stands behind KEEP: a note may tell of a RECALL of cars."""
_MARKS = " \t\r\n.。*`-"


@dataclass(frozen=True, slots=True)
class Note:
    """Holds the memory after one section, whether it is the old one, what to recall (or ""), and whether to stop."""

    memory: Ids
    kept: bool = False
    query: str = ""
    stops: bool = False


def read_note(written: Ids, memory: Ids, config: MemAgentSection, decode: Decode) -> Note:
    """Read what a completion wrote after `memory`. Where nothing stands before RECALL or STOP, the memory stays."""
    rest, query, stops = written, "", False
    if config.gate_exit and (last := decode(rest).split()[-1:]) and last[0].strip(_MARKS) == STOP:
        rest, stops = split_before(rest, last, decode)[0], True
    if config.recall and (asked := [*_RECALL.finditer(text := decode(rest))]):
        rest, query = split_before(rest, text[asked[-1].end() - len(RECALL) :].split(), decode)
    note = strip_thoughts(decode(rest)).strip(_MARKS)
    kept = (rest != written and not note) or (config.gate_update and note == KEEP)
    return Note(memory if kept else rest, kept, query, stops)


def split_before(ids: Ids, tail: list[str], decode: Decode) -> tuple[Ids, str]:
    """Return the ids before the last words `tail`, without white space at their end, and the text behind its first."""
    start = next(place for place in reversed(range(len(ids))) if decode(ids[place:]).split()[-len(tail) :] == tail)
    behind = decode(ids[start:]).partition(tail[0])[2].strip()
    while start and not decode(ids[start - 1 : start]).strip():
        start -= 1
    return ids[:start], behind


class Reading:
    """Holds what one rollout has noted of its sections so far."""

    def __init__(
        self, config: MemAgentSection, tokenizer: Tokenizer, task: Task, sections: Sequence[Ids], memory: Ids
    ) -> None:
        self._config, self._tokenizer, self._task, self._sections = config, tokenizer, task, sections
        self._special = special_ids(tokenizer)
        self._evidence = find_evidence(task, [*map(tokenizer.decode, sections)]) if config.gate_rewards else []
        self._memory, self._recalled = memory, Ids()
        self._notes: list[Note] = []

    @property
    def shown(self) -> dict[str, Ids]:
        """Return what the next prompt shows of it, by slot. A prompt without recall has no slot `recalled`."""
        return {"memory": self._memory, "recalled": self._recalled}

    def go_on(self) -> Iterator[Ids]:
        """Yield the sections, until the policy stops."""
        for section in self._sections:
            yield section
            if self._notes[-1].stops:
                return

    def take(self, ids: Ids, turns: Turns) -> None:
        """Read what the latest update wrote, and credit its turn."""
        config, decode = self._config, self._tokenizer.decode
        answer = find_answer(self._tokenizer, ids, turns.recorded[-1].prompt_ids)
        written = tuple(i for i in answer or () if i not in self._special)
        written = written if written or answer is ids else self._memory  # a thought alone is no memory
        note, found = read_note(written, self._memory, config, decode), Ids()
        if note.query:
            found = find_memory(note.query, [each.memory for each in self._notes], note.memory, self._tokenizer)
        earned = list[float]()
        if config.gate_update and self._evidence:
            earned.append(reward_update(note.kept, self._evidence[len(self._notes)]))
        if config.recall_reward:
            texts = map(decode, (turns.recorded[-1].prompt_ids, self._memory, note.memory, found))
            earned.append(reward_recall(self._task.answers, *texts))
        if earned:
            turns.credit("update", reward=sum(earned))
        self._memory, self._recalled = note.memory, found
        self._notes.append(note)

    def complete(self, trajectory: Trajectory) -> Trajectory:
        """Add the metrics of the options, and what the end of the reading earned."""
        config, notes, metrics, reward = self._config, self._notes, dict(trajectory.metrics), trajectory.reward
        if config.gate_update:
            metrics["kept"] = sum(note.kept for note in notes) / len(notes)
        if config.recall:
            metrics["recalls"] = sum(bool(note.query) for note in notes) / len(notes)
        if config.gate_exit:
            metrics["stopped"] = float(notes[-1].stops)
            if config.gate_rewards and reward is not None:
                metrics["official"] = reward  # an evaluation scores the answer alone, with evidence or without
            if self._evidence and reward is not None:
                metrics["exit_reward"] = reward_exit(len(notes), self._evidence)
                reward += metrics["exit_reward"]
        return replace(trajectory, metrics=metrics, reward=reward)
