"""Search-R1: a policy reasons, searches when it lacks knowledge, reads what was found, and answers.

Paper: "Search-R1: Training LLMs to Reason and Leverage Search Engines with Reinforcement Learning", arXiv 2503.09516.
Ports studied: the released trainer (PeterGriffinJin/Search-R1, on verl) and slime's examples/search-r1.

The policy's message grows: a turn ends at </search> or </answer>, and what a search found is appended as <information>,
which is not trained. So a rollout is one row. Its reward is the exact match of the answer.

Algorithms that credit turns (turn_grpo, gigpo) read a reward of each turn to which something is shown: 1 for the first
search whose passages hold an accepted answer, else 0. This is the retrieval reward of MT-GRPO (arXiv 2505.11821). Its
released code looks at the first search of a rollout alone, takes any substring (`19` in `1995`), and adds a reward for
calls that ran. The state before a turn is the set of passages read.

With `search_r1.visit` the policy may read whole pages, too (visit.py).

Departures from both ports, on purpose:
1. Token ids stay token ids. The released trainer decodes every turn, cuts its text at the tag and encodes it again.
2. The answer is read from the policy's last turn. Both ports take the last <answer> of the whole text, so a passage
   could bring one; a rollout without any has the answer of the prompt's example, Beijing.
3. A search that fails, fails the rollout: it is counted and not trained. slime's example shows the policy that nothing
   was found, and trains on that. The released trainer stops.
4. The last turn that `max_turns` allows is not searched for: nobody would read what was found.
5. Short answers are equal as core/rewards/README.md says; both ports compare them by SQuAD's exact match.
6. An end token that the policy samples stays in its text.

Run:  bash agentic/search_r1/run.sh                         # tiny: two CPU cores, minutes
      bash agentic/search_r1/run.sh --preset paper --backend slime --dry-run
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from agentic.search_r1.config import PRESETS, SearchR1Recipe
from agentic.search_r1.formats import FORMATS, Action
from agentic.search_r1.prompts import LONG_QUERY, PASSAGE, write_prompt
from agentic.search_r1.visit import PageReader
from core import retrieval
from core.http_client import read_addresses
from core.policy.base import Roles
from core.rewards.answer_grader import is_accepted, reward_finding
from core.rollout.method import Method, MethodSpec, RolloutError, find_hook
from core.rollout.turns import begin_turns
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer
from core.types import CALLS, FAILED_CALLS, POLICY, Completion, Sampling, Task, Trajectory

End = Literal["answered", "cut_turn", "turn_limit", "context_limit"]
"""Names how a rollout ends. All but `answered` give the status `truncated` and the reward 0."""


class SearchR1(Method):
    """Runs the method. The role `policy` writes the turns `act`; with visits, a role may write turns `summary`."""

    def __init__(self, recipe: SearchR1Recipe, tokenizer: Tokenizer):
        self.config = recipe.search_r1
        self.context_tokens = recipe.model.max_model_len
        self.tokenizer = tokenizer
        self.renderer = Renderer(tokenizer)
        self.format = FORMATS[self.config.format](self.renderer, visits=self.config.visit is not None)
        url = read_addresses("search_r1.addresses", self.config.addresses)(self.config.url)
        key, retries = self.config.api_key_file, self.config.max_retries
        self.client = retrieval.RetrievalClient(url=url, max_retries=retries, api_key_file=key)
        visit = self.config.visit
        self.reader = PageReader(recipe, visit, tokenizer, self.client) if visit else None
        self.needs = (visit.role,) if visit and visit.role not in (None, POLICY) else ()

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Let the policy search until it answers or meets a limit, and reward the answer.

        Raises:
            RolloutError: the retrieval service failed (kind `search_failed` or `visit_failed`).
        """
        turns = begin_turns(sampling, self.tokenizer, self.format.stop)
        first = write_prompt(self.config.prompt, task.question, self.config.format, visit=self.reader is not None)
        question = self.renderer.message("user", *first)
        ids = self.renderer.render([*self.renderer.plain_messages(task.earlier_messages), question], self.format.tools)
        actions: list[tuple[Action, str]] = []
        read: list[str] = []  # passages, and pages
        made, failed = Counter[Action](), 0
        while True:
            completion = await turns.ask(roles["policy"], "act", ids, self.config.max_tokens)
            turns.credit("act", state=sorted(set(read)))
            actions.append(self.format.read(ids, completion.token_ids))
            if end := self.find_end(actions, completion):
                break
            # What the policy sampled stays as it is; only what it is shown is encoded.
            action, text = actions[-1]
            made[action] += 1
            found: list[str] = []
            if action == "search" and len(text) > retrieval.MAX_QUERY_CHARS:
                text = LONG_QUERY.format(len(text), retrieval.MAX_QUERY_CHARS)
                failed += 1
            elif action == "search":
                found = await self.find(text)
                text = format_passages(found)
            elif action == "visit" and self.reader:
                text, found = await self.reader.visit(text, roles, turns, sampling)
                failed += not found
            turns.credit("act", reward=reward_finding("\n".join(found), "\n".join(read), task.answers))
            read += found
            ids = (*ids, *completion.token_ids, *self.format.show(completion.token_ids, action, text))
            if self.context_tokens is not None and len(ids) + self.config.max_tokens > self.context_tokens:
                end = "context_limit"
                break
        answer = actions[-1][1] if end == "answered" else None
        exact = float(is_accepted(answer, task.answers))
        return Trajectory(
            task_id=task.task_id,
            turns=tuple(turns.recorded),
            status="completed" if end == "answered" else "truncated",
            reward=exact,
            metrics={
                "turns": len(actions),
                f"{CALLS}search": made["search"],
                "invalid_actions": sum(action == "invalid" for action, _ in actions),
                "answered": float(end == "answered"),
                "exact_match": exact,
                FAILED_CALLS: failed,
                **({f"{CALLS}visit": made["visit"]} if self.reader else {}),
                **self.format.count_notes(turns.recorded),
            },
            log={"answer": answer, "end": end, "queries": [text for action, text in actions if action == "search"]}
            | ({"visits": [text for action, text in actions if action == "visit"]} if self.reader else {}),
        )

    def find_end(self, actions: list[tuple[Action, str]], completion: Completion) -> End | None:
        """Return how the rollout ends after its last turn; None if it goes on."""
        if actions[-1][0] == "answer":
            return "answered"
        if completion.finish_reason == "length":
            return "cut_turn"
        return "turn_limit" if len(actions) == self.config.max_turns else None

    async def find(self, query: str) -> list[str]:
        """Return the best passages of the retrieval service.

        Raises:
            RolloutError: the service refused, or did not answer within its retries.
        """
        try:
            (hits,) = await self.client.search([query], self.config.topk)
        except retrieval.RetrievalError as error:
            raise RolloutError("search_failed", str(error)) from error
        return [hit.document.contents for hit in hits]


def format_passages(passages: Iterable[str]) -> str:
    """Number the passages and join them; the first line of each is its title."""
    parts = (contents.partition("\n") for contents in passages)
    return "".join(PASSAGE.format(n, title, text) for n, (title, _, text) in enumerate(parts, 1)).strip()


SPEC = MethodSpec("search_r1", SearchR1Recipe, PRESETS, SearchR1, needs_context=None, keeps_messages=True)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
