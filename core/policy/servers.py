"""Makes the policy of a server by its URL, which names the protocol too."""

from __future__ import annotations

from typing import Any

from core.policy.http_policy import HTTPPolicy
from core.policy.sglang import SGLangPolicy
from core.policy.vllm import VLLMPolicy

VLLM = "vllm+"


def make_server_policy(url: str, **options: Any) -> HTTPPolicy:
    """Return the policy over `http://host:port`, a server with SGLang's API (SGLang, its router, our own), or over
    `vllm+http://host:port`. core/policy/http_policy.py explains the options."""
    if url.startswith(VLLM):
        return VLLMPolicy(url.removeprefix(VLLM), **options)
    return SGLangPolicy(url, **options)
