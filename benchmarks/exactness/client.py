"""The client of the conversations. It runs beside any capture layer, so it needs Python's own library alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends the body of a request in OpenAI's Chat protocol, and returns the body of the answer."""

INPUTS = json.loads(Path(__file__).with_name("conversations.json").read_text())
"""Holds the conversations, and what all requests have beside their messages."""


def request(url: str, body: Any = None, key: str = "-") -> Any:
    """Send JSON, with POST if there is a body, and return the JSON of the reply."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"status {error.code}: {' '.join(error.read().decode().split())[:300]}") from None


def ask_at(base_url: str, key: str = "-") -> Ask:
    """Return what asks a server whose base URL ends in /v1."""
    return lambda body: request(f"{base_url}/chat/completions", body, key)


def play(conversation: dict[str, Any], ask: Ask) -> None:
    """Hold a conversation: send each step's messages behind those of its thread, and react to the answers."""
    threads: dict[str, list[dict[str, Any]]] = {}
    last = ""
    for step in conversation["steps"]:
        name = step.get("thread", "main")
        messages = [] if step.get("restart") else threads.get(name, [])
        calls = [call["id"] for call in messages[-1].get("tool_calls", ())] if messages else []
        for message in step["messages"]:
            if message["role"] == "tool":
                if not calls:  # a layer may have passed on the first call alone
                    continue
                message = {**message, "tool_call_id": calls.pop(0)}
            messages.append({**message, "content": message["content"].replace("{answer}", last)})
        if messages[-1]["role"] == "assistant":
            raise RuntimeError("the client got no call of a tool, though the model made one")
        threads[name] = messages
        answer = ask({**INPUTS["request"], "messages": messages})["choices"][0]["message"]
        last = answer.get("content") or ""
        messages.append(write_back(conversation, answer))


def write_back(conversation: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return the message that the client sends back for an answer."""
    message = {name: value for name, value in answer.items() if value not in (None, [])}
    if conversation.get("drops_thoughts"):
        message = {name: message[name] for name in ("role", "content", "tool_calls") if name in message}
    if conversation.get("reserialises"):
        for call in message.get("tool_calls", ()):
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    return message
