"""Speaks the worker's protocol without tau2: a user who wants the tool `fix` called once, and a task that crashes.

The user is asked for each of its turns, as tau2 asks for its simulator; a conversation ends when it says ###STOP###.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

WISH = "My phone is broken."
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Do it.", "parameters": {"type": "object"}}}
    for name in ("fix", "transfer_to_human_agents")
]


def record(name: str) -> dict[str, Any]:
    action = {"requestor": "assistant", "name": "fix", "arguments": {}}
    return {
        "id": name,
        "ticket": WISH,
        "user_scenario": {"instructions": {"reason_for_call": WISH}},
        "evaluation_criteria": {"actions": [action] if name != "easy" else []},
    }


class Talk:
    def __init__(self, request: dict[str, Any]):
        self.request, self.fixed = request, 0
        self.messages: list[dict[str, Any]] = [{"role": "assistant", "content": "Hi!"}]

    def end(self, reason: str) -> dict[str, Any]:
        wanted = 0 if self.request["task_id"] == "easy" else 1
        reward = float(reason == "user_stop" and self.fixed == wanted)
        simulation = {
            "id": self.request["id"],
            "task_id": self.request["task_id"],
            "messages": self.messages,
            "termination_reason": reason,
            "reward_info": {"reward": reward},
            "info": {"assertions_not_judged": False},
        }
        return {"event": "end", "simulation": simulation}

    def user(self) -> dict[str, Any]:
        flip = {"assistant": "user", "user": "assistant"}
        shown = [{**m, "role": flip[m["role"]]} for m in self.messages if m["role"] in flip and m["content"]]
        return {"event": "ask", "who": "user", "messages": shown, "tools": []}

    def agent(self, error: bool = False) -> dict[str, Any]:
        return {"event": "ask", "who": "agent", "messages": self.messages[-1:], "errors": [error]}

    def say(self, message: dict[str, Any]) -> dict[str, Any]:
        speaker = "user" if self.messages[-1]["role"] == "assistant" else "assistant"
        self.messages.append({"role": speaker, "content": message["content"]})
        if speaker == "user":
            return self.end("user_stop") if "###STOP###" in message["content"] else self.agent()
        if not message.get("tool_calls"):
            return self.user()
        (called,) = message["tool_calls"]
        right = called["name"] == "fix"
        self.fixed += right
        self.messages.append({"role": "tool", "content": "fixed" if right else "Error: no such tool"})
        return self.agent(error=not right)


def main() -> None:
    talks: dict[str, Talk] = {}

    def send(key: str, event: dict[str, Any]) -> None:
        print(json.dumps({"id": key, **event}), flush=True)

    for line in sys.stdin:
        request = json.loads(line)
        op, key = request["op"], request["id"]
        if op == "start":
            if request["task_id"] == "crash":
                os.write(1, b'{"event": "be')  # in the middle of a line
                os._exit(3)
            talk = talks[key] = Talk(request)
            begun = {"event": "begun", "system": "Be kind.", "policy": "", "ticket": WISH, "tools": TOOLS}
            send(key, begun)
            send(key, talk.user())
        elif op == "say":
            send(key, talks[key].say(request["message"]))
        elif op == "stop":
            send(key, talks[key].end(request["reason"]))
        elif op == "about":
            send(key, {"event": "reply", "value": {"version": "0", "commit": None, "data": "", "blobs": {}}})
        elif op == "tasks":
            send(key, {"event": "reply", "value": [record("easy"), record("hard")]})
        elif op == "save":
            with open(request["path"], "w") as file:
                json.dump(request, file)
            send(key, {"event": "reply", "value": {}})


if __name__ == "__main__":
    main()
