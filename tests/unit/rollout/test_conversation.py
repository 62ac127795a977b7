"""A conversation's branches and compactions train every sampled token once, in the context in which it was sampled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.policy.base import PolicyError
from core.policy.scripted import ScriptedPolicy
from core.rollout.conversation import Conversation
from core.rollout.rows import rows_from_groups
from core.rollout.turns import Turns
from core.text.conversation import Renderer
from core.types import Row, Sampling, Trajectory, Turn
from tests.kit import CHAT_TEMPLATE, save_model, train_tokenizer

Context = tuple[int, ...]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    words = "user assistant tool system hello Summary of the conversation so far"
    return Renderer(train_tokenizer(words, 320, special=["<tag>"], added=["</think>"]))


def make_random_policy(renderer: Renderer, seed: int = 0) -> ScriptedPolicy:
    """A policy that samples any tokens, special ones too; half of its completions end with the end token."""
    rng, size, end = Random(seed), len(renderer.tokenizer), renderer.tokenizer.eos_token_id

    def respond(prompt: Context, sampling: Sampling) -> list[int]:
        ids = [i for i in rng.choices(range(size), k=rng.randint(1, 4)) if i != end] or [5]
        return [*ids, end] if rng.random() < 0.5 else ids

    return ScriptedPolicy(respond, logprob=-0.5)


def open_chat(renderer: Renderer, policy: Any, seed: int | None = 3) -> Conversation:
    sampling = Sampling(stop_token_ids=(renderer.tokenizer.eos_token_id,), seed=seed)
    return Conversation(policy, renderer, Turns(sampling), [renderer.message("user", "hello")])


def make_rows(turns: Sequence[Turn]) -> list[Row]:
    """The rows of a rollout that is the second of its group, and got the reward."""
    group = [Trajectory("t", (), reward=0.0), Trajectory("t", tuple(turns), reward=1.0)]
    return rows_from_groups([group], std_normalization=False, split_advantage=False, rows="segment")


def sampled_contexts(turns: Sequence[Turn]) -> Counter[Context]:
    """Each token of the trained turns, with all that stood before it."""
    return Counter(
        (*turn.prompt_ids, *turn.completion.token_ids[: place + 1])
        for turn in turns
        if turn.trained
        for place in range(len(turn.completion.token_ids))
    )


def trained_contexts(rows: Sequence[Row]) -> Counter[Context]:
    return Counter(
        row.tokens[: len(row.tokens) - len(row.loss_mask) + place + 1]
        for row in rows
        for place, mask in enumerate(row.loss_mask)
        if mask
    )


OPERATIONS = st.lists(
    st.tuples(
        st.integers(0, 5),  # which of the open conversations; those that were opened last come first
        st.sampled_from(["ask", "ask", "ask", "add", "branch", "branch afresh", "compact"]),
        st.booleans(),
    ),
    max_size=24,
)


async def play(renderer: Renderer, operations: Sequence[tuple[int, str, bool]]) -> Sequence[Turn]:
    """Run a program of operations on a tree of conversations that begins with one."""
    chats = [open_chat(renderer, make_random_policy(renderer))]
    for place, operation, trained in operations:
        chat = chats[::-1][place % len(chats)]
        match operation:
            case "ask":
                await chat.ask("act", 5, trained)
            case "add":
                chat.messages.append(renderer.message("tool", "hello"))
            case "branch":
                chats.append(chat.branch())
            case "branch afresh":
                chats.append(chat.branch([renderer.message("system", "hello")]))
            case _:
                await chat.compact(renderer.message("user", "so far"), 5, trained=trained)
    return chats[0].turns.recorded


@settings(max_examples=150)
@given(operations=OPERATIONS)
def test_every_sampled_token_of_a_tree_is_trained_once_in_its_own_context(renderer, operations):
    turns = asyncio.run(play(renderer, operations))
    asked = sum(operation in ("ask", "compact") for _, operation, _ in operations)
    assert len(turns) == asked
    rows = make_rows(turns)
    assert trained_contexts(rows) == sampled_contexts(turns)
    assert {(row.rollout_id, row.advantage) for row in rows} <= {(1, 0.5)}


async def test_after_a_compaction_only_the_kept_messages_and_the_sampled_summary_remain(renderer):
    tokenizer = renderer.tokenizer
    ids = (5, tokenizer.convert_tokens_to_ids("<tag>"), 7, tokenizer.eos_token_id)
    policy = ScriptedPolicy(lambda prompt, sampling: ids)
    chat = open_chat(renderer, policy)
    for _ in range(3):
        await chat.ask("act", 5)
        chat.messages.append(renderer.message("tool", "so far"))
    request = renderer.message("user", "so")
    before = list(chat.messages)
    await chat.compact(request, 5, heading="Summary")
    assert policy.calls[-1].prompt_ids == renderer.render([*before, request])
    summary = chat.turns.recorded[-1]
    assert (summary.role, summary.trained, summary.completion.token_ids) == ("summary", True, ids)
    await chat.ask("act", 5)
    rest = [renderer.message("user", "hello"), renderer.message("user", "Summary", (5, 7))]
    assert policy.calls[-1].prompt_ids == renderer.render(rest)
    assert chat.count_tokens() == len(renderer.render(chat.messages))
    await chat.compact(request, 5, trained=False)
    assert chat.messages[:1] == rest[:1]
    assert [turn.trained for turn in chat.turns.recorded] == [True] * 5 + [False]


async def test_log_probs_of_every_row_are_those_of_one_forward(renderer, tmp_path):
    """With the real engine: sub-agents within sub-agents that run at the same time, and three compactions."""
    folder = save_model(tmp_path, 0, vocab_size=len(renderer.tokenizer))
    policy = EmbeddedPolicy(Engine.from_pretrained(folder, device="cpu", max_model_len=256, kv_tokens=1024))
    chat = open_chat(renderer, policy)

    async def work(helper: Conversation, depth: int) -> None:
        await helper.ask("subagent", 5)
        if depth:
            await asyncio.gather(work(helper.branch(), depth - 1), work(helper.branch(), depth - 1))
        helper.messages.append(renderer.message("tool", "hello"))
        await helper.ask("subagent", 5)

    for _ in range(3):
        await chat.ask("act", 5)
        await work(chat.branch([renderer.message("system", "hello")]), 1)
        await chat.compact(renderer.message("user", "so far"), 5)
    await chat.ask("final", 5)
    await policy.close()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = make_rows(chat.turns.recorded)
    assert trained_contexts(rows) == sampled_contexts(chat.turns.recorded)
    for row in rows:
        tokens = torch.tensor([row.tokens])
        with torch.no_grad():
            scores = model(tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        mask = torch.tensor(row.loss_mask, dtype=torch.bool)
        recorded = torch.tensor(row.logprobs)[mask]
        torch.testing.assert_close(scores[-len(mask) :][mask], recorded, atol=1e-5, rtol=0)


async def test_a_branch_and_its_parent_go_on_without_each_other(renderer):
    chat = open_chat(renderer, make_random_policy(renderer))
    await chat.ask("act", 5)
    held = list(chat.messages)
    branch = chat.branch()
    await branch.ask("subagent", 5)
    assert chat.messages == held
    await chat.compact(renderer.message("user", "so far"), 5)
    assert branch.messages[:2] == held
    assert len(branch.messages) == 3
    assert [turn.role for turn in chat.turns.recorded] == ["act", "subagent", "summary"]


async def test_a_branch_samples_the_same_whenever_it_asks(renderer):
    """Each call has a seed of its own, which other branches do not change."""
    seeds = []
    for order in ("abab", "bbaa"):
        policy = make_random_policy(renderer)
        chat = open_chat(renderer, policy)
        branches = {"a": chat.branch(), "b": chat.branch()}
        deeper = branches["a"].branch()
        called = []
        for name in order:
            await branches[name].ask("subagent", 5)
            called.append((name, policy.calls[-1].sampling.seed))
        for other in (chat, deeper):
            await other.ask("act", 5)
            called.append(("", policy.calls[-1].sampling.seed))
        seeds.append(sorted(called, key=lambda pair: pair[0]))
    assert seeds[0] == seeds[1]
    assert len({seed for _, seed in seeds[0]}) == 6


@pytest.mark.parametrize("opening", ["<think>\n", "<think>\n\n</think>\n\n"])
async def test_what_a_prompt_opened_stays_in_the_conversation_and_out_of_quotes(opening):
    header = "{% if add_generation_prompt %}<|im_start|>assistant\n"
    template = CHAT_TEMPLATE.replace(header, header + opening)
    renderer = Renderer(train_tokenizer("user assistant hello", 320, added=["<think>", "</think>"], template=template))
    reply = "so</think>Done </think>." if opening == "<think>\n" else "Done </think>."
    ids = tuple(renderer.tokenizer.encode(reply, add_special_tokens=False))
    chat = open_chat(renderer, ScriptedPolicy(lambda prompt, sampling: ids, logprob=-0.5))
    await chat.ask("act", 20)
    assert renderer.tokenizer.decode(renderer.quote(chat.messages[-1].ids)) == "Done ."  # a quote has no special tokens
    chat.messages.append(renderer.message("user", "go on"))
    await chat.ask("act", 20)
    first, second = chat.turns.recorded
    assert second.prompt_ids[: len(first.prompt_ids) + len(ids)] == first.prompt_ids + ids


async def test_a_failed_call_leaves_the_conversation_as_it_was(renderer):
    chat = open_chat(renderer, ScriptedPolicy(lambda prompt, sampling: PolicyError("engine", "down")))
    before = list(chat.messages)
    for call in (chat.ask("act", 5), chat.compact(renderer.message("user", "so far"), 5)):
        with pytest.raises(PolicyError, match="down"):
            await call
    assert chat.messages == before
    assert chat.turns.recorded == []


def test_a_quote_has_neither_thoughts_nor_special_tokens(renderer):
    vocabulary = renderer.tokenizer.get_added_vocab()
    thought, tag, end = vocabulary["</think>"], vocabulary["<tag>"], vocabulary["<|im_end|>"]
    opened = renderer.tokenizer.encode("<think>", add_special_tokens=False)
    assert renderer.quote((*opened, 9, thought, 5, tag, 7, end)) == (5, 7)
    assert renderer.quote((5, 7)) == (5, 7)
    assert renderer.quote((*opened, 9, 8)) == (*opened, 9, 8)


def test_a_quote_keeps_a_tag_that_closes_nothing(renderer):
    said = renderer.message("assistant", "The tag </think> ends a thought.").ids
    assert renderer.tokenizer.decode(renderer.quote(said)) == "The tag </think> ends a thought."
