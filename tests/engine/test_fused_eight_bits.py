"""Keys, values, weights and activations of one byte in the GPU's runner, kernels interpreted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.engine.fused_rig import CPU, SMALL, fused_runner, torch_runner
from tests.engine.reference_launches import reference_launches
from tests.engine.test_fused_model import logits
from tests.engine.test_fused_runner import prefill
from torch import Tensor

from headway.engine.errors import ModelError
from headway.engine.fused_loading import GpuSettings, load_fused_runner
from headway.engine.fused_runner import FusedRunner
from headway.engine.kv_cache import block_bytes
from headway.engine.kv_number import GpuKvCacheDType, choose_kv_number
from headway.engine.product_forms import GpuQuantization, layer_product
from headway.engine.scaled_linear import NarrowLinear, rounded
from headway.engine.values import BlockCopy, Chunk, RequestKey, StepPlan
from headway.kernels.eight_bits import LARGEST
from headway.kernels.launch import A100, H100, MI300X

pytest.importorskip("triton")

BFLOAT16 = torch.bfloat16
CACHE_KERNELS = frozenset({"_varlen_attention_kernel", "_split_merge_kernel", "_rope_kv_write_kernel"})
PRODUCT_KERNELS = frozenset({"_quantize_rows_kernel", "_matmul_kernel", "_fixed_matmul_kernel"})


@pytest.fixture(scope="module")
def exact() -> Tensor:
    """Logits in float32."""
    return torch.cat(logits(torch_runner(SMALL)))


def error(runner: FusedRunner, exact: Tensor) -> float:
    """Root mean square, as a share of the logits'."""
    gap = torch.cat(logits(runner)) - exact
    return float(gap.square().mean().sqrt() / exact.square().mean().sqrt())


@pytest.mark.parametrize(("kind", "bound"), [("int8", 1 / 64), ("fp8", 1 / 16)])
def test_a_cache_of_eight_bits_changes_logits_by_no_more_than_its_rounding(
    kind: GpuKvCacheDType, bound: float, exact: Tensor
) -> None:
    with reference_launches(interpreted=CACHE_KERNELS):
        ours = error(fused_runner(SMALL, BFLOAT16, kv_cache_dtype=kind), exact)
    with reference_launches():
        plain = error(fused_runner(SMALL, BFLOAT16), exact)
    assert plain < ours <= bound


@pytest.mark.parametrize(("form", "bound"), [("int8-w8a8", 1 / 32), ("fp8-w8a8", 1 / 6)])
def test_weights_and_activations_of_one_byte_change_logits_by_no_more_than_their_rounding(
    form: GpuQuantization, bound: float, exact: Tensor
) -> None:
    with reference_launches(interpreted=PRODUCT_KERNELS) as launched:
        assert error(fused_runner(SMALL, BFLOAT16, quantization=form), exact) <= bound
    assert ("_matmul_kernel" in launched) is (form == "int8-w8a8"), "fp8 by fp8 is torch's where it can be"


@pytest.mark.parametrize("number", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("in_fixed_order", [False, True])
def test_a_product_of_rounded_numbers_is_off_by_their_rounding_at_most(
    number: torch.dtype, in_fixed_order: bool
) -> None:
    x, weight = (torch.randn(n, 70, generator=torch.Generator().manual_seed(n)) for n in (3, 41))
    bias = torch.arange(41).to(BFLOAT16)
    ours = NarrowLinear(weight, bias, number, in_fixed_order=in_fixed_order)(x.to(BFLOAT16)).double()
    x, scales = x.to(BFLOAT16).double(), x.abs().amax(dim=1, keepdim=True) / LARGEST[number]
    values, weight_scales = rounded(weight, number)
    kept = values.double() * weight_scales.double().unsqueeze(1)
    # Half a step of int8, or a sixteenth of an fp8's value and half its smallest step.
    off = scales * 0.51 if number == torch.int8 else x.abs() / 15.9 + scales * 2**-10
    wanted = x @ kept.T + bias.double()
    slack = wanted.abs() / 128 + 1e-3
    assert bool(((ours - wanted).abs() <= off.double().expand_as(x) @ kept.abs().T + slack).all())


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_copied_and_swapped_blocks_carry_their_scales(kind: GpuKvCacheDType) -> None:
    with reference_launches(interpreted=CACHE_KERNELS):
        runner = fused_runner(SMALL, BFLOAT16, kv_cache_dtype=kind, host_slots=8)
        plan = prefill(1)
        token = runner.execute(plan).sampled[0].token_id
        length, table = len(plan.chunks[0].token_ids), plan.chunks[0].block_table
        used = tuple(range(table[0], table[0] + -(-length // 4)))

        def next_token(first: int, step: int) -> tuple[int, ...]:
            spare = tuple(range(first, first + 20))
            key = RequestKey("1", 0)
            chunk = Chunk(key, length, (token,), spare, samples=True)
            return tuple(runner.execute(StepPlan(step, (chunk,))).sampled[0][1:2])

        expected = next_token(table[0], 2)
        moved = [BlockCopy(block, 80 + place) for place, block in enumerate(used)]
        out = [BlockCopy(block, place) for place, block in enumerate(used)]
        back = [BlockCopy(place, 100 + place) for place in range(len(used))]
        runner.execute(StepPlan(3, (), copies=tuple(moved), swaps_out=tuple(out)))
        with torch.inference_mode():
            runner._cache.pools[:, :, list(used)] = 99
        assert next_token(80, 4) == expected
        runner.execute(StepPlan(5, (), swaps_in=tuple(back)))
        assert next_token(100, 6) == expected


def test_a_cache_of_eight_bits_holds_nearly_twice_the_tokens() -> None:
    wide = replace(SMALL, head_dim=64)
    runners = [fused_runner(wide, BFLOAT16, kv_cache_dtype=kind, blocks=3) for kind in ("auto", "fp8")]
    plain, ours = (runner.block_bytes for runner in runners)
    assert plain / ours == pytest.approx(128 / 68)
    assert ours == block_bytes(wide, 4, torch.uint8) == runners[1]._cache.pools.nbytes // 3


@pytest.mark.parametrize(
    ("wanted", "dtype", "chip", "words"),
    [
        ("fp8", BFLOAT16, A100, "no KV cache in fp8: a GPU of A100's kind .*take --kv-cache-dtype int8"),
        ("int8", torch.float32, H100, "goes with --dtype bfloat16, .*take --kv-cache-dtype auto"),
        ("bf16", torch.float32, H100, "in bf16 needs a computation in bfloat16"),
    ],
)
def test_a_cache_that_cannot_be_had_is_refused_with_what_to_do(
    wanted: GpuKvCacheDType, dtype: torch.dtype, chip: object, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        choose_kv_number(wanted, SMALL, dtype=dtype, block_size=16, chip=chip)  # type: ignore[arg-type]  # a Chip
    odd = replace(SMALL, head_dim=6)
    with pytest.raises(ModelError, match="--block-size 16 always is"):
        choose_kv_number("int8", odd, dtype=BFLOAT16, block_size=4, chip=H100)
    assert choose_kv_number("fp8", SMALL, dtype=BFLOAT16, block_size=16, chip=MI300X) == torch.float8_e4m3fnuz


def test_products_that_a_chip_has_not_are_refused_with_what_to_take() -> None:
    with pytest.raises(ModelError, match="of A100's kind: take --quantization int8-w8a8, or fp8 for"):
        layer_product("fp8-w8a8", BFLOAT16, A100, in_fixed_order=False)
    with pytest.raises(ModelError, match="leave out --dtype float32"):
        layer_product("int8-w8a8", torch.float32, H100, in_fixed_order=False)


def test_a_loaded_runner_says_what_it_keeps_in_one_byte_and_counts_it() -> None:
    from tests.engine.test_torch_runner import RandomCheckpoint  # its fixtures are not wanted here

    class Checkpoint(RandomCheckpoint):
        def tokenizer(self) -> object:  # type: ignore[override]  # never asked
            raise AssertionError

    gpu = GpuSettings("int8-w8a8", has_graphs=False, max_sequences=1, kv_cache_dtype="int8")
    with reference_launches(interpreted=PRODUCT_KERNELS):
        runner = load_fused_runner(
            Checkpoint(SMALL),  # type: ignore[arg-type]  # as above
            kv_cache_bytes=40 * block_bytes(SMALL, 4, torch.uint8),
            dtype="bfloat16",
            device=str(CPU),
            block_size=4,
            max_model_len=16,
            gpu=gpu,
        )
    assert runner.block_count == 40
    assert runner.kernels == "triton for H100, int8-w8a8, KV int8, no graphs"
