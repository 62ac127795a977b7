"""vLLM's wire of token ids at the gateway: turns of a session whose prompts are the client's own ids."""

from __future__ import annotations

import pytest

from core.gateway import Gateway, SessionSettings, serve_gateway
from core.policy.base import PolicyError
from core.policy.vllm import VLLMPolicy
from core.types import Sampling

from .model import RandomModel
from .templates import make_tokenizer
from .test_gateway import finish, make_model, serve

WIRE = "/inference/v1/generate"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_of_ids_is_sampled_as_it_is_and_becomes_a_turn(stream):
    model = make_model(calling=1.0)
    params = {"max_tokens": 900, "logprobs": 1, "stop_token_ids": [5], "skip_special_tokens": False, "top_k": -1}
    params["routed_experts_prompt_start"] = 1  # from verifiers' train client
    prompt = model.tokenizer.encode("hello", add_special_tokens=False)
    async with serve(model) as (_, client):
        for _ in range(2):
            body = {"model": "policy", "token_ids": prompt, "sampling_params": params, "return_token_ids": True}
            reply = await client.post(WIRE, {**body, "stream": stream})
            reply = reply[0] if stream else reply
            call = model.policy.calls[-1]
            assert (list(call.prompt_ids), reply["prompt_token_ids"]) == (prompt, prompt)
            assert (call.sampling.max_new_tokens, call.sampling.stop_token_ids) == (900, (5,))
            ids = reply["choices"][0]["token_ids"]
            logged = reply["choices"][0]["logprobs"]["content"]
            assert [(entry["token"], entry["logprob"]) for entry in logged] == [(f"token_id:{i}", -0.5) for i in ids]
            prompt = prompt + ids + [7]
        finished = await finish(client, model)
    assert finished["counters"] == {}
    assert len(finished["rows"]) == 1


async def test_a_request_that_comes_again_is_that_of_its_own_ids():
    """A retry of a request that never arrived does not throw away the turn before it."""
    model = make_model()
    async with serve(model) as (_, client):
        for prompt, retries in (([1], 0), ([1, 2], 1), ([1, 2], 1)):
            await client.post(WIRE, {"token_ids": prompt}, headers={"X-Stainless-Retry-Count": str(retries)})
        finished = await finish(client, model)
    assert [turn["trained"] for turn in finished["turns"]] == [True, False, True]
    assert finished["counters"] == {"retried": 1}


async def test_our_own_client_of_vllm_gets_its_completions_from_a_gateway():
    model = RandomModel(make_tokenizer("qwen3"), "hermes")
    gateway = Gateway({"policy": model.policy}, model.tokenizer, SessionSettings(max_context=500), open_on_request=True)
    async with serve_gateway(gateway) as url, VLLMPolicy(f"{url}/s/one", max_retries=0) as policy:
        completion = await policy.generate([1, 2, 3], Sampling(temperature=0.7, top_k=5, max_new_tokens=400, seed=3))
        assert model.policy.calls[-1].sampling == Sampling(temperature=0.7, top_k=5, max_new_tokens=400, seed=3)
        with pytest.raises(PolicyError) as caught:
            await policy.generate([1] * 500, Sampling(max_new_tokens=4))
        assert caught.value.kind == "too_long"
        finished = await gateway.finish_session("one")
    assert [turn.completion.token_ids for turn in finished.turns] == [completion.token_ids]
    assert finished.turns[0].prompt_ids == (1, 2, 3)


async def test_models_have_their_context_and_a_bad_body_names_its_field():
    model = make_model()
    async with serve(model, max_context=123) as (_, client):
        async with client.http.get(f"{client.base}/v1/models") as response:
            (card,) = (await response.json())["data"]
        assert (card["id"], card["max_model_len"]) == ("policy", 123)
        for fields, says in (
            ({"token_ids": []}, "token_ids"),
            ({"token_ids": [-1]}, "token_ids.0"),
            ({"token_ids": [1], "features": {"a": 1}}, "features"),
            ({"token_ids": [1], "sampling_params": {"n": 2}}, "sampling_params.n"),
            ({"token_ids": [1], "sampling_params": {"frequency_penalty": 1.0}}, "sampling_params.frequency_penalty"),
        ):
            assert says in (await client.post(WIRE, fields, status=400))["error"]["message"]
        await client.post(WIRE, {"token_ids": [1], "model": "frozen:judge"}, status=404)
        finished = await finish(client, model)
    assert finished["counters"] == {"refused_bad_request": 5, "refused_model_not_found": 1}
