"""A LangGraph agent with a tool, trained as it is: a graph of a model and its tools.

.venv/bin/pip install langgraph==1.2.22 langchain-openai==1.7.3
bash agentic/agent/run.sh --set agent.agents.lookup.run=examples.langgraph_agent.run --out runs/agent-langgraph
"""

from __future__ import annotations

from typing import Any

import httpx
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from agentic.agent import facts
from core.gateway import Endpoint
from core.types import Task


def make_graph(chat: ChatOpenAI, number: int) -> Any:
    """Make the graph: the model is asked, its calls are run, and it is asked again until it calls nothing."""

    @tool
    def look_up(thing: str) -> str:
        """Tell who has to do with a thing."""
        return facts.look_up(thing, number)

    model = chat.bind_tools([look_up])

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([look_up]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


async def run(task: Task, endpoint: Endpoint) -> str:
    """Answer the question; the graph talks to the gateway as it would to OpenAI."""
    # Without a proxy and certificates to look for, a client is made in a millisecond.
    async with httpx.AsyncClient(verify=False, trust_env=False, timeout=None) as http:
        chat = ChatOpenAI(
            model=endpoint.model,
            base_url=endpoint.openai_url,
            api_key=endpoint.api_key,
            max_retries=0,
            http_async_client=http,
        )
        graph = make_graph(chat, task.metadata["world"])
        done = await graph.ainvoke({"messages": [("user", task.question)]})
    return str(done["messages"][-1].content)
