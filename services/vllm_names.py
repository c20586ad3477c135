"""The worker's figures under vLLM's names too, where they mean the same: dashboards and routers for it work.

Labels are vLLM's: ``model_name`` and ``engine``, which is always 0, one engine to a process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

SAME: Final = {
    "vllm:num_requests_running": "headway_requests_running",
    "vllm:num_requests_waiting": "headway_requests_waiting",
    "vllm:kv_cache_usage_perc": "headway_kv_used_ratio",
    "vllm:prefix_cache_queries": "headway_prefix_cache_lookup_tokens",
    "vllm:prefix_cache_hits": "headway_prefix_cache_hit_tokens",
    "vllm:spec_decode_num_draft_tokens": "headway_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "headway_draft_tokens_right",
    "vllm:time_to_first_token_seconds": "headway_ttft_seconds",
    "vllm:inter_token_latency_seconds": "headway_itl_seconds",
    "vllm:request_time_per_output_token_seconds": "headway_request_tpot_seconds",
    "vllm:e2e_request_latency_seconds": "headway_e2e_seconds",
    "vllm:request_queue_time_seconds": "headway_request_queue_seconds",
    "vllm:request_prefill_time_seconds": "headway_request_prefill_seconds",
    "vllm:request_decode_time_seconds": "headway_request_decode_seconds",
    "vllm:request_inference_time_seconds": "headway_request_inference_seconds",
    "vllm:request_prompt_tokens": "headway_request_prompt_tokens",
    "vllm:request_generation_tokens": "headway_request_completion_tokens",
    "vllm:iteration_tokens_total": "headway_step_tokens",
}
"""vLLM's name: ours. Renamed and nothing else."""
_FINISHED: Final = {"cancelled": "abort", "deadline": "abort"}
"""Our reasons where vLLM has another word."""


class VllmNames(Collector):
    """Collects a registry a second time under other names; register it in a registry of its own."""

    def __init__(self, ours: CollectorRegistry, model: str) -> None:
        self._ours = ours
        self._labels = {"model_name": model, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        """Every family of ``SAME``, and the three that are put together."""
        found = {family.name: family for family in self._ours.collect()}
        for name, ours in SAME.items():
            yield self._renamed(found[ours], name)
        yield self._tokens(found["headway_tokens"], "vllm:prompt_tokens", "prompt")
        yield self._tokens(found["headway_tokens"], "vllm:generation_tokens", "completion")
        yield self._preemptions(found["headway_preemptions"])
        yield self._success(found["headway_requests"])

    def _renamed(self, family: Metric, name: str) -> Metric:
        renamed = Metric(name, family.documentation, family.type)
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "model"}
            suffix = sample.name.removeprefix(family.name)
            renamed.add_sample(name + suffix, labels | self._labels, sample.value)
        return renamed

    def _sums(self, family: Metric, key: str) -> Mapping[str, float]:
        sums: dict[str, float] = {}
        for sample in family.samples:
            if sample.name.endswith("_total"):
                sums[sample.labels[key]] = sums.get(sample.labels[key], 0.0) + sample.value
        return sums

    def _tokens(self, family: Metric, name: str, kind: str) -> Metric:
        metric = Metric(name, f"Tokens: {kind}.", "counter")
        metric.add_sample(f"{name}_total", self._labels, self._sums(family, "kind").get(kind, 0.0))
        return metric

    def _preemptions(self, family: Metric) -> Metric:
        metric = Metric("vllm:num_preemptions", family.documentation, "counter")
        total = sum(self._sums(family, "mode").values())
        metric.add_sample("vllm:num_preemptions_total", self._labels, total)
        return metric

    def _success(self, family: Metric) -> Metric:
        metric = Metric("vllm:request_success", "Requests that ended, by reason.", "counter")
        ended: dict[str, float] = {}
        for reason, count in self._sums(family, "reason").items():
            word = _FINISHED.get(reason, reason)
            ended[word] = ended.get(word, 0.0) + count
        for word, count in ended.items():
            metric.add_sample("vllm:request_success_total", self._labels | {"finished_reason": word}, count)
        return metric
