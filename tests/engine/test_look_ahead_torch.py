"""One step ahead on the real runner: what it samples fills the plan behind it; penalties and draws agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tests.engine.test_torch_runner import CONFIG, MIX, PROMPTS, RandomCheckpoint

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.policy import Fcfs
from headway.engine.scripted import ByteTokenizer
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import RequestSpec

LIMITS = StepLimits(max_step_tokens=16, max_sequences=4, min_chunk_tokens=4)
MODEL = replace(CONFIG, vocab_size=ByteTokenizer.vocab_size)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def answers(*, looks_ahead: bool, kv_cache_bytes: int) -> tuple[dict[str, tuple[int, ...]], float]:
    """All answers of a mix of requests, and how many preemptions it took."""
    runner = TorchRunner.load(
        RandomCheckpoint(MODEL), dtype="float32", kv_cache_bytes=kv_cache_bytes, block_size=4
    )
    memory = MemorySettings(has_prefix_cache=True, is_overcommitted=True, answers_to_know=0)
    engine = Engine(
        runner, ByteTokenizer(), limits=LIMITS, policy=Fcfs(), memory=memory, looks_ahead=looks_ahead
    )
    for index, mixed in MIX.items():
        prompt = tuple(token % MODEL.vocab_size for token in PROMPTS[index])
        sampling = replace(mixed, logit_bias=(), stop_token_ids=frozenset({65 + index}))
        engine.add(RequestSpec(f"r{index}", 0, prompt, sampling, max_tokens=24))
    said: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step(0.0):
            said.setdefault(output.key.request_id, []).extend(output.token_ids)
        engine.check_books()
    engine.close()
    return {name: tuple(tokens) for name, tokens in said.items()}, engine.load.extra["preemptions_recompute"]


@pytest.mark.parametrize("is_short", [False, True], ids=["ample", "short of blocks"])
def test_float32_answers_are_equal_with_and_without_look_ahead(is_short: bool) -> None:
    kv_cache_bytes = 20_000 if is_short else 200_000
    plain, given_way = answers(looks_ahead=False, kv_cache_bytes=kv_cache_bytes)
    ahead, _ = answers(looks_ahead=True, kv_cache_bytes=kv_cache_bytes)
    assert ahead == plain
    assert (given_way > 0) == is_short
