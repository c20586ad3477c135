"""Answers keep to their form on every runner, whatever happens to them on the way; others notice nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.engine.constrained import (
    BYTES,
    FORMS,
    GREEDY,
    ByteCheckpoint,
    Told,
    answers,
    byte_runner,
    check_forms,
    requests,
)
from tests.engine.fused_rig import RerunGraphs
from tests.engine.reference_launches import reference_launches
from tests.engine.rig import CHEAP_SWAPS, NO_SWAPS
from tests.native_kernels import CACHE_DIR, native_library

from headway.engine.answer import Answer
from headway.engine.cpu_kernels import CpuSettings
from headway.engine.drafts import sampling_rows
from headway.engine.engine import Engine
from headway.engine.errors import GrammarError, UnsupportedError
from headway.engine.fused_loading import GpuSettings, load_fused_runner
from headway.engine.grammar_source import json_schema_source, regex_source
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.native_model import NativeModel
from headway.engine.policy import Fcfs
from headway.engine.sampler import Sampler, SamplingRow
from headway.engine.scripted import ByteTokenizer, ScriptedRunner
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import (
    Admitted,
    Chunk,
    FinishReason,
    RequestKey,
    RequestSpec,
    Sampled,
    Sampling,
    StepPlan,
)

SPECS = requests()
RUNAWAY = {"type": "string", "pattern": "^(([a-z]+[0-9]*){1,100}){1,100}$"}
"""Compiles, and is too much for the library after some characters."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def expected() -> dict[str, Told]:
    """By torch's runner in one go."""
    return answers(byte_runner(), SPECS)


def native_runner(**options: Any) -> TorchRunner:
    native_library()
    cpu = CpuSettings("native", "none", CACHE_DIR)
    return byte_runner(**{"dtype": "bfloat16", "cpu": cpu, **options})


def test_every_held_answer_has_its_form(expected: dict[str, Told]) -> None:
    check_forms(expected)
    texts = {expected[f"schema {place}"].text for place in range(6)}
    assert len(texts) > 3, "the form does not write the answer"


def test_free_answers_beside_held_ones_are_the_same_as_alone(expected: dict[str, Told]) -> None:
    free = [spec for spec in SPECS if spec.request_id.startswith("free")]
    alone = answers(byte_runner(), free)
    assert {name: expected[name].tokens for name in alone} == {k: v.tokens for k, v in alone.items()}


@pytest.mark.parametrize(("looks_ahead", "drafts"), [(True, 0), (False, 4)])
def test_look_ahead_and_guesses_change_no_answer(
    expected: dict[str, Told], looks_ahead: bool, drafts: int
) -> None:
    assert answers(byte_runner(), SPECS, looks_ahead=looks_ahead, max_draft_tokens=drafts) == expected


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_native_kernels_hold_answers_too(is_deterministic: bool) -> None:
    runner = native_runner(is_deterministic=is_deterministic)
    plain = answers(runner, SPECS)
    check_forms(plain)
    assert answers(runner, SPECS, looks_ahead=True) == plain
    assert answers(runner, SPECS, max_draft_tokens=4) == plain


def masked_afterwards(
    model: NativeModel,
    chunks: Sequence[Chunk],
    answers: Sequence[Answer],
    rows: Sequence[SamplingRow],
    sampler: Sampler,
) -> tuple[Sampled, ...]:
    """``NativeModel.sample`` the plain way: all logits of all rows, then whatever is done to them."""
    last, end = list[int](), 0
    for chunk in chunks:
        end += len(chunk.token_ids)
        last += range(end - sampling_rows(chunk), end)
    _, logits = model.forward(chunks, answers, last, len(rows))
    return sampler.sample(logits, rows) if rows else ()


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_masks_inside_the_head_and_behind_it_are_the_same_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, dtype: str, is_deterministic: bool
) -> None:
    runner = native_runner(dtype=dtype, is_deterministic=is_deterministic)
    inside = answers(runner, SPECS, max_draft_tokens=4)
    monkeypatch.setattr(NativeModel, "sample", masked_afterwards)
    assert answers(runner, SPECS, max_draft_tokens=4) == inside


def test_the_gpus_runner_gives_the_same_answers(expected: dict[str, Told]) -> None:
    with reference_launches() as launched:
        for looks_ahead in (False, True):
            graphs = RerunGraphs()
            runner = load_fused_runner(
                ByteCheckpoint(BYTES),
                kv_cache_bytes=2_000_000,
                dtype="float32",
                device="cpu",
                block_size=4,
                gpu=GpuSettings(max_sequences=8),
                graphs=graphs,
            )
            assert_close(answers(runner, SPECS, looks_ahead=looks_ahead), expected)
            assert graphs.replays > 0
    assert "_token_mask_kernel" in launched


def assert_close(ours: dict[str, Told], theirs: dict[str, Told]) -> None:
    check_forms(ours)
    assert {name: one.tokens for name, one in ours.items()} == {n: one.tokens for n, one in theirs.items()}


@pytest.mark.parametrize("swaps", [False, True])
def test_who_gives_way_goes_on_where_its_form_was(expected: dict[str, Told], swaps: bool) -> None:
    """In so little memory that requests are preempted, recomputed or swapped."""
    runner = byte_runner(kv_cache_bytes=30_000, block_size=2, host_cache_bytes=200_000 if swaps else 0)
    long = [spec for spec in SPECS if spec.request_id.split()[0] in {"schema", "lark", "free"}]
    memory = MemorySettings(
        has_prefix_cache=True,
        is_overcommitted=True,
        answers_to_know=0,
        costs=CHEAP_SWAPS if swaps else NO_SWAPS,
    )
    counts: dict[str, float] = {}
    told = answers(runner, long, memory=memory, counts=counts)
    assert told == {spec.request_id: expected[spec.request_id] for spec in long}
    assert counts["preemptions_swap" if swaps else "preemptions_recompute"] > 0


def test_an_answer_goes_on_elsewhere_in_the_middle_of_its_form(expected: dict[str, Told]) -> None:
    """Cut after each of its tokens, by another runner that knows the tokens alone (dynamo#7930)."""
    runner = byte_runner()
    whole = [spec for spec in SPECS if spec.request_id in {"schema 1", "ebnf 3", "lark 0", "regex 2"}]
    resumed = [
        replace(
            spec,
            request_id=f"{spec.request_id} from {cut}",
            epoch=1,
            generated_token_ids=tuple(expected[spec.request_id].tokens[:cut]),
        )
        for spec in whole
        for cut in range(len(expected[spec.request_id].tokens) + 1)
    ]
    told = answers(runner, resumed)
    for spec in resumed:
        before = expected[spec.request_id.partition(" from ")[0]]
        assert told[spec.request_id].tokens == before.tokens
        assert told[spec.request_id].reason is FinishReason.STOP


def test_choices_that_branch_off_one_prompt_keep_to_the_form_each() -> None:
    held = [
        RequestSpec(
            f"schema {i}",
            0,
            tuple(b"one prompt for all of them"),
            Sampling(temperature=1.0, seed=i, grammar=FORMS["schema"].source),
            100,
            fork_of="schema 0" if i else None,
        )
        for i in range(5)
    ]
    told = answers(byte_runner(), held)
    check_forms(told)
    assert len({one.text for one in told.values()}) == 5


def test_a_step_that_comes_again_chooses_the_same_tokens() -> None:
    runner, key, prompt = byte_runner(), RequestKey("r", 0), tuple(b"prompt")
    held = Sampling(temperature=1.0, seed=8, grammar=FORMS["schema"].source)
    plan = StepPlan(
        1, (Chunk(key, 0, prompt, tuple(range(20)), samples=True),), (Admitted(key, prompt, (), held),)
    )
    said: list[int] = []
    for step in range(12):
        first, again = runner.execute(plan), runner.execute(replace(plan, admitted=()))
        assert first.sampled == again.sampled
        said.append(first.sampled[0].token_id)
        chunk = Chunk(key, len(prompt) + step, (said[-1],), tuple(range(20)), samples=True)
        plan = StepPlan(step + 2, (chunk,))
    assert b"".join(bytes(said).split()).startswith(b'{"name":')


def test_log_probabilities_are_of_what_could_be_chosen() -> None:
    source = FORMS["choice"].source
    runner, key, prompt = byte_runner(), RequestKey("r", 0), tuple(b"prompt")
    held = Sampling(temperature=0.0, logprobs=5, grammar=source)
    chunk = Chunk(key, 0, prompt, tuple(range(20)), samples=True)
    (sampled,) = runner.execute(StepPlan(1, (chunk,), (Admitted(key, prompt, (), held),))).sampled
    assert sampled.logprobs is not None
    assert {token for token, _ in sampled.logprobs.top} == set(b"ynp"), "three begin an answer, not five"
    assert sampled.logprobs.chosen == sampled.logprobs.top[0][1]


def test_one_that_cannot_be_held_any_longer_ends_alone() -> None:
    runaway = replace(GREEDY, grammar=json_schema_source(RUNAWAY), logit_bias=((ord('"'), -100.0),))
    bad = RequestSpec("bad", 0, tuple(b"say: "), runaway, 240)
    engine_limits = StepLimits(max_step_tokens=64, max_sequences=40, min_chunk_tokens=4)
    told = answers(byte_runner(), [*SPECS[:12], bad], limits=engine_limits)
    assert told["bad"].reason is FinishReason.ERROR
    assert "cannot be held to its form" in str(told["bad"].error)
    check_forms({name: one for name, one in told.items() if name != "bad"})


def test_what_no_runner_can_hold_is_refused_before_it_waits() -> None:
    engine = Engine(byte_runner(), ByteTokenizer(), limits=StepLimits(), policy=Fcfs())
    bad = RequestSpec("r", 0, (1,), Sampling(grammar=regex_source("(?=a)b")), 8)
    with pytest.raises(GrammarError, match="look-around"):
        engine.add(bad)
    toy = Engine(ScriptedRunner(), ByteTokenizer(), limits=StepLimits(), policy=Fcfs())
    with pytest.raises(UnsupportedError, match="leave the constraint out"):
        toy.add(replace(bad, sampling=Sampling(grammar=regex_source("ab"))))
    assert not engine.has_work
    assert not toy.has_work
