"""What can be said of a RULER prompt without its seed: the same look at official prompts and at ours."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

STARTS = {
    "niah": re.compile(r"(?:Some|A) special magic"),
    "vt": re.compile("Memorize and track"),
    "cwe": re.compile("Below is a numbered"),
    "fwe": re.compile("Read the following coded"),
    "qa": re.compile("Answer the question based"),
}
BEFORE_END = {"niah": "\n", "vt": "\n\n", "cwe": "\n", "fwe": "coded words. ", "qa": "documents.\n\n"}
AFTER_START = {"qa": "\n\nAnswer the question"}
QUERY = {
    "niah": r"(?<=for )\S.*?(?= mentioned)",
    "vt": r"(?<=the value )\d{5}",
    "qa": r"(?<=Question: ).*(?= Answer:)",
}
NEEDLE = re.compile(r"One of the special magic (\w+) for (.+?) is: (\S+)\.")
KINDS = {
    "number": re.compile(r"\d{7}$"),
    "uuid": re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"),
    "pair": re.compile(r"\D+-\D+$"),
}


def split_prompt(family: str, prompt: str) -> tuple[str, str, str]:
    """before, context, after (answer prefix included); a worked example in front is cut off."""
    starts = [match.start() for match in STARTS[family].finditer(prompt)]
    start = starts[0] if family in ("niah", "qa") else starts[-1]
    prompt = prompt[start:]
    first = prompt.index(BEFORE_END[family]) + len(BEFORE_END[family])
    last = prompt.rindex(AFTER_START.get(family, "\n"))
    return prompt[:first], prompt[first:last], prompt[last:]


def template(family: str, prompt: str) -> list[str]:
    """[before, after], the query masked."""
    before, _, after = split_prompt(family, prompt)
    return [re.sub(QUERY.get(family, r"$^"), "<query>", part) for part in (before, after)]


def facts(family: str, prompt: str, answers: list[str]) -> dict[str, Any]:
    """Counts and kinds of one sample."""
    _, context, _ = split_prompt(family, prompt)
    if family == "niah":
        needles = [match.groups() for match in NEEDLE.finditer(context)]
        lines = context.split("\n")
        return {
            "answers": len(answers),
            "answers_in_needles": sum(value in answers for _, _, value in needles),
            "needles": len(needles) if len(needles) < len(lines) or len(lines) == 1 else "all lines",
            "kinds": sorted({f"{kind}: {_kind(key)} -> {_kind(value)}" for kind, key, value in needles}),
            "lines": "one" if len(lines) == 1 else "many",
        }
    if family == "vt":
        statements = re.findall(r"^VAR ([A-Z]{5}) = (VAR [A-Z]{5} ?|\d{5})$", context, flags=re.MULTILINE)
        links = all(above in value for (above, _), (_, value) in pairwise(statements))
        return {
            "answers": len(answers),
            "statements": len(statements),
            "in order": links and [name for name, _ in statements] == answers,
            "other lines": len(set(context.split("\n"))) - len(statements),
        }
    if family == "cwe":
        words = re.findall(r"\d+\. (\S+)", context)
        counts = Counter(words)
        return {
            "answers": len(answers),
            "counts": sorted(set(counts.values())),
            "answer counts": sorted({counts[answer] for answer in answers}),
            "numbered": context.startswith("1. ") and f" {len(words)}. {words[-1]}" in context,
        }
    if family == "fwe":
        counts = Counter(context.split(" "))
        ranked = [count for _, count in counts.most_common(6)]
        return {
            "answers": len(answers),
            "top is dots": counts.most_common(1)[0][0] == "...",
            "answers are ranks 2-4": [count for _, count in counts.most_common(4)][1:] == [counts[a] for a in answers],
            "lengths": sorted({len(word) for word in counts}),
            "words": sum(counts.values()),
            "ranked": ranked,
        }
    documents = re.split(r"\n\n(?=Document \d+:\n)", context)
    return {
        "numbered": all(text.startswith(f"Document {i}:\n") for i, text in enumerate(documents, start=1)),
        "answers": len(answers),
    }


def depths(prompt: str, answers: list[str]) -> list[float]:
    """Return where each answer's needle starts, as a share of the context (niah)."""
    _, context, _ = split_prompt("niah", prompt)
    return [round(m.start() / len(context), 3) for m in NEEDLE.finditer(context) if m.group(3) in answers]


def tokenize(text: str) -> list[str]:
    """A tokenizer that both sides can run: words in pieces of at most four letters, marks, line breaks."""
    return re.findall(r" ?\w{1,4}|[^\w\s]|\n", text)


def _kind(text: str) -> str:
    return next((name for name, pattern in KINDS.items() if pattern.match(text)), "other")
