"""The engine of the conversations: our server with scripted replies, a tokenizer and a chat template of a real model.

It has SGLang's `/generate`, vLLM's `/inference/v1/generate` and vLLM's Chat Completions with `return_token_ids`. As in
vLLM, Chat renders all messages anew with the template: it remembers nothing. Its log is what the engine saw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from benchmarks.exactness.client import INPUTS
from core import vllm_wire
from core.engine.server import Server
from core.text.call_formats import detect_format, read_reply
from core.text.tool_calls import ToolCall, ToolSchema
from core.types import Completion, Sampling

USER = {"role": "user", "content": "-"}
PROBES = {"name": "", "steps": [{"reply": {"thought": "Hm.", "text": "Yes."}}] * 9}
"""Answers what a layer asks before its first conversation, to learn what the engine can do."""
TOOLS = [ToolSchema(t["function"]["name"], "", t["function"]["parameters"]) for t in INPUTS["request"]["tools"]]


class Script:
    """The policy: gives the replies of a conversation in their order, and logs prompts and replies by its name."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.engine = SimpleNamespace(max_model_len=1 << 16)
        self.logs: dict[str, list[tuple[list[int], list[int]]]] = {}

    def begin(self, conversation: Mapping[str, Any]) -> None:
        """Start a conversation with an empty log."""
        self.log = self.logs[conversation["name"]] = []
        self._replies = iter([self.write(step["reply"], conversation) for step in conversation["steps"]])

    def write(self, reply: Mapping[str, Any], spelling: Mapping[str, Any]) -> list[int]:
        """Return a reply in tokens: what the template shows for it, but for the conversation's own spelling."""
        answer = {"role": "assistant", "content": reply.get("text", ""), "reasoning_content": reply["thought"]}
        if calls := [{"type": "function", "function": call} for call in reply.get("calls", ())]:
            answer["tool_calls"] = calls
        before = self.render([USER], tokenize=False, add_generation_prompt=True)
        shown: str = self.render([USER, answer], tokenize=False)
        text = shown.removeprefix(before).partition(self.tokenizer.eos_token)[0]
        if spelling.get("compact_json"):
            for arguments in [json.dumps(call["function"]["arguments"], ensure_ascii=False) for call in calls]:
                packed = json.dumps(json.loads(arguments), ensure_ascii=False, separators=(",", ":"))
                text = text.replace(arguments, packed)
        ids = self._encode(text)
        if spelling.get("splits_a_word"):
            cuts = [i for i in range(len(text) // 2, len(text)) if text[i - 1 : i + 1].isalpha()]
            ids = next(cut for i in cuts if (cut := self._encode(text[:i]) + self._encode(text[i:])) != ids)
        return [*ids, self.tokenizer.eos_token_id]

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """Apply the chat template. Raises HTTPBadRequest where it refuses."""
        try:
            return self.tokenizer.apply_chat_template(messages, return_dict=False, **options)
        except Exception as error:  # templates raise what they like
            raise web.HTTPBadRequest(text=f"the chat template refuses: {error}") from error

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, **_: Any) -> Completion:
        ids = next(self._replies)
        self.log.append((list(prompt_ids), ids))
        return Completion(tuple(ids), (-0.5,) * len(ids), "stop")

    async def close(self) -> None:
        """Hold nothing that needs closing."""


class ScriptedServer(Server):
    """Our engine's server, and vLLM's Chat Completions."""

    def __init__(self, script: Script):
        super().__init__(script, "policy", script.tokenizer)  # type: ignore[arg-type]
        self._script = script
        self._format = detect_format(script.tokenizer)

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/begin", self.begin)
        return app

    async def begin(self, request: web.Request) -> web.Response:
        self._script.begin(await request.json())
        return web.json_response({})

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        messages = list(map(read_message, body["messages"]))
        prompt = self._script.render(messages, tools=body.get("tools"), add_generation_prompt=True)
        completion = await self._script.generate(prompt, Sampling())
        reply = read_reply(self._script.tokenizer.decode(completion.token_ids[:-1]), self._format, TOOLS)
        name = f"chatcmpl-{len(prompt)}-{len(self._script.log)}"
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        message["reasoning"] = reply.reasoning or None
        message["tool_calls"] = [
            {"id": f"call-{name}-{i}", "type": "function", "function": {"name": call.name, "arguments": write(call)}}
            for i, call in enumerate(reply.calls)
        ]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.calls else "stop"}
        choice |= {"token_ids": completion.token_ids, "logprobs": vllm_wire.write_logprobs(completion)}
        head = {"id": name, "object": "chat.completion", "created": 0, "model": "policy", "prompt_token_ids": prompt}
        usage = vllm_wire.write_usage(len(prompt), completion)
        return web.json_response({**head, "choices": [choice], "usage": usage})


def write(call: ToolCall) -> str:
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def read_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as vLLM gives it to a template: text, thoughts by the template's name, arguments as objects."""
    read = {**message, "content": message.get("content") or ""}
    if thought := message.get("reasoning") or message.get("reasoning_content"):
        read["reasoning_content"] = thought
    if functions := [call["function"] for call in message.get("tool_calls") or ()]:
        parsed = [{"name": each["name"], "arguments": json.loads(each["arguments"])} for each in functions]
        read["tool_calls"] = [{"type": "function", "function": each} for each in parsed]
    return read
