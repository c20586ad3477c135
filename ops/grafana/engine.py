"""The dashboard of what each worker's engine does, and what its scheduler decided."""

from __future__ import annotations

from typing import Final

from panels import OF, Dashboard, Panel, Row, quantile, quantiles, rate

ENGINE: Final = Dashboard(
    "headway-engine",
    "Headway / Engine",
    "What each worker's engine does with its time and memory, and what the scheduler decided.",
    (
        Row(
            "Batch",
            (
                Panel(
                    "Requests",
                    (
                        (f"sum(headway_requests_running{OF})", "running"),
                        (f"sum(headway_requests_waiting{OF})", "waiting for blocks"),
                        (f"sum(headway_requests_held{OF})", "held: the queue is behind"),
                    ),
                    "short",
                    is_stacked=True,
                ),
                Panel("Tokens of a step", quantiles("headway_step_tokens"), "short"),
                Panel("Time of a step", quantiles("headway_step_seconds"), "s"),
            ),
        ),
        Row(
            "Time",
            (
                Panel(
                    "Where the engine's thread spends its time",
                    ((f"sum by (part) (rate(headway_engine_seconds{OF}[$__rate_interval]))", "{{part}}"),),
                    "percentunit",
                    told="Products, head and attention are parts of the model's pass, where it tells.",
                ),
                Panel(
                    "Step prediction error",
                    (
                        (quantile(0.5, "headway_step_prediction_error_ratio"), "half of the steps"),
                        (quantile(0.9, "headway_step_prediction_error_ratio"), "nine of ten"),
                        (f"max(headway_scheduler_step_prediction_error{OF})", "as the scheduler tracks it"),
                    ),
                    "percentunit",
                    told="Above 30 % budgets are tokens instead of seconds.",
                ),
                Panel(
                    "Age of the running step",
                    ((f"max by (instance) (headway_step_age_seconds{OF})", "{{instance}}"),),
                    "s",
                    told="A worker ends itself at --hung-after-seconds.",
                ),
            ),
        ),
        Row(
            "Memory",
            (
                Panel(
                    "KV blocks in use",
                    ((f"max by (instance) (headway_kv_used_ratio{OF})", "{{instance}}"),),
                    "percentunit",
                    most=1.0,
                ),
                Panel(
                    "Prefix cache hits",
                    (
                        (
                            f"{rate('headway_prefix_cache_hit_tokens_total')}"
                            f" / {rate('headway_prefix_cache_lookup_tokens_total')}",
                            "of prompt tokens",
                        ),
                    ),
                    "percentunit",
                    most=1.0,
                ),
                Panel(
                    "Recomputed tokens",
                    ((rate("headway_recomputed_tokens_total", "cause"), "{{cause}}"),),
                    "short",
                    told="A second. Preemption: decided here. Resume: another worker died or drained.",
                ),
            ),
        ),
        Row(
            "Preemption: decided by predicted cost, judged by real cost",
            (
                Panel(
                    "Decisions",
                    (
                        (rate("headway_preemptions_total", "mode"), "{{mode}}"),
                        (rate("headway_preemptions_deferred_total"), "deferred"),
                    ),
                    "ops",
                ),
                Panel(
                    "Predicted and real cost of a preemption",
                    (
                        (
                            f"{rate('headway_preemption_predicted_seconds_total', 'mode')}"
                            f" / {rate('headway_preemptions_total', 'mode')}",
                            "{{mode}}, predicted",
                        ),
                        (
                            f"{rate('headway_preemption_real_seconds_total', 'mode')}"
                            f" / {rate('headway_preemptions_total', 'mode')}",
                            "{{mode}}, real",
                        ),
                    ),
                    "s",
                ),
                Panel(
                    "Guesses that were right",
                    (
                        (
                            f"{rate('headway_draft_tokens_right_total')}"
                            f" / {rate('headway_draft_tokens_total')}",
                            "of guessed tokens",
                        ),
                    ),
                    "percentunit",
                    told="Only with --speculation.",
                    most=1.0,
                ),
            ),
        ),
        Row(
            "To the queue",
            (
                Panel("Time of a write", quantiles("headway_publish_seconds"), "s"),
                Panel(
                    "Writes repeated",
                    ((rate("headway_publish_retries_total", "instance"), "{{instance}}"),),
                    "ops",
                ),
                Panel(
                    "CPU of the I/O loop",
                    (
                        (
                            f"max by (instance) (rate(headway_loop_cpu_seconds{OF}[$__rate_interval]))",
                            "{{instance}}",
                        ),
                    ),
                    "percentunit",
                ),
            ),
        ),
    ),
)
