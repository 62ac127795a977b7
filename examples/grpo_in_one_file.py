"""All of agentic RL in one file: a small model learns to use a tool over several turns, from a reward alone.

    .venv/bin/python examples/grpo_in_one_file.py [--seed 0]

The task: "where is the hat of the boss of ada" needs two calls of a tool and then an answer: ` look ada boss`, to which
the tool replies ` ivo`, then ` look ivo hat`, to which it replies ` cellar`, then ` answer cellar`. Every task has a
world of its own, so nothing can be learned by heart. The cold start shows random legal moves only, never a plan: it
teaches how to write a call, not which one to make. Which one to make is found by GRPO.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Task:
    """A question, the facts that the tool knows, and the answer."""

    question: list[str]
    facts: dict[tuple[str, str], str]
    answer: str


def draw_task(rng: random.Random, held_out: bool, relations: int = 1) -> Task:
    """Draw a world and a question about it. A fifth of all (person, thing) pairs is asked in held-out tasks alone."""
    facts = {(person, relation): rng.choice(PEOPLE) for person in PEOPLE for relation in RELATIONS}
    facts |= {(person, thing): rng.choice(PLACES) for person in PEOPLE for thing in THINGS}
    pairs = [(p, t) for i, p in enumerate(PEOPLE) for j, t in enumerate(THINGS) if ((i + j) % 5 == 0) == held_out]
    person, thing = rng.choice(pairs)
    chain = rng.choices(RELATIONS, k=relations)
    owner = person
    for relation in chain:
        owner = facts[owner, relation]
    question = ["where", thing, *(word for relation in reversed(chain) for word in ("of", relation)), "of", person]
    return Task(question, facts, facts[owner, thing])


class Conversation:
    """Keeps one rollout as token ids. What the policy sampled has mask 1; question and tool replies have mask 0."""

    def __init__(self, task: Task, prompt: list[int]):
        self.task = task
        self.tokens = prompt
        self.mask: list[int] = []  # one entry for each token after the prompt
        self.logprobs: list[float] = []
        self.reward: float | None = None  # None while the conversation goes on

    def add(self, ids: list[int], sampled: int, logprobs: list[float] | None = None) -> None:
        self.tokens = [*self.tokens, *ids]
        self.mask += [sampled] * len(ids)
        self.logprobs += logprobs or [0.0] * len(ids)

    def row(self, advantage: float, rollout_id: int) -> Row:
        """Return the training row: these very ids. Nothing is decoded and encoded again (core/rollout/rows.py)."""
        return Row(tuple(self.tokens), tuple(self.mask), tuple(self.logprobs), advantage, rollout_id)


class Game:
    """The environment and the tokenizer: what an action in words does to a conversation."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.end = tokenizer.eos_token_id  # ends an action and a reply

    def encode(self, words: list[str]) -> list[int]:
        return [*self.tokenizer.encode(" " + " ".join(words)), self.end]

    def start(self, task: Task) -> Conversation:
        return Conversation(task, self.encode(task.question))

    def act(self, conversation: Conversation, words: list[str], last_turn: bool) -> None:
        """Reply to `look PERSON WORD`. Anything else ends the conversation, with reward 1 for the right answer."""
        task = conversation.task
        if len(words) == 3 and words[0] == "look" and not last_turn:
            conversation.add(self.encode([task.facts.get((words[1], words[2]), "nothing")]), sampled=0)
        else:
            conversation.reward = float(words == ["answer", task.answer])

    def play_at_random(self, rng: random.Random, task: Task) -> Row:
        """Write one demonstration of random legal moves: new calls on known people, until some place is the answer."""
        conversation, people, calls, reply = self.start(task), [task.question[-1]], [], ""
        words = [word for word in task.question if word in RELATIONS or word in THINGS]
        for turn in range(MAX_TURNS):
            legal = [call for person in people for word in words if (call := ["look", person, word]) not in calls]
            stop = not legal or turn == MAX_TURNS - 1 or (reply in PLACES and rng.random() < 0.7)
            action = ["answer", rng.choice(PLACES) if reply not in PLACES else reply] if stop else rng.choice(legal)
            conversation.add(self.encode(action), sampled=1)
            self.act(conversation, action, last_turn=bool(stop))
            if stop:
                break
            calls.append(action)
            reply = task.facts[action[1], action[2]]
            people += [reply] if reply in PEOPLE and reply not in people else []
        return conversation.row(advantage=1.0, rollout_id=0)


def make_start_model(seed: int) -> tuple[CausalLM, Any]:
    """Make a tokenizer for our words and an untrained Qwen2 of 0.6M parameters (core/engine/start_model.py)."""
    tokenizer = start_model.train_tokenizer([" " + " ".join(WORDS)] * 20, words=WORDS, tags=(), vocab_size=512)
    with tempfile.TemporaryDirectory() as folder:
        start_model.build(Path(folder), tokenizer, seed)
        return weights.load(Path(folder), device="cpu"), tokenizer


def roll_out(engine: Engine, game: Game, tasks: list[Task], rng: random.Random) -> list[Conversation]:
    """Play all tasks at once, turn by turn. The full version never waits for the slowest (core/rollout/runner.py)."""
    conversations = [game.start(task) for task in tasks]
    for turn in range(MAX_TURNS):
        going = [conversation for conversation in conversations if conversation.reward is None]
        samplings = [Sampling(max_new_tokens=6, seed=rng.getrandbits(62)) for _ in going]
        requests = [engine.submit(c.tokens, sampling) for c, sampling in zip(going, samplings, strict=True)]
        while engine.has_work():
            engine.step()
        for conversation, request in zip(going, requests, strict=True):
            completion = request.completion
            conversation.add(list(completion.token_ids), 1, list(completion.logprobs))
            words = game.tokenizer.decode(completion.token_ids, skip_special_tokens=True).split()
            game.act(conversation, words, last_turn=turn == MAX_TURNS - 1 or completion.finish_reason == "length")
    return conversations


def optimizer_step(model: CausalLM, optimizer: torch.optim.Optimizer, rows: list[Row], lr: float) -> None:
    """Take one step on the policy loss. With every advantage 1 this is supervised learning (core/engine/trainer.py)."""
    tokens = sum(row.trained_tokens for row in rows)
    for pack in pack_rows(rows, 16384, model.device):
        # T: all tokens of the pack; R: its trained tokens, each predicted by the token before it; C: width; V: words.
        hidden_RC = model(pack.ids_T, pack.positions_T, pack.attend, pack.predict_R)
        logprobs_RV = torch.log_softmax(model.logits(hidden_RC), dim=-1)
        logprobs_R = logprobs_RV.gather(1, pack.targets_R[:, None]).squeeze(1)
        advantages_R = pack.spread([row.advantage for row in rows])
        # We step once on each batch, so the policy that sampled is the policy now and nothing is clipped yet.
        old_R = logprobs_R.detach()
        loss_R, _ = clipped_policy_loss(logprobs_R, old_R, advantages_R, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=None)
        (loss_R.sum() / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.param_groups[0]["lr"] = lr
    optimizer.step()
    optimizer.zero_grad()


def main(seed: int = 0, cold_steps: int = 60, steps: int = 60, group_size: int = 16, groups: int = 16, LR=1e-3) -> tuple[float, float]:
    """Run everything; return the share of held-out tasks solved before and after GRPO."""
    torch.set_num_threads(1)
    began, rng = time.perf_counter(), random.Random(seed)
    model, tokenizer = make_start_model(seed)
    game = Game(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(cold_steps):
        demonstrations = [game.play_at_random(rng, draw_task(rng, held_out=False)) for _ in range(32)]
        optimizer_step(model, optimizer, demonstrations, lr=2e-3 * min(1, (step + 1) / 20) * (1 - step / cold_steps))
    engine = Engine(model, eos_token_ids=[game.end], max_model_len=64, kv_tokens=64 * group_size * groups)

    def evaluate(relations: int) -> float:
        tasks_rng = random.Random(-1)  # the same tasks each time
        tasks = [draw_task(tasks_rng, held_out=True, relations=relations) for _ in range(group_size * groups)]
        engine.adopt_weights("evaluation")
        return sum(c.reward for c in roll_out(engine, game, tasks, tasks_rng)) / len(tasks)

    before = evaluate(1)
    print(f"held-out tasks solved after the cold start: {before:.1%}", time.perf_counter() - began, flush=True)
    for step in range(steps):
        tasks = [draw_task(rng, held_out=False) for _ in range(groups)]
        engine.adopt_weights(str(step))
        conversations = roll_out(engine, game, [task for task in tasks for _ in range(group_size)], rng)
        rewards = [c.reward for c in conversations]
        rows = []
        for first in range(0, len(conversations), group_size):
            advantages = group_advantages(rewards[first : first + group_size], std_normalization=True)
            rows += [conversations[first + i].row(a, first + i) for i, a in enumerate(advantages) if a]
        if rows:
            optimizer_step(model, optimizer, rows, lr=LR)
        if step % 10 == 0 or step == steps - 1:
            r = sum(rewards) / len(rewards)
            print(f"step {step:3}  reward {r:.3f}  {time.perf_counter()-began:.0f} {time.process_time():.0f}", "#" * round(40 * r), flush=True)
    after = evaluate(1)
    print(f"held-out tasks solved after GRPO:           {after:.1%}")
    print(f"of another kind, with no and with two relations: {evaluate(0):.1%}, {evaluate(2):.1%}", time.perf_counter() - began)
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    o = parser.parse_args()
    main(o.seed, LR=o.lr)
