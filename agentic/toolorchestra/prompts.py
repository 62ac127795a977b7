"""ToolOrchestra's prompts: those of the orchestrator and, for `qa`, those with which it reaches the experts.

`hermes`: the orchestrator's system message and question are those of the released code (NVlabs/ToolOrchestra), on which
released checkpoints depend; tools, prices and latencies are told in the tools' descriptions as there. The experts' own
prompts are ours. `compact` has the same inputs in a few tokens, for small models; its tags are special tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentic.toolorchestra.config import Style, ToolName, ToolOrchestraSection
from agentic.toolorchestra.experts import Experts
from agentic.toolorchestra.formats import CALL_EXPERT
from agentic.toolorchestra.workspace import Workspace
from core.text.conversation import Markup, Message, Renderer
from core.text.tool_calls import CallError, ToolSchema
from core.types import Task

SYSTEM = "You are good at using tools."
CHOOSE = "\n\nChoose an appropriate tool."
REFUSED = "Your last turn could not be used: "
AGENT = """\


Think first. Then either write what you say to the user, or call one or more tools; not both in one turn."""

_TOOLS: Mapping[ToolName, str] = {
    "search": "Search for missing information.",
    "enhance_reasoning": "Analyse the problem: write a program, run it, and keep its output for later turns.",
    "call_expert": "Let an expert attempt the problem; what it writes is kept for later turns.",
    "answer": "Give the final answer.",
}
_HAND_OVER = "Hand this turn to an expert, who sees the whole conversation and speaks or acts in your place."
_TASKS: Mapping[ToolName, str] = {
    "search": "Write one short search query for the information that is still missing to solve the problem. Answer "
    "with the query alone.",
    "enhance_reasoning": "Write a Python program whose printed output helps to solve the problem. It runs once, "
    "without input, files or network; the standard library, numpy and sympy are available. Answer with the program "
    "alone, in one ```python block.",
    "call_expert": "Solve the problem. Reason briefly and end with the answer.",
    "answer": "Solve the problem with what is given above. End with the final answer, as short as possible, inside "
    "\\boxed{}.",
}


def tool_schemas(config: ToolOrchestraSection, experts: Experts) -> list[ToolSchema]:
    """The tools of a `qa` record: those of the recipe that may be given to an expert of this record."""
    schemas = []
    for tool, aliases in config.tools.items():
        available = experts.of(aliases)
        if available or not aliases:
            name = "expert" if tool == CALL_EXPERT else "model"
            schemas.append(_schema(tool, _TOOLS[tool], name, available, config, experts))
    return schemas


def hand_over(config: ToolOrchestraSection, experts: Experts) -> list[ToolSchema]:
    """The tool by which a `func_call` turn goes to an expert; none if this record has no expert."""
    available = experts.of(config.experts)
    return [_schema(CALL_EXPERT, _HAND_OVER, "expert", available, config, experts)] if available else []


def _schema(
    tool: str, what: str, argument: str, aliases: Sequence[str], config: ToolOrchestraSection, experts: Experts
) -> ToolSchema:
    if not aliases:
        return ToolSchema(tool, what, {"type": "object", "properties": {}, "required": []})
    property_ = {"type": "string", "enum": list(aliases), "description": _table(aliases, config, experts)}
    return ToolSchema(tool, what, {"type": "object", "properties": {argument: property_}, "required": [argument]})


def _table(aliases: Sequence[str], config: ToolOrchestraSection, experts: Experts) -> str:
    """The choices: what each is good at, then price and latency."""
    told = " ".join(config.descriptions[alias] for alias in aliases if alias in config.descriptions)
    rows = ["Model | price per million input tokens | price per million output tokens | average latency"]
    for alias in aliases:
        price, latency = experts.price(alias), experts.told_latency(alias)
        seconds = "unknown" if latency is None else f"{latency:g}s"
        rows.append(f"{alias} | ${price.input:g} | ${price.output:g} | {seconds}")
    return "\n".join([f"Choices: {list(aliases)}. {told}".strip(), *rows])


def question(
    style: Style, renderer: Renderer, task: Task, context: str, lines: Sequence[str], refused: CallError | None
) -> list[Message]:
    """The orchestrator's messages of one `qa` turn: the problem and what has been gathered, as text or as lines."""
    wish = str(task.metadata.get("instruction", ""))
    if style == "compact":
        parts: list[str | Markup] = [Markup("<task>"), f" {task.question}"]
        if wish:
            parts += [Markup("<wish>"), f" {wish}"]
        parts += [Markup("<seen>"), *(f" {line}\n" for line in lines)]
        return [renderer.message("user", *parts)]
    problem = f"{task.question}\n\n{wish}" if wish else task.question
    said = f"{REFUSED}{refused.message}.\n\n" if refused else ""
    system = renderer.message("system", SYSTEM)
    return [system, renderer.message("user", f"Problem: {problem}\n\n{context}\n\n{said}".rstrip() + CHOOSE)]


def expert_messages(style: Style, tool: ToolName, task: Task, work: Workspace, context: str) -> list[dict[str, str]]:
    """What an expert of a `qa` tool is asked, in OpenAI's form. It never sees the user's preferences."""
    if style == "compact":
        seen = "".join(f"\n{line}" for line in work.lines)
        return [{"role": "user", "content": f"{tool}: {task.question}{seen}"}]
    return [{"role": "user", "content": f"Problem: {task.question}\n\n{context}".rstrip() + f"\n\n{_TASKS[tool]}"}]
