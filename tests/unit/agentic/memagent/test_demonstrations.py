"""Demonstrations: labels follow the annotator's rules, his faults have their frequencies, and no position tells."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest

from agentic.memagent.rollout import SPEC, MemAgent
from agentic.memagent.tiny.demonstrations import (
    FACT,
    UNKNOWN,
    Annotator,
    Demonstration,
    copying_drill,
    demonstration,
    lookup_drill,
)
from agentic.memagent.tiny.start_model import ANSWER, EMPTY_MEMORY
from agentic.memagent.tiny.warm_start import _encode
from agentic.memagent.tiny.words import KEYS, VALUES
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.text.tokenizer import encode_text
from core.types import Sampling, Task

DRAWS = 6000
NEEDLE_SHAPE = re.compile(r"One of the special magic words for (\w+) is: (\w+)\.")
FACT_SHAPE = re.compile(r"\A (\w+) is: (\w+)\Z")


@dataclass(frozen=True)
class Read:
    """A demonstration as someone reads it who has the text alone. `held` is None for the empty memory."""

    key: str
    held: str | None
    needles: tuple[tuple[str, str], ...]
    noted: str

    @property
    def wanted(self) -> str | None:
        return dict(self.needles).get(self.key)

    @property
    def distractors(self) -> set[str]:
        return {value for key, value in self.needles if key != self.key}

    @property
    def keeping(self) -> bool:
        """Whether all there is to do is to keep what the memory holds."""
        return self.wanted is None and self.held not in (None, UNKNOWN)


def read(turn: Demonstration) -> Read:
    asked = re.search(r"for (\w+) mentioned", turn.question)
    assert asked
    key, held = asked[1], None
    if turn.memory != EMPTY_MEMORY:
        held = fact(turn.memory, key)
    return Read(key, held, tuple(NEEDLE_SHAPE.findall(turn.section or "")), fact(turn.completion, key))


def fact(text: str, key: str) -> str:
    match = FACT_SHAPE.match(text)
    assert match
    assert match[1] == key
    return match[2]


def draw(annotator: Annotator, count: int = DRAWS, words: tuple[int, int] = (0, 40)) -> list[Demonstration]:
    rng = Random(0)
    return [demonstration(rng, annotator, words) for _ in range(count)]


@pytest.fixture(scope="module")
def turns() -> list[Demonstration]:
    return draw(Annotator())


@pytest.fixture(scope="module")
def updates(turns: list[Demonstration]) -> list[Read]:
    return [read(turn) for turn in turns if turn.section is not None]


def assert_rate(hits: int, of: int, expected: float) -> None:
    """Within four standard errors; the draws are seeded, so this passes always or never."""
    assert of > 100
    assert abs(hits / of - expected) < 4 * math.sqrt(expected * (1 - expected) / of)


def test_a_wanted_needle_is_noted_whatever_the_memory_holds(updates):
    present = [turn for turn in updates if turn.wanted]
    assert all(turn.noted == turn.wanted for turn in present)
    wrong = [turn for turn in present if turn.held not in (None, UNKNOWN)]
    assert len(wrong) > 100
    assert all(turn.held != turn.wanted for turn in wrong)


def test_without_needle_and_memory_the_note_is_unknown(updates):
    nothing = [turn for turn in updates if not turn.wanted and turn.held in (None, UNKNOWN)]
    assert {turn.held for turn in nothing} == {None, UNKNOWN}
    assert {turn.noted for turn in nothing} == {UNKNOWN}


def test_a_memory_is_kept_forgotten_or_replaced_by_a_distractor_of_the_section(updates):
    for turn in updates:
        if turn.keeping:
            assert turn.noted in {turn.held, UNKNOWN} | turn.distractors


@pytest.mark.parametrize(("forget", "distract"), [(0.4, 0.15), (0.45, 0.1), (0.2, 0.6)])
def test_faults_have_their_frequencies(forget, distract):
    reads = [read(turn) for turn in draw(Annotator(forget, distract)) if turn.section is not None]
    keeping = [turn for turn in reads if turn.keeping]
    tempted = [turn for turn in keeping if turn.distractors]
    assert_rate(sum(turn.noted in turn.distractors for turn in tempted), len(tempted), distract)
    faithful = [turn for turn in keeping if turn.noted not in turn.distractors]
    assert_rate(sum(turn.noted == UNKNOWN for turn in faithful), len(faithful), forget)


@pytest.mark.parametrize(
    ("annotator", "notes"),
    [
        (Annotator(0.0, 0.0), lambda turn: {turn.held}),
        (Annotator(1.0, 0.0), lambda turn: {UNKNOWN}),
        (Annotator(0.0, 1.0), lambda turn: turn.distractors or {turn.held}),
    ],
    ids=["never-at-fault", "always-forgets", "always-distracted"],
)
def test_extreme_annotators_do_one_thing_only(annotator, notes):
    keeping = [turn for turn in map(read, (t for t in draw(annotator, 800) if t.section is not None)) if turn.keeping]
    assert len(keeping) > 100
    assert all(turn.noted in notes(turn) for turn in keeping)


def test_final_turns_answer_with_the_memory(turns):
    final = [turn for turn in turns if turn.section is None]
    assert_rate(len(final), len(turns), 0.08)
    for turn in final:
        match = FACT_SHAPE.match(turn.memory)
        assert turn.completion == ANSWER.format(value=match[2] if match else UNKNOWN)


def test_a_turn_is_about_distinct_keys_and_values(updates):
    for turn in updates:
        keys, values = [key for key, _ in turn.needles], [value for _, value in turn.needles]
        assert len(set(keys)) == len(keys)
        assert len({*values, turn.held}) == len(values) + 1
        assert set(keys) <= set(KEYS)
        assert set(values) <= set(VALUES)


def test_every_order_of_needles_is_as_likely(updates):
    for count in (2, 3, 4):
        ranks = Counter(
            [key for key, _ in turn.needles].index(turn.key)
            for turn in updates
            if turn.wanted and len(turn.needles) == count
        )
        for rank in range(count):
            assert_rate(ranks[rank], ranks.total(), 1 / count)


def test_the_order_of_words_in_the_lists_tells_nothing(updates):
    """Neither key nor value of the wanted needle comes first in its word list more often than the distractor's."""
    pairs = [(turn, other) for turn in updates if turn.wanted for other in turn.needles if other[0] != turn.key]
    assert_rate(sum(KEYS.index(turn.key) < KEYS.index(key) for turn, (key, _) in pairs), len(pairs), 0.5)
    assert_rate(sum(VALUES.index(turn.wanted) < VALUES.index(value) for turn, (_, value) in pairs), len(pairs), 0.5)
    asked = Counter(turn.key for turn in updates)
    assert len(asked) == len(KEYS)
    assert max(asked.values()) < 3 * len(updates) / len(KEYS)


def test_needles_lie_at_every_depth_alike():
    """Depth among the sentences, in quarters; RULER's noise, whose sentences can be counted."""
    quarters: Counter[str] = Counter()
    for turn in draw(Annotator(), words=(90, 90)):
        sentences = re.findall(r"[^.]+\.", turn.section or "")
        needles = [i for i, sentence in enumerate(sentences) if NEEDLE_SHAPE.search(sentence)]
        if len(needles) == 1 and any("grass is green" in sentence for sentence in sentences):
            kind = "wanted" if read(turn).wanted else "distractor"
            places = len(sentences)
            # Spread evenly over the width of its place, so that quarters need not be a whole number of places.
            edges = [(4 * needles[0] / places), 4 * (needles[0] + 1) / places]
            for quarter in range(4):
                overlap = max(0.0, min(edges[1], quarter + 1) - max(edges[0], quarter))
                quarters[f"{kind} {quarter}"] += round(1000 * overlap / (edges[1] - edges[0]))
    for kind in ("wanted", "distractor"):
        counts = [quarters[f"{kind} {quarter}"] / 1000 for quarter in range(4)]
        for count in counts:
            assert_rate(round(count), round(sum(counts)), 0.25)


def test_sections_with_the_wanted_needle_are_not_longer():
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for turn in draw(Annotator(), words=(60, 90)):
        if turn.section is not None:
            lengths[read(turn).wanted is not None].append(len(turn.section.split()))
    with_needle, without = (sum(group) / len(group) for group in lengths.values())
    assert with_needle == pytest.approx(without, abs=1.0)


def test_noise_never_names_the_keys_of_its_turn(turns):
    """Nothing but the needles says what a key's value is."""
    for turn in turns:
        if turn.section is not None:
            keys = {read(turn).key, *(key for key, _ in read(turn).needles)}
            noise = set(re.findall(r"\w+", NEEDLE_SHAPE.sub("", turn.section).lower()))
            assert not keys & noise


@pytest.fixture(scope="module")
def method(tokenizer) -> MemAgent:
    return MemAgent(SPEC.load("tiny").memagent, tokenizer)


async def test_an_update_is_encoded_as_the_rollout_does_it(method, tokenizer):
    """The same section as a document: with a memory of one turn before, the prompts are the same, id for id."""
    for turn in draw(Annotator(), 150, words=(0, 50)):
        if turn.section is None or len(method.sections(task := as_task(turn))) > 1:
            continue
        prompt, completion = _encode(turn, method, tokenizer)
        method.empty_memory, memory = encode_text(tokenizer, turn.memory), method.empty_memory
        policy = ScriptedPolicy(lambda prompt, sampling, ids=completion: ids)
        trajectory = await method.rollout(task, Roles({"policy": policy}), Sampling())
        method.empty_memory = memory
        assert policy.calls[0].prompt_ids == prompt
        assert trajectory.turns[0].completion.token_ids == completion
        assert trajectory.turns[0].completion.finish_reason == "stop"
        # What this turn wrote is, in the next prompt, what a demonstration with that memory shows.
        after = Demonstration(turn.question, None, turn.completion, "")
        assert policy.calls[1].prompt_ids == _encode(after, method, tokenizer)[0]


def test_a_section_is_the_rollouts_chunks_one_after_the_other(method, tokenizer):
    several = 0
    for turn in draw(Annotator(), 300, words=(0, 90)):
        if turn.section is not None:
            chunks = method.sections(as_task(turn))
            several += len(chunks) > 1
            section = [i for chunk in chunks for i in chunk]
            problem, memory = encode_text(tokenizer, turn.question), encode_text(tokenizer, turn.memory)
            prompt = method.update.render(problem=problem, section=section, memory=memory)
            assert _encode(turn, method, tokenizer)[0] == prompt
            assert tokenizer.decode(section) == turn.section
    assert several > 10


def as_task(turn: Demonstration) -> Task:
    assert turn.section is not None
    return Task("t", turn.question, ("a",), context=turn.section)


def test_an_answer_fits_the_presets_budgets(method, tokenizer, turns):
    for turn in turns[:500]:
        completion = _encode(turn, method, tokenizer)[1]
        budget = method.config.max_final_tokens if turn.section is None else method.config.max_memory_tokens
        assert len(completion) <= budget
        assert completion[-1] == tokenizer.eos_token_id


def test_the_copying_drill_repeats_its_prompt():
    rng = Random(0)
    drills = [copying_drill(rng, range(50), length=(8, 24)) for _ in range(300)]
    assert all(prompt == completion for prompt, completion in drills)
    assert {len(prompt) for prompt, _ in drills} == set(range(8, 25))
    assert {i for prompt, _ in drills for i in prompt} == set(range(50))


def test_the_lookup_drill_repeats_its_facts_in_another_order_and_knows_what_it_does_not_know():
    rng = Random(0)
    shuffled = unknown = 0
    for _ in range(300):
        prompt, completion = lookup_drill(rng)
        given = dict(NEEDLE_SHAPE.findall(prompt) or re.findall(r" (\w+) is: (\w+)\.", prompt))
        told = re.findall(r" (\w+) is: (\w+)\.", completion)
        assert completion == "".join(FACT.format(key=key, value=value) + "." for key, value in told)
        assert 1 <= len(given) <= 6
        assert {key: value for key, value in told if value != UNKNOWN} == given
        assert len(told) == len({key for key, _ in told}) <= len(given) + 3
        shuffled += [key for key, _ in told if key in given] != list(given)
        unknown += len(told) > len(given)
    assert shuffled > 100
    assert_rate(unknown, 300, 0.75)
