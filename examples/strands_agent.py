"""A Strands agent with a tool, trained as it is. Strands streams every answer.

.venv/bin/pip install "strands-agents[openai]==1.62.0"
bash agentic/agent/run.sh --set agent.agents.lookup.run=examples.strands_agent.run --out runs/agent-strands
"""

from __future__ import annotations

from strands import Agent, tool
from strands.models.openai import OpenAIModel

from agentic.agent.tiny import world
from core.gateway.agent import Endpoint
from core.types import Task


async def run(task: Task, endpoint: Endpoint) -> str:
    """Answer the question; the agent talks to the gateway as it would to OpenAI."""

    @tool
    def look_up(thing: str) -> str:
        """Tell who has to do with a thing."""
        return world.look_up(thing, task.metadata["world"])

    client = {"base_url": endpoint.openai_url, "api_key": endpoint.api_key, "max_retries": 0}
    agent = Agent(OpenAIModel(client_args=client, model_id=endpoint.model), tools=[look_up], callback_handler=None)
    return str(await agent.invoke_async(task.question))
