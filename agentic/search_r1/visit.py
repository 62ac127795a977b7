"""Visits: beside a search, the policy may read the whole page behind a passage, as LiteResearcher's does.

Paper: "LiteResearcher: A Scalable Agentic RL Training Framework for Deep Research Agent", arXiv 2604.17931. Code read:
simplexai-labs/LiteResearcher, Training (on verl).

The retrieval service has the page. A reader, which is a role, reads its beginning and writes down what helps towards
the goal of the visit; this is what the policy is shown. Another model's summary is an observation. The policy's own is
a turn `summary`: a row of the same rollout, with its advantage. Without a reader the policy is shown the beginning.

Departures, on purpose:
1. The policy itself may be the reader. In the released code it is another model, behind a service.
2. A frozen reader is greedy (released: temperature 0.7) and writes plain text. Released: JSON, of which evidence and
   summary are shown; what is no JSON is an error.
3. A page is named by its title or id (released: by its URL), and a visit reads one (released: several). The goal may be
   left out: then the reader looks for the page's name.
4. A service or a reader that fails, fails the rollout: it is counted and not trained. The released service says that
   the page could not be read, and that is trained on. Of a page that is not there both tell the policy.
5. A page that is longer than `page_tokens` is said to go on. The released code cuts it without a word.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agentic.search_r1.config import SearchR1Recipe, VisitSection
from agentic.search_r1.prompts import GOES_ON, LOOKED_FOR, NO_PAGE, NOTHING, SUMMARIZE
from core.config import RecipeError
from core.policy.base import Policy, Roles
from core.retrieval import MAX_QUERY_CHARS, RetrievalClient, RetrievalError
from core.rewards.answers import strip_thoughts
from core.rollout.method import RolloutError
from core.rollout.turns import Turns
from core.text.conversation import Markup, Renderer
from core.text.tokenizer import Ids, Tokenizer, encode_text, load_tokenizer
from core.types import POLICY, Sampling

CHARS_OF_A_TOKEN = 16
"""Bounds what is encoded of a page: most texts have 3 to 5 characters a token."""


class PageReader:
    """Reads pages for the policy.

    Raises:
        RecipeError: a page outgrows the context of who reads it, or a reader that is trained has its own tokenizer.
    """

    def __init__(self, recipe: SearchR1Recipe, config: VisitSection, tokenizer: Tokenizer, client: RetrievalClient):
        self.config = config
        self.client = client
        self.trained = config.role in (POLICY, *recipe.trained_roles)
        if config.tokenizer and (self.trained or config.role is None):
            raise RecipeError("search_r1.visit.tokenizer: only a frozen role has a tokenizer of its own; leave it out")
        self.tokenizer = load_tokenizer(config.tokenizer) if config.tokenizer else tokenizer
        self.renderer = Renderer(self.tokenizer)
        self.goes_on = encode_text(self.tokenizer, GOES_ON)
        self.goal_tokens = recipe.search_r1.max_tokens
        longest = len(self.write_prompt(self.goes_on, ())) + config.page_tokens + self.goal_tokens + config.max_tokens
        if config.role is None:  # the page stands between two turns of the policy
            longest = len(self.goes_on) + config.page_tokens + 2 * recipe.search_r1.max_tokens
        if (self.trained or config.role is None) and longest > (recipe.model.max_model_len or longest):
            fix = "lower it, or raise model.max_model_len"
            raise RecipeError(f"search_r1.visit.page_tokens: takes {longest} tokens; {fix}")

    async def visit(self, wanted: str, roles: Roles, turns: Turns, sampling: Sampling) -> tuple[str, list[str]]:
        """Return what the policy is shown, and the page as far as it was read; no page if the visit failed.

        `wanted` is the page's title or id, and from its second line on the goal.

        Raises:
            RolloutError: the service refused, or did not answer within its retries (kind `visit_failed`).
            PolicyError: the reader gave no completion.
        """
        name, _, goal = wanted.partition("\n")
        try:
            page = await self.client.read_page(name[:MAX_QUERY_CHARS])  # the service refuses a longer one
        except RetrievalError as error:
            raise RolloutError("visit_failed", str(error)) from error
        if page is None or not page.strip():
            return (NO_PAGE if page is None else NOTHING).format(name), []
        text = page[: CHARS_OF_A_TOKEN * self.config.page_tokens]  # of some titles the service has 10 MB
        ids = await asyncio.to_thread(encode_text, self.tokenizer, text)  # it may be long
        if len(ids) > self.config.page_tokens or text != page:
            ids = ids[: self.config.page_tokens]
            page = str(self.tokenizer.decode(ids)).rstrip("\ufffd") + GOES_ON  # nothing of a character that is cut
            ids = (*ids, *self.goes_on)
        if self.config.role is None:
            return page, [page]
        prompt = self.write_prompt(ids, encode_text(self.tokenizer, goal.strip() or name)[: self.goal_tokens])
        summary = await self.summarize(prompt, roles[self.config.role], turns, sampling)
        return (summary, [page]) if summary else (NOTHING.format(name), [])

    def write_prompt(self, page: Ids, goal: Ids) -> Ids:
        """Return the ids of the message that asks for a summary."""
        parts = (Markup(SUMMARIZE), page, Markup(LOOKED_FOR), goal)
        return self.renderer.render([self.renderer.message("user", *parts)])

    async def summarize(self, prompt: Ids, reader: Policy, turns: Turns, sampling: Sampling) -> str:
        """Return what the reader writes, without special tokens and thoughts."""
        heat = sampling.temperature if self.trained else 0.0
        asked = replace(sampling, temperature=heat, stop_token_ids=(self.tokenizer.eos_token_id,))
        done = await turns.branch().ask(reader, "summary", prompt, self.config.max_tokens, self.trained, asked)
        reply = self.renderer.sampled_message(done.token_ids, prompt).ids
        return strip_thoughts(str(self.tokenizer.decode(reply, skip_special_tokens=True))).strip()
