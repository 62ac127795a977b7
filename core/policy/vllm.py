"""Calls vLLM's `POST /inference/v1/generate`, which takes token ids and returns token ids and their log-probs.

The server needs the options VLLM_ARGS of server_process.py, and VLLM_SERVER_DEV_MODE=1 in its environment if it is to
get new weights. vLLM's dialect:

- Log-probs belong to the distribution that was sampled, after `top_p` and `top_k` cut it. Training leaves these off,
  and then it is the distribution of every other policy.
- It ends on the model's own eos ids as well as on `stop_token_ids`, honours seeds, and refuses temperatures above 2.
- A request whose connection closes is aborted, so there is no call for it.
- A server with a tokenizer refuses ids beyond the vocabulary; one without (`--skip-tokenizer-init`) does not.
- Each reply names the weights of every token; vime's vLLM is older and names one version for the whole reply. A server
  that was never given any says `default`. vLLM's Rust frontend (VLLM_USE_RUST_FRONTEND=1) leaves `usage` out.
- `--api-key` guards the endpoint for completions, but not the one for weights: it is for a trusted network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.policy.base import PolicyError
from core.policy.http_policy import HTTPPolicy, make_params
from core.types import Completion, Sampling

SESSION_HEADER = "X-Session-ID"
LOADING = "loading"
"""Names the weights while they change. If that fails, no reply can be taken for one of the old or the new ones."""


class VLLMPolicy(HTTPPolicy):
    """A policy over vLLM's protocol (core/policy/http_policy.py explains the options)."""

    async def _load_weights(self, folder: str, version: str) -> None:
        """Calls under way end before the weights change; the others wait. If this fails, they wait for another try."""
        await self._post("/pause?mode=wait", {})  # and drop what is cached
        await self._post("/update_weight_version", {"new_version": LOADING})
        await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        await self._post("/update_weight_version", {"new_version": version})
        await self._post("/resume", {})

    async def _attempt(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None) -> Completion:
        body = {"token_ids": list(prompt_ids), "sampling_params": _make_params(sampling)}
        headers = None if session is None else {SESSION_HEADER: session}
        return _read_completion(await self._post("/inference/v1/generate", body, headers), self.url)


def _make_params(sampling: Sampling) -> dict[str, Any]:
    params = {
        **make_params(sampling),
        "max_tokens": sampling.max_new_tokens,
        "logprobs": 0,  # of the sampled token alone
        "detokenize": bool(sampling.stop),
    }
    if sampling.seed is not None:
        params["seed"] = sampling.seed
    return params


def _read_completion(reply: Any, url: str) -> Completion:
    try:
        (choice,) = reply["choices"]
        token_ids = tuple(choice["token_ids"])
        entries = choice["logprobs"]["content"]
        logged = tuple(entry["token_id"] for entry in entries)
        logprobs = tuple(float(entry["logprob"]) for entry in entries)
        # A request aborted before its first token names no weights.
        spans = [(str(span["version"]), span["end"] - span["start"]) for span in choice.get("weight_versions") or ()]
        *earlier, (weight_version, _) = spans or [(str(reply.get("weight_version") or "default"), 0)]
        told = ((reply.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
        cached_tokens = None if told is None else int(told)
        finish_reason = choice["finish_reason"]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise PolicyError("bad_reply", f"{url}: reply lacks a field: {error!r} in {str(reply)[:300]}") from error
    if logged != token_ids:
        raise PolicyError("bad_reply", f"{url}: its {len(token_ids)} token ids are not those of its log-probs")
    return Completion(token_ids, logprobs, finish_reason, weight_version, cached_tokens, tuple(earlier))
