"""How long a step takes on hardware that is not here: a roofline of named GPUs and models, or fitted numbers.

Bandwidths are bytes per second and per direction, rates floating-point operations per second (dense bf16).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol


class StepWork(NamedTuple):
    """What one step computes, summed over its chunks (a chunk: ``m`` new tokens at context ``p``)."""

    new_tokens: int
    """Σ m"""
    context_tokens: int
    """Σ p + m: positions whose KV is read."""
    pairs: float
    """Σ m(p + m/2): query-key pairs of causal attention."""
    rows: int
    """Chunks that choose a token, so pass the LM head."""

    @classmethod
    def after(cls, computed: dict[str, int], new: Iterable[tuple[str, int]], rows: int) -> StepWork:
        """A step that brings each of these requests so many new tokens.

        ``computed``, the tokens that each had before it, is carried on; who is not in it had none.
        """
        tokens_in_all = context = 0
        pairs = 0.0
        for request, tokens in new:
            start = computed.get(request, 0)
            computed[request] = start + tokens
            tokens_in_all += tokens
            context += start + tokens
            pairs += tokens * (start + 0.5 * tokens)
        return cls(tokens_in_all, context, pairs, rows)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """T = a + b·new tokens + c·Σ context + q·Σ m(p + m/2), in seconds: the scheduler's own cost model."""

    per_step: float
    per_new_token: float
    per_context_token: float
    per_pair: float = 0.0

    def seconds(self, work: StepWork) -> float:
        """Time of a step."""
        return self.per_step + self.marginal_seconds(work.new_tokens, work.context_tokens, work.pairs)

    def marginal_seconds(self, new_tokens: int, context_tokens: int, pairs: float) -> float:
        """The share of a step's time that these tokens cause: what a tenant is served, in GPU seconds."""
        return (
            self.per_new_token * new_tokens + self.per_context_token * context_tokens + self.per_pair * pairs
        )

    @property
    def coefficients(self) -> Coefficients:
        """Itself."""
        return self


class Hardware(Protocol):
    """Something with a step time and a linear price per token."""

    @property
    def coefficients(self) -> Coefficients:
        """Marginal prices, for accounting who was served how much."""
        ...

    def seconds(self, work: StepWork) -> float:
        """Time of a step."""
        ...


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its data sheet."""

    name: str
    flops: float
    bandwidth: float
    memory_bytes: float
    link_bandwidth: float
    """To the other GPUs of its server."""
    host_bandwidth: float
    """To pinned host memory."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama-family model by its configuration file, weights and KV in bf16."""

    name: str
    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    ties_embeddings: bool
    max_model_len: int
    tensor_parallel: int = 1
    """GPUs that it is spread over unless asked otherwise."""

    @property
    def layer_parameters(self) -> int:
        """Matrices of all layers: Q, K, V, O and the three of the gated MLP."""
        queries = self.query_heads * self.head_size
        keys = self.kv_heads * self.head_size
        attention = self.hidden * (2 * queries + 2 * keys)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_parameters(self) -> int:
        """The LM head."""
        return self.hidden * self.vocabulary

    @property
    def weight_bytes(self) -> int:
        """Layers, LM head, and the embedding where it is a matrix of its own."""
        embeddings = 1 if self.ties_embeddings else 2
        return 2 * (self.layer_parameters + embeddings * self.head_parameters)

    @property
    def read_bytes(self) -> int:
        """Weights that every step reads; of the embedding it reads a few rows only."""
        return 2 * (self.layer_parameters + self.head_parameters)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one position in all layers."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size


GPUS: Final = {
    gpu.name: gpu
    for gpu in (
        # NVIDIA A100 80GB SXM data sheet, 2021: 312 TFLOPS, 2,039 GB/s; NVLink 600 GB/s both ways, PCIe 4.
        Gpu("a100", 312e12, 2.039e12, 80e9, 300e9, 25e9),
        # NVIDIA H100 SXM data sheet, 2023: 989 TFLOPS dense, 3.35 TB/s; NVLink 900 GB/s both ways, PCIe 5.
        Gpu("h100", 989e12, 3.35e12, 80e9, 450e9, 50e9),
        # NVIDIA H200 SXM data sheet, 2024: as H100 with 141 GB at 4.8 TB/s.
        Gpu("h200", 989e12, 4.8e12, 141e9, 450e9, 50e9),
        # AMD MI300X data sheet, 2023: 1,307 TFLOPS dense, 5.3 TB/s, 192 GB; 7 links, 128 GB/s both ways.
        Gpu("mi300x", 1307e12, 5.3e12, 192e9, 448e9, 50e9),
    )
}
"""By the name that the command line uses. Pinned copies: about four fifths of what PCIe x16 has nominally."""

MODELS: Final = {
    shape.name: shape
    for shape in (
        # config.json of meta-llama/Llama-3.1-8B, Qwen/Qwen2.5-7B, meta-llama/Llama-3.1-70B and
        # HuggingFaceTB/SmolLM2-135M.
        ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128_256, False, 131_072),
        ModelShape("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152_064, False, 131_072),
        ModelShape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128_256, False, 131_072, tensor_parallel=4),
        ModelShape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49_152, True, 8192),
    )
}

COMPUTE_EFFICIENCY: Final = 0.6
"""Share of peak that large matrix products reach inside a model; an assumption, not a measurement."""
ATTENTION_EFFICIENCY: Final = 0.5
"""The same for causal attention of long chunks: the lower end of FlashAttention-2's 50 to 73 % on an A100
(arXiv 2307.08691)."""
BANDWIDTH_EFFICIENCY: Final = 0.8
"""Share of memory bandwidth that weight and KV reads reach; an assumption."""
STEP_OVERHEAD_SECONDS: Final = 0.5e-3
"""Launching a captured graph, sampling, copying the ids: what remains of a step with nothing to compute."""
LINK_LATENCY_SECONDS: Final = 8e-6
"""One small all-reduce inside a server."""
MEMORY_USED: Final = 0.9
"""Share of GPU memory given to weights and KV; the rest is activations and the allocator's."""


@dataclass(frozen=True, slots=True)
class _Prices:
    """Seconds of each kind of work, for one model on some GPUs."""

    weights: float
    layers_per_token: float
    head_per_row: float
    kv_per_token: float
    attention_per_pair: float
    reduce_per_step: float
    reduce_per_token: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """A model on some GPUs: each kind of operation takes the larger of its arithmetic and its memory traffic.

    T = overhead + max(matrix flops / F, weights / BW) + max(attention flops / F', KV read / BW) + all-reduces
    """

    gpu: Gpu
    model: ModelShape
    tensor_parallel: int
    _prices: _Prices = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kv_tokens < self.model.max_model_len // 64:
            raise ValueError(
                f"{self.model.name} does not fit on {self.tensor_parallel} of {self.gpu.name}: "
                "take more GPUs (--tensor-parallel) or a larger one"
            )
        object.__setattr__(self, "_prices", self._reckon())

    @property
    def kv_tokens(self) -> int:
        """Positions whose KV fits beside the weights."""
        memory = MEMORY_USED * self.gpu.memory_bytes * self.tensor_parallel
        return max(0, int((memory - self.model.weight_bytes) / self.model.kv_bytes_per_token))

    @property
    def coefficients(self) -> Coefficients:
        """Marginal prices where arithmetic bounds the matrices and memory the attention."""
        prices = self._prices
        return Coefficients(
            per_step=STEP_OVERHEAD_SECONDS + prices.weights,
            per_new_token=prices.layers_per_token + prices.reduce_per_token,
            per_context_token=prices.kv_per_token,
            per_pair=prices.attention_per_pair * ATTENTION_EFFICIENCY / COMPUTE_EFFICIENCY,
        )

    def seconds(self, work: StepWork) -> float:
        """Time of a step."""
        prices = self._prices
        products = prices.layers_per_token * work.new_tokens + prices.head_per_row * work.rows
        attention = prices.attention_per_pair * work.pairs
        reading = prices.kv_per_token * work.context_tokens
        return (
            STEP_OVERHEAD_SECONDS
            + max(products, prices.weights)
            + max(attention, reading)
            + prices.reduce_per_step
            + prices.reduce_per_token * work.new_tokens
        )

    def _reckon(self) -> _Prices:
        model = self.model
        flops = self.gpu.flops * self.tensor_parallel
        bandwidth = self.gpu.bandwidth * BANDWIDTH_EFFICIENCY * self.tensor_parallel
        products = flops * COMPUTE_EFFICIENCY
        # Of one query-key pair in all layers: two products of head size, two operations each.
        pair_flops = 4.0 * model.layers * model.query_heads * model.head_size
        # A ring all-reduce moves 2(n-1)/n of the activations (2 bytes a value) over each GPU's links; two of
        # them per layer.
        ring = 2 * (self.tensor_parallel - 1) / self.tensor_parallel
        return _Prices(
            weights=model.read_bytes / bandwidth,
            layers_per_token=2 * model.layer_parameters / products,
            head_per_row=2 * model.head_parameters / products,
            kv_per_token=model.kv_bytes_per_token / bandwidth,
            attention_per_pair=pair_flops / (flops * ATTENTION_EFFICIENCY),
            reduce_per_step=2 * model.layers * LINK_LATENCY_SECONDS if self.tensor_parallel > 1 else 0.0,
            reduce_per_token=2 * model.layers * 2 * model.hidden * ring / self.gpu.link_bandwidth,
        )
