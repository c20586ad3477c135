"""The Llama family's forward pass in the GPU's kernels, for the same weights and formulas as ``TorchModel``.

A layer is four products and five or six launches:

    qkv product · rotation, KV write · attention (· merge of its parts) · output product · residual, norm
    gate-and-up product · gated activation · down product · residual, norm

Nothing waits for the host and no address depends on the step, so all of it can be one CUDA graph. On CPU
tensors the kernels run in Triton's interpreter (``TRITON_INTERPRET=1``), which is how tests run this code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.engine.fused_step import FusedInputs
from headway.engine.model_config import ModelConfig
from headway.engine.rope import RotaryTables
from headway.engine.torch_model import DecoderLayer, ModelWeights
from headway.kernels.gated_activation import Activation, gated_activation_launch
from headway.kernels.launch import Chip
from headway.kernels.rms_norm import rms_norm_launch
from headway.kernels.rope_kv_write import HeadNorms, RotaryRows, rope_kv_write_launch
from headway.kernels.row_gather import row_gather_launch
from headway.kernels.varlen_attention import PagedCache, varlen_attention_launches


class FusedModel:
    """Computes new KV and logits for one packed batch. Holds no state of requests."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        tables: RotaryTables,
        chip: Chip,
        *,
        is_deterministic: bool = False,
    ) -> None:
        self._config = config
        self._weights = weights
        self._tables = tables
        self._chip = chip
        self._is_deterministic = is_deterministic
        self._scale = config.head_dim**-0.5
        self._activation: Activation = "silu" if config.activation == "silu" else "gelu_tanh"

    def forward(self, inputs: FusedInputs, pools: Sequence[PagedCache], latest: Tensor) -> Tensor:
        """Write the KV of all tokens; return logits [len(logit_rows), vocab] in float32.

        ``pools``: each layer's. ``latest`` int64: the tokens that negative ids name by their place.
        """
        layers = self._weights.layers
        residual = self._rows(self._weights.embedding, inputs.token_ids, latest)
        x = self._norm(residual, layers[0].attention_norm)
        # Shared by the layers. Zeros, since attention leaves out the tokens that pad a bucket: whatever lay
        # here could overflow, or be no number, on its way through the products.
        heads = (self._config.query_head_count, self._config.head_dim)
        mixed = residual.new_zeros((len(residual), *heads))
        for index, layer in enumerate(layers):
            if index > 0:
                x = self._add_norm(x, residual, layer.attention_norm)
            self._mix(layer, layer.qkv(x), inputs, pools[index], mixed)
            x = layer.output(mixed.view(len(mixed), -1))
            x = self._add_norm(x, residual, layer.mlp_norm)
            x = layer.down(self._activate(layer.gate_up(x)))
        if len(inputs.logit_rows) == 0:
            return residual.new_empty((0, self._config.vocab_size), dtype=torch.float32)
        picked = self._rows(residual.add_(x), inputs.logit_rows, None)
        return self._weights.head(self._norm(picked, self._weights.final_norm)).float()

    def _mix(
        self, layer: DecoderLayer, qkv: Tensor, inputs: FusedInputs, pools: PagedCache, mixed: Tensor
    ) -> None:
        """From the projection [T, all heads · d] to attention's result ``mixed`` [T, query_heads, d]."""
        norms = None
        if layer.query_norm is not None and layer.key_norm is not None:
            norms = HeadNorms(layer.query_norm, layer.key_norm, self._config.norm_eps)
        query = torch.empty_like(mixed)
        rope_kv_write_launch(
            qkv.view(len(qkv), -1, self._config.head_dim),
            RotaryRows(self._tables.cos, self._tables.signed_sin, inputs.positions),
            pools,
            inputs.slots,
            query,
            norms=norms,
            chip=self._chip,
            deterministic=self._is_deterministic,
        ).run()
        for launch in varlen_attention_launches(
            query,
            pools,
            inputs.batch,
            mixed,
            scale=self._scale,
            sliding_window=self._config.sliding_window,
        ):
            launch.run()

    def _rows(self, table: Tensor, ids: Tensor, latest: Tensor | None) -> Tensor:
        out = table.new_empty((len(ids), table.shape[1]))
        row_gather_launch(table, ids, latest, out, chip=self._chip).run()
        return out

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x)
        rms_norm_launch(x, weight, self._config.norm_eps, out, chip=self._chip).run()
        return out

    def _add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        """The norm of residual + x, which becomes the residual."""
        out = torch.empty_like(x)
        rms_norm_launch(
            x, weight, self._config.norm_eps, out, residual=residual, total=residual, chip=self._chip
        ).run()
        return out

    def _activate(self, gate_up: Tensor) -> Tensor:
        out = gate_up.new_empty((len(gate_up), gate_up.shape[1] // 2))
        gated_activation_launch(gate_up, self._activation, out, chip=self._chip).run()
        return out
