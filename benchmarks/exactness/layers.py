"""Plays conversations through a capture layer, in its documented configuration and its own environment.

    python -m benchmarks.exactness.layers LAYER ENGINE_URL MODEL_FOLDER

Its last line is JSON: the layer's version, and of each conversation the training rows or why there are none. It imports
nothing of ours but the client and, since slime's parsers need SGLang, our readers.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.metadata
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.exactness.client import INPUTS, Ask, ask_at, play, request

Play = Callable[[Ask], None]
Row = tuple[list[int], list[int]]
Capture = Callable[[str, Play], list[Row]]
"""Plays the conversation of that name, and returns its rows: tokens, and a mask with 1 where a token is trained."""

ROOT = Path(__file__).resolve().parents[2]


def serve(app: Any) -> str:
    """Serve an ASGI application in a thread; return its URL. Raises RuntimeError: the server did not start."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError(f"uvicorn did not start on port {port}")
        time.sleep(0.05)
    return f"http://127.0.0.1:{port}"


def make_row(tokens: Sequence[int], mask: Sequence[int]) -> Row:
    """Return a row whose mask was that of its end."""
    return list(tokens), [0] * (len(tokens) - len(mask)) + [int(each) for each in mask]


def load_tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def tokentrue(engine: str, folder: str, history: str = "sampled") -> Capture:
    """Our gateway in front of vLLM's token wire."""
    command = [sys.executable, "-m", "scripts.tokentrue", "serve", "gateway", "--model", folder, "--port", "0"]
    command += ["--policy-url", f"vllm+{engine}", "--max-context", "65536", "--history", history]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    atexit.register(process.terminate)
    if not (told := process.stdout.readline().split()):
        raise RuntimeError("the gateway did not start; it says why above")
    url = told[-1]

    def capture(name: str, play: Play) -> list[Row]:
        play(ask_at(f"{url}/s/{name}/v1"))
        finished = request(f"{url}/s/{name}/finish", {})
        return [make_row(row["tokens"], row["loss_mask"]) for row in finished["rows"]]

    return capture


def openenv(engine: str, folder: str) -> Capture:
    """OpenEnv's capture proxy in front of vLLM's Chat; its rows are those that it calls trainable."""
    from openenv.core.harness.capture.server import create_app
    from openenv.core.harness.capture.validate_llm import validate_llm

    report = validate_llm(f"{engine}/v1", "policy", timeout=60)
    url = serve(create_app(llm_url=f"{engine}/v1", model="policy", capture_level=report.capture_level))

    def capture(name: str, play: Play) -> list[Row]:
        session = request(f"{url}/sessions", {"sampling": {"temperature": 1.0}})["session_id"]
        play(ask_at(f"{url}/v1", session))
        rollout = request(f"{url}/sessions/{session}/rollout")
        return [make_row(row["input_ids"], row["loss_mask"]) for row in rollout["sequences"] if row["trainable"]]

    return capture


def verifiers(engine: str, folder: str, retention: Any = None) -> Capture:
    """The train client of verifiers over vLLM's token wire, with the renderer of the model; a branch is a row."""
    from renderers import configs
    from verifiers.v1.clients.train import TrainClient
    from verifiers.v1.configs.client import TrainClientConfig
    from verifiers.v1.dialects import ChatDialect
    from verifiers.v1.graph import prepare_turn
    from verifiers.v1.task import TaskData
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask
    from verifiers.v1.types import SamplingConfig

    kept = {"thinking_retention": retention} if retention else {}
    renderer: Any = configs.DefaultRendererConfig(tool_parser="qwen3", **kept)  # reads Hermes' calls
    if "Qwen3" in folder:
        renderer = configs.Qwen3RendererConfig(**kept)
    elif "Llama-3" in folder:
        renderer = configs.Llama3RendererConfig(**kept)
    names = {"base_url": f"{engine}/v1", "api_key_var": "NO_KEY", "renderer_model_name": folder}
    client, dialect = TrainClient(TrainClientConfig(**names, renderer=renderer)), ChatDialect()
    loop = asyncio.new_event_loop()

    def capture(name: str, play: Play) -> list[Row]:
        trace = Trace(task=TraceTask(type="Task", data=TaskData()), agent=AgentInfo(config={}))

        def ask(body: dict[str, Any]) -> dict[str, Any]:
            asked = dialect.parse_request(body)
            turn = prepare_turn(trace, asked.messages, asked.tools)
            sampling = SamplingConfig(temperature=1.0, max_tokens=body["max_tokens"])
            response = loop.run_until_complete(client.get_response(dialect, body, sampling, session_id=name, turn=turn))
            turn.commit(response)
            answer: dict[str, Any] = response.raw
            return answer

        play(ask)
        return [make_row(branch.token_ids, branch.sampled_mask) for branch in trace.branches if branch.trainable]

    return capture


def rllm(engine: str, folder: str) -> Capture:
    """rLLM's model gateway in front of vLLM's Chat; a trace is a row."""
    from rllm_model_gateway import create_app
    from rllm_model_gateway.models import GatewayConfig, WorkerConfig

    worker = WorkerConfig(url=f"{engine}/v1", model_name="policy")
    url = serve(create_app(GatewayConfig(workers=[worker], store_worker="memory", sync_traces=True)))

    def capture(name: str, play: Play) -> list[Row]:
        session = request(f"{url}/sessions", {})
        play(ask_at(f"{url}{session['url']}"))
        traces = request(f"{url}/sessions/{session['session_id']}/traces")
        turns = [(trace["prompt_token_ids"], trace["completion_token_ids"]) for trace in traces]
        return [make_row(prompt + reply, [1] * len(reply)) for prompt, reply in turns]

    return capture


def agentlightning(engine: str, folder: str) -> Capture:
    """Agent Lightning's proxy in front of vLLM's Chat, and the adapter that makes verl's rows of its triplets.

    The lengths and the level `trajectory` are those of its agentlightning/verl/config.yaml.
    """
    import torch
    from agentlightning.server.app import create_app
    from agentlightning.verl.agl_rollout_manager import CompletedRollout, Triplet
    from agentlightning.verl.rollout_adapter import RolloutAdapter

    proxy = {"model_name": "policy", "train": {"temperature": 1}, "val": {"temperature": 0.7}}
    url = serve(create_app({"key": "", "default_proxy": proxy}))
    request(f"{url}/api/models", [{"model": "policy", "endpoint": f"{engine}/v1"}])
    lengths = {"max_prompt_length": 2048, "max_response_length": 8192}
    cpu = torch.device("cpu")
    adapter = RolloutAdapter(**lengths, device=cpu, pad_token_id=0, trace_aggregator_level="trajectory")

    def capture(name: str, play: Play) -> list[Row]:
        request(f"{url}/api/rollouts", [{"input": "-", "rollout_id": name}])
        play(ask_at(f"{url}/proxy/rollout/{name}/attempt/0/mode/train/openai/v1"))
        triplets = []
        for event in request(f"{url}/api/rollouts/{name}/events?format=triplet"):
            data = event["data"]
            answer = {"token_ids": data["response_token_ids"], "log_probs": data["response_log_probs"]}
            triplets.append(Triplet(prompt={"token_ids": data["prompt_token_ids"]}, response=answer))
        ids = {"rollout_id": name, "data_id": name, "step": 0, "sample_idx_in_step": 0, "enqueue_time": 0.0}
        batch = adapter.get_train_data_batch([CompletedRollout(**ids, final_reward=1.0, triplets=triplets)])[0].batch
        rows = zip(batch["input_ids"], batch["attention_mask"].bool(), batch["response_mask"], strict=True)
        pad = torch.zeros(lengths["max_prompt_length"], dtype=torch.long)
        return [make_row(ids[real].tolist(), torch.cat([pad, mask])[real].tolist()) for ids, real, mask in rows]

    return capture


def trl(engine: str, folder: str, fork_threshold: int = 1024) -> Capture:
    """TRL's reconciliation of the turns that vLLM's Chat gave; 1024 is the default of AsyncGRPOConfig."""
    from trl.experimental.async_grpo.async_rollout_worker import TurnRecord, _chain_to_sequences

    def capture(name: str, play: Play) -> list[Row]:
        turns = []

        def ask(body: dict[str, Any]) -> dict[str, Any]:
            answer: dict[str, Any] = ask_at(f"{engine}/v1")(body)
            [choice] = answer["choices"]
            logprobs = [each["logprob"] for each in choice["logprobs"]["content"]]
            turns.append(TurnRecord(answer["prompt_token_ids"], choice["token_ids"], logprobs))
            return answer

        play(ask)
        sequences, _ = _chain_to_sequences(turns, name, fork_threshold)
        return [make_row(each.input_ids, each.completion_mask) for each in sequences]

    return capture


def agentcore(engine: str, folder: str, history_mode: str = "tree") -> Capture:
    """The rollout gateway of agentcore-rl-toolkit in front of vLLM's token wire."""
    from agentcore_rl_toolkit.rollout_gateway.gateway import RolloutGateway
    from agentcore_rl_toolkit.rollout_gateway.render import HfTemplateRenderer
    from agentcore_rl_toolkit.rollout_gateway.sampling_backends.vllm_http import VllmHttpBackend
    from agentcore_rl_toolkit.rollout_gateway.server import ThreadedGatewayServer

    tokenizer = load_tokenizer(folder)
    backend, renderer = VllmHttpBackend(engine), HfTemplateRenderer(tokenizer)
    gateway = RolloutGateway(backend=backend, renderer=renderer, tokenizer=tokenizer, history_mode=history_mode)
    server = ThreadedGatewayServer(gateway, host="127.0.0.1")
    server.start()

    def capture(name: str, play: Play) -> list[Row]:
        gateway.create_session(name)
        play(ask_at(server.base_url, name))
        return [make_row(each.token_ids, each.loss_mask) for each in asyncio.run(gateway.finish_session(name))]

    return capture


def slime(engine: str, folder: str) -> Capture:
    """slime's OpenAI adapter in front of SGLang's wire. Our readers take the place of SGLang's parsers."""
    from slime.agent.adapters import OpenAIAdapter, common
    from slime.agent.aiohttp_threaded import run_app_in_thread
    from slime.utils.types import Sample

    tokenizer = load_tokenizer(folder)
    common.parse_model_output = make_slime_parser(tokenizer)
    adapter = OpenAIAdapter(tokenizer=tokenizer, sglang_url=engine)
    url = f"http://127.0.0.1:{run_app_in_thread(adapter.app, host='127.0.0.1').port}"

    def capture(name: str, play: Play) -> list[Row]:
        adapter.open_session(name)
        play(ask_at(f"{url}/v1", name))
        samples = asyncio.run(adapter.finish_session(name, base_sample=Sample(index=0)))
        return [make_row(sample.tokens, sample.loss_mask) for sample in samples]

    return capture


def make_slime_parser(tokenizer: Any) -> Callable[..., Any]:
    """Make what takes the place of slime's parse_model_output: it reads an answer as our gateway does."""
    from slime.agent.parsing import ParsedModelOutput

    from benchmarks.exactness.engine import TOOLS
    from core.text.call_formats import detect_format, read_reply

    call_format = detect_format(tokenizer)

    def parse(raw_output: str, **_: Any) -> Any:
        reply = read_reply(raw_output.removesuffix(tokenizer.eos_token), call_format, TOOLS)
        calls = [{"name": call.name, "input": dict(call.arguments)} for call in reply.calls]
        return ParsedModelOutput(reply.reasoning, reply.text, calls)

    return parse


LAYERS: dict[str, Callable[..., Capture]] = {
    "tokentrue": tokentrue,
    "tokentrue-template": partial(tokentrue, history="template"),
    "agentcore": agentcore,
    "agentcore-linear": partial(agentcore, history_mode="linear"),
    "verifiers": verifiers,
    "verifiers-all": partial(verifiers, retention="all"),
    "openenv": openenv,
    "trl": trl,
    "trl-lossless": partial(trl, fork_threshold=0),
    "agentlightning": agentlightning,
    "rllm": rllm,
    "slime": slime,
}
"""Maps a layer to its driver. A name with a dash is the layer before it with another documented setting."""


DISTRIBUTIONS = {"agentcore": "agentcore-rl-toolkit", "rllm": "rllm-model-gateway"}
"""Maps a layer to its package, where that has another name."""


def main() -> None:
    name, engine, folder = sys.argv[1:]
    capture, played = LAYERS[name](engine, folder), []
    for conversation in INPUTS["conversations"]:
        result: dict[str, Any] = {"name": conversation["name"]}
        try:
            request(f"{engine}/begin", conversation)
            result["rows"] = capture(conversation["name"], partial(play, conversation))
        except Exception as error:  # other people's code raises what it likes
            result["error"] = f"{type(error).__name__}: {error}"
        played.append(result)
    layer, version = name.partition("-")[0], ""
    with suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version(DISTRIBUTIONS.get(layer, layer))
    print(f"\n{json.dumps({'version': version, 'conversations': played})}")


if __name__ == "__main__":
    main()
