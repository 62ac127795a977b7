"""Holds RULER's prompts in parts (arXiv 2404.06654, scripts/data/synthetic/constants.py), and MemAgent's questions.

RULER's prompt is before + context + after + answer prefix. MemAgent (arXiv 2507.02259) asks the same without the
context: its `question`. The wording is part of the published protocol and is kept to the letter, with one exception:
MemAgent's answer prefix for vt has a spelling mistake; ours is RULER's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from benchmarks.ruler.sample import Draft, Needle


@dataclass(frozen=True, slots=True)
class Template:
    """Holds the parts of a prompt, with placeholders like `{query}`. `new_tokens` is RULER's budget for the answer."""

    before: str
    after: str
    answer_prefix: str
    question: str
    new_tokens: int

    def fill(
        self, context: str, answers: tuple[str, ...], needles: tuple[Needle, ...] = (), **values: str | int
    ) -> Draft:
        return Draft(
            context=context,
            question=self.question.format(**values),
            before=self.before.format(**values),
            after=self.after.format(**values),
            answer_prefix=self.answer_prefix.format(**values),
            answers=answers,
            needles=needles,
        )

    def singular(self) -> Template:
        """Return the text in the grammar of NIAH when one value is asked for."""

        def one(text: str) -> str:
            for many, single in ((r"\bSome\b", "A"), (r"\bare all\b", "is"), (r"\bare\b", "is")):
                text = re.sub(many, single, text)
            return text

        return Template(one(self.before), one(self.after), one(self.answer_prefix), one(self.question), self.new_tokens)


def _make_template(intro: str, after_intro: str, question: str, answer_prefix: str, new_tokens: int) -> Template:
    """Return a template that puts the context between introduction and question; MemAgent asks with both."""
    return Template(intro + after_intro, "\n" + question, answer_prefix, f"{intro} {question}", new_tokens)


_NIAH_QUESTION = "What are all the special magic {kind} for {query} mentioned in the provided text?"
NIAH = _make_template(
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it.",
    " I will quiz you about the {kind} afterwards.\n",
    _NIAH_QUESTION,
    " The special magic {kind} for {query} mentioned in the provided text are",
    new_tokens=128,
)
NIAH_BARE = replace(NIAH, question=_NIAH_QUESTION)
"""Leaves out the introduction of NIAH, for policies with a small context."""
VT = _make_template(
    "Memorize and track the chain(s) of variable assignment hidden in the following text.",
    "\n\n",
    "Question: Find all variables that are assigned the value {query} in the text above.",
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {query}, they are: ",
    new_tokens=30,
)
CWE = _make_template(
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.",
    "\n",
    "Question: What are the {count} most common words in the above list?",
    " Answer: The top {count} words that appear most often in the list are:",
    new_tokens=120,
)
FWE = _make_template(
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words.",
    " ",
    "Question: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?",
    " Answer: According to the coded text above, the three most frequently appeared words are:",
    new_tokens=50,
)

_QA_INTRO = "Answer the question based on the given documents."
_QA_ONLY = f"{_QA_INTRO} Only give me the answer and do not output any other words."
QA = Template(
    before=f"{_QA_ONLY}\n\nThe following are given documents.\n\n",
    after=f"\n\n{_QA_ONLY}\n\nQuestion: {{query}}",
    answer_prefix=" Answer:",
    question=_QA_INTRO + " {query}",
    new_tokens=32,
)
HQA = replace(QA, question="{query}")
"""RULER-HQA: MemAgent asks the bare HotpotQA question."""
