"""Write the Grafana dashboard, a panel for each metric, and alerts. ``docs/generate.py`` calls it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

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
    ("Offsets left before retention deletes what is not committed",
     f"min by (topic, partition) ({PARTITION_METRICS['retention_records'].series}{OF_COMPONENT})",
     "{{topic}} {{partition}}", "short"),
    ("Age of the metrics, which grows while a component hangs",
     f"max by (topology) ({RUN_METRICS['age_s'].series}{OF_RUN})",
     "{{topology}}", "s"),
)  # fmt: skip


class Alert(NamedTuple):
    """A condition that needs attention."""

    name: str
    expression: str  # in Prometheus's language; it has a value for each series for which the condition holds
    minutes: int  # how long it must hold
    text: str


def _near_retention() -> str:
    near, whole, begin, lag = (
        PARTITION_METRICS[name].series for name in ("retention_records", "log_records", "begin", "lag")
    )
    return f"{near} < 0.1 * {whole} and {begin} > 0 and {lag} > 0"


ALERTS = (
    Alert("Retention is near", _near_retention(), 5,
          "The commit is in the oldest tenth of a log that is deleted from: soon records are lost that were not "
          "processed. Free what blocks the partition, add tasks, or raise the topic's retention."),
    Alert("A partition is stuck", f"{METRICS['stuck'].series} > 0", 1,
          "A stall report names the offset that blocks, and why."),
    Alert("Dead letters", f"rate({METRICS['dead_lettered'].series}[5m]) > 0", 0,
          "Records failed for good: downspout dlq ls TOPIC."),
    Alert("A component hangs", f"{RUN_METRICS['age_s'].series} > 60", 1,
          "One call of a component keeps the loop: /healthz names it."),
    Alert("Components are restarted", f"rate({METRICS['restarts'].series}[10m]) > 0", 0,
          "A bolt raises, and is made anew."),
)  # fmt: skip


def alerts() -> str:
    """Return docs/reference/grafana-alerts.json: a file for Grafana's ``provisioning/alerting``."""
    rules = [_rule(alert) for alert in ALERTS]
    group = {"orgId": 1, "name": "downspout", "folder": "Downspout", "interval": "1m", "rules": rules}
    return json.dumps({"apiVersion": 1, "groups": [group]}, indent=1, ensure_ascii=False) + "\n"


def _rule(alert: Alert) -> dict[str, Any]:
    query = {"refId": "A", "expr": alert.expression, "instant": True}
    # The expression filters: a series that is there is one for which it holds, whatever its value.
    any_series = {"refId": "B", "type": "math", "expression": "$A > -Inf"}
    return {
        "uid": f"downspout-{'-'.join(alert.name.lower().split())}",
        "title": alert.name,
        "condition": "B",
        "for": f"{alert.minutes}m",
        "noDataState": "OK",
        "annotations": {"summary": alert.text},
        "data": [
            {"refId": "A", "datasourceUid": "prometheus", "relativeTimeRange": {"from": 600, "to": 0}, "model": query},
            {"refId": "B", "datasourceUid": "__expr__", "model": any_series},
        ],
    }


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
