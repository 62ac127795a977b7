"""Serves the engine over SGLang's wire format and vLLM's token wire: `tokentrue serve model --model PATH_OR_HUB_ID`.

It has the endpoints that SGLang clients, SGLang's router and slime use, slime's discovery of external engines included.
Departures: a request holds one prompt; `stream` sends the whole completion as a single event; `finish_reason` does not
say what `matched`; new weights do not wait for running requests; endpoints that move weights or memory between GPUs
reply 501. Of vLLM it has `POST /inference/v1/generate` and `GET /v1/models` (core/vllm_wire.py has their departures).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path

from aiohttp import web
from pydantic import PositiveInt

from core import vllm_wire
from core.engine import weights, wire
from core.engine.arithmetic import flush_subnormals
from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.hub import resolve
from core.options import Device, argparse_type, make_command_parser
from core.policy.sglang import ROUTING_HEADER
from core.policy.vllm import SESSION_HEADER
from core.serving import add_address_options, make_app, serve_app
from core.text.tokenizer import Tokenizer, find_tokenizer
from core.types import Completion, Sampling

_BODY_BYTES, _BODY_BYTES_PER_TOKEN = 1 << 20, 64
"""Bound a body by the context: an id takes up to 8 bytes, and the text of a token, escaped in JSON, rarely over 64."""
_PROBE_TIMEOUT_S = 20.0

_NO_SLEEP = "this engine does not hand its memory back; run slime without --colocate and --offload-rollout"
_NO_TRANSFER = "weights come by /update_weights_from_disk alone; run slime with --update-weight-transport disk"
_NOT_IMPLEMENTED = {
    "/release_memory_occupation": _NO_SLEEP,
    "/resume_memory_occupation": _NO_SLEEP,
    "/init_weights_update_group": _NO_TRANSFER,
    "/update_weights_from_distributed": _NO_TRANSFER,
    "/update_weights_from_tensor": _NO_TRANSFER,
    "/pull_weights": f"{_NO_TRANSFER} and --update-weight-mode full",
}


class Server:
    """Handles HTTP requests with one policy. Without a `tokenizer`, only `input_ids` are accepted.

    Requests other than GET /health must carry the `api_key`, if there is one. New weights are read from folders below
    `weights_root` alone, or from any folder without it.
    """

    def __init__(
        self,
        policy: EmbeddedPolicy,
        model_path: str,
        tokenizer: Tokenizer | None = None,
        *,
        api_key: str | None = None,
        weights_root: Path | None = None,
    ):
        self.policy = policy
        self.engine = policy.engine
        self.served_name = self.model_path = model_path
        self.tokenizer = tokenizer
        self._api_key = api_key
        self._weights_root = weights_root
        self._tokenizing = ThreadPoolExecutor(1, "tokenizer")
        # Of requests without a seed. Each server begins elsewhere, as SGLang's do: behind one router, two that began
        # alike would give the samples of a group in equal pairs.
        self._seeds = count(secrets.randbits(62))
        self._updating = asyncio.Lock()
        self._unpaused = asyncio.Event()
        self._unpaused.set()

    def app(self) -> web.Application:
        """Make the application. Run it with `handler_cancellation`, so that a lost client cancels its request."""
        app = make_app(
            max_body_bytes=_BODY_BYTES + _BODY_BYTES_PER_TOKEN * self.engine.max_model_len,
            api_key=self._api_key,
            middlewares=[wire.reply_errors_as_json],
        )
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.post("/inference/v1/generate", self.generate_from_ids),
                web.get("/v1/models", self.models),
                web.post("/abort_request", self.abort_request),
                web.post("/pause_generation", self.pause_generation),
                web.post("/continue_generation", self.continue_generation),
                web.post("/update_weights_from_disk", self.update_weights_from_disk),
                *(web.post(path, self.refuse) for path in _NOT_IMPLEMENTED),
                web.route("*", "/flush_cache", self.flush_cache),
                web.get("/health", self.health),
                web.get("/health_generate", self.health_generate),
                web.get("/workers", self.workers),
                web.get("/v1/loads", self.loads),
                *(web.get(path, self.info) for path in ("/get_weight_version", "/model_info", "/get_model_info")),
                *(web.get(path, self.info) for path in ("/server_info", "/get_server_info")),
            ]
        )
        app.on_shutdown.append(self._close)
        return app

    async def _close(self, _: web.Application) -> None:
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        await self.policy.close()

    async def generate(self, request: web.Request) -> web.Response:
        started = time.perf_counter()
        body = wire.GenerateBody.model_validate_json(await request.read())
        prompt_ids = await self._prompt_ids(body)
        params, rid = body.sampling_params, body.rid or uuid.uuid4().hex
        completion = await self._sample(prompt_ids, params.to_sampling(), request.headers.get(ROUTING_HEADER), rid)
        text = ""
        if self.tokenizer is not None:
            text = self.tokenizer.decode(completion.token_ids, skip_special_tokens=params.skip_special_tokens)
        if completion.finish_reason == "stop" and not params.no_stop_trim:  # a stop id stays, unless it is special
            text = min((text.partition(stop)[0] for stop in params.stops), key=len, default=text)
        meta = wire.make_meta_info(completion, rid, len(prompt_ids), with_logprobs=body.return_logprob)
        meta["e2e_latency"] = time.perf_counter() - started
        reply = {"text": text, "output_ids": completion.token_ids, "meta_info": meta}
        if body.stream:
            return web.Response(text=f"data: {json.dumps(reply)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")
        return web.json_response(reply)

    async def _sample(self, prompt_ids: list[int], sampling: Sampling, session: str | None, rid: str) -> Completion:
        await self._unpaused.wait()
        if sampling.seed is None:
            sampling = replace(sampling, seed=next(self._seeds))
        return await self.policy.generate(prompt_ids, sampling, session=session, request_id=rid)

    async def generate_from_ids(self, request: web.Request) -> web.Response:
        """Answer vLLM's `POST /inference/v1/generate`."""
        body = vllm_wire.TokensBody.model_validate_json(await request.read())
        if body.model not in (None, self.served_name):
            raise wire.BadRequest(f"model: there is no model {body.model!r}, only {self.served_name!r}", 404)
        try:
            sampling = body.sampling_params.to_sampling(body.find_room(self.engine.max_model_len))
        except ValueError as error:
            raise wire.BadRequest(str(error)) from error
        rid = body.request_id or uuid.uuid4().hex
        completion = await self._sample(body.token_ids, sampling, request.headers.get(SESSION_HEADER), rid)
        text = self.engine.decode(completion.token_ids) if sampling.stop and self.engine.decode else ""
        reply = vllm_wire.write_completion(body, completion, rid, self.served_name, int(time.time()), text)
        if body.stream:
            return web.Response(text="".join(vllm_wire.write_chunks(body, reply)), content_type="text/event-stream")
        return web.json_response(reply)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response(vllm_wire.write_models([self.served_name], self.engine.max_model_len))

    async def _prompt_ids(self, body: wire.GenerateBody) -> list[int]:
        if body.logprob_start_len != -1:
            raise wire.BadRequest("logprob_start_len: log-probs of prompt tokens are not implemented; leave it at -1")
        if (body.input_ids is None) == (body.text is None):
            raise wire.BadRequest("input_ids: give either input_ids (a list of token ids) or text")
        if body.input_ids is not None:
            return body.input_ids
        if self.tokenizer is None:
            raise wire.BadRequest(f"text: {self.model_path} has no tokenizer; send input_ids")
        # In a thread: a long text must not hold up other requests. In one thread: it must not take those of the engine.
        loop = asyncio.get_running_loop()
        return list(await loop.run_in_executor(self._tokenizing, self.tokenizer.encode, body.text))

    async def abort_request(self, request: web.Request) -> web.Response:
        body = wire.AbortBody.model_validate_json(await request.read())
        if body.abort_all:
            self.policy.abort_all()
        elif body.rid is not None:
            self.policy.abort(body.rid)
        else:
            raise wire.BadRequest("rid: name a request, or set abort_all")
        return web.Response()

    async def update_weights_from_disk(self, request: web.Request) -> web.Response:
        """Read the files while the engine runs, and change the weights between two of its steps."""
        body = wire.UpdateWeightsBody.model_validate_json(await request.read())
        async with self._updating:
            try:
                folder = self._find_weights(body.model_path)
                tensors = await asyncio.to_thread(weights.read, self.engine.model, folder)
            except (ValueError, OSError) as error:
                raise wire.BadRequest(f"model_path: {error}") from error
            await self.policy.run_exclusive(lambda: self.engine.set_weights(tensors, body.weight_version))
            self.model_path = body.model_path
        return web.json_response({"success": True, "message": f"weight version {self.engine.weight_version}"})

    def _find_weights(self, model_path: str) -> Path:
        """Return the folder of new weights. Raises ValueError if there is none, or it lies elsewhere than it may."""
        root = self._weights_root
        if root is not None and not Path(model_path).resolve().is_relative_to(root.resolve()):
            raise ValueError(f"{model_path} does not lie below {root} (--weights-root)")
        if not Path(model_path).is_dir():
            raise ValueError(f"{model_path}: no such folder")
        return Path(model_path)

    async def pause_generation(self, request: web.Request) -> web.Response:
        """Abort all requests; new ones wait for `/continue_generation` (SGLang's default mode)."""
        wire.PauseBody.model_validate_json(await request.read() or "{}")
        self._unpaused.clear()
        self.policy.abort_all()
        return web.json_response({"status": "ok", "message": "paused"})

    async def continue_generation(self, _: web.Request) -> web.Response:
        self._unpaused.set()
        return web.json_response({"status": "ok", "message": "continued"})

    async def refuse(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"error": {"message": f"{request.path}: {_NOT_IMPLEMENTED[request.path]}"}}, status=501
        )

    async def flush_cache(self, _: web.Request) -> web.Response:
        await self.policy.run_exclusive(self.engine.flush_cache)
        return web.Response(text="Cache flushed.")

    async def health(self, request: web.Request) -> web.Response:
        """Reply 200 at once, but behind a step that failed as `health_generate`: a GPU's fault may stay for good."""
        return await self.health_generate(request) if self.policy.failed else web.Response()

    async def health_generate(self, _: web.Request) -> web.Response:
        """Reply 200 if a probe request ends or, under load, if the engine computed anything meanwhile."""
        before = self.engine.stats()
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                await self.policy.generate([0], Sampling(max_new_tokens=1))
        except TimeoutError:
            now = self.engine.stats()
            if (now.prefilled_tokens, now.generated_tokens) == (before.prefilled_tokens, before.generated_tokens):
                raise web.HTTPServiceUnavailable(text=f"no token within {_PROBE_TIMEOUT_S:g} s") from None
        return web.Response()

    async def workers(self, request: web.Request) -> web.Response:
        url = str(request.url.origin())
        return web.json_response({"workers": [{"id": url, "url": url, "worker_type": "regular"}]})

    async def loads(self, _: web.Request) -> web.Response:
        stats = self.engine.stats()
        load = {"dp_rank": 0, "num_running_reqs": stats.num_running, "num_waiting_reqs": stats.num_waiting}
        return web.json_response({"loads": [load]})

    async def info(self, _: web.Request) -> web.Response:
        info = {
            "model_path": self.model_path,
            "is_generation": True,
            "weight_version": self.engine.weight_version,
            "context_length": self.engine.max_model_len,
            "vocab_size": self.engine.vocab_size,
            # slime compares this with its --offload-rollout.
            "enable_memory_saver": False,
            "disaggregation_mode": "null",
        }
        sizes = ("tp_size", "pp_size", "dp_size", "ep_size", "moe_dp_size")
        return web.json_response(info | dict.fromkeys(sizes, 1))


@flush_subnormals()
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    serve_app(args, lambda api_key: (open_server(args, api_key).app(), args.model))


def open_server(args: argparse.Namespace, api_key: str | None) -> Server:
    folder = resolve(args.model)
    tokenizer = find_tokenizer(folder)
    engine = Engine.from_pretrained(
        folder,
        dtype=args.dtype,
        device=args.device,
        max_model_len=args.max_model_len,
        kv_tokens=args.kv_tokens,
        max_num_seqs=args.max_num_seqs,
        decode=None if tokenizer is None else tokenizer.decode,
    )
    policy = EmbeddedPolicy(engine, threaded=True)
    return Server(policy, args.model, tokenizer, api_key=api_key, weights_root=args.weights_root)


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("serve model", "Serve a model on SGLang's and vLLM's wire.")
    add = parser.add_argument
    add("--model", required=True, help="checkpoint folder or hub id")
    add_address_options(parser, 30000)
    add("--weights-root", type=Path, metavar="DIR", help="new weights must lie below it")
    add("--dtype", choices=("auto", "float32", "bfloat16"), default="float32", help="auto: what is fastest here")
    add(
        "--device",
        type=argparse_type(Device),
        default="auto",
        help="cpu, cuda, cuda:N, or auto: cuda where there is one",
    )
    add("--kv-tokens", type=argparse_type(PositiveInt), default=65536, help="budget of the KV cache, in tokens")
    add("--max-num-seqs", type=argparse_type(PositiveInt), default=256, help="requests that run at once (default: 256)")
    add("--max-model-len", type=argparse_type(PositiveInt), help="longest prompt + completion, in tokens")
    return parser


if __name__ == "__main__":
    main()
