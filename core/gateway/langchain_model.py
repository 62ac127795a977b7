"""A LangChain chat model over a session, without HTTP, for LangGraph agents in this process.

    async def run(task: Task, endpoint: Endpoint) -> str:
        agent = create_agent(SessionChatModel(session=endpoint.session), tools)
        state = await agent.ainvoke({"messages": [("user", task.question)]})
        return state["messages"][-1].text

It needs the package `langchain-core`. Its rows are those that the same agent has over HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool

from core.gateway import openai_chat
from core.gateway.bodies import read_text
from core.gateway.history import Answer
from core.gateway.messages import (
    AgentRequest,
    ContextFullError,
    MessageRole,
    WireCall,
    WireMessage,
    refuse,
    show_failure,
)
from core.gateway.session import GatewaySession

_ROLES: Mapping[str, MessageRole] = {"system": "system", "human": "user", "ai": "assistant", "tool": "tool"}


class SessionChatModel(BaseChatModel):
    """Asks a session. The policy answers in its own event loop, so only `ainvoke` and `astream` work.

    `model` says which role answers, as the name of a model does over HTTP. Options of a call are those of OpenAI's Chat
    Completions: each is honoured, or refused with a GatewayError. A full context is LangChain's ContextOverflowError,
    after which its middleware sums up.
    """

    session: GatewaySession
    model: str = "policy"

    @property
    def _llm_type(self) -> str:
        return "tokentrue"

    def bind_tools(
        self, tools: Sequence[Any], *, strict: bool | None = None, **options: Any
    ) -> Runnable[Any, AIMessage]:
        """Return this model with tools, in any form that LangChain knows."""
        return self.bind(tools=[convert_to_openai_tool(tool, strict=strict) for tool in tools], **options)

    def _generate(self, *arguments: Any, **options: Any) -> ChatResult:
        raise NotImplementedError("the policy answers in its own event loop: use ainvoke or astream")

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        def read() -> AgentRequest:
            request = openai_chat.read_request({"model": self.model, "stop": stop, **options})
            said = tuple(_read_message(message, f"messages.{i}") for i, message in enumerate(messages))
            return replace(request, messages=said)

        try:
            answer = await self.session.ask(read)
        except ContextFullError as error:
            raise ContextOverflowError(str(error)) from error
        return ChatResult(generations=[ChatGeneration(message=_write_message(answer))])


def _read_message(message: BaseMessage, path: str) -> WireMessage:
    if message.type not in _ROLES:
        raise refuse(path, f"a message of type {message.type!r} is none of {', '.join(_ROLES)}")
    content = message.content
    if isinstance(content, list):
        content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    between = "" if isinstance(message, AIMessage) else "\n"
    read = WireMessage(_ROLES[message.type], read_text(content, f"{path}.content", ("text",), between))
    if isinstance(message, ToolMessage):
        text = show_failure(read.text) if message.status == "error" else read.text
        return replace(read, text=text, call_id=message.tool_call_id)
    if isinstance(message, AIMessage):
        calls = tuple(
            WireCall(call["id"] or "", call["name"], json.dumps(call["args"], ensure_ascii=False))
            for call in message.tool_calls
        )
        reasoning = message.additional_kwargs.get("reasoning_content")
        return replace(read, reasoning=reasoning, calls=calls, marks=(message.id or "",))
    return read


def _write_message(answer: Answer) -> AIMessage:
    prompt, sampled = len(answer.prompt_ids), len(answer.completion.token_ids)
    return AIMessage(
        content=answer.message.text,
        id=answer.wire_id("msg"),
        tool_calls=[
            {"id": call.call_id, "name": call.name, "args": json.loads(call.arguments)} for call in answer.message.calls
        ],
        additional_kwargs={"reasoning_content": answer.message.reasoning} if answer.message.reasoning else {},
        response_metadata={"finish_reason": openai_chat.finish_reason(answer)},
        usage_metadata={"input_tokens": prompt, "output_tokens": sampled, "total_tokens": prompt + sampled},
    )
