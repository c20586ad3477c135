"""The step-time model: it finds the line behind noisy steps, stays sane, and says when not to be believed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.cost_model import CostModel, StepModel, StepShape, shape_of

TRUE = (0.010, 50e-6, 20e-9, 5e-9)


def seconds(shape: StepShape) -> float:
    a, b, c, q = TRUE
    return a + b * shape.new_tokens + c * shape.context_tokens + q * shape.prefill_work


def mixed_shapes(count: int, seed: int = 0) -> list[StepShape]:
    rng = random.Random(seed)
    shapes: list[StepShape] = []
    for _ in range(count):
        decodes = [(rng.randrange(10, 4000), 1) for _ in range(rng.randrange(0, 64))]
        prefills = [(rng.randrange(0, 8000), rng.randrange(2, 1024)) for _ in range(rng.randrange(1, 4))]
        shapes.append(shape_of(decodes + prefills))
    return shapes


def decode_shapes(count: int, seed: int = 0) -> list[StepShape]:
    rng = random.Random(seed)
    return [shape_of([(rng.randrange(10, 4000), 1)] * rng.randrange(1, 200)) for _ in range(count)]


def trained(noise: float = 0.0, steps: int = 300) -> CostModel:
    rng = random.Random(7)
    model = CostModel()
    for shape in [*mixed_shapes(steps), *decode_shapes(steps)]:
        model.observe(shape, seconds(shape) * (1 + noise * rng.uniform(-1, 1)))
    return model


def test_the_shape_of_a_step_counts_prefill_work_only_for_chunks_of_more_than_one_token() -> None:
    assert shape_of([(9, 1), (100, 10)]) == StepShape(11, 120, 10 * 105.0)


def test_it_finds_the_coefficients_behind_clean_steps() -> None:
    model = trained()
    assert model.mixed.coefficients == pytest.approx(TRUE, rel=0.02, abs=1e-9)
    assert model.error < 0.01


def test_noisy_steps_are_predicted_within_a_tenth() -> None:
    model = trained(noise=0.2)
    assert model.is_trusted
    for shape in [*mixed_shapes(40, seed=1), *decode_shapes(40, seed=1)]:
        assert model.predict(shape) == pytest.approx(seconds(shape), rel=0.1)


def test_it_follows_a_machine_that_becomes_slower() -> None:
    model = trained()
    for shape in mixed_shapes(600, seed=2):
        model.observe(shape, 2 * seconds(shape))
    for shape in mixed_shapes(40, seed=3):
        assert model.predict(shape) == pytest.approx(2 * seconds(shape), rel=0.1)


def test_a_pause_of_the_machine_moves_it_little() -> None:
    model = trained()
    shape = mixed_shapes(1, seed=4)[0]
    before = model.predict(shape)
    model.observe(shape, 30.0)
    assert model.predict(shape) < 2 * before


def test_steps_without_any_pattern_are_not_believed() -> None:
    rng = random.Random(5)
    model = CostModel()
    for shape in mixed_shapes(300):
        model.observe(shape, 10 ** rng.uniform(-3, 0))
    assert model.error > 0.3
    assert not model.is_trusted


def test_nothing_is_believed_before_it_was_seen_often_enough() -> None:
    assert not trained(steps=10).is_trusted
    assert CostModel().predict(StepShape(1, 1, 0.0)) == 0.0


def test_a_steady_load_that_teaches_nothing_new_breaks_nothing() -> None:
    model = StepModel()
    steady = decode_shapes(1)[0]
    for _ in range(20_000):
        model.observe(steady, 0.02)
    other = shape_of([(500, 1)] * 30)
    model.observe(other, 0.012)
    assert model.predict(steady) == pytest.approx(0.02, rel=0.2)
    assert 0 <= model.predict(other) < 1.0


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**5), st.floats(0, 100)), max_size=60))
def test_coefficients_and_predictions_are_never_negative(steps: list[tuple[int, int, float]]) -> None:
    model = CostModel()
    for start, tokens, taken in steps:
        shape = shape_of([(start, tokens)])
        model.observe(shape, taken)
        assert model.predict(shape) >= 0.0
        assert min(model.mixed.coefficients) >= 0.0
        assert model.price(start, tokens) >= tokens


def test_prices_count_tokens_until_the_model_is_believed_and_long_contexts_more_afterwards() -> None:
    assert CostModel().price(100_000, 7) == 7.0
    model = trained()
    _, b, c, q = TRUE
    assert model.price(0, 512) == pytest.approx(512 + (c * 512 + q * 512 * 256) / b, rel=0.05)
    assert model.price(8000, 1) > model.price(10, 1) >= 1.0


def test_the_marginal_time_of_a_chunk_is_convex_so_halves_cost_no_more_than_the_whole() -> None:
    model = trained()
    whole = model.marginal_seconds(1000, 512)
    assert model.marginal_seconds(1000, 256) <= whole / 2 + 1e-4


def test_a_covariance_that_rounding_has_spoilt_is_begun_again() -> None:
    """As found after 5,570 full chunks: they cannot tell the constant and the new tokens apart."""
    model = StepModel()
    model.observe(StepShape(1024, 237_000, 1.6e6), 0.0364)
    model._first_variance = [8.79e-05, 2.57e-06, 0.0105, 7.72e-05]
    model._scaled = [0.000239012, 0.00150073, 0.000210442, 3.85516e-06]
    model._variance = [
        [8.71754e-05, -6.3038e-06, 1.86027e-07, 2.56008e-07],
        [-6.30395e-06, 3.89719e-07, 7.70614e-10, 8.54326e-10],
        [1.77222e-07, 2.01662e-09, -2.83398e-09, -3.91544e-09],
        [2.55039e-07, 8.71881e-10, -3.64765e-09, -4.08277e-09],
    ]
    for place in range(12):
        context, work = 237_000 + 1000 * place, 1.6e6 + 80_000 * place
        model.observe(StepShape(1024, context, work), 0.0248 + 4.89e-8 * context)
    model.observe(StepShape(194, 223_452, 108_688.0), 0.01703)
    assert all(0.0 <= value < 1.0 for value in model.coefficients)
    assert model.predict(StepShape(1024, 240_000, 2e6)) == pytest.approx(0.0366, rel=0.1)
