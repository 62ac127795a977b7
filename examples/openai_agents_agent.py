"""A program of the OpenAI Agents SDK with a tool, trained as it is.

.venv/bin/pip install openai-agents==0.24.0
bash agentic/agent/run.sh --set agent.agents.lookup.run=examples.openai_agents_agent.run --out runs/agent-openai
"""

from __future__ import annotations

import httpx
from agents import Agent, ModelBehaviorError, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI

from agentic.agent import facts
from core.gateway import Endpoint
from core.types import Task


async def run(task: Task, endpoint: Endpoint) -> str:
    """Answer the question; the program talks to the gateway as it would to OpenAI."""

    @function_tool
    def look_up(thing: str) -> str:
        """Tell who has to do with a thing."""
        return facts.look_up(thing, task.metadata["world"])

    # Without a proxy and certificates to look for, a client is made in a millisecond.
    async with httpx.AsyncClient(verify=False, trust_env=False, timeout=None) as http:
        client = AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.api_key, max_retries=0, http_client=http)
        model = OpenAIChatCompletionsModel(model=endpoint.model, openai_client=client)
        agent = Agent(name="clerk", model=model, tools=[look_up])
        try:
            done = await Runner.run(agent, task.question, run_config=RunConfig(tracing_disabled=True))
        except ModelBehaviorError:  # it called a tool that is not there: that is the policy's doing, and no answer
            return ""
    return str(done.final_output)
