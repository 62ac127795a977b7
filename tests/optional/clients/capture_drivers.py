"""Lets other projects' capture layers talk to our servers; runs in their environment, with what exactness has for that.

python capture_drivers.py NAME ENGINE_URL GATEWAY_URL MODEL_FOLDER

Prints one line of JSON: what the layer captured of every turn, and of the whole conversation what it would train.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx

from benchmarks.exactness.layers import serve

MESSAGES = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Look up the words cat and dog."},
]
FOLLOW_UPS = ("Look up the word owl.", "Which of them can fly?")
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look_up", "description": "Looks up a word.", "parameters": {
            "type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"],
        }},
    }
]  # fmt: skip
BUDGET = 24
Turn = tuple[list[int], list[int], list[float]]


def join_chunks(chunks: Any) -> dict[str, Any]:
    """Return the message of a stream."""
    text, calls = "", list[dict[str, Any]]()
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                if part.id:
                    calls.append({"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}})
                calls[part.index]["function"]["name"] += part.function.name or ""
                calls[part.index]["function"]["arguments"] += part.function.arguments or ""
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def chat(base_url: str, key: str, model: str, *, stream: bool = False) -> None:
    """Hold a conversation of three turns with OpenAI's SDK, with tools if the template of `model` shows some."""
    import openai

    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
    messages: list[Any] = list(MESSAGES)
    for follow_up in (*FOLLOW_UPS, None):
        asked: dict[str, Any] = {"model": "policy", "messages": messages, "max_tokens": BUDGET, "temperature": 1.0}
        if "tools" in Path(model, "chat_template.jinja").read_text():
            asked["tools"] = TOOLS
        if stream:
            answer = join_chunks(client.chat.completions.create(**asked, stream=True))
        else:
            answer = client.chat.completions.create(**asked).choices[0].message.model_dump(exclude_none=True)
        messages.append(answer)
        for call in answer.get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "nothing found"})
        if follow_up is not None:
            messages.append({"role": "user", "content": follow_up})


async def verifiers(engine: str, gateway: str, model: str) -> dict[str, Any]:
    """The train client of verifiers, over its graph of messages, against the engine and against the gateway."""
    from renderers import AutoRendererConfig
    from verifiers.v1.clients.train import TrainClient
    from verifiers.v1.configs.client import TrainClientConfig
    from verifiers.v1.dialects import ChatDialect
    from verifiers.v1.graph import prepare_turn
    from verifiers.v1.task import TaskData
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask
    from verifiers.v1.types import SamplingConfig

    turns: list[Turn] = []
    trained = 0
    for url, name in ((engine, "model"), (gateway, "policy")):  # a header names the session
        config = TrainClientConfig(
            base_url=f"{url}/v1", api_key_var="NO_KEY", renderer_model_name=model, renderer=AutoRendererConfig()
        )
        client, dialect = TrainClient(config), ChatDialect()
        trace = Trace(task=TraceTask(type="Task", data=TaskData()), agent=AgentInfo(config={}))
        messages: list[Any] = list(MESSAGES)
        for follow_up in (*FOLLOW_UPS, None):
            body = {"model": name, "messages": messages}
            request = dialect.parse_request(body)
            turn = prepare_turn(trace, request.messages, request.tools)
            sampling = SamplingConfig(temperature=1.0, max_tokens=BUDGET)
            response = await client.get_response(dialect, body, sampling, session_id="verifiers", turn=turn)
            turn.commit(response)
            tokens = response.tokens
            turns.append((list(tokens.prompt_ids), list(tokens.completion_ids), list(tokens.completion_logprobs)))
            messages.append(response.raw["choices"][0]["message"])
            if follow_up is not None:
                messages.append({"role": "user", "content": follow_up})
        trained += sum(sum(branch.sampled_mask) for branch in trace.branches)
        await client.close()
    return {"turns": turns, "trained": trained}


def openenv(engine: str, gateway: str, model: str) -> dict[str, Any]:
    """OpenEnv's probe of an endpoint, then its capture proxy."""
    from openenv.core.harness.capture.server import create_app
    from openenv.core.harness.capture.validate_llm import validate_llm

    upstream = f"{gateway}/s/openenv/v1"
    report = validate_llm(f"{gateway}/s/probe/v1", "policy", timeout=60)
    assert report.ok, report.findings
    assert report.capture_level == "tokens", report.findings
    app = create_app(llm_url=upstream, model="policy", capture_level=report.capture_level)
    url = serve(app)
    with httpx.Client(base_url=url, timeout=60) as http:
        session = http.post("/sessions", json={"sampling": {"temperature": 1.0}}).raise_for_status().json()
        chat(f"{url}/v1", session["session_id"], model)
        rollout = http.get(f"/sessions/{session['session_id']}/rollout").raise_for_status().json()
    turns: list[Turn] = []
    for row in rollout["sequences"]:
        assert row["trainable"], row["validation"]
        ids, mask = row["input_ids"], row["loss_mask"]
        starts = [i for i in range(1, len(ids)) if mask[i] and not mask[i - 1]]
        for start in starts:
            end = next((i for i in range(start, len(ids)) if not mask[i]), len(ids))
            turns.append((ids[:start], ids[start:end], row["logprobs"][start:end]))
    return {"turns": turns, "trained": sum(row["n_trainable"] for row in rollout["sequences"])}


def rllm(engine: str, gateway: str, model: str) -> dict[str, Any]:
    """rLLM's model gateway, whole and streamed."""
    from rllm_model_gateway import create_app
    from rllm_model_gateway.models import GatewayConfig, WorkerConfig

    config = GatewayConfig(
        workers=[WorkerConfig(url=f"{gateway}/s/rllm/v1", model_name="policy")], store_worker="memory", sync_traces=True
    )
    url = serve(create_app(config))
    turns: list[Turn] = []
    with httpx.Client(base_url=url, timeout=60) as http:
        for stream in (False, True):
            session = http.post("/sessions", json={}).raise_for_status().json()
            chat(f"{url}{session['url']}", "-", model, stream=stream)
            http.post("/admin/flush").raise_for_status()
            traces = http.get(f"/sessions/{session['session_id']}/traces").raise_for_status().json()
            turns += [(t["prompt_token_ids"], t["completion_token_ids"], t["logprobs"]) for t in traces]
    return {"turns": turns, "trained": sum(len(turn[1]) for turn in turns)}


def agentlightning(engine: str, gateway: str, model: str) -> dict[str, Any]:
    """Agent Lightning's proxy."""
    from agentlightning.server.app import create_app

    modes = {"train": {"temperature": 1}, "val": {"temperature": 0.7}}
    url = serve(create_app({"key": "", "default_proxy": {"model_name": "policy", **modes}}))
    with httpx.Client(base_url=url, timeout=60) as http:
        endpoint = {"model": "policy", "endpoint": f"{gateway}/s/agentlightning/v1"}
        http.post("/api/models", json=[endpoint]).raise_for_status()
        rollout = http.post("/api/rollouts", json=[{"input": "-", "rollout_id": "r"}])
        if rollout.status_code == 422:
            rollout = http.post("/api/rollouts", json={"input": "-", "rollout_id": "r"})
        rollout.raise_for_status()
        chat(f"{url}/proxy/rollout/r/attempt/0/mode/train/openai/v1", "-", model)
        events = http.get("/api/rollouts/r/events", params={"format": "triplet"}).raise_for_status().json()
    each = [event["data"] for event in events]
    turns = [(one["prompt_token_ids"], one["response_token_ids"], one["response_log_probs"]) for one in each]
    return {"turns": turns, "trained": sum(len(turn[1]) for turn in turns)}


async def harbor(engine: str, gateway: str, model: str) -> dict[str, Any]:
    """The LLM of Harbor's agents, with rollout details."""
    from harbor.llms.lite_llm import LiteLLM

    llm = LiteLLM("openai/policy", api_base=f"{gateway}/s/harbor/v1", temperature=1.0, collect_rollout_details=True)
    turns: list[Turn] = []
    history: list[Any] = MESSAGES[:1]
    for place in ("France", "Italy", "Spain"):  # it takes no answer that the budget cuts
        prompt = f"Answer with one word: what is the capital of {place}?"
        response = await llm.call(prompt, message_history=history, max_tokens=300, api_key="-")
        turns.append((response.prompt_token_ids, response.completion_token_ids, response.logprobs))
        history = [*history, {"role": "user", "content": prompt}, {"role": "assistant", "content": response.content}]
    return {"turns": turns, "trained": sum(len(turn[1]) for turn in turns)}


def main() -> None:
    name, *places = sys.argv[1:]
    result = globals()[name](*places)
    print(json.dumps(asyncio.run(result) if asyncio.iscoroutine(result) else result))


if __name__ == "__main__":
    main()
