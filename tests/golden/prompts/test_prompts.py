"""Our published prompts are those of the released code, byte for byte: by their hashes, without any checkout.

prompts.json names repository, commit, file and line of each; make_golden.py writes it. With UPSTREAM_DIR=FOLDER the
last test renders it again from clones in FOLDER/OWNER/NAME, or FOLDER/OWNER+NAME/repo.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentic.agentflow import prompts
from agentic.memagent.prompts import final_message, update_message
from agentic.search_r1 import prompts as search_r1
from agentic.toolorchestra.environment import Start
from agentic.toolorchestra.tau2.compat import PASSAGES, rewrite
from benchmarks.questions import prompts as questions
from benchmarks.ruler.templates import CWE, FWE, NIAH, QA, VT
from benchmarks.ruler.variants import WHOLE_THE_ANSWER_IS
from core.text.conversation import Markup
from tests.golden.prompts.make_golden import GOLDEN, describe, digest, read_upstream
from tests.golden.prompts.upstream import POLICY, SOURCES, STAND_INS, Source

UPSTREAM = json.loads(GOLDEN.read_text(encoding="utf-8"))
BOXED_TWICE = ("memagent/trainer/final", "\\boxed{{}}", "\\boxed{}")
"""The synchronous trainer fills its template without `format`, so it showed the model two pairs of braces."""


def fill(message: str, **values: str) -> str:
    slots = {**STAND_INS, "problem": STAND_INS["question"], **values}
    return re.sub(r"\{([a-z_]+)\}", lambda match: slots[match[1]], message)


def question_prompts() -> Mapping[str, str]:
    """Return the prompts of FRAMES and HLE under their names."""
    problem = STAND_INS["question"]
    shared = {
        "program": questions.PROGRAM.replace("{problem}", problem),
        "boxed": questions.BOXED,
        "think": questions.THINK_HARD,
        "wrap": questions.WRAP,
        "judge": questions.judge_message(problem, STAND_INS["sub_goal"], STAND_INS["memory"]),
    }
    return {
        f"toolorchestra/{data}/{name}": text
        for data, released in questions.read_released().items()
        for name, text in {
            **shared,
            "search": released.search.replace("{problem}", problem),
            "choose": f"Problem: {problem}\n\n{STAND_INS['context']}\n\n{released.choose}",
        }.items()
    } | {"toolorchestra/tools": str(list(questions.read_tools()))}


def our_prompts() -> Mapping[str, str]:
    update = fill(update_message("official", "official", gate=False))
    boxed = fill(final_message("official", "boxed"))
    _, twice, once = BOXED_TWICE
    policy = POLICY[0] + POLICY[1].join(PASSAGES) + POLICY[2]
    values = {"kind": "numbers", "query": "keen-fox"}
    number, question = {"query": "12345", "count": "5"}, {"query": STAND_INS["question"]}
    ruler = {
        "niah": (NIAH, values),
        "vt": (VT, number),
        "cwe": (CWE, {"count": "10"}),
        "fwe": (FWE, {}),
        "qa": (QA, question),
    }
    return {
        "memagent/recurrent/update": update,
        "memagent/recurrent/final": fill(final_message("official", "the_answer_is")),
        "memagent/recurrent-boxed/update": update,
        "memagent/recurrent-boxed/final": boxed,
        "memagent/trainer/update": update,
        "memagent/trainer/final": boxed.replace(once, twice),
        "memagent/openai": fill(WHOLE_THE_ANSWER_IS),
        "agentflow/system": prompts.RELEASED_SYSTEM,
        "agentflow/request": prompts.RELEASED_REQUEST,
        **{f"agentflow/{role}": fill(message) for role, message in prompts.read_messages("released").items()},
        **{f"agentflow/{name}": str(prompts.read_tools()[name]) for name in prompts.read_tools()},
        "search_r1/prompt": "".join(
            part.text if isinstance(part, Markup) else part
            for part in search_r1.write_prompt("released", STAND_INS["question"])
        ),
        "search_r1/information": search_r1.INFORMATION.format(STAND_INS["context"]),
        "search_r1/invalid": search_r1.INVALID,
        "search_r1/passage": search_r1.PASSAGE.format(1, STAND_INS["memory"], STAND_INS["section"]),
        **question_prompts(),
        "toolorchestra/policy": rewrite(Start(policy, (), "")).policy,
        **{
            f"ruler/{task}/template": fill(template.before, **slots)
            + STAND_INS["context"]
            + fill(template.after, **slots)
            for task, (template, slots) in ruler.items()
        },
        **{
            f"ruler/{task}/answer_prefix": fill(template.answer_prefix, **slots)
            for task, (template, slots) in ruler.items()
        },
        **{f"memagent/ruler/{task}": fill(template.question, **slots) for task, (template, slots) in ruler.items()},
    }


OURS = our_prompts()


def test_every_published_prompt_is_compared() -> None:
    assert OURS.keys() == UPSTREAM.keys()


@pytest.mark.parametrize("name", UPSTREAM)
def test_a_prompt_is_that_of_the_released_code(name: str) -> None:
    source = UPSTREAM[name]
    place = f"{source['repository']}@{source['commit'][:7]}:{source['file']}:{source['line']}"
    assert (len(OURS[name]), digest(OURS[name])) == (source["characters"], source["sha256"]), f"not as in {place}"


def test_tools_and_memory_are_printed_as_the_released_code_prints_them() -> None:
    names = ["Python_Code_Generator_Tool", "Generalist_Solution_Generator_Tool"]
    slots = prompts.describe_released_task("", names)
    assert slots["tools"] == "['Generalist_Solution_Generator_Tool', 'Python_Code_Generator_Tool']"
    # Both are sorted by name (models/initializer.py, lines 383 and 430).
    first, second = (f"'{name}': {{'tool_name': '{name}', " for name in sorted(names))
    assert slots["metadata"].startswith("{" + first)
    assert second in slots["metadata"]
    step = {"tool_name": "A", "sub_goal": "it's", "command": "c", "result": ["r"]}
    assert prompts.render_released_memory([]) == "{}"
    assert prompts.render_released_memory([step]) == (
        "{'Action Step 1': {'tool_name': 'A', 'sub_goal': \"it's\", 'command': 'c', 'result': ['r']}}"
    )


@pytest.mark.skipif("UPSTREAM_DIR" not in os.environ, reason="UPSTREAM_DIR names no folder with the authors' code")
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_prompt_renders_from_its_source(source: Source) -> None:
    text = source.render(read_upstream(Path(os.environ["UPSTREAM_DIR"]), source), source.line)
    assert describe(source, text) == UPSTREAM[source.name]
