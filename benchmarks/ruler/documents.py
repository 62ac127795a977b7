"""Makes questions over many documents, the shape shared by RULER's qa and by MemAgent's RULER-HQA.

A sample's own documents are always present; then come related ones, then others of the pool, until the document is long
enough. The order is drawn anew for each sample and number of documents. With the placement `official` it is shuffled
with the one fixed seed of the original builders, which puts the gold documents of every sample at the same places.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.ruler.haystack import Placement
from benchmarks.ruler.sample import Draft, Metric, Needle, SampleKey, Sized
from benchmarks.ruler.templates import Template

OFFICIAL_ORDER = 4
"""Seeds the one shuffle of documents in MemAgent's taskutils/memory_data/different_docs_eval.py."""


@dataclass(frozen=True)
class QaItem:
    """Holds a question with its documents, as texts. `evidence` maps gold documents to (title, sentence) pairs."""

    question: str
    answers: tuple[str, ...]
    own: tuple[str, ...]
    related: tuple[str, ...] = ()
    evidence: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    source_id: str = ""


@dataclass(frozen=True)
class DocumentQa:
    """Sample `index` asks `items[index]`. `pool` holds every document that may stand in as a distractor."""

    name: str
    items: tuple[QaItem, ...]
    pool: tuple[str, ...]
    template: Template
    metric: Metric = "string_match_part"
    placement: Placement = "uniform"

    @property
    def new_tokens(self) -> int:
        return self.template.new_tokens

    def draw(self, key: SampleKey) -> Sized:
        if key.index >= len(self.items):
            raise ValueError(f"{self.name}: sample {key.index} asked for, but the file has {len(self.items)} questions")
        item = self.items[key.index]
        rng = key.rng("distractors")
        near = rng.sample(item.related, len(item.related))
        mine = {*item.own, *item.related}
        others = [document for document in rng.sample(self.pool, len(self.pool)) if document not in mine]
        documents = [*item.own, *near, *others]

        def build(units: int) -> Draft:
            chosen = documents[:units]
            order = random.Random(OFFICIAL_ORDER) if self.placement == "official" else key.rng(f"order/{units}")
            order.shuffle(chosen)
            context, starts = number_documents(chosen)
            needles = tuple(
                Needle(*fact, queried=True, start=start)
                for document, start in zip(chosen, starts, strict=True)
                for fact in item.evidence.get(document, ())
            )
            draft = self.template.fill(context, item.answers, needles, query=item.question)
            return replace(draft, extra={"num_docs": units, "source_id": item.source_id})

        return Sized(build, smallest=len(item.own), largest=len(documents))


def number_documents(documents: list[str]) -> tuple[str, list[int]]:
    """Return the documents under "Document 1:" and so on, and the character at which each one starts."""
    parts = [f"Document {number}:\n{document}" for number, document in enumerate(documents, start=1)]
    starts, position = [], 0
    for part in parts:
        starts.append(position)
        position += len(part) + 2
    return "\n\n".join(parts), starts
