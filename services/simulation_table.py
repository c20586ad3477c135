"""The figures of simulated runs side by side, for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_NAME_WIDTH: Final = 30


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return (
        "-" if value is None else f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3f}"
    )


_ROWS: Final[tuple[tuple[str, tuple[str, ...], Callable[[float | None], str]], ...]] = (
    ("requests", ("requests",), _number),
    ("finished", ("finished",), _number),
    ("refused", ("refused",), _number),
    ("past their deadline", ("past_deadline",), _number),
    ("TTFT, median", ("ttft_seconds", "p50"), _seconds),
    ("TTFT, P95", ("ttft_seconds", "p95"), _seconds),
    ("TTFT, P99", ("ttft_seconds", "p99"), _seconds),
    ("TPOT, median", ("tpot_seconds", "p50"), _seconds),
    ("TPOT, P99", ("tpot_seconds", "p99"), _seconds),
    ("ITL, median", ("itl_seconds", "p50"), _seconds),
    ("ITL, P99", ("itl_seconds", "p99"), _seconds),
    ("ITL, longest", ("itl_seconds", "max"), _seconds),
    ("TTFT limit met", ("ttft_attainment",), _percent),
    ("TPOT limit met", ("tpot_attainment",), _percent),
    ("every token in time", ("token_deadline_attainment",), _percent),
    ("goodput, requests/s", ("goodput_per_second",), _number),
    ("throughput, tokens/s", ("tokens_per_second",), _number),
    ("Jain index", ("jain_index",), _number),
    ("Jain index, all backlogged", ("jain_index_backlogged",), _number),
    ("preemptions", ("preemptions",), _number),
    ("device busy", ("busy_share",), _percent),
    ("most KV used", ("kv_share_max",), _percent),
)
_TENANT_ROWS: Final = (
    ("service, GPU s", ("service_seconds",), _number),
    ("TTFT, median", ("ttft_seconds", "p50"), _seconds),
    ("TTFT, P99", ("ttft_seconds", "p99"), _seconds),
    ("goodput, share", ("goodput_share",), _percent),
)
_MOST_TENANTS: Final = 20
"""Tables longer than this help nobody; --json has all."""


def table(figures: Mapping[str, Any]) -> list[str]:
    """Lines: what was simulated, one column per policy, then a block per tenant."""
    policies = figures["policies"]
    names = [str(policy["policy"]) for policy in policies]
    width = max(12, *(len(name) + 2 for name in names))
    arrivals, hardware = figures["arrivals"], figures["hardware"]
    lines = [
        f"{arrivals['requests']:,} requests in {arrivals['span_seconds']:,.0f} s "
        f"({arrivals['per_second']:.2f}/s), {arrivals['process']}, on {hardware['name']}",
        "",
        f"{'':{_NAME_WIDTH}}" + "".join(f"{name:>{width}}" for name in names),
    ]
    lines += [_line(title, policies, path, show, width) for title, path, show in _ROWS]
    tenants = policies[0]["tenants"]
    for place, tenant in enumerate(tenants[:_MOST_TENANTS]):
        lines += ["", f"tenant {tenant['tenant']}, weight {tenant['weight']:g}"]
        of_tenant = [policy["tenants"][place] for policy in policies]
        lines += [_line(title, of_tenant, path, show, width) for title, path, show in _TENANT_ROWS]
    if len(tenants) > _MOST_TENANTS:
        lines += ["", f"and {len(tenants) - _MOST_TENANTS} more tenants: --json shows all"]
    return lines


def _line(
    title: str,
    columns: Sequence[Mapping[str, Any]],
    path: tuple[str, ...],
    show: Callable[[float | None], str],
    width: int,
) -> str:
    cells: list[str] = []
    for column in columns:
        value: Any = column
        for key in path:
            value = value[key]
        cells.append(f"{show(value):>{width}}")
    return f"{title:{_NAME_WIDTH}}" + "".join(cells)
