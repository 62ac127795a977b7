"""A server that speaks OpenEnv's protocol: count up to a number that the seed sets, by text or by a tool.

As a program it serves on the port that is its argument: python fake_openenv.py PORT
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TOOLS = [{"name": "add", "description": "Adds a number.", "input_schema": {
    "type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"],
}}]  # fmt: skip


@dataclass
class Seen:
    """What the server was asked: options of resets, and the most sessions at once."""

    resets: list[dict[str, Any]] = field(default_factory=list)
    open: int = 0
    most: int = 0


SEEN = web.AppKey("seen", Seen)


async def play(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    seen, goal, total = request.app[SEEN], 0, 0
    seen.open += 1
    seen.most = max(seen.most, seen.open)
    try:
        async for message in socket:
            body = json.loads(message.data)
            data: dict[str, Any] = body["data"]
            reward: float | None = 0.0
            result: dict[str, Any] = {}
            if body["type"] == "reset":
                seen.resets.append(data)
                goal, total = 2 + data.get("seed", 0), 0
            elif data.get("type") == "list_tools":
                await send(socket, {"tools": TOOLS}, 9.0, False)
                continue
            else:
                said = str(data["arguments"]["number"] if data.get("type") == "call_tool" else data["say"])
                if said == "die":
                    os._exit(3)
                if said == "hang":
                    continue
                if said == "break":
                    error = {"code": "EXECUTION_ERROR", "message": "it broke"}
                    await socket.send_json({"type": "error", "data": error})
                    continue
                if not said.isdigit():
                    error = {"code": "VALIDATION_ERROR", "message": "Invalid message", "errors": [{"msg": "no number"}]}
                    await socket.send_json({"type": "error", "data": error})
                    continue
                total += int(said)
                result = {"content": [{"type": "text", "text": f"now {total}"}, {"type": "image", "data": ""}]}
                reward = None if total > 90 else 0.5
            shown = {"text": f"{total} of {goal}", "result": result, "hidden": 7, "error": ""}
            await send(socket, shown, reward, total >= goal)
    finally:
        seen.open -= 1
    return socket


async def send(socket: web.WebSocketResponse, observation: dict[str, Any], reward: float | None, done: bool) -> None:
    data = {"observation": observation, "reward": reward, "done": done}
    await socket.send_json({"type": "observation", "data": data})


def make_app() -> web.Application:
    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    app = web.Application()
    app.router.add_get("/ws", play)
    app.router.add_get("/health", health)
    app[SEEN] = Seen()
    return app


if __name__ == "__main__":
    web.run_app(make_app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
