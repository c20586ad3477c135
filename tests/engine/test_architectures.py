"""Small random models of every family and switch, saved by Hugging Face, give the same logits here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from headway.engine.checkpoint import open_checkpoint
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan

MAX_LOGIT_DIFFERENCE = 1e-4
GREEDY = Sampling(temperature=0.0)
SHAPE: Mapping[str, object] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,  # large enough that attention and positions matter
    "tie_word_embeddings": False,
}
ROPE: Mapping[str, Mapping[str, object]] = {
    "plain": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
MODELS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "llama": ("Llama", {"rope_parameters": ROPE["plain"]}),
    "llama-linear": ("Llama", {"rope_parameters": ROPE["linear"]}),
    "llama-llama3": ("Llama", {"rope_parameters": ROPE["llama3"]}),
    "llama-yarn": ("Llama", {"rope_parameters": ROPE["yarn"]}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama-no-groups": ("Llama", {"num_key_value_heads": 6}),
    "llama-wide-heads": ("Llama", {"head_dim": 20}),
    "mistral-window": ("Mistral", {"sliding_window": 11}),
    "mistral-full": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def save_model(kind: str, switches: Mapping[str, object], folder: Path) -> Any:
    transformers = importlib.import_module("transformers")
    torch.manual_seed(7)
    config = getattr(transformers, f"{kind}Config")(**{**SHAPE, **switches})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, mean=0.0 if "bias" in name else 1.0, std=0.3)
    model.save_pretrained(folder)
    return model


class Driver:
    """Runs two sequences through a runner by hand-made plans and keeps every logit."""

    def __init__(self, runner: TorchRunner, prompts: list[tuple[int, ...]]) -> None:
        self.runner = runner
        self.tokens = [list(prompt) for prompt in prompts]
        self.prompts = prompts
        self.computed = [0 for _ in prompts]
        self.logits: list[list[Tensor]] = [[] for _ in prompts]
        blocks = runner.block_count // len(prompts)
        # Interleaved blocks: neighbours in the pool belong to different sequences.
        self.tables = [tuple(range(i, blocks * len(prompts), len(prompts))) for i in range(len(prompts))]
        self.steps = 0

    def step(self, lengths: list[int]) -> None:
        """Compute ``lengths[i]`` tokens of sequence i; what catches up takes its most likely next token."""
        chunks: list[Chunk] = []
        for index, length in enumerate(lengths):
            start = self.computed[index]
            fresh = tuple(self.tokens[index][start : start + length])
            if fresh:
                is_last = start + len(fresh) == len(self.tokens[index])
                chunks.append(Chunk(RequestKey(str(index), 1), start, fresh, self.tables[index], is_last))
        admitted = tuple(
            Admitted(RequestKey(str(index), 1), prompt, (), GREEDY)
            for index, prompt in enumerate(self.prompts)
            if self.steps == 0
        )
        self.steps += 1
        logits = self.runner.logits(StepPlan(self.steps, tuple(chunks), admitted))
        for chunk, rows in zip(
            chunks, torch.split_with_sizes(logits, [len(c.token_ids) for c in chunks]), strict=True
        ):
            index = int(chunk.key.request_id)
            self.logits[index].append(rows)
            self.computed[index] += len(chunk.token_ids)
            if chunk.samples:
                self.tokens[index].append(int(rows[-1].argmax()))


@pytest.mark.parametrize("name", list(MODELS))
def test_logits_and_tokens_equal_hugging_face(name: str, tmp_path: Path) -> None:
    kind, switches = MODELS[name]
    reference = save_model(kind, switches, tmp_path)
    runner = TorchRunner.load(
        open_checkpoint(tmp_path), dtype="float32", kv_cache_bytes=1 << 20, block_size=4, max_model_len=128
    )
    generator = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(0, 131, (length,), generator=generator).tolist()) for length in (83, 21)]
    driver = Driver(runner, prompts)
    driver.step([5, 21])  # one prompt in chunks beside the other's decodes
    driver.step([40, 1])
    driver.step([1, 1])
    driver.step([37, 1])
    for _ in range(10):
        driver.step([1, 1])
    for index, tokens in enumerate(driver.tokens):
        with torch.inference_mode():
            theirs = cast(Tensor, reference(torch.tensor([tokens[:-1]])).logits[0])
        ours = torch.cat(driver.logits[index])
        assert ours.shape == theirs.shape
        assert float((ours - theirs).abs().max()) <= MAX_LOGIT_DIFFERENCE
        assert theirs[len(prompts[index]) - 1 :].argmax(dim=-1).tolist() == tokens[len(prompts[index]) :]
