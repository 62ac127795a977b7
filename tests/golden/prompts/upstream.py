"""Where the published prompts stand in the repositories of their authors, and how they are rendered from there.

A prompt is rendered with stand-ins for what differs from task to task. `render` takes the text of the source file,
whose syntax tree it reads and never imports.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

MEMAGENT = ("BytedTsinghua-SIA/MemAgent", "76b7a658988e4ea53d7388a62de6c0ce79084146")
AGENTFLOW = ("lupantech/AgentFlow", "b94006436b8712ab8682846fb0d886a5f174f2d4")
RULER = ("NVIDIA/RULER", "c3f5e3b4f87f97e048793bb510a3a6b19a46bf3a")
TOOLORCHESTRA = ("Weili-0234/ToolOrchestra", "8bb9e69a155c568a3a5592366e58afddef59baf9")

QUESTIONS = ("Weili-0234/ToolOrchestra", "9d34d87a39289e24528c2c50894528fd3822e545")
"""NVIDIA's upload: the evaluations of FRAMES and HLE."""

SEARCH_R1 = ("PeterGriffinJin/Search-R1", "a14dc3a4ffc6fe88c1e95038d9738e21ba3f7a06")

STAND_INS = {
    "question": "Who wrote it?",
    "memory": "The memory.",
    "section": "A section.",
    "analysis": "The analysis.",
    "tools": "['A', 'B']",
    "metadata": "{'A': 1}",
    "sub_goal": "A sub-goal.",
    "tool": "A",
    "tool_metadata": "{'tool_name': 'A'}",
    "context": "The context.",
}
NAMES: Mapping[str, Any] = {
    **{name: STAND_INS[name] for name in ("question", "sub_goal", "tool_metadata", "context")},
    "query_analysis": STAND_INS["analysis"],
    "tool_name": STAND_INS["tool"],
    "memory": SimpleNamespace(get_actions=lambda: STAND_INS["memory"]),
    "self": SimpleNamespace(
        available_tools=STAND_INS["tools"], toolbox_metadata=STAND_INS["metadata"], query_analysis=STAND_INS["analysis"]
    ),
    "idx": 0,
    "title": STAND_INS["memory"],
    "text": STAND_INS["section"],
    "search_results": [f"{STAND_INS['context']}\n"],
    "arguments": {"problem": STAND_INS["question"], "answer": STAND_INS["memory"]},
    "problem": STAND_INS["question"],
    "pred": STAND_INS["sub_goal"],
    "context_str": STAND_INS["context"],
}
"""Holds what the f-strings of AgentFlow, Search-R1 and ToolOrchestra name."""
SLOTS = {"prompt": STAND_INS["question"], "memory": STAND_INS["memory"], "chunk": STAND_INS["section"]}
"""Fills the templates of MemAgent."""
POLICY = ("Before.\n", "\nBetween.\n", "\nAfter.\n")
"""Stand around the passages of a policy of tau2-bench."""


@dataclass(frozen=True)
class Source:
    """Names a prompt, and where it begins: repository and commit, file, line."""

    name: str
    origin: tuple[str, str]
    file: str
    line: int
    render: Callable[[str, int], str]
    """(text of the file, line) -> the prompt with the stand-ins."""


def read_string(text: str, line: int) -> str:
    """Return the longest string literal that begins on a line."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant) and node.lineno == line]
    return max((node.value for node in found if isinstance(node.value, str)), key=len)


def as_it_is(text: str, line: int) -> str:
    """Render a template whose braces are no placeholders once its slots are filled, as the synchronous trainer does."""
    template = read_string(text, line)
    for slot, value in SLOTS.items():
        template = template.replace(f"{{{slot}}}", value)
    return template


def with_format(text: str, line: int) -> str:
    return read_string(text, line).format(**SLOTS)


def with_marks(text: str, line: int) -> str:
    return read_string(text, line).replace("$DOC$", STAND_INS["section"]).replace("$Q$", STAND_INS["question"])


def evaluate_text(text: str, line: int) -> str:
    """Evaluate the last f-string that begins on a line; without one, return the string there."""
    joined = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.JoinedStr) and n.lineno == line]
    return str(_evaluate(joined[-1], NAMES)) if joined else read_string(text, line)


def tool_metadata(text: str, line: int) -> str:
    """Return the metadata of the tool whose class passes them to the line's call, as models/initializer.py does."""
    tree = ast.parse(text)
    names: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            names[node.targets[0].id] = _evaluate(node.value, names)
    tool = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.lineno <= line <= (n.end_lineno or 0))
    calls = (n for n in ast.walk(tool) if isinstance(n, ast.Call) and n.lineno == line and n.keywords)
    given = {keyword.arg: _evaluate(keyword.value, names) for keyword in next(calls).keywords}
    order = ("tool_name", "tool_description", "tool_version", "input_types", "output_type", "demo_commands")
    asks_model = any(isinstance(n, ast.Assign) and "require_llm_engine = True" in ast.unparse(n) for n in tool.body)
    return str(
        {
            **{name: given[name] for name in order},
            "user_metadata": given["user_metadata"],
            "require_llm_engine": asks_model,
        }
    )


def whole_json(text: str, line: int) -> str:
    """Return a file of JSON as Python prints it."""
    return str(json.loads(text))


def ruler_prompt(task: str, field: str, **values: str) -> Callable[[str, int], str]:
    """Return how a field of a task in a constants.py of RULER or of MemAgent's copy is rendered."""

    def render(text: str, line: int) -> str:
        template = str(_assigned(text, "TASKS")[task][field])
        literals = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        assert template in {node.value for node in literals if node.lineno == line}
        return template.format(**values)

    return render


def tau2_policy(text: str, line: int) -> str:
    """Rewrite a policy of tau2-bench for the orchestrator, as llm_utils.to_litellm_messages does."""
    passages = _assigned(text, "POLICY_STRINGS")
    before, between, after = POLICY
    policy = before + between.join(passages[:5]) + after
    for passage in passages:
        policy = policy.replace(passage, read_string(text, line))
    marks = (n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return policy + next(value for value in marks if value.startswith("  You are dedicated") and "<think>" in value)


def _evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "upstream", "eval"), {}, dict(names))


def _assigned(text: str, name: str) -> Any:
    """Return the literal that a module assigns to a name."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


_SEARCH = "search_r1/llm_agent/generation.py"
_EVAL = "taskutils/memory_eval/utils"
_FLOW = "agentflow/agentflow"
_NIAH = {"type_needle_v": "numbers", "query": "keen-fox", "context": STAND_INS["context"]}
_VT = {"query": "12345", "num_v": "5", "context": STAND_INS["context"]}
_QA = {"query": STAND_INS["question"], "context": STAND_INS["context"]}
_TEXT = {"context": STAND_INS["context"]}
RULER_TASKS = {
    "niah": ("niah", _NIAH, 27),
    "vt": ("variable_tracking", _VT, 33),
    "cwe": ("common_words_extraction", _TEXT, 39),
    "fwe": ("freq_words_extraction", _TEXT, 45),
    "qa": ("qa", _QA, 51),
}


def _ruler_sources() -> list[Source]:
    official, copy = "scripts/data/synthetic/constants.py", "taskutils/memory_data/synthetic/constants.py"
    sources = []
    for name, (task, values, line) in RULER_TASKS.items():
        for field, at in (("template", line), ("answer_prefix", line + 1)):
            sources.append(Source(f"ruler/{name}/{field}", RULER, official, at, ruler_prompt(task, field, **values)))
        question = ruler_prompt(task, "template", **values)
        sources.append(Source(f"memagent/ruler/{name}", MEMAGENT, copy, line, question))
    return sources


QUESTION_LINES = {
    "frames": {"program": 176, "boxed": 238, "think": 275, "wrap": 290, "judge": 321, "search": 339, "choose": 523},
    "hle": {"program": 135, "boxed": 192, "think": 229, "wrap": 245, "judge": 276, "search": 294, "choose": 473},
}


def _question_sources() -> list[Source]:
    return [
        Source(f"toolorchestra/{data}/{name}", QUESTIONS, f"evaluation/eval_{data}.py", line, evaluate_text)
        for data, lines in QUESTION_LINES.items()
        for name, line in lines.items()
    ]


SOURCES = (
    Source("memagent/recurrent/update", MEMAGENT, f"{_EVAL}/recurrent.py", 5, with_format),
    Source("memagent/recurrent/final", MEMAGENT, f"{_EVAL}/recurrent.py", 22, with_format),
    Source("memagent/recurrent-boxed/update", MEMAGENT, f"{_EVAL}/recurrent_boxed.py", 5, with_format),
    Source("memagent/recurrent-boxed/final", MEMAGENT, f"{_EVAL}/recurrent_boxed.py", 22, with_format),
    Source("memagent/trainer/update", MEMAGENT, "recurrent/impls/memory.py", 115, as_it_is),
    Source("memagent/trainer/final", MEMAGENT, "recurrent/impls/memory.py", 132, as_it_is),
    Source("memagent/openai", MEMAGENT, f"{_EVAL}/openai_api.py", 8, with_marks),
    Source("agentflow/system", AGENTFLOW, f"{_FLOW}/engine/vllm.py", 26, read_string),
    Source("agentflow/request", AGENTFLOW, "train/rollout.py", 182, read_string),
    Source("agentflow/planner.plan", AGENTFLOW, f"{_FLOW}/models/planner.py", 93, evaluate_text),
    Source("agentflow/planner.next_step", AGENTFLOW, f"{_FLOW}/models/planner.py", 258, evaluate_text),
    Source("agentflow/planner.final", AGENTFLOW, f"{_FLOW}/models/planner.py", 385, evaluate_text),
    Source("agentflow/executor", AGENTFLOW, f"{_FLOW}/models/executor.py", 83, evaluate_text),
    Source("agentflow/verifier", AGENTFLOW, f"{_FLOW}/models/verifier.py", 107, evaluate_text),
    Source("agentflow/Generalist_Solution_Generator_Tool", AGENTFLOW, f"{_FLOW}/tools/base_generator/tool.py", 26,
           tool_metadata),
    Source("agentflow/Python_Code_Generator_Tool", AGENTFLOW, f"{_FLOW}/tools/python_coder/tool.py", 69,
           tool_metadata),
    Source("agentflow/Ground_Google_Search_Tool", AGENTFLOW, f"{_FLOW}/tools/google_search/tool.py", 35,
           tool_metadata),
    Source("agentflow/Wikipedia_RAG_Search_Tool", AGENTFLOW, f"{_FLOW}/tools/wikipedia_search/tool.py", 118,
           tool_metadata),
    Source("toolorchestra/policy", TOOLORCHESTRA, "evaluation/tau2-bench/tau2/utils/llm_utils.py", 215, tau2_policy),
    Source("toolorchestra/tools", QUESTIONS, "evaluation/tools.json", 1, whole_json),
    Source("search_r1/prompt", SEARCH_R1, "scripts/data_process/qa_search_train_merge.py", 32, evaluate_text),
    Source("search_r1/information", SEARCH_R1, _SEARCH, 391, evaluate_text),
    Source("search_r1/invalid", SEARCH_R1, _SEARCH, 396, evaluate_text),
    Source("search_r1/passage", SEARCH_R1, _SEARCH, 467, evaluate_text),
    *_question_sources(),
    *_ruler_sources(),
)  # fmt: skip
