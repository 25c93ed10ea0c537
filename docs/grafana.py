"""Write the Grafana dashboard: a panel for each row of the table of metrics. ``docs/generate.py`` calls it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from downspout.export.prometheus import GROUP_LAG
from downspout.metrics import METRICS, PARTITION_METRICS, RUN_METRICS, Metric

WIDTH, PANEL, HEIGHT = 24, 8, 7
UNITS = {"seconds": "s", "bytes": "bytes"}
OF_RUN = '{topology=~"$topology"}'
OF_COMPONENT = '{topology=~"$topology",component=~"$component"}'
OVERVIEW: tuple[tuple[str, str, str, str], ...] = (
    # title, expression, legend, unit
    ("Tuple trees per second", f"sum by (topology) (rate({RUN_METRICS['completed'].series}{OF_RUN}[$__rate_interval]))",
     "{{topology}}", "ops"),
    ("Lag of groups", f"sum by (group, topic) ({GROUP_LAG})",
     "{{group}} {{topic}}", "short"),
    ("Latency, 99th percentile", f"max by (topology) ({RUN_METRICS['latency_p99_s'].series}{OF_RUN})",
     "{{topology}}", "s"),
    ("Failed per second", f"sum by (component) (rate({METRICS['failed'].series}{OF_COMPONENT}[$__rate_interval]))",
     "{{component}}", "ops"),
    ("Partitions that are stuck", f"sum by (component) ({METRICS['stuck'].series}{OF_COMPONENT})",
     "{{component}}", "short"),
    ("Age of the metrics, which grows while a component hangs",
     f"max by (topology) ({RUN_METRICS['age_s'].series}{OF_RUN})",
     "{{topology}}", "s"),
)  # fmt: skip


def dashboard() -> str:
    """Return docs/reference/grafana.json."""
    numbers, panels, top = count(1), [], 0
    rows: list[tuple[str, list[dict[str, Any]]]] = [
        ("Overview", [_panel(*row) for row in OVERVIEW]),
        ("Runs", [_of_metric(metric) for metric in RUN_METRICS.values()]),
        ("Partitions", [_of_metric(metric) for metric in PARTITION_METRICS.values()]),
        ("Components", [_of_metric(metric) for metric in METRICS.values()]),
    ]
    for title, own in rows:
        is_open = title == "Overview"
        placed = [{"id": next(numbers), **panel, "gridPos": _place(at, top + 1)} for at, panel in enumerate(own)]
        head = {"id": next(numbers), "type": "row", "title": title, "collapsed": not is_open}
        head |= {"gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top}, "panels": [] if is_open else placed}
        panels += [head, *(placed if is_open else [])]
        top += 1 + (HEIGHT * -(-len(own) // (WIDTH // PANEL)) if is_open else 0)
    return json.dumps(_whole(panels), indent=1, ensure_ascii=False) + "\n"


def _place(at: int, top: int) -> dict[str, int]:
    across = WIDTH // PANEL
    return {"h": HEIGHT, "w": PANEL, "x": PANEL * (at % across), "y": top + HEIGHT * (at // across)}


def expression(metric: Metric) -> tuple[str, str]:
    """Return what a panel asks Prometheus for, and how each line is named."""
    if metric.of == "run":
        labels, selector = ["topology"], OF_RUN
    elif metric.of == "partition":
        labels, selector = ["topic", "partition"], OF_COMPONENT
    else:
        labels, selector = ["topology", "component"], OF_COMPONENT
    if metric.unit == "text":
        labels = [*labels, metric.name]
    by, series = ", ".join(labels), f"{metric.series}{selector}"
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    if metric.kind == "counter":
        return f"sum by ({by}) (rate({series}[$__rate_interval]))", legend
    # Of times the longest says more than the sum, and of a partition there is one value.
    how = "max" if metric.unit == "seconds" or metric.of == "partition" else "sum"
    return f"{how} by ({by}) ({series})", legend


def _of_metric(metric: Metric) -> dict[str, Any]:
    query, legend = expression(metric)
    unit = UNITS.get(metric.unit, "short")
    if metric.kind == "counter":
        unit = {"bytes": "Bps", "s": "short"}.get(unit, "ops")
    title = f"{metric.name}, {metric.unit}{' per second' if metric.kind == 'counter' else ''}"
    return _panel(title, query, legend, unit) | {"description": f"{metric.help} {metric.note}".strip()}


def _panel(title: str, query: str, legend: str, unit: str) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": query, "legendFormat": legend}],
    }


def _whole(panels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "title": "Downspout",
        "uid": "downspout",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            *_variables([("topology", f"label_values({RUN_METRICS['completed'].series}, topology)"),
                         ("component", f"label_values({METRICS['emitted'].series}{OF_RUN}, component)")]),
        ]},
        "panels": panels,
    }  # fmt: skip


def _variables(queries: Iterable[tuple[str, str]]) -> Iterable[dict[str, Any]]:
    for name, query in queries:
        yield {
            "name": name,
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": query,
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "current": {"text": "All", "value": "$__all"},
        }
