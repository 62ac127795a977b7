"""Runs one real client against a gateway, in the environment of requirements.txt; nothing of this project is imported.

    python drivers.py CLIENT BASE_URL SESSION ...    one conversation in each session, one after the other

A conversation is a question, tool calls until the model answers, and the answer. The name of a session says whether it
is streamed: it ends with `-stream`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

QUESTION = "How many horses are there?"
SYSTEM = "You count horses."
PARAMETERS = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "what"}, "count": {"type": "integer"}},
    "required": ["query", "count"],
}


def search(query: str, count: int) -> str:
    """Search the stables.

    Args:
        query: what to look for
        count: how many results
    """
    return f"found {count}: {query}"


def openai_chat(url: str, stream: bool) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
    tools: Any = [{"type": "function", "function": {"name": "search", "parameters": PARAMETERS}}]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    while True:
        if stream:
            with client.chat.completions.stream(model="policy", messages=messages, tools=tools) as events:
                for _ in events:
                    pass
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(model="policy", messages=messages, tools=tools).choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in messages[-1].get("tool_calls", ()):
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            found = search(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})


def openai_responses(url: str, stream: bool) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
    tools: Any = [{"type": "function", "name": "search", "parameters": PARAMETERS, "strict": False}]
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        options: Any = {"model": "policy", "input": items, "tools": tools, "instructions": SYSTEM}
        if stream:
            with client.responses.stream(**options) as events:
                for _ in events:
                    pass
                response = events.get_final_response()
        else:
            response = client.responses.create(**options)
        calls = [item for item in response.output if item.type == "function_call"]
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        if not calls:
            return
        for call in calls:
            output = search(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})


def anthropic_sdk(url: str, stream: bool) -> None:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="-", max_retries=0)
    tools: Any = [{"name": "search", "description": "-", "input_schema": PARAMETERS}]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        options: Any = {"model": "policy", "system": SYSTEM, "messages": messages, "tools": tools, "max_tokens": 2000}
        if stream:
            with client.messages.stream(**options) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**options)
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return
        results = [{"type": "tool_result", "tool_use_id": c.id, "content": search(**c.input)} for c in calls]
        messages.append({"role": "user", "content": results})


def run_agents_sdk(model: Any, stream: bool) -> None:
    import agents

    agents.set_tracing_disabled(True)
    agent = agents.Agent(name="a", instructions=SYSTEM, model=model, tools=[agents.function_tool(search)])
    if not stream:
        agents.Runner.run_sync(agent, QUESTION)
        return

    async def consume() -> None:
        async for _ in agents.Runner.run_streamed(agent, QUESTION).stream_events():
            pass

    asyncio.run(consume())


def agents_chat(url: str, stream: bool) -> None:
    import agents
    import openai

    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
    run_agents_sdk(agents.OpenAIChatCompletionsModel(model="policy", openai_client=client), stream)


def agents_responses(url: str, stream: bool) -> None:
    import agents
    import openai

    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
    run_agents_sdk(agents.OpenAIResponsesModel(model="policy", openai_client=client), stream)


def run_langgraph(model: Any, stream: bool) -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    graph = create_agent(model, [tool(search)], system_prompt=SYSTEM)
    start: Any = {"messages": [("user", QUESTION)]}
    if not stream:
        graph.invoke(start)
        return
    for _ in graph.stream(start, stream_mode="messages"):
        pass


def langgraph_chat(url: str, stream: bool) -> None:
    from langchain_openai import ChatOpenAI

    run_langgraph(ChatOpenAI(model="policy", base_url=f"{url}/v1", api_key="-", streaming=stream), stream)


def langgraph_responses(url: str, stream: bool) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model="policy", base_url=f"{url}/v1", api_key="-", use_responses_api=True, output_version="responses/v1",
        streaming=stream,
    )  # fmt: skip
    run_langgraph(model, stream)


def langgraph_anthropic(url: str, stream: bool) -> None:
    from langchain_anthropic import ChatAnthropic

    model = ChatAnthropic(model_name="policy", base_url=url, api_key="-", max_tokens=2000, streaming=stream)
    run_langgraph(model, stream)


def run_pydantic_ai(model: Any, stream: bool) -> None:
    from pydantic_ai import Agent

    agent = Agent(model, system_prompt=SYSTEM, tools=[search])
    if not stream:
        agent.run_sync(QUESTION)
        return

    async def consume() -> None:
        async with agent.run_stream_events(QUESTION) as events:
            async for _ in events:
                pass

    asyncio.run(consume())


def pydantic_ai_chat(url: str, stream: bool) -> None:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    run_pydantic_ai(OpenAIChatModel("policy", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="-")), stream)


def pydantic_ai_anthropic(url: str, stream: bool) -> None:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    run_pydantic_ai(AnthropicModel("policy", provider=AnthropicProvider(base_url=url, api_key="-")), stream)


def litellm_chat(url: str, stream: bool) -> None:
    import litellm

    tools = [{"type": "function", "function": {"name": "search", "parameters": PARAMETERS}}]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    while True:
        reply = litellm.completion(
            "openai/policy", messages=messages, tools=tools, api_base=f"{url}/v1", api_key="-", stream=stream,
            max_retries=0,
        )  # fmt: skip
        if stream:
            reply = litellm.stream_chunk_builder(list(reply), messages=messages)
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            found = search(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})


def smolagents_chat(url: str, stream: bool) -> None:
    import smolagents

    # By default it asks for tool_choice "required", which sampling cannot promise and the gateway refuses.
    model = smolagents.OpenAIServerModel("policy", api_base=f"{url}/v1", api_key="-", tool_choice="auto")
    agent = smolagents.ToolCallingAgent(
        tools=[smolagents.tool(search)], model=model, max_steps=3, verbosity_level=0, stream_outputs=stream
    )
    agent.run(QUESTION)


def run_strands(model: Any) -> None:
    """Run an agent; Strands streams every answer, whatever the name of the session says."""
    from strands import Agent, tool

    Agent(model=model, tools=[tool(search)], system_prompt=SYSTEM, callback_handler=None)(QUESTION)


def strands_chat(url: str, stream: bool) -> None:
    from strands.models.openai import OpenAIModel

    run_strands(OpenAIModel(client_args={"base_url": f"{url}/v1", "api_key": "-"}, model_id="policy"))


def strands_anthropic(url: str, stream: bool) -> None:
    from strands.models.anthropic import AnthropicModel

    run_strands(AnthropicModel(client_args={"base_url": url, "api_key": "-"}, model_id="policy", max_tokens=2000))


CLIENTS: dict[str, Callable[[str, bool], None]] = {
    function.__name__: function
    for function in (
        openai_chat, openai_responses, anthropic_sdk, agents_chat, agents_responses, langgraph_chat,
        langgraph_responses, langgraph_anthropic, pydantic_ai_chat, pydantic_ai_anthropic, litellm_chat,
        smolagents_chat, strands_chat, strands_anthropic,
    )
}  # fmt: skip


def main() -> None:
    client, base, *sessions = sys.argv[1:]
    for session in sessions:
        try:
            CLIENTS[client](f"{base}/s/{session}", session.endswith("-stream"))
        except Exception as error:
            print(f"{session}\t{type(error).__name__}: {str(error)[:300]!r}", flush=True)


if __name__ == "__main__":
    main()
