"""All of agentic RL in one file: a small model learns to use a tool over several turns, from a reward alone.

    .venv/bin/python -m examples.grpo_in_one_file --seed 0

"where hat of boss of ada" takes two calls of a tool and an answer: `look ada boss` (the tool says `ivo`), then
`look ivo hat` (it says `cellar`), then `answer cellar`. Every task has a world of its own, so nothing can be learned by
heart. The cold start shows random legal moves: how to write a call, not which call to make. GRPO finds that out.

Held-out tasks solved, seeds 0, 1, 2: 27.0, 34.0, 35.2 % before GRPO and 99.6, 100.0, 100.0 % after, in 52 to 55 s of
CPU time on one core. The reward passes 0.9 after 20 to 30 of 60 steps. Only this plan is learned: questions with no
relation and with two, never trained, stay at 4 to 28 % and 13 to 15 %.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from core.algorithms.advantages import group_advantages
from core.algorithms.losses import clipped_policy_loss
from core.engine import start_model, weights
from core.engine.engine import Engine
from core.engine.model import CausalLM
from core.engine.packing import pack_rows
from core.types import Row, Sampling

PEOPLE = "ada ben cleo dan eva finn gus hana ivo jana kai lea max nora otis pia".split()
RELATIONS = "boss friend".split()
THINGS = "bag coat cup hat key lamp".split()
PLACES = "attic barn cellar dock farm garden hall kitchen library market office park roof shed tower yard".split()
WORDS = [*PEOPLE, *RELATIONS, *THINGS, *PLACES, "where", "of", "look", "answer", "nothing"]
MAX_TURNS = 5


@dataclass
class Conversation:
    """Keeps one rollout as token ids, with a mask (1: sampled) and a log-prob for each token after the question."""

    question: list[str]
    facts: dict[tuple[str, str], str]  # what the tool knows: (person, relation or thing) -> person or place
    answer: str
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reward: float | None = None  # None while the conversation goes on

    def add(self, ids: list[int], sampled: int, logprobs: list[float] | None = None) -> None:
        self.tokens += ids
        self.mask += [sampled] * len(ids)
        self.logprobs += logprobs or [0.0] * len(ids)

    def make_row(self, advantage: float, rollout_id: int) -> Row:
        return Row(tuple(self.tokens), tuple(self.mask), tuple(self.logprobs), advantage, rollout_id)


class Game:
    """Draws tasks, is the tool, and gives the reward. The full version: agentic/<method>/rollout.py."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def encode(self, words: list[str]) -> list[int]:
        return [*self.tokenizer.encode(" " + " ".join(words)), self.tokenizer.eos_token_id]

    def start(self, rng: random.Random, held_out: bool, relations: int = 1) -> Conversation:
        """Draw a world and a question. A fifth of all (person, thing) pairs is asked in held-out tasks only."""
        facts = {(person, relation): rng.choice(PEOPLE) for person in PEOPLE for relation in RELATIONS}
        facts |= {(person, thing): rng.choice(PLACES) for person in PEOPLE for thing in THINGS}
        pairs = [(p, t) for i, p in enumerate(PEOPLE) for j, t in enumerate(THINGS) if ((i + j) % 5 == 0) == held_out]
        person, thing = rng.choice(pairs)
        owner, question = person, ["of", person]
        for relation in rng.choices(RELATIONS, k=relations):
            owner, question = facts[owner, relation], ["of", relation, *question]
        question = ["where", thing, *question]
        return Conversation(question, facts, facts[owner, thing], self.encode(question))

    def act(self, conversation: Conversation, words: list[str], last: bool) -> None:
        """Reply to `look PERSON WORD`. Any other action ends the conversation, with reward 1 for the right answer."""
        if len(words) == 3 and words[0] == "look" and not last:
            conversation.add(self.encode([conversation.facts.get((words[1], words[2]), "nothing")]), sampled=0)
        else:
            conversation.reward = float(words == ["answer", conversation.answer])

    def play_at_random(self, rng: random.Random) -> Row:
        """Write a demonstration of random legal moves: new calls on known people, until some place is the answer."""
        conversation = self.start(rng, held_out=False)
        people, calls, reply = [conversation.question[-1]], [], ""
        words = [word for word in conversation.question if word in RELATIONS or word in THINGS]
        while conversation.reward is None:
            legal = [call for person in people for word in words if (call := ["look", person, word]) not in calls]
            last = not legal or len(calls) == MAX_TURNS - 1 or (reply in PLACES and rng.random() < 0.7)
            guess = reply if reply in PLACES or not last else rng.choice(PLACES)
            calls.append(["answer", guess] if last else rng.choice(legal))
            conversation.add(self.encode(calls[-1]), sampled=1)
            self.act(conversation, calls[-1], last)
            reply = "" if last else conversation.facts[calls[-1][1], calls[-1][2]]
            people += [reply] if reply in PEOPLE and reply not in people else []
        return conversation.make_row(advantage=1.0, rollout_id=0)

    def roll_out(self, engine: Engine, conversations: list[Conversation], rng: random.Random) -> list[float]:
        """Play all to their end, turn by turn; return the rewards. core/rollout/runner.py waits for no slow one."""
        for turn in range(MAX_TURNS):
            going = [c for c in conversations if c.reward is None]
            requests = [engine.submit(c.tokens, Sampling(max_new_tokens=6, seed=rng.getrandbits(62))) for c in going]
            while engine.has_work():
                engine.step()  # one forward of the whole batch (core/engine/scheduler.py)
            for conversation, request in zip(going, requests, strict=True):
                sampled = request.completion
                assert sampled is not None
                conversation.add(list(sampled.token_ids), 1, list(sampled.logprobs))
                words = self.tokenizer.decode(sampled.token_ids, skip_special_tokens=True).split()
                self.act(conversation, words, last=turn == MAX_TURNS - 1 or sampled.finish_reason == "length")
        return [c.reward or 0.0 for c in conversations]


def take_step(model: CausalLM, optimizer: torch.optim.Optimizer, rows: list[Row], lr: float) -> None:
    """Step on the policy loss; with every advantage 1 that is supervised learning (core/engine/trainer.py)."""
    for pack in pack_rows(rows, 16384, model.device):  # rows end to end without padding
        # R: the sampled tokens, each predicted at the token before it; C: width of the model; V: vocabulary.
        logits_RV = model.logits(model(pack.ids_T, pack.positions_T, pack.attend, pack.predict_R))
        logprobs_R = torch.log_softmax(logits_RV, dim=-1).gather(1, pack.targets_R[:, None]).squeeze(1)
        advantages_R = pack.spread([row.advantage for row in rows])
        loss_R, _ = (
            clipped_policy_loss(  # one step on each batch: the old policy is the present one, nothing is clipped
                logprobs_R,
                logprobs_R.detach(),
                advantages_R,
                clip_ratio_low=0.2,
                clip_ratio_high=0.2,
                clip_ratio_c=None,
            )
        )
        (loss_R.sum() / sum(row.trained_tokens for row in rows)).backward()  # every token weighs the same (DAPO)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.param_groups[0]["lr"] = lr
    optimizer.step()
    optimizer.zero_grad()


def main(seed: int = 0, cold_steps: int = 60, steps: int = 60, groups: int = 16, size: int = 16) -> tuple[float, float]:
    """Run everything; return the share of held-out tasks solved before and after GRPO."""
    torch.set_num_threads(1)
    rng = random.Random(seed)
    # A tokenizer of our words and an untrained Qwen2 of 0.6M parameters.
    tokenizer = start_model.train_tokenizer([" " + " ".join(WORDS)] * 20, words=WORDS, tags=(), vocab_size=512)
    with tempfile.TemporaryDirectory() as folder:
        model = weights.load(start_model.build(Path(folder), tokenizer, seed), device="cpu")
    game, optimizer = Game(tokenizer), torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(cold_steps):  # core/engine/warm_start.py
        rate = 2e-3 * min(1, (step + 1) / 20) * (1 - step / cold_steps)
        take_step(model, optimizer, [game.play_at_random(rng) for _ in range(32)], rate)
    # The engine samples from the very weights that are trained.
    engine = Engine(model, eos_token_ids=[tokenizer.eos_token_id], max_model_len=64, kv_tokens=64 * groups * size)

    def evaluate(relations: int = 1) -> float:
        engine.adopt_weights("evaluation")
        test_rng = random.Random(-1)  # the same tasks each time
        tasks = [game.start(test_rng, held_out=True, relations=relations) for _ in range(groups * size)]
        return sum(game.roll_out(engine, tasks, test_rng)) / len(tasks)

    before = evaluate()
    for step in range(steps):  # core/engine/loop.py
        engine.adopt_weights(str(step))  # forget the keys and values of the old weights
        group_seeds = [rng.getrandbits(62) for _ in range(groups)]
        batch = [game.start(random.Random(s), held_out=False) for s in group_seeds for _ in range(size)]
        rewards = game.roll_out(engine, batch, rng)
        rows = []
        for first in range(0, len(batch), size):  # a group: `size` rollouts of one task
            advantages = group_advantages(rewards[first : first + size], std_normalization=True)
            # Where all rewards of a group are equal its advantages are 0, and there is nothing to learn from.
            rows += [batch[first + i].make_row(a, first + i) for i, a in enumerate(advantages) if a]
        if rows:
            take_step(model, optimizer, rows, lr=3e-4)
        if step % 5 == 0 or step == steps - 1:
            reward = sum(rewards) / len(rewards)
            print(f"step {step:3}  reward {reward:.3f}  {'#' * round(40 * reward)}", flush=True)
    after = evaluate()
    print(f"held-out tasks solved: {before:.1%} before GRPO, {after:.1%} after")
    print(f"questions with no relation and with two, never trained: {evaluate(0):.1%}, {evaluate(2):.1%}")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args().seed)
