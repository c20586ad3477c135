"""The dashboard to start with: does the service keep its promises, and is there enough of it?"""

from __future__ import annotations

from typing import Final

from panels import OF, Dashboard, Panel, Row, quantile, quantiles, rate

READY: Final = '{model=~"$model", state="ready"}'
MET: Final = '{model=~"$model", outcome="met"}'
FAILED: Final = '{model=~"$model", reason="error"}'
GOOD_ABOVE: Final = (("red", None), ("orange", 0.9), ("green", 0.99))
BAD_ABOVE_SECONDS: Final = (("green", None), ("orange", 5.0), ("red", 30.0))
BAD_ABOVE_ZERO: Final = (("green", None), ("red", 1.0))

FLEET: Final = Dashboard(
    "headway-fleet",
    "Headway / Fleet",
    "Does the service keep its promises, and is there enough of it? Start here.",
    (
        Row(
            "Now",
            (
                Panel(
                    "Wait of a job posted now",
                    ((f"max(headway_queue_wait_seconds{OF})", ""),),
                    "s",
                    4,
                    "Predicted: tokens that wait by what the workers serve.",
                    "stat",
                    limits=BAD_ABOVE_SECONDS,
                ),
                Panel(
                    "Jobs waiting",
                    ((f"sum(max by (model, priority) (headway_queue_depth{OF}))", ""),),
                    "short",
                    4,
                    kind="stat",
                ),
                Panel(
                    "Workers ready",
                    (
                        (
                            f"sum(max by (model) (headway_workers{READY})) or vector(0)",
                            "",
                        ),
                    ),
                    "short",
                    4,
                    kind="stat",
                    limits=(("red", None), ("green", 1.0)),
                ),
                Panel(
                    "Objectives met",
                    (
                        (
                            f"{rate('headway_objective_jobs_total', where=MET)}"
                            f" / {rate('headway_objective_jobs_total')}",
                            "",
                        ),
                    ),
                    "percentunit",
                    4,
                    "Of jobs with an objective: first token and pace as asked.",
                    "stat",
                    limits=GOOD_ABOVE,
                ),
                Panel(
                    "Jobs failing",
                    (
                        (
                            f"{rate('headway_requests_total', where=FAILED)}"
                            f" / {rate('headway_requests_total')}",
                            "",
                        ),
                    ),
                    "percentunit",
                    4,
                    kind="stat",
                    limits=(("green", None), ("orange", 0.01), ("red", 0.05)),
                ),
                Panel(
                    "Dead letters",
                    ((f"sum(max by (model) (headway_queue_dead_letters{OF}))", ""),),
                    "short",
                    4,
                    kind="stat",
                    limits=BAD_ABOVE_ZERO,
                ),
            ),
        ),
        Row(
            "Latency, as its producer feels it",
            (
                Panel(
                    "Time to first token",
                    quantiles("headway_ttft_seconds"),
                    "s",
                    told="Acceptance to the first token in the queue, waiting included.",
                ),
                Panel(
                    "Time between tokens",
                    quantiles("headway_itl_seconds"),
                    "s",
                ),
                Panel(
                    "Where the time to the last token goes (P90)",
                    (
                        (quantile(0.9, "headway_request_queue_seconds"), "queue"),
                        (quantile(0.9, "headway_request_prefill_seconds"), "prefill"),
                        (quantile(0.9, "headway_request_decode_seconds"), "decode"),
                    ),
                    "s",
                    told="Each phase's own P90: they need not add up.",
                ),
            ),
        ),
        Row(
            "Work",
            (
                Panel(
                    "Goodput and all ends",
                    (
                        (
                            rate("headway_objective_jobs_total", where=MET),
                            "objective met",
                        ),
                        (rate("headway_requests_total", "reason"), "{{reason}}"),
                    ),
                    "reqps",
                ),
                Panel(
                    "Tokens",
                    (
                        (rate("headway_tokens_total", "kind"), "{{kind}}"),
                        (f"max(headway_queue_tokens_per_second{OF})", "best lately"),
                    ),
                    "short",
                    told="A second. Recomputed: computed again at a job's next owner.",
                ),
                Panel(
                    "Objectives by outcome",
                    ((rate("headway_objective_jobs_total", "outcome"), "{{outcome}}"),),
                    "reqps",
                    is_stacked=True,
                ),
            ),
        ),
        Row(
            "Queue",
            (
                Panel(
                    "Jobs waiting by class",
                    (
                        (
                            f"sum by (priority) (max by (model, priority) (headway_queue_depth{OF}))",
                            "{{priority}}",
                        ),
                    ),
                    "short",
                    is_stacked=True,
                ),
                Panel(
                    "Age of the oldest next job",
                    ((f"max by (priority) (headway_queue_oldest_seconds{OF})", "{{priority}}"),),
                    "s",
                    told="Of each tenant's next job the oldest. Batch may wait; interactive should not.",
                ),
                Panel(
                    "Workers by state",
                    ((f"sum by (state) (max by (model, state) (headway_workers{OF}))", "{{state}}"),),
                    "short",
                    is_stacked=True,
                ),
            ),
        ),
        Row(
            "What went wrong, and was made good",
            (
                Panel(
                    "Redelivered, resumed, handed back, lost",
                    (
                        (rate("headway_jobs_redelivered_total"), "redelivered: worker died"),
                        (rate("headway_jobs_resumed_total"), "resumed from its last token"),
                        (rate("headway_jobs_handed_back_total"), "handed back by a drain"),
                        (rate("headway_claims_lost_total"), "claim lost"),
                    ),
                    "ops",
                ),
                Panel(
                    "Kept from readers as duplicates",
                    (
                        (rate("headway_suppressed_tokens_total"), "tokens of workers that had lost the job"),
                        (rate("headway_gateway_repeated_submits_total"), "submits repeated under a key"),
                    ),
                    "ops",
                ),
                Panel(
                    "Refused requests by code",
                    ((rate("headway_refused_requests_total", "code", ""), "{{code}}"),),
                    "reqps",
                ),
            ),
        ),
        Row(
            "Gateways and streams",
            (
                Panel(
                    "Requests by status",
                    ((rate("headway_http_requests_total", "status", ""), "{{status}}"),),
                    "reqps",
                    is_stacked=True,
                ),
                Panel(
                    "Open streams",
                    (("sum by (instance) (headway_gateway_open_streams)", "{{instance}}"),),
                    "short",
                ),
                Panel(
                    "Stream lag (P99)",
                    (
                        (quantile(0.99, "headway_stream_lag_seconds"), "engine to queue"),
                        (quantile(0.99, "headway_gateway_stream_lag_seconds", where=""), "gateway to reader"),
                    ),
                    "s",
                    told="A reader that takes its time costs nobody else anything.",
                ),
            ),
        ),
        Row(
            "Batches and webhooks",
            (
                Panel(
                    "Lines of batches done",
                    ((rate("headway_batch_lines_total", "outcome", ""), "{{outcome}}"),),
                    "ops",
                    told="A second, as their results are committed: parts of 64 lines at a time.",
                    is_stacked=True,
                ),
                Panel(
                    "Open batches",
                    (
                        ("max(headway_open_batches)", "open"),
                        ("sum(increase(headway_batches_ended_total[1h])) by (state)", "{{state}} in an hour"),
                    ),
                    "short",
                    told="Batches wait for capacity, quotas and workers: their window is hours.",
                ),
                Panel(
                    "Webhook messages",
                    (
                        (rate("headway_webhook_tries_total", "outcome", ""), "{{outcome}} a second"),
                        ("max by (state) (headway_webhook_messages)", "{{state}} now"),
                    ),
                    "short",
                    told="Failed ones are tried again, nine times in three days.",
                ),
            ),
        ),
    ),
)
