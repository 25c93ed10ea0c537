"""Monitoring: metrics for Prometheus and OpenTelemetry, Kubernetes health checks, JSON logs.

A run without monitoring imports none of this. Otherwise a second thread serves snapshots of the run
(``downspout.run.run_snapshots``) over HTTP (``server``). The table in ``downspout.metrics`` has the metrics' names and
meanings.

To change what a metric is called in Prometheus: ../metrics.py
To change which labels a metric has: series.py
To change what a metric is called in OpenTelemetry: otel.py
To change when a run is alive and ready: health.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "prometheus": "GROUP_LAG RunCollector",
    },
)
