"""The engine against Hugging Face's full forward, on every path a token can take."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import pytest
import torch

from core.engine import attention, kernel, weights
from core.engine.engine import Engine
from core.engine.footprint import cache_bytes
from core.engine.scheduler import Request
from core.types import Sampling
from tests.kit import save_model
from tests.unit.conftest import drain

TOLERANCE = 1e-5


def make_engine(folder: Path, **options: int) -> Engine:
    return Engine.from_pretrained(folder, device="cpu", **{"max_model_len": 128, "kv_tokens": 128 * 8, **options})


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(96) for _ in range(length)]


def check(request: Request, folder: Path, reference) -> None:  # type: ignore[no-untyped-def]
    completion = request.completion
    assert completion is not None
    expected = reference(folder, request.prompt_ids, completion.token_ids, request.sampling.temperature or 1.0)
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=TOLERANCE, rtol=0)


def test_group_prefills_its_prompt_once(any_model, reference):
    engine = make_engine(any_model)
    shared = prompt(65)
    requests = [engine.submit(shared, Sampling(max_new_tokens=6, seed=i)) for i in range(8)]
    drain(engine)
    stats = engine.stats()
    # 65 tokens once; the seven others recompute only the token after the last full block of 16.
    assert stats.prefilled_tokens == 65 + 7
    assert stats.cached_tokens == 7 * 64
    for request in requests:
        check(request, any_model, reference)
    assert len({request.completion.token_ids for request in requests}) > 1


def test_session_reuses_its_own_completion(any_model, reference):
    engine = make_engine(any_model)
    first = engine.submit(prompt(40), Sampling(max_new_tokens=25, seed=1), session="s")
    drain(engine)
    history = [*first.prompt_ids, *first.completion.token_ids, 5, 6, 7]
    second = engine.submit(history, Sampling(max_new_tokens=10, seed=2), session="s")
    drain(engine)
    assert second.completion.cached_tokens == 64  # of 40 + 24 computed tokens
    check(second, any_model, reference)


def test_weight_update_forgets_the_cache(qwen2, other_qwen2, reference):
    engine = make_engine(qwen2)
    engine.submit(prompt(50), Sampling(max_new_tokens=5, seed=1))
    drain(engine)
    engine.set_weights(weights.read(engine.model, other_qwen2), "v2")
    after = engine.submit(prompt(50), Sampling(max_new_tokens=5, seed=1))
    drain(engine)
    check(after, other_qwen2, reference)
    assert after.completion.cached_tokens == 0


def test_weights_that_come_back_are_a_stretch_of_their_own_and_share_no_more_of_the_prompt(qwen2):
    engine = make_engine(qwen2)
    first, second = [engine.submit(prompt(40), Sampling(max_new_tokens=9, seed=seed)) for seed in range(2)]
    for version in ("1", "0", "2"):
        for _ in range(3):
            engine.step()
        engine.adopt_weights(version)
    drain(engine)
    assert first.completion.count_versions() == [("0", 3), ("1", 3), ("0", 3)]
    assert (first.completion.cached_tokens, second.completion.cached_tokens) == (0, 32)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_released_cache_gives_its_memory_back(qwen2):
    engine = make_engine(qwen2, kv_tokens=1 << 18)
    size = cache_bytes(engine.model.config, 1 << 18, torch.float32)
    engine.release_cache()
    before = resident_bytes()
    assert engine.cache.kv.nbytes >= size
    assert resident_bytes() < before + size / 10  # nothing was written to
    engine.cache.kv.fill_(1.0)
    assert resident_bytes() > before + 0.9 * size
    engine.release_cache()
    assert resident_bytes() < before + size / 10


def test_same_seed_same_tokens_whatever_else_runs(qwen2):
    alone = make_engine(qwen2)
    wanted = [alone.submit(prompt(20, i), Sampling(max_new_tokens=15, seed=i)) for i in range(3)]
    for _ in wanted:
        drain(alone)
    crowd = make_engine(qwen2)
    for i in range(20):
        crowd.submit(prompt(5 + i, 100 + i), Sampling(max_new_tokens=3 + i))
    crowd.step()
    again = [crowd.submit(prompt(20, i), Sampling(max_new_tokens=15, seed=i)) for i in range(3)]
    drain(crowd)
    assert [r.completion.token_ids for r in wanted] == [r.completion.token_ids for r in again]


def test_bfloat16_stays_close(qwen2, reference):
    engine = Engine.from_pretrained(qwen2, dtype="bfloat16", device="cpu", max_model_len=128, kv_tokens=1024)
    request = engine.submit(prompt(30), Sampling(max_new_tokens=10, seed=0))
    drain(engine)
    expected = reference(qwen2, request.prompt_ids, request.completion.token_ids, 1.0)
    torch.testing.assert_close(torch.tensor(request.completion.logprobs), expected, atol=0.1, rtol=0)


@pytest.mark.parametrize("decode_with", ["kernel", "gather"])
@pytest.mark.parametrize("width", [32, 576])
def test_bfloat16_gives_the_same_tokens_alone_and_in_a_batch(tmp_path, width, decode_with, monkeypatch):
    if torch.cpu._is_amx_tile_supported() and not kernel.has_tiles():
        pytest.skip("no C++ compiler here, and PyTorch's own products round by the number of rows on this CPU")
    if decode_with == "gather":
        monkeypatch.setattr(attention, "find_kernel", lambda: None)
    # Some maps of the narrow model do not fit the tiles of a CPU; all of the wide one's do.
    model = save_model(tmp_path, seed=0, hidden_size=width, intermediate_size=width * 3 // 2)
    options = {"dtype": "bfloat16", "device": "cpu", "max_model_len": 128}
    alone = Engine.from_pretrained(model, kv_tokens=128, **options)
    batch = Engine.from_pretrained(model, kv_tokens=128 * 64, **options)
    calls = [(prompt(10 + i % 23, i // 2), Sampling(max_new_tokens=8, seed=i)) for i in range(64)]
    wanted = [alone.submit(*call) for call in calls]
    got = [batch.submit(*call) for call in calls]
    drain(alone)
    drain(batch)
    assert [r.output_ids for r in wanted] == [r.output_ids for r in got]
    assert [r.completion.logprobs for r in wanted] == [r.completion.logprobs for r in got]


@pytest.mark.parametrize(
    "wrong", [{"max_new_tokens": 4.0}, {"top_k": 2.5}, {"seed": 1.5}, {"stop_token_ids": 5}, {"stop": "a"}]
)
def test_a_setting_of_another_type_is_refused_by_name(qwen2, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: .* is "):
        make_engine(qwen2).submit([1], Sampling(**{"max_new_tokens": 2} | wrong))


def test_a_penalty_that_training_knows_nothing_of_is_refused(qwen2):
    with pytest.raises(ValueError, match="frequency_penalty"):
        make_engine(qwen2).submit([1], Sampling(frequency_penalty=1.2, max_new_tokens=1))


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        *[("a text", "a list of ids"), (7, "a list of ids"), ([], "empty"), ([10**9], "must lie in")],
        *[(torch.tensor([1, 2]), "tolist"), ([1.0, 2], "needs ints"), ([True, 2], "needs ints")],
    ],
)
def test_a_prompt_that_cannot_run_is_named_and_leaves_nothing_behind(qwen2, refused, says):
    engine = make_engine(qwen2)
    with pytest.raises(ValueError, match=f"input_ids: .*{says}"):
        engine.generate([prompt(5), refused], Sampling(max_new_tokens=2, seed=0))
    assert not engine.has_work()
    (alone,) = engine.generate([prompt(5)], Sampling(max_new_tokens=2, seed=0))
    assert len(alone.token_ids) <= 2
