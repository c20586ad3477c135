"""The dashboard of who gets what, against what is due to them."""

from __future__ import annotations

from typing import Final

from panels import OF, Dashboard, Panel, Row, quantile, rate

SERVICE: Final = rate("headway_tenant_service_seconds_total", "tenant")
WAITING: Final = "max by (model, priority, tenant)"
TENANTS: Final = Dashboard(
    "headway-tenants",
    "Headway / Tenants",
    "Who gets what, against what is due to them. Tenants beyond a process's first 50 are counted as `other`.",
    (
        Row(
            "Fairness",
            (
                Panel(
                    "Jain's index of tenants that wait",
                    ((f"min by (priority) (headway_fairness_jain_index{OF})", "{{priority}}"),),
                    "short",
                    told="1: each tenant that waited through the last minute was served by its weight. "
                    "1/n: one of n got everything.",
                    most=1.0,
                ),
                Panel(
                    "Service by weight",
                    (
                        (
                            f"{SERVICE} / on (tenant) max by (tenant) (headway_tenant_weight{OF})",
                            "{{tenant}}",
                        ),
                    ),
                    "short",
                    told="Engine time by weight: equal for all who always have work waiting.",
                ),
                Panel(
                    "Virtual time of who waits",
                    (
                        (
                            f"max by (tenant, priority) (headway_tenant_virtual_time{OF})",
                            "{{tenant}}, {{priority}}",
                        ),
                    ),
                    "short",
                    told="The smallest of a class goes next. Lines of tenants that wait climb together.",
                ),
            ),
        ),
        Row(
            "Service",
            (
                Panel(
                    "Share of engine time",
                    (
                        (
                            f"{SERVICE} / scalar({rate('headway_tenant_service_seconds_total')})",
                            "{{tenant}}",
                        ),
                    ),
                    "percentunit",
                    12,
                    is_stacked=True,
                ),
                Panel(
                    "Tokens computed",
                    ((rate("headway_tenant_service_tokens_total", "tenant"), "{{tenant}}"),),
                    "short",
                    12,
                    is_stacked=True,
                    told="Prompts and answers, a second.",
                ),
            ),
        ),
        Row(
            "Waiting",
            (
                Panel(
                    "Jobs waiting",
                    (
                        (
                            f"sum by (tenant) ({WAITING} (headway_tenant_backlog_jobs{OF}))",
                            "{{tenant}}",
                        ),
                    ),
                    "short",
                    is_stacked=True,
                ),
                Panel(
                    "Tokens waiting",
                    (
                        (
                            f"sum by (tenant) ({WAITING} (headway_tenant_backlog_tokens{OF}))",
                            "{{tenant}}",
                        ),
                    ),
                    "short",
                    is_stacked=True,
                ),
                Panel(
                    "Time to first token (P90)",
                    ((quantile(0.9, "headway_tenant_ttft_seconds", "tenant, le"), "{{tenant}}"),),
                    "s",
                ),
            ),
        ),
        Row(
            "Ends",
            (
                Panel(
                    "Jobs accepted",
                    ((rate("headway_gateway_jobs_accepted_total", "tenant"), "{{tenant}}"),),
                    "reqps",
                ),
                Panel(
                    "Jobs by reason",
                    ((rate("headway_gateway_jobs_total", "reason"), "{{reason}}"),),
                    "reqps",
                ),
                Panel(
                    "Deadline slack at first token",
                    (
                        (quantile(0.01, "headway_deadline_slack_seconds"), "tightest 1 %"),
                        (quantile(0.5, "headway_deadline_slack_seconds"), "half of them"),
                    ),
                    "s",
                    told="Time left to the deadline of jobs that have one; below 0 the token came too late.",
                ),
            ),
        ),
    ),
)
