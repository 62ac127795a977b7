"""Makes ToolOrchestra's prompts: the orchestrator's, and those of the experts in `qa`.

`hermes` takes the orchestrator's system message and question from the released evaluation (NVlabs/ToolOrchestra); its
training writes "tools. " and "approriate". As there, the descriptions of the tools declare prices and latencies. Their
words, the headings of what was gathered and the experts' prompts are ours. `compact` has the same inputs in a few
tokens, for small models; its tags are special tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentic.toolorchestra.config import Format, ToolName, ToolOrchestraSection
from agentic.toolorchestra.context import Workspace
from agentic.toolorchestra.experts import Experts
from agentic.toolorchestra.formats import CALL_EXPERT
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
    """Return the tools of a `qa` record: those of the recipe for which this record has an expert."""
    schemas = []
    for tool, aliases in config.tools.items():
        available = experts.available(aliases)
        if available or not aliases:
            name = "expert" if tool == CALL_EXPERT else "model"
            schemas.append(_schema(tool, _TOOLS[tool], name, available, experts))
    return schemas


def hand_over_schemas(config: ToolOrchestraSection, experts: Experts) -> list[ToolSchema]:
    """Return the tool that hands a `func_call` turn to an expert, or no tool if this record has no expert."""
    available = experts.available(config.experts)
    return [_schema(CALL_EXPERT, _HAND_OVER, "expert", available, experts)] if available else []


def _schema(tool: str, what: str, argument: str, aliases: Sequence[str], experts: Experts) -> ToolSchema:
    if not aliases:
        return ToolSchema(tool, what, {"type": "object", "properties": {}, "required": []})
    property_ = {"type": "string", "enum": list(aliases), "description": _table(aliases, experts)}
    return ToolSchema(tool, what, {"type": "object", "properties": {argument: property_}, "required": [argument]})


def _table(aliases: Sequence[str], experts: Experts) -> str:
    """Describe the choices by their prices and declared latencies."""
    rows = ["Model | price per million input tokens | price per million output tokens | average latency"]
    for alias in aliases:
        price, latency = experts.price(alias), experts.declared_latency(alias)
        seconds = "unknown" if latency is None else f"{latency:g}s"
        rows.append(f"{alias} | ${price.input:g} | ${price.output:g} | {seconds}")
    return "\n".join([f"Choices: {list(aliases)}.", *rows])


def question_messages(
    format: Format, renderer: Renderer, task: Task, context: str, lines: Sequence[str], refused: CallError | None
) -> list[Message]:
    """Return the orchestrator's messages in one `qa` turn: the problem and what it has gathered, as text or lines."""
    preference = str(task.metadata.get("instruction", ""))
    if format == "compact":
        parts: list[str | Markup] = [Markup("<task>"), f" {task.question}"]
        if preference:
            parts += [Markup("<wish>"), f" {preference}"]
        parts += [Markup("<seen>"), *(f" {line}\n" for line in lines)]
        return [renderer.message("user", *parts)]
    problem = f"{task.question}\n\n{preference}" if preference else task.question
    refusal = f"{REFUSED}{refused.message}.\n\n" if refused else ""
    system = renderer.message("system", SYSTEM)
    return [system, renderer.message("user", f"Problem: {problem}\n\n{context}\n\n{refusal}".rstrip() + CHOOSE)]


def expert_messages(
    format: Format, tool: ToolName, task: Task, workspace: Workspace, context: str
) -> list[dict[str, str]]:
    """Return the messages to an expert of a `qa` tool, in OpenAI's form. It never sees the user's preference."""
    if format == "compact":
        lines = "".join(f"\n{line}" for line in workspace.lines)
        return [{"role": "user", "content": f"{tool}: {task.question}{lines}"}]
    return [{"role": "user", "content": f"Problem: {task.question}\n\n{context}".rstrip() + f"\n\n{_TASKS[tool]}"}]
