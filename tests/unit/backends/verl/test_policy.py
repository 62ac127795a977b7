from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from core.backends.verl.policy import VerlPolicy, find_fault
from core.policy.base import PolicyError
from core.types import Sampling


class Client:
    """Stands in for verl's client: gives `output`, or raises it."""

    def __init__(self, output: Any):
        self.output, self.calls = output, list[dict[str, Any]]()

    async def generate(self, request_id: str, **call: Any) -> Any:
        self.calls.append({"request_id": request_id, **call})
        if isinstance(self.output, Exception):
            raise self.output
        return self.output


def reply(tokens: list[int], reason: str | None = "completed", logprobs: Any = (), **extra: Any) -> Any:
    probabilities = [-0.5] * len(tokens) if logprobs == () else logprobs
    return SimpleNamespace(token_ids=tokens, log_probs=probabilities, stop_reason=reason, extra_fields=extra)


def make(output: Any, tokenizer: Any, **rollout: Any) -> tuple[VerlPolicy, Client]:
    client = Client(output)
    return VerlPolicy(client, {"name": "vllm", **rollout}, tokenizer), client


async def test_a_call_has_the_session_as_its_request_and_only_what_says_something(tokenizer: Any) -> None:
    policy, client = make(reply([5, 6], min_global_steps=2, max_global_steps=3), tokenizer, max_model_len=100)
    done = await policy.generate((1, 2), Sampling(temperature=0.7, max_new_tokens=9, stop=("x",)), "s1")
    parameters = {"max_tokens": 9, "temperature": 0.7, "top_p": 1.0, "top_k": -1, "logprobs": True, "stop": ["x"]}
    parameters |= {"stop_token_ids": [], "skip_special_tokens": False, "spaces_between_special_tokens": False}
    assert client.calls == [{"request_id": "s1", "prompt_ids": [1, 2], "sampling_params": parameters}]
    assert (done.token_ids, done.logprobs, done.weight_version) == ((5, 6), (-0.5, -0.5), "3")
    assert policy.steps == {2, 3}


@pytest.mark.parametrize(("engine", "key"), [("vllm", "seed"), ("sglang", "sampling_seed")])
async def test_the_seed_has_the_name_of_the_engine(tokenizer: Any, engine: str, key: str) -> None:
    policy, client = make(reply([5]), tokenizer, name=engine)
    await policy.generate((1,), Sampling(seed=7), "s")
    assert client.calls[0]["sampling_params"][key] == 7


@pytest.mark.parametrize(
    ("tokens", "reason", "sampling", "expected"),
    [
        ([5, 6], "completed", Sampling(max_new_tokens=3), "stop"),
        ([5, 6, 7], "completed", Sampling(max_new_tokens=3), "length"),
        ([5, 6, 7], "completed", Sampling(max_new_tokens=3, stop_token_ids=(7,)), "stop"),
        ([5, 6, 7], None, Sampling(max_new_tokens=3), "length"),
        ([5, 6], "length", Sampling(max_new_tokens=3), "length"),
        ([5, 6, 7], "stop", Sampling(max_new_tokens=3), "stop"),
    ],
)
async def test_a_reply_that_ran_to_its_limit_is_known(
    tokenizer: Any, tokens: list[int], reason: str, sampling: Sampling, expected: str
) -> None:
    policy, _ = make(reply(tokens, reason), tokenizer)
    assert (await policy.generate((1,), sampling, "s")).finish_reason == expected


async def test_the_end_token_and_a_stop_text_at_the_limit_are_a_stop(tokenizer: Any) -> None:
    policy, _ = make(reply([5, tokenizer.eos_token_id]), tokenizer)
    assert (await policy.generate((1,), Sampling(max_new_tokens=2), "s")).finish_reason == "stop"
    word = tokenizer.encode("grass", add_special_tokens=False)
    policy, _ = make(reply(word), tokenizer)
    sampling = Sampling(max_new_tokens=len(word), stop=("grass",))
    assert (await policy.generate((1,), sampling, "s")).finish_reason == "stop"


@pytest.mark.parametrize("reason", ["abort", "aborted"])
async def test_an_aborted_call_has_no_tokens(tokenizer: Any, reason: str) -> None:
    policy, _ = make(reply([], reason, None), tokenizer)
    assert (await policy.generate((1,), Sampling(), "s")).finish_reason == "abort"


@pytest.mark.parametrize("logprobs", [None, [-1.0]])
async def test_tokens_without_log_probs_are_a_bad_reply(tokenizer: Any, logprobs: Any) -> None:
    policy, _ = make(reply([5, 6], logprobs=logprobs), tokenizer)
    with pytest.raises(PolicyError, match="2 tokens came without as many log-probs") as caught:
        await policy.generate((1,), Sampling(), "s")
    assert caught.value.kind == "bad_reply"


async def test_a_call_that_does_not_fit_is_too_long_and_not_shortened(tokenizer: Any) -> None:
    policy, client = make(reply([5]), tokenizer, max_model_len=10)
    with pytest.raises(PolicyError, match="needs 11 tokens, max_model_len is 10") as caught:
        await policy.generate((1,) * 6, Sampling(max_new_tokens=5), "s")
    assert (caught.value.kind, client.calls) == ("too_long", [])


class RayActorError(Exception):
    """Has the name of Ray's."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("Prompt length (9) exceeds the model's maximum context length (8)."), "too_long"),
        (RuntimeError("No available servers in load balancer"), "unavailable"),
        (RayActorError("The actor died"), "unavailable"),
        (ConnectionError("lost"), "unavailable"),
        (TimeoutError(), "timeout"),
        (RuntimeError("CUDA error"), "engine"),
    ],
)
async def test_every_error_of_the_client_has_a_name(tokenizer: Any, error: Exception, kind: str) -> None:
    assert find_fault(error) == kind
    policy, _ = make(error, tokenizer)
    with pytest.raises(PolicyError) as caught:
        await policy.generate((1,), Sampling(), "s")
    assert caught.value.kind == kind
