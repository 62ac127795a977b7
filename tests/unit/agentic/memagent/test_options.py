"""The options beyond MemAgent's paper: the gates of GRU-Mem and the recall of ReMemR1, and what they reward."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from tokenizers import AddedToken

from agentic.memagent.config import MemAgentSection
from agentic.memagent.gates import find_evidence, reward_exit, reward_update
from agentic.memagent.prompts import EMPTY_MEMORY, KEEP, RECALL, STOP, Order, Style, final_message, update_message
from agentic.memagent.reading import read_note
from agentic.memagent.recall import find_memory, reward_recall
from agentic.memagent.rollout import SPEC, MemAgent
from agentic.memagent.world import USES, MemoryDemonstration, draw_demonstration, encode, show_options
from core.config import RecipeError
from core.policy.base import Roles
from core.text.tokenizer import encode_text
from core.types import Sampling, Task, Trajectory
from tests.kit import script_policy
from tests.unit.agentic.memagent.test_rollout import make_method

GATES = {"gate_update": True, "gate_exit": True, "gate_rewards": True}
RECALLS = {"recall": True, "recall_reward": True}
SENTENCES = (" The hat is red.", " The sky is blue.", " The hat word is acorn.", " Here we go.", " There you are.")


def make_task(**metadata: Any) -> Task:
    return Task("t", "What is the word for hat?", ("acorn",), "".join(SENTENCES), metadata)


async def tell(tokenizer: Any, answers: Sequence[str], task: Task | None = None, **options: Any) -> Trajectory:
    """Run a rollout whose turns say `answers`, all of which must be asked for."""
    policy = script_policy(tokenizer, answers, last=False)
    method = make_method(tokenizer, SENTENCES, **options)
    trajectory = await method.rollout(task or make_task(), Roles({"policy": policy}), Sampling(seed=3))
    assert len(policy.calls) == len(answers)
    return trajectory


def read_slots(tokenizer: Any, trajectory: Trajectory, slot: str) -> list[str]:
    """Return what stands in a slot of each prompt."""
    texts = [tokenizer.decode(turn.prompt_ids) for turn in trajectory.turns]
    return [found[0] for found in (re.findall(f"<{slot}>(.*?)</{slot}>", text, re.DOTALL) for text in texts) if found]


ON = {"gate_update": True, "gate_exit": True, "recall": True}


@pytest.mark.parametrize(
    ("written", "options", "memory", "kept", "query", "stops"),
    [
        (" hat is red", ON, " hat is red", False, "", False),
        (KEEP, ON, "old", True, "", False),
        (f" {KEEP}\n{STOP}", ON, "old", True, "", True),
        (f" hat is red\n{STOP}", ON, " hat is red", False, "", True),
        (f" hat is red {STOP} ", ON, " hat is red", False, "", True),
        (STOP, ON, "old", True, "", True),
        (f" hat\n{RECALL} the hat", ON, " hat", False, "the hat", False),
        (f" hat\n{RECALL} the hat\n{STOP}", ON, " hat", False, "the hat", True),
        (f"{KEEP} {RECALL} hat", ON, "old", True, "hat", False),
        (f"{RECALL} hat", ON, "old", True, "hat", False),
        (f" hat\n{RECALL}", ON, " hat", False, "", False),
        (f"a {RECALL} of hats", ON, f"a {RECALL} of hats", False, "", False),
        (f"a {RECALL} of hats\n{RECALL} x {RECALL} y", ON, f"a {RECALL} of hats", False, f"x {RECALL} y", False),
        (f"{KEEP}{RECALL} x", ON, f"{KEEP}{RECALL} x", False, "", False),
        (f"{KEEP}.\n**{STOP}**", ON, "old", True, "", True),
        (f"{KEEP}。\n{STOP}。", ON, "old", True, "", True),
        (f"**{KEEP}.** {RECALL} hat", ON, "old", True, "hat", False),
        (f"- {RECALL} hat", ON, "old", True, "hat", False),
        (f"<think>which?</think>\n{RECALL} hat", ON, "old", True, "hat", False),
        (f"<think>{KEEP}?</think>\n`{KEEP}`", ON, "old", True, "", False),
        (f" {STOP} the hat", ON, f" {STOP} the hat", False, "", False),
        (f" hat{STOP}", ON, f" hat{STOP}", False, "", False),
        (f" hat\n{RECALL} x {RECALL}S", ON, " hat", False, f"x {RECALL}S", False),
        (f" hat\n{RECALL} x NO{RECALL} y", ON, " hat", False, f"x NO{RECALL} y", False),
        (f" {RECALL}S hat", ON, f" {RECALL}S hat", False, "", False),
        (f" hat\n{STOP}", {"gate_update": True}, f" hat\n{STOP}", False, "", False),
        (f" hat\n{RECALL} x", {"gate_exit": True}, f" hat\n{RECALL} x", False, "", False),
        (KEEP, {}, KEEP, False, "", False),
        (KEEP, {"recall": True, "gate_exit": True}, KEEP, False, "", False),
        ("", {"recall": True, "gate_exit": True}, "", False, "", False),
    ],
)
def test_the_words_of_the_options_count_where_they_are_on(
    tokenizer: Any, written: str, options: dict[str, bool], memory: str, kept: bool, query: str, stops: bool
) -> None:
    config, old = MemAgentSection(**options), encode_text(tokenizer, "old")
    note = read_note(encode_text(tokenizer, written), old, config, tokenizer.decode)
    assert (tokenizer.decode(note.memory), note.kept, note.query, note.stops) == (memory, kept, query, stops)


def test_the_memory_keeps_the_ids_that_were_sampled(tokenizer: Any) -> None:
    """Also where its text would be encoded otherwise; the white space before a word goes with the word."""
    apart = tuple(i for letter in "special" for i in encode_text(tokenizer, letter))
    assert apart != encode_text(tokenizer, "special")
    for end in (f"\n{STOP}", f"\n {RECALL} hat", f"\n{RECALL} hat \n{STOP}\n"):
        note = read_note((*apart, *encode_text(tokenizer, end)), (), MemAgentSection(**ON), tokenizer.decode)
        assert note.memory == apart


@pytest.mark.parametrize("tags", [(), ("<think>", "</think>")])
async def test_a_thought_is_no_memory_also_where_its_tags_are_special_tokens(
    tokenizer: Any, tags: Sequence[str]
) -> None:
    own = copy.deepcopy(tokenizer)
    own.add_tokens([AddedToken(tag, special=False) for tag in tags])
    notes = [f"<think>{KEEP}?</think>red", f"<think>blue?</think>\n{KEEP}", "<think>x</think>", "<think>y", " acorn"]
    story = await tell(own, [*notes, "\\boxed{acorn}"], gate_update=True)
    assert [text.strip() for text in read_slots(own, story, "memory")] == [EMPTY_MEMORY, *["red"] * 4, "acorn"]
    assert story.metrics["kept"] == 1 / 5


async def test_stop_ends_the_reading_and_the_answer_comes_from_that_memory(tokenizer: Any) -> None:
    story = await tell(tokenizer, [" red", f" acorn\n{STOP}", "\\boxed{acorn}"], gate_exit=True)
    assert [turn.role for turn in story.turns] == ["update", "update", "final"]
    assert read_slots(tokenizer, story, "memory") == [EMPTY_MEMORY, " red", " acorn"]
    assert (story.reward, story.metrics["stopped"], story.metrics["turns"]) == (1.0, 1.0, 3)
    assert STOP in tokenizer.decode(story.turns[1].completion.token_ids)  # it is trained


@pytest.mark.parametrize(("read", "reward"), [(1, -0.75), (2, -0.75), (3, 0.0), (4, -0.5), (5, -0.5)])
async def test_what_the_end_of_the_reading_earns_is_added_to_the_reward(
    tokenizer: Any, read: int, reward: float
) -> None:
    notes = [" x"] * (read - 1) + ([f" x\n{STOP}"] if read < len(SENTENCES) else [" x"])
    for answer, right in (("acorn", 1.0), ("hat", 0.0)):
        story = await tell(tokenizer, [*notes, f"\\boxed{{{answer}}}"], gate_exit=True, gate_rewards=True)
        assert story.reward == right + reward
        assert (story.metrics["exit_reward"], story.metrics["official"]) == (reward, right)
        assert all(turn.reward is None for turn in story.turns)  # only gate_update rewards turns


async def test_updates_earn_by_whether_they_keep_what_they_should(tokenizer: Any) -> None:
    written = [KEEP, " red", " acorn", KEEP, f" acorn\n{STOP}"]
    story = await tell(tokenizer, [*written, "\\boxed{acorn}"], **GATES)
    assert [turn.reward for turn in story.turns] == [1.0, -1.0, 1.0, 1.0, -1.0, None]
    assert story.metrics["kept"] == 2 / 5
    assert [reward_update(kept, evidence) for kept in (True, False) for evidence in (True, False)] == [-1, 1, 1, -1]


def test_evidence_is_what_is_asked_for() -> None:
    needles = [{"value": "The hat is red"}, {"value": "blue", "queried": False}]  # HotpotQA's are all asked for
    assert find_evidence(make_task(needles=needles), SENTENCES) == [True, False, False, False, False]
    assert find_evidence(make_task(), SENTENCES) == [False, False, True, False, False]
    assert find_evidence(Task("t", "?", ("yes",), "yes"), ["yes", "no"]) == []
    assert reward_exit(2, [True, True, False]) == 0.0


async def test_without_evidence_neither_gate_earns_anything(tokenizer: Any) -> None:
    task = Task("t", "Is it?", ("yes",), "".join(SENTENCES))
    story = await tell(tokenizer, [KEEP, f" x\n{STOP}", "\\boxed{yes}"], task, **GATES)
    assert story.reward == 1.0
    assert [turn.reward for turn in story.turns] == [None] * 3


async def test_an_earlier_memory_comes_back_in_the_next_prompt_alone(tokenizer: Any) -> None:
    written = [" hat is red", " sky is blue", f" nothing\n{RECALL} hat", " go", f" there\n{RECALL} the sky"]
    story = await tell(tokenizer, [*written, "\\boxed{acorn}"], recall=True)
    assert read_slots(tokenizer, story, "recalled") == ["", "", "", " hat is red", "", " sky is blue"]
    assert read_slots(tokenizer, story, "memory")[3:] == [" nothing", " go", " there"]
    assert story.metrics["recalls"] == 2 / 5


@pytest.mark.parametrize(
    ("query", "shown", "found"),
    [
        ("hat", "x", " the hat"),  # two words are closer to one than three are
        ("hat is red", "x", " hat is red"),
        ("Hat, red!", "x", " hat is red"),
        ("hat", " the hat", " a hat"),  # the prompt shows it anyway; of equals the latest
        ("coat", "x", ""),
        ("?", "x", ""),
    ],
)
def test_the_memory_that_shares_most_words_is_found(tokenizer: Any, query: str, shown: str, found: str) -> None:
    earlier = [encode_text(tokenizer, text) for text in (" my hat", " hat is red", " a hat", "", " the hat")]
    assert tokenizer.decode(find_memory(query, earlier, encode_text(tokenizer, shown), tokenizer)) == found


@pytest.mark.parametrize(
    ("prompt", "old", "new", "found", "reward"),
    [
        ("red", "", "the red oak", "", 1.0),
        ("red", "oak", "the red oak", "", 0.5),
        ("red", "red oak", "", "", -1.0),
        ("red", "", "", "red oak", 0.5),  # the prompt has shown `red`
        ("red oak", "red oak", "", "red oak", -1.0),
        ("", "", "oaks reddish", "", 0.0),  # whole words count
    ],
)
def test_an_update_earns_the_answers_words_that_it_adds(
    prompt: str, old: str, new: str, found: str, reward: float
) -> None:
    assert reward_recall(("Red Oak",), prompt, old, new, found) == reward
    assert reward_recall(("Red Oak", "!"), prompt, old, new, found) == reward
    assert reward_recall((), prompt, old, new, found) == 0.0


def test_of_an_answer_count_the_words_that_not_any_text_may_hold() -> None:
    assert reward_recall(("The Red of Oak", "no"), "", "", "No, the sky of the red", "") == 0.5
    assert reward_recall(("李娜",), "", "", "他的妻子是李娜。", "") == 1.0


async def test_recalling_is_rewarded_turn_by_turn(tokenizer: Any) -> None:
    written = [" x", " y", " acorn", " lost", f" z\n{RECALL} acorn"]
    story = await tell(tokenizer, [*written, "\\boxed{acorn}"], **RECALLS)
    assert [turn.reward for turn in story.turns] == [0.0, 0.0, 1.0, -1.0, 1.0, None]


@pytest.mark.parametrize("order", ["official", "prefix_friendly"])
@pytest.mark.parametrize("style", ["official", "compact"])
def test_prompts_offer_what_is_on(style: Style, order: Order) -> None:
    plain = update_message(style, order, gate=False)
    assert not [word for word in (KEEP, RECALL, STOP, "recalled") if word in plain + final_message(style, "boxed")]
    whole = update_message(style, order, gate=True, recall=True, leave=True)
    assert [word in whole for word in (KEEP, RECALL, STOP)] == [style == "official"] * 3
    for message in (whole, final_message(style, "boxed", recall=True)):
        assert message.index("{recalled}") < message.index("{memory}")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["memagent.gate_rewards=true"], "gate_rewards needs a gate"),
        (["memagent.recall_reward=true"], "recall_reward needs recall=true"),
        (["memagent.recall=true", "memagent.recall_reward=true"], r"adv_estimator=grpo does not read"),
        (["memagent.gate_update=true", "memagent.gate_rewards=true"], r"adv_estimator=grpo does not read"),
        (["memagent.gate_exit=true", "memagent.gate_rewards=true", "reward=os.path:join"], "leave one out"),
        (["memagent.information_reward=0.2", "reward=os.path:join"], "leave one out"),
        (["memagent.information_reward=1"], "below wrong ones; set it below 1,"),
        (["memagent={gate_exit: true, gate_rewards: true, information_reward: 0.25}"], "below 0.25"),
        (["warm_start.steps=0", "warm_start.copy_steps=0", "warm_start.lookup_steps=0"], "warm_start: null"),
    ],
)
def test_a_recipe_with_what_nothing_reads_or_shows_is_refused(overrides: list[str], named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        SPEC.load("tiny", overrides)


def draw_options(count: int = 2000, **options: bool) -> list[tuple[MemoryDemonstration, MemoryDemonstration]]:
    rng, config = Random(0), SPEC.load("tiny").memagent.model_copy(update=options)
    plain = [draw_demonstration(rng, (0, 40)) for _ in range(count)]
    return [(turn, show_options(rng, turn, config)) for turn in plain]


def test_demonstrations_show_the_options_by_chance() -> None:
    """STOP and RECALL as often behind a fact as behind nothing, KEEP for a note that repeats the memory."""
    assert all(plain == shown for plain, shown in draw_options(200))
    pairs = [pair for pair in draw_options(**ON) if pair[0].section is not None]
    for word in (STOP, RECALL):
        for unknown in (True, False):
            of_kind = [shown for plain, shown in pairs if ("unknown" in plain.completion) == unknown]
            share = sum(word in shown.completion for shown in of_kind) / len(of_kind)
            assert share == pytest.approx(USES, abs=0.035), (word, unknown)
    kept = [plain for plain, shown in pairs if shown.completion.startswith(KEEP)]
    assert len(kept) > 100
    assert all(plain.completion == plain.memory for plain in kept)
    for plain, shown in pairs:
        assert shown.recalled in ("", f" {plain.key} is: unknown") or f" {plain.key} " not in shown.recalled
        query = shown.completion.partition(RECALL)[2].split()
        assert query[:1] in ([], [plain.key])


async def test_a_demonstration_with_recall_is_encoded_as_the_rollout_asks_it(tokenizer: Any) -> None:
    config = SPEC.load("tiny").memagent.model_copy(update={"recall": True, "gate_exit": True})
    method = MemAgent(config, tokenizer)
    turn = MemoryDemonstration("What?", " One.", EMPTY_MEMORY, f" a is: b\n{RECALL} a", "a")
    policy = script_policy(tokenizer, [" a is: c", turn.completion, "\\boxed{b}"], last=False)
    sentence = " Here we go on and on." * 12
    task = Task("t", turn.question, ("b",), sentence + sentence)
    assert len(method.sections(task)[0]) == 2
    await method.rollout(task, Roles({"policy": policy}), Sampling())
    final = MemoryDemonstration(turn.question, None, " a is: b", "", recalled=" a is: c")
    assert policy.calls[2].prompt_ids == encode(final, method)[0]
