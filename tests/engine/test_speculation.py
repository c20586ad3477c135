"""Guesses are computed where they pay, as many as pay, and nobody sees more of them than speed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.asking import ask, run, saying, text_of, tokens_of

from headway.engine.engine import Engine
from headway.engine.guess_prices import FIRST_PRICE, GuessPrices, size_class
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.policy import Fcfs
from headway.engine.request import Request
from headway.engine.scripted import ByteTokenizer, ScriptedRunner
from headway.engine.speculation import LEAST_REST, PROBE_STEPS
from headway.engine.values import FinishReason, RequestSpec, Sampling, StepPlan

SAID = b"the quick brown fox jumps over a lazy dog; "
"""An answer of this, over and over, is easy to guess, once it was said."""
SURE = Sampling(temperature=0.0, ignore_eos=True)


def waits_for_weights(rows: int) -> float:
    """Seconds of a step whose first eight rows are nearly free."""
    return 0.010 + 0.0001 * rows + 0.004 * max(0, rows - 8)


def computes(rows: int) -> float:
    """Seconds of a step that takes as long as it has rows."""
    return 0.001 * rows


class Guessed:
    """An engine whose steps take what a function of their rows says, and which answers with ``SAID``."""

    def __init__(
        self,
        seconds: Callable[[int], float] = waits_for_weights,
        *,
        draft_tokens: int = 16,
        answer: bytes = SAID * 100,
        limits: StepLimits | None = None,
        policy: Fcfs | None = None,
    ) -> None:
        self.seconds = seconds
        self.runner = ScriptedRunner(
            answer=lambda _: answer,
            cost=lambda plan: self.seconds(plan.new_tokens),
            block_count=1024,
            max_model_len=8192,
        )
        self.runner.steps = []
        self.engine = Engine(
            self.runner,
            ByteTokenizer(),
            limits=limits or StepLimits(),
            policy=policy or Fcfs(),
            max_draft_tokens=draft_tokens,
        )
        self.now = 0.0

    def add(self, count: int = 1, max_tokens: int = 1000) -> None:
        for place in range(count):
            self.engine.add(RequestSpec(f"r{place}", 1, (1, 2, 3), SURE, max_tokens))

    def step(self, count: int = 1) -> list[int]:
        """Guesses of each step's requests together."""
        guesses: list[int] = []
        for _ in range(count):
            self.engine.step(self.now)
            self.now += 0.01
            guesses.append(sum(chunk.draft_tokens for chunk in self.last.chunks))
        self.engine.check_books()
        return guesses

    @property
    def last(self) -> StepPlan:
        assert self.runner.steps
        return self.runner.steps[-1]

    @property
    def extra(self) -> dict[str, float]:
        return self.engine.load.extra


# -- As many as pay ---------------------------------------------------------------------------------


def test_guesses_fill_the_rows_that_cost_nearly_nothing_and_stop_before_the_dear_ones() -> None:
    guessed = Guessed()
    guessed.add()
    guessed.step(80)
    assert set(guessed.step(10)) == {7}


def test_where_every_row_costs_as_much_as_a_token_nothing_is_guessed() -> None:
    guessed = Guessed(computes)
    guessed.add(8)
    guessed.step(100)
    assert set(guessed.step(40)) == {0}


def test_rows_are_shared_by_those_whose_guesses_are_likeliest() -> None:
    guessed = Guessed()
    guessed.add(3)
    guessed.step(100)
    assert max(guessed.step(10)) == 5


def test_nothing_is_guessed_where_nothing_repeats() -> None:
    guessed = Guessed(answer=bytes(range(50, 250)))
    guessed.add(max_tokens=200)
    assert set(guessed.step(190)) == {0}


def test_who_is_wrong_all_the_time_is_not_listened_to() -> None:
    # The pairs come again, what follows them never does.
    text = b"".join(b"ab" + bytes((place,)) for place in range(128, 250))
    guessed = Guessed(answer=text)
    guessed.add(max_tokens=350)
    guessed.step(200)
    tried = guessed.extra["draft_tokens"]
    guessed.step(100)
    assert guessed.extra["draft_tokens"] - tried <= 5
    assert guessed.extra["draft_tokens_right"] <= 0.5 * guessed.extra["draft_tokens"]


def test_where_steps_with_guesses_lose_guessing_rests_and_tries_again_later() -> None:
    guessed = Guessed()
    guessed.add(max_tokens=8000)
    guessed.step(80)

    def seldom_seen(rows: int) -> float:
        return 0.010 if rows == 1 else 0.5

    guessed.seconds = seldom_seen
    lost = 0
    while guessed.step(2) != [0, 0]:
        lost += 2
        assert lost < 32
    assert set(guessed.step(LEAST_REST - 2)) == {0}
    guessed.seconds = waits_for_weights
    assert any(guessed.step(PROBE_STEPS + LEAST_REST)), "what they cost may be over"


def test_what_guesses_cost_is_known_where_it_was_timed_and_read_between() -> None:
    prices = GuessPrices(1)
    assert prices.ratio(4) == pytest.approx(1 + 4 * FIRST_PRICE)
    assert prices.most == 2
    for _ in range(40):
        for guesses in (4, 8):
            prices.observe(guesses, waits_for_weights(1 + guesses) / waits_for_weights(1))
    assert prices.most == 16
    for guesses in (0, 4, 8):
        expected = waits_for_weights(1 + guesses) / waits_for_weights(1)
        assert prices.ratio(guesses) == pytest.approx(expected, rel=0.01)
    assert prices.ratio(4) < prices.ratio(6) < prices.ratio(8) < prices.ratio(10)


def test_a_machine_that_got_slower_changes_no_price() -> None:
    prices = GuessPrices(1)
    for slower in [1.0] * 40 + [2.0] * 80:
        prices.observe(0, slower)
        prices.observe(4, 1.1 * slower)
    assert prices.plain_time == pytest.approx(2.0, rel=0.01)
    assert prices.ratio(4) == pytest.approx(1.1, rel=0.01)


def test_one_slow_step_is_no_new_price() -> None:
    prices = GuessPrices(1)
    for ratio in (1.1, 1.1, 1.1, 20.0):
        prices.observe(4, ratio)
    assert prices.ratio(4) < 1.2


@given(st.integers(1, 5000))
def test_batches_of_one_class_are_alike(decodes: int) -> None:
    size = size_class(decodes)
    assert size <= decodes < 1.5 * size + 1


# -- Within the limits ------------------------------------------------------------------------------


def test_guesses_get_the_tokens_that_a_step_has_left() -> None:
    guessed = Guessed(limits=StepLimits(max_step_tokens=4, max_sequences=2))
    guessed.add()
    guessed.step(100)
    assert max(guessed.step(10)) == 3
    assert all(plan.new_tokens <= 4 for plan in guessed.runner.steps or ())


def test_no_guess_reaches_past_the_longest_answer() -> None:
    guessed = Guessed()
    guessed.add(max_tokens=101)
    run(guessed.engine)
    ends = [c.start + len(c.token_ids) for plan in guessed.runner.steps or () for c in plan.chunks]
    # The last token of an answer is chosen, and never computed.
    assert max(ends) <= 3 + 101 - 1


def test_nobody_gives_way_for_a_guess() -> None:
    guessed = Guessed(draft_tokens=16)
    runner = ScriptedRunner(answer=lambda _: SAID * 20, block_count=40, block_size=4, max_model_len=160)
    engine = Engine(
        runner,
        ByteTokenizer(),
        limits=StepLimits(is_overcommitted=True),
        policy=Fcfs(),
        memory=MemorySettings(is_overcommitted=True, answers_to_know=0),
        max_draft_tokens=16,
    )
    for place in range(2):
        engine.add(RequestSpec(f"r{place}", 1, (1, 2, 3), SURE, 77))
    outputs = run(engine)
    assert engine.load.extra["draft_tokens_right"] > 20
    assert engine.load.extra["preemptions_recompute"] == 0
    assert {len(tokens_of(answers)) for answers in outputs.values()} == {77}
    assert guessed.engine.load.running == 0


# -- Nobody sees them -------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["dog", "zy d", "; th", "x"])
def test_a_stop_string_among_right_guesses_ends_the_answer_where_it_would_have_ended(stop: str) -> None:
    # The second time round everything is guessed.
    text = SAID.decode() * 4
    place = text.index(stop, 60)
    spec = RequestSpec("a", 0, (1,), Sampling(temperature=0.0, min_tokens=60), 170, stop_strings=(stop,))
    plain, guessing = (
        Engine(saying(text), ByteTokenizer(), limits=StepLimits(), policy=Fcfs(), max_draft_tokens=drafts)
        for drafts in (0, 8)
    )
    for engine in (plain, guessing):
        engine.add(spec)
    plainly, guessed = run(plain)["a"], run(guessing)["a"]
    assert text_of(guessed) == text_of(plainly) == text[:place]
    assert tokens_of(guessed) == tokens_of(plainly)
    assert guessed[-1].finish_reason is FinishReason.STOP
    assert [output.finish_reason for output in guessed[:-1]] == [None] * (len(guessed) - 1)
    assert guessing.load.steps < plain.load.steps


def test_an_end_token_among_right_guesses_is_the_last() -> None:
    text = b"a stitch in time! " * 6
    engine = Engine(saying(text), ByteTokenizer(), limits=StepLimits(), policy=Fcfs(), max_draft_tokens=8)
    sampling = Sampling(temperature=0.0, stop_token_ids=frozenset(b"!"), min_tokens=40)
    engine.add(ask(max_tokens=500, sampling=sampling))
    outputs = run(engine)["a"]
    assert tokens_of(outputs) == tuple(text[: text.index(b"!", 40) + 1])
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert engine.load.extra["draft_tokens_right"] > 10


class Charging(Fcfs):
    """Keeps the bill."""

    def __init__(self) -> None:
        super().__init__()
        self.paid = 0.0

    def charge(self, request: Request, cost: float) -> None:
        assert request.table is not None
        self.paid += cost


@pytest.mark.parametrize("draft_tokens", [0, 8])
def test_a_tenant_pays_for_its_tokens_once_and_for_no_wrong_guess(draft_tokens: int) -> None:
    text = b"ab1ab2ab3ab4" * 8 + SAID * 3
    policy = Charging()
    guessed = Guessed(lambda _: 0.0, answer=text, policy=policy, draft_tokens=draft_tokens)
    guessed.add(max_tokens=200)
    run(guessed.engine)
    wrong = guessed.extra.get("draft_tokens", 0.0) - guessed.extra.get("draft_tokens_right", 0.0)
    assert (wrong > 0) == (draft_tokens > 0)
    # Without a cost model each new token costs 1; the last token of the answer is never computed.
    assert policy.paid == 3 + 200 - 1


def test_the_profile_counts_tokens_not_rows() -> None:
    guessed = Guessed()
    guessed.add(max_tokens=120)
    run(guessed.engine)
    assert guessed.engine.profile.tokens == 120
    assert guessed.engine.profile.steps < 80
