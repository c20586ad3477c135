"""What a dashboard is made of, and how Grafana wants it written down.

A panel is a title, a unit, its queries and what to read from it. Queries take ``$model`` and Grafana's own
``$__rate_interval``; queue figures are ``max`` over gateways, since each gateway tells the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

DATASOURCE: Final = {"type": "prometheus", "uid": "headway-prometheus"}
OF: Final = '{model=~"$model"}'
MODELS: Final = "label_values(headway_queue_depth, model)"
COLUMNS: Final = 24
HEIGHT: Final = 8

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """``queries``: (expression, legend). ``width`` of 24 columns."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 8
    told: str = ""
    kind: str = "timeseries"
    is_stacked: bool = False
    limits: tuple[tuple[str, float | None], ...] = ()
    """(colour, from this value on): the first one has None."""
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A heading, and the panels under it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One file."""

    uid: str
    title: str
    told: str
    rows: tuple[Row, ...]


def quantile(share: float, metric: str, by: str = "le", where: str = OF) -> str:
    """A histogram's quantile over the rate interval."""
    return f"histogram_quantile({share}, sum by ({by}) (rate({metric}_bucket{where}[$__rate_interval])))"


def quantiles(metric: str, where: str = OF) -> tuple[tuple[str, str], ...]:
    """P50, P90 and P99 of a histogram."""
    return tuple((quantile(share, metric, where=where), f"P{share * 100:g}") for share in (0.5, 0.9, 0.99))


def rate(metric: str, by: str = "", where: str = OF) -> str:
    """A counter's rate, summed."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}{where}[$__rate_interval]))"


def document(dashboard: Dashboard, others: Sequence[Dashboard]) -> Json:
    """The dashboard as Grafana reads it, with links to the others."""
    links = [
        {
            "title": other.title.split("/ ")[1],
            "type": "link",
            "url": f"/d/{other.uid}",
            "keepTime": True,
            "includeVars": True,
        }
        for other in others
        if other is not dashboard
    ]
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.told,
        "tags": ["headway"],
        "editable": False,
        "graphTooltip": 1,
        "refresh": "15s",
        "schemaVersion": 41,
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": links,
        "templating": {"list": [_models()]},
        "panels": list(_panels(dashboard.rows)),
        "version": 1,
    }


def _panels(rows: Sequence[Row]) -> Iterator[Json]:
    number, top = 1, 0
    for row in rows:
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        number, top, left = number + 1, top + 1, 0
        height = 4 if row.panels[0].kind == "stat" else HEIGHT
        for panel in row.panels:
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": height})
            number, left = number + 1, left + panel.width
        top += height


def _panel(panel: Panel, number: int, place: Json) -> Json:
    steps = [{"color": colour, "value": value} for colour, value in panel.limits]
    defaults: Json = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if not steps:
        defaults["thresholds"]["steps"] = [{"color": "green", "value": None}]
    if panel.most is not None:
        defaults["max"] = panel.most
    if "slack" in panel.title.lower():
        del defaults["min"]
    options: Json
    if panel.kind == "stat":
        defaults["color"] = {"mode": "thresholds"}
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "colorMode": "background",
            "graphMode": "area",
        }
    else:
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 25 if panel.is_stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.told,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": DATASOURCE,
                "expr": expr,
                "legendFormat": legend or "__auto",
            }
            for at, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _models() -> Json:
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": MODELS, "refId": "models"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
