"""LangGraph and Strands agents without HTTP: their turns are those that the same agents have over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest

from core.gateway import Gateway, GatewayError, GatewaySession, SessionSettings, serve_gateway
from core.types import Sampling
from tests import kit

from .drivers import QUESTION, SYSTEM, search
from .scripted import ScriptedModel, check

pytestmark = pytest.mark.optional

LANGGRAPH = "needs LangGraph: pip install langchain langchain-openai, in an environment that sees this one's packages"
STRANDS = "needs Strands: pip install strands-agents[openai], in an environment that sees this one's packages"
CONVERSATIONS = [f"{thoughts}-{calls}" for thoughts in ("plain", "thinking") for calls in ("one", "two")]

RunAgent = Callable[[Any], Awaitable[object]]


async def run_langgraph(model: Any) -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    await create_agent(model, [tool(search)], system_prompt=SYSTEM).ainvoke({"messages": [("user", QUESTION)]})


async def run_strands(model: Any) -> None:
    from strands import Agent, tool

    agent = Agent(model=model, tools=[tool(search)], system_prompt=SYSTEM, callback_handler=None)
    await agent.invoke_async(QUESTION)


def open_gateway(name: str, **settings: Any) -> tuple[ScriptedModel, Gateway, GatewaySession]:
    scripted = ScriptedModel()
    wanted = SessionSettings(**{"max_context": 100_000, **settings})
    gateway = Gateway({"policy": scripted}, scripted.writer.tokenizer, wanted)
    return scripted, gateway, gateway.open_session(name, Sampling(max_new_tokens=4096))


async def compare(name: str, run: RunAgent, make_local: Any, make_remote: Any) -> None:
    """Run an agent in this process and over HTTP; assert that the turns are equal and the rows exact."""
    scripted, gateway, session = open_gateway(name)
    await run(make_local(session))
    local = await gateway.finish_session(name)
    described, exact = check(local, scripted.prompts[name])
    assert exact, described
    _, gateway, _ = open_gateway(name)
    async with serve_gateway(gateway) as url:
        await run(make_remote(f"{url}/s/{name}/v1"))
    assert local.turns == (await gateway.finish_session(name)).turns


def in_langgraph() -> tuple[RunAgent, Any, Any]:
    kit.require(find_spec("langchain") and find_spec("langchain_openai"), LANGGRAPH)
    from langchain_openai import ChatOpenAI

    from core.gateway.langchain_model import SessionChatModel

    over_http = partial(ChatOpenAI, model="policy", api_key="-")
    return run_langgraph, lambda session: SessionChatModel(session=session), lambda url: over_http(base_url=url)


def in_strands() -> tuple[RunAgent, Any, Any]:
    kit.require(find_spec("strands") and find_spec("openai"), STRANDS)
    from strands.models.openai import OpenAIModel

    from core.gateway.strands_model import SessionModel

    over_http = partial(OpenAIModel, model_id="policy")
    return run_strands, SessionModel, lambda url: over_http(client_args={"base_url": url, "api_key": "-"})


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("framework", [in_langgraph, in_strands])
async def test_an_agent_has_the_turns_that_it_has_over_http(name: str, framework: Any) -> None:
    await compare(name, *framework())


async def test_a_langgraph_agent_is_told_of_a_full_context_and_sums_up() -> None:
    kit.require(find_spec("langchain"), LANGGRAPH)
    from langchain.agents import create_agent
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_core.exceptions import ContextOverflowError
    from langchain_core.tools import tool

    from core.gateway.langchain_model import SessionChatModel

    _, _, session = open_gateway("plain-one", max_context=500)
    model = SessionChatModel(session=session)
    with pytest.raises(ContextOverflowError, match="maximum context length is 500 tokens"):
        await model.ainvoke("word " * 600)
    await model.bind_tools([tool(search)], strict=True).ainvoke(QUESTION)
    assert session.counters["strict_ignored"] == 1
    _, _, session = open_gateway("plain-one", max_context=3000)
    model = SessionChatModel(session=session)
    sum_up = SummarizationMiddleware(
        model=model, trigger=("messages", 3), keep=("messages", 1), summary_prompt="{messages}"
    )
    earlier = [(role, "word " * 150) for _ in range(3) for role in ("user", "assistant")]
    state = await create_agent(model, middleware=[sum_up]).ainvoke({"messages": [*earlier, ("user", QUESTION)]})
    assert session.counters["refused_context_length_exceeded"] == 1
    assert state["messages"][-1].text


async def test_a_strands_agent_is_told_of_a_full_context_and_trims() -> None:
    kit.require(find_spec("strands"), STRANDS)
    from strands import Agent
    from strands.types.exceptions import ContextWindowOverflowException

    from core.gateway.strands_model import SessionModel

    _, _, session = open_gateway("plain-two", max_context=500)
    model = SessionModel(session)
    with pytest.raises(ContextWindowOverflowException, match="maximum context length is 500 tokens"):
        await anext(model.stream([{"role": "user", "content": [{"text": "word " * 600}]}]))
    failed = {"toolUseId": "c", "status": "error", "content": [{"text": "exit code 1"}]}
    use = {"toolUse": {"toolUseId": "c", "name": "search", "input": {}}}
    specs = [{"name": "search", "description": "-", "inputSchema": {"json": {"type": "object"}}, "strict": True}]
    messages = [
        {"role": "user", "content": [{"text": QUESTION}]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"toolResult": failed}]},
    ]
    async for _ in model.stream(messages, specs):
        pass
    assert session.counters["strict_ignored"] == 1
    _, _, session = open_gateway("plain-one", max_context=700)
    roles = ("user", "assistant") * 3
    earlier: Any = [{"role": role, "content": [{"text": "word " * 100}]} for role in roles]
    agent = Agent(model=SessionModel(session), messages=earlier, callback_handler=None)
    assert str(await agent.invoke_async(QUESTION)).startswith("I look  it up.")
    assert session.counters["refused_context_length_exceeded"] >= 1


async def test_a_langgraph_agent_ends_at_the_limit_of_turns_and_cannot_force_a_call() -> None:
    kit.require(find_spec("langchain"), LANGGRAPH)
    from core.gateway.langchain_model import SessionChatModel

    _, _, session = open_gateway("plain-one", max_turns=1)
    model = SessionChatModel(session=session)
    with pytest.raises(GatewayError, match="tool_choice"):
        await model.bind_tools([search], tool_choice="required").ainvoke(QUESTION)
    with pytest.raises(GatewayError, match="1 turns"):
        await run_langgraph(model)
    assert session.counters["refused_bad_request"] == session.counters["refused_turn_limit"] == 1
    with pytest.raises(NotImplementedError, match="ainvoke"):
        model.invoke(QUESTION)


async def test_a_strands_agent_ends_at_the_limit_of_turns_and_cannot_force_a_call() -> None:
    kit.require(find_spec("strands"), STRANDS)
    from core.gateway.strands_model import SessionModel

    _, _, session = open_gateway("plain-one", max_turns=1)
    model = SessionModel(session)
    with pytest.raises(GatewayError, match="tool_choice"):
        await anext(model.stream([], tool_choice={"any": {}}))
    with pytest.raises(Exception, match="1 turns"):
        await run_strands(model)
    assert session.counters["refused_bad_request"] == session.counters["refused_turn_limit"] == 1
    with pytest.raises(ValueError, match="top_p"):
        model.update_config(top_p=1)
