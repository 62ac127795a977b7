"""Strands agents with a tool, trained as they are. Strands streams every answer.

.venv/bin/pip install "strands-agents[openai]==1.62.0"
bash agentic/agent/run.sh --set agent.agents.lookup.run=examples.strands_agent.run --out runs/agent-strands

`solve` is the agent of slime's examples/strands_sglang, mathematics with a Python tool. On AIME 2024, with any model:

.venv/bin/tokentrue data download aime24
bash agentic/agent/evaluate.sh --preset seed --model MODEL --data data/aime24.jsonl \\
    --set agent.agents.math.run=examples.strands_agent.solve
"""

from __future__ import annotations

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.types.exceptions import MaxTokensReachedException

from agentic.agent import facts, math_agent
from core.gateway import Endpoint
from core.types import Task


async def run(task: Task, endpoint: Endpoint) -> str:
    """Answer the question; the agent talks to the gateway as it would to OpenAI."""

    @tool
    def look_up(thing: str) -> str:
        """Tell who has to do with a thing."""
        return facts.look_up(thing, task.metadata["world"])

    return await ask(Agent(make_model(endpoint), tools=[look_up], callback_handler=None), task)


@tool
async def python(code: str) -> str:
    """Run a Python program and return what it prints."""
    return await math_agent.run_python(code)


async def solve(task: Task, endpoint: Endpoint) -> str:
    """Solve a mathematical problem; programs run in the sandbox, without network and the user's files."""
    model = make_model(endpoint)
    return await ask(Agent(model, tools=[python], system_prompt=math_agent.SYSTEM, callback_handler=None), task)


def make_model(endpoint: Endpoint) -> OpenAIModel:
    client = {"base_url": endpoint.openai_url, "api_key": endpoint.api_key, "max_retries": 0, "timeout": None}
    return OpenAIModel(client_args=client, model_id=endpoint.model)


async def ask(agent: Agent, task: Task) -> str:
    try:
        return str(await agent.invoke_async(task.question))
    except MaxTokensReachedException:  # it wrote too long an answer: that is the policy's doing, and no answer
        return ""
