"""The prompts, the limits and the reading of replies of ToolOrchestra's released evaluation on FRAMES and HLE.

Sources: evaluation/eval_frames.py, eval_hle.py and tools.json of ToolOrchestra as NVIDIA uploaded it (9d34d87 of
Weili-0234/ToolOrchestra). The texts are theirs, with their faults: released checkpoints and published scores depend on
them. tests/golden/prompts holds them by their hashes; tests/optional/questions plays both codes against each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from core.text.tokenizer import Tokenizer, encode_text

Data = Literal["frames", "hle"]
Tool = Literal["search", "enhance_reasoning", "answer"]
Message = Mapping[str, str]

SYSTEM = "You are good at using tools."
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
PROGRAM = (
    "Question: {problem}\nInstead of directly answering the question, please write additional python code that will "
    "give intermidiate results after execution. Wrap the code within ```python and ```. The code should be "
    "self-contained with all the import and initialization."
)
THINK_HARD = (
    "\n\nTake a deep breath and think hard with high reasoning, wrap the thoughts within <think> and </think>, and "
    "wrap only the exact answer without any explanation within <answer> and </answer>."
    "Output using the following format:\n<think>\n...\n</think>\n<answer>\n...\n</answer>"
)
WRAP = (
    "\nWrap the thinking process and explanation between <think> and </think> and wrap only the exact answer without "
    "any explanation within <answer> and </answer>."
)
JUDGE = (
    "Question: {problem}\n\nStudent answer: {answer}\n\nReference answer: {reference}\n\n"
    "Assume that the reference answer is correct. Output <correct>True</correct> if the student answer matches the "
    "reference answer. Output <correct>False</correct> if the student answer does not match the reference answer."
)
PROGRAMS_HEADING = "\npython code and execution outputs:\n"
TOOLS_FILE = Path(__file__).with_name("tools.json")

Limits = Sequence[int]
"""Holds two numbers: the tokens of the programs, and of everything before the question, in an expert's prompt."""


@dataclass(frozen=True)
class Released:
    """Describes what differs between the evaluations of the two data sets."""

    choose: str
    """Ends the orchestrator's prompt."""
    search: str
    ask: str
    """Stands between context and question where an expert answers."""
    shortest_query: int
    """A query of fewer characters is not searched for."""
    empty_query_is_question: bool
    """Says whether the question itself is searched for where GPT-5 wrote nothing."""
    passages: int
    service: str
    """Says which passages retrieval_wiki.py or retrieval_hle.py leave out, and what they add."""
    document: Sequence[Any]
    """Holds the characters of a document that the orchestrator reads, and what follows them."""
    gpt: Limits
    llama: Limits
    context: int
    """Limits the tokens of what the orchestrator reads beside the question."""
    counts_question: bool
    """Says whether the question counts in `context`, and an empty list of programs has no heading."""
    searches_again: bool
    """Says whether `search` stays among the tools once there are documents."""
    short_documents: int | None
    """Limits the characters of a document for an expert with a short context."""
    runs_programs: bool
    """In FRAMES a fault of the released code loses every program before it is run."""


QUERY_CHARACTERS = 390
LONGEST_ANSWER = 500
"""Limits the words of an answer: a longer one is wrong."""


@cache
def read_released() -> Mapping[Data, Released]:
    """Return what differs between the evaluations, by data set."""
    texts = Path(__file__).with_name("released.yaml").read_text(encoding="utf-8")
    return {name: Released(**fields) for name, fields in yaml.safe_load(texts).items()}


@cache
def read_tools() -> tuple[Mapping[str, Any], ...]:
    """Return the tools as the orchestrator sees them, in OpenAI's form."""
    return tuple(json.loads(TOOLS_FILE.read_text(encoding="utf-8")))


def shown_tools(released: Released, has_documents: bool) -> list[Mapping[str, Any]]:
    """Return the tools of a turn."""
    hidden = has_documents and not released.searches_again
    return [tool for tool in read_tools() if not (hidden and tool["function"]["name"] == "search")]


def find_family(model: str) -> str:
    """Return what decides over an expert's prompt: gpt, llama, coder, math or qwen3. Raises ValueError."""
    names = {"gpt-5": "gpt", "llama-3.3": "llama", "qwen2.5-coder": "coder", "qwen2.5-math": "math", "qwen3": "qwen3"}
    found = [family for name, family in names.items() if name in model.lower()]
    if not found:
        raise ValueError(f"the released evaluation has no prompt for the model {model}")
    return found[0]


def find_limits(released: Released, family: str) -> Limits:
    known = {"coder": (16_000, 24_000), "math": (1000, 2000), "qwen3": (12_000, 24_000)}
    return {"gpt": released.gpt, "llama": released.llama, **known}[family]


def cut(tokenizer: Tokenizer, text: str, tokens: int) -> tuple[str, int]:
    """Return the end of a text, each of its tokens decoded alone, and the number of tokens of the whole text."""
    ids = encode_text(tokenizer, text)
    if not ids:
        return "", 0
    return "".join(tokenizer.decode([token], skip_special_tokens=True) for token in ids[-tokens:]), len(ids)


def list_documents(documents: Sequence[str], characters: int | None = None, mark: str = "") -> str:
    shown = (document[:characters] for document in documents)
    return "".join(f"Doc {number}: {document}{mark}\n\n" for number, document in enumerate(shown, 1))


def list_programs(programs: Sequence[tuple[str, str]]) -> str:
    return "".join(f"```python\n{code}\n```\n\n```output\n{output}\n```\n\n" for code, output in programs)


def cut_programs(tokenizer: Tokenizer, programs: Sequence[tuple[str, str]], tokens: int) -> tuple[str, int]:
    """Return the end of the programs, as `cut` does, with a fence before it if its own was cut off."""
    code, whole = cut(tokenizer, list_programs(programs), tokens)
    return f"```\n{code}" if code and not code.startswith("```") else code, whole


def orchestrator_message(
    released: Released,
    tokenizer: Tokenizer,
    problem: str,
    documents: Sequence[str],
    programs: Sequence[tuple[str, str]],
) -> str:
    """Return the user's message of a turn of the orchestrator; SYSTEM stands before it."""
    shown = list_documents(documents, *released.document)
    code, tokens = cut_programs(tokenizer, programs, 12_000)
    limit = released.context
    if released.counts_question:
        limit -= len(encode_text(tokenizer, problem))
    context = code
    if tokens < limit:
        heading = "" if released.counts_question and not code else PROGRAMS_HEADING
        context, _ = cut(tokenizer, f"{shown}{heading}{code}", limit)
        if shown:
            context = f"Documents:\n{context}"
    return f"Problem: {problem}\n\n{context}\n\n{released.choose}"


def expert_context(
    released: Released,
    tokenizer: Tokenizer,
    tool: Tool,
    family: str,
    problem: str,
    documents: Sequence[str],
    programs: Sequence[tuple[str, str]],
) -> str:
    """Return what an expert reads before the question."""
    long = family == "gpt" or (family == "llama" and tool == "answer")
    shown = list_documents(documents, None if long else released.short_documents)
    code_tokens, all_tokens = find_limits(released, family)
    code, _ = cut_programs(tokenizer, programs, code_tokens)
    context, _ = cut(tokenizer, shown + code, all_tokens - len(encode_text(tokenizer, problem)))
    return f"Documents:\n{context}" if shown else context


def expert_messages(released: Released, tool: Tool, family: str, problem: str, context: str) -> list[Message]:
    """Return the messages to an expert."""
    context = context.strip()
    if tool != "answer":
        message = PROGRAM if tool == "enhance_reasoning" else released.search
        return [{"role": "user", "content": f"{context}\n\n{message.replace('{problem}', problem)}"}]
    asked = {"role": "user", "content": f"{context}{released.ask}{problem}"}
    if family in ("qwen3", "math"):
        return [{"role": "system", "content": BOXED}, asked]
    return [{**asked, "content": asked["content"] + (THINK_HARD if family == "gpt" else WRAP)}]


def read_answer(family: str, text: str) -> str:
    """Return the answer in an expert's reply, empty without one."""
    if family in ("qwen3", "math"):
        if "\\boxed{" not in text:
            return ""
        return "}".join(text.split("\\boxed{")[-1].split("}")[:-1]).strip()
    return text.split("<answer>")[-1].split("</answer>")[0].strip()


def read_query(text: str) -> str:
    return text.split("<query>")[-1].split("</query>")[0]


def read_program(text: str) -> str:
    return text.split("```python")[-1].split("```")[0]


def judge_message(problem: str, answer: str, reference: str) -> str:
    return JUDGE.format(problem=problem, answer=answer, reference=reference)


def agrees_at_once(answer: str, reference: str) -> bool | None:
    """Say whether an answer is right without a judge; None: the judge decides."""
    if not answer.strip() or len(answer.split(" ")) > LONGEST_ANSWER:
        return False
    return True if answer.strip().lower() == reference.strip().lower() else None


def read_verdict(text: str) -> bool | None:
    """Return the judge's word; None where it is neither, which counts as wrong, as all but `true` does there."""
    word = text.split("<correct>")[-1].split("</correct>")[0].lower()
    return word == "true" if word in ("true", "false") else None
