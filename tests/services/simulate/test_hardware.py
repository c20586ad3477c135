"""The hardware model has the real models' sizes and behaves as a roofline must."""

from __future__ import annotations

import pytest

from headway.services.hardware import GPUS, MODELS, Coefficients, Roofline, StepWork


@pytest.mark.parametrize(
    ("name", "parameters", "kv_bytes_per_token"),
    [
        # Published parameter counts, and KV sizes by 2 · 2 · layers · KV heads · head size.
        ("llama-3.1-8b", 8.03e9, 131_072),
        ("qwen2.5-7b", 7.62e9, 57_344),
        ("llama-3.1-70b", 70.55e9, 327_680),
        ("smollm2-135m", 134.5e6, 23_040),
    ],
)
def test_a_model_has_its_published_size(name: str, parameters: float, kv_bytes_per_token: int) -> None:
    assert MODELS[name].weight_bytes / 2 == pytest.approx(parameters, rel=0.002)
    assert MODELS[name].kv_bytes_per_token == kv_bytes_per_token


def roofline(gpu: str = "h100", model: str = "llama-3.1-8b", gpus: int = 1) -> Roofline:
    return Roofline(GPUS[gpu], MODELS[model], gpus)


def decode(batch: int, context: int) -> StepWork:
    return StepWork(batch, batch * context, float(batch * context), batch)


def prefill(tokens: int, context: int = 0) -> StepWork:
    return StepWork(tokens, context + tokens, tokens * (context + tokens / 2), 1)


def test_one_decode_reads_the_weights_and_many_share_that_read() -> None:
    h100 = roofline()
    one = h100.seconds(decode(1, 500))
    assert one > h100.model.read_bytes / h100.gpu.bandwidth
    assert one < 10e-3
    assert h100.seconds(decode(32, 500)) < 1.5 * one


def test_a_long_prefill_is_bound_by_arithmetic_and_grows_faster_than_its_length() -> None:
    h100 = roofline()
    assert h100.seconds(prefill(8192)) > 2 * 7e9 * 8192 / h100.gpu.flops
    assert h100.seconds(prefill(32768)) > 4.2 * h100.seconds(prefill(8192))
    assert h100.seconds(prefill(512, 30000)) > h100.seconds(prefill(512))


def test_better_hardware_is_faster_and_more_gpus_are_faster_but_not_by_their_number() -> None:
    work = decode(64, 1000)
    assert roofline("a100").seconds(work) > roofline("h100").seconds(work) > roofline("h200").seconds(work)
    one, two = roofline().seconds(work), roofline(gpus=2).seconds(work)
    assert one / 2 < two < one


def test_kv_room_is_what_the_weights_leave() -> None:
    h100 = roofline()
    used = h100.kv_tokens * h100.model.kv_bytes_per_token + h100.model.weight_bytes
    assert used == pytest.approx(0.9 * 80e9, rel=1e-5)
    assert roofline("h200").kv_tokens > h100.kv_tokens


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit on 1 of a100"):
        roofline("a100", "llama-3.1-70b")


def test_marginal_prices_come_close_to_the_roofline_where_it_is_linear() -> None:
    h100 = roofline()
    prices = h100.coefficients
    for work in (prefill(4096), prefill(8192, 4096)):
        assert prices.marginal_seconds(work.new_tokens, work.context_tokens, work.pairs) == pytest.approx(
            h100.seconds(work), rel=0.15
        )
    more = h100.seconds(decode(64, 2000)) - h100.seconds(decode(64, 1000))
    assert more == pytest.approx(prices.per_context_token * 64 * 1000, rel=0.05)


def test_fitted_coefficients_are_the_formula() -> None:
    fitted = Coefficients(1.0, 0.1, 0.01, 0.001)
    assert fitted.seconds(StepWork(3, 50, 200.0, 1)) == pytest.approx(1.0 + 0.3 + 0.5 + 0.2)
    assert fitted.coefficients is fitted
