"""Records what a real vLLM answers, for tests/unit/policy/test_vllm.py. The server has the model of tests/contract:

python -m tests.optional.vllm_cpu.record URL MODEL > tests/unit/policy/vllm_replies.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from core.policy.vllm import LOADING, _make_params
from core.types import Sampling


async def record(url: str, model: Path) -> dict[str, Any]:
    replies: dict[str, Any] = {}
    async with aiohttp.ClientSession() as http:

        async def post(name: str, path: str, body: dict[str, Any]) -> Any:
            async with http.post(f"{url}{path}", json=body) as response:
                reply = await response.json()
            replies[name] = {"path": path, "status": response.status, "reply": reply}
            if name == "completion":
                replies[name]["body"] = body
            return reply

        async def generate(name: str, prompt: list[int], **sampling: Any) -> Any:
            params = _make_params(Sampling(**{"seed": 1, **sampling}))
            return await post(name, "/inference/v1/generate", {"token_ids": prompt, "sampling_params": params})

        await generate("completion", [1, 2, 3], max_new_tokens=3)
        long = [n % 100 for n in range(300)]
        free = await generate("stopped", long, max_new_tokens=12)
        stop = free["choices"][0]["token_ids"][3]
        await generate("stopped", long, max_new_tokens=12, stop_token_ids=(stop,))
        await generate("beyond_context", [1] * 10_000, max_new_tokens=3)
        await generate("no_temperature", [1], temperature=-1.0)
        await post("pause", "/pause?mode=wait", {})
        await post("loading", "/update_weight_version", {"new_version": LOADING})
        await post("reload", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(model)}})
        await post("version", "/update_weight_version", {"new_version": "default"})
        await post("resume", "/resume", {})
        absent = {"method": "reload_weights", "kwargs": {"weights_path": "/absent"}}
        await post("failed_reload", "/collective_rpc", absent)
    return replies


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.optional.vllm_cpu.record")
    parser.add_argument("url")
    parser.add_argument("model", type=Path)
    args = parser.parse_args()
    lines = [f'"{name}": {json.dumps(entry)}' for name, entry in asyncio.run(record(args.url, args.model)).items()]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
