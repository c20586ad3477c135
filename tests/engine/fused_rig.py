"""A GPU's runner on CPU tensors: kernels in Triton's interpreter, and a graph that runs what was recorded.

The interpreter takes about 10 ms per program, so models are as small as they can be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from tests.engine.test_torch_runner import CONFIG, RandomCheckpoint

from headway.engine.fused_loading import attention_shape
from headway.engine.fused_model import FusedModel
from headway.engine.fused_runner import FusedRunner
from headway.engine.kv_cache import INT8, KVCache
from headway.engine.kv_number import GpuKvCacheDType, choose_kv_number
from headway.engine.model_config import ModelConfig
from headway.engine.product_forms import GpuQuantization, head_product, layer_product
from headway.engine.rope import rotary_tables
from headway.engine.shard import WHOLE, Shard
from headway.engine.torch_runner import TorchRunner
from headway.engine.torch_weights import load_weights
from headway.kernels.launch import H100, Chip

CPU = torch.device("cpu")
SMALL = replace(CONFIG, layer_count=1, query_head_count=2, kv_head_count=1)


@dataclass
class RerunGraphs:
    """What a graph does without a GPU: the launches recorded first, with the arguments they had then."""

    replays: int = 0
    recorded: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded.append(work)

        def replay() -> None:
            self.replays += 1
            work()

        return replay


def fused_runner(
    config: ModelConfig = SMALL,
    dtype: torch.dtype = torch.float32,
    *,
    graphs: RerunGraphs | None = None,
    chip: Chip = H100,
    host_slots: int = 0,
    shard: Shard = WHOLE,
    quantization: GpuQuantization = "none",
    kv_cache_dtype: GpuKvCacheDType = "auto",
    is_deterministic: bool = False,
    blocks: int = 130,
    block_size: int = 4,
) -> FusedRunner:
    """Not warmed up: every step counts."""
    checkpoint = RandomCheckpoint(config)
    config = shard.config(config)
    kv = choose_kv_number(kv_cache_dtype, config, dtype=dtype, block_size=block_size, chip=chip)
    with torch.inference_mode():
        tables = rotary_tables(config.rope, config.head_dim, 96, dtype, CPU)
        weights = load_weights(
            checkpoint,
            dtype,
            CPU,
            shard=shard,
            make_product=layer_product(quantization, dtype, chip, in_fixed_order=is_deterministic),
            make_head=head_product(in_fixed_order=is_deterministic),
        )
        model = FusedModel(config, weights, tables, chip, is_deterministic=is_deterministic)
        pools = dtype if kv is None else INT8
        cache = KVCache(config, block_count=blocks, block_size=block_size, dtype=pools, device=CPU)
    return FusedRunner(
        config,
        model,
        cache,
        attention_shape(config, block_size, dtype, CPU, has_eight_bits=kv is not None),
        chip,
        max_model_len=80,
        graphs=graphs,
        host_slots=host_slots,
        kv_number=kv,
        is_deterministic=is_deterministic,
    )


def torch_runner(config: ModelConfig = SMALL, dtype: str = "float32") -> TorchRunner:
    """The same model on torch's operations."""
    return TorchRunner.load(
        RandomCheckpoint(config), dtype=dtype, kv_cache_bytes=2_000_000, block_size=4, max_model_len=80
    )
