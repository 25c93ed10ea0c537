"""What operators look at: metrics for Prometheus and OpenTelemetry, health for Kubernetes, a log as JSON.

A run that is not to be looked at imports nothing of this. Where it is, another thread answers over HTTP (``server``)
with what the run's own thread has told (``downspout.run.snapshots``). What the metrics are called, and what they are,
is the table in ``downspout.metrics``.
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "prometheus": "GROUP_LAG RunCollector",
    },
)
