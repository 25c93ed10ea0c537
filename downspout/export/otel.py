"""The metrics of a run for OpenTelemetry: all in our table, and those named by the messaging conventions.

==============================================  ==========================  ==========================================
metric                                          of the table                attributes
==============================================  ==========================  ==========================================
``messaging.client.consumed.messages``          ``fetched`` of a spout      ``messaging.…``: ``system``,
``messaging.client.sent.messages``              ``sent`` of a KafkaBolt     ``operation.name``, ``consumer.group.name``
``messaging.process.duration``, a histogram     the run's complete latency
``kafka.consumer_group.lag``                    ``lag`` of a partition      ``group``, ``topic``, ``partition``
``downspout.executed``, …                       each row                    ``downspout.topology``, ``….component``, …
==============================================  ==========================  ==========================================

OpenTelemetry's own variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_METRIC_EXPORT_INTERVAL``, …) set the target and
the interval. All instruments are observable, and read one snapshot of the run. Histograms cannot be observable, so the
engine's histogram of latencies is added at each export.
"""

from __future__ import annotations

import bisect
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.engine.acker import GROWTH
from downspout.export.series import Series, group_lags, partitions_of, series_of
from downspout.metrics import METRICS, PARTITION_METRICS, RUN_METRICS
from downspout.metrics import Metric as Row
from downspout.run.run_snapshots import Snapshot, Snapshots

SCOPE = "downspout"
UNITS = {"seconds": "s", "bytes": "By", "text": "1"}
SYSTEM = "messaging.system"
OPERATION = "messaging.operation.name"
GROUP = "messaging.consumer.group.name"
CONVENTIONAL = {
    "fetched": ("messaging.client.consumed.messages", "{message}", {SYSTEM: "kafka", OPERATION: "poll"}),
    "sent": ("messaging.client.sent.messages", "{message}", {SYSTEM: "kafka", OPERATION: "send"}),
}
"""Component metrics that also have a name in the conventions."""
DURATION = "messaging.process.duration"
LAG = "kafka.consumer_group.lag"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)  # as the conventions advise
FRESH_S = 0.5  # All instruments of one collection read the same snapshot
Observations = list[Observation]


class Asked:
    """Reads a run's metrics, once for all instruments."""

    def __init__(self, snapshots: Snapshots, groups: Mapping[str, str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._snapshots, self._groups, self._clock = snapshots, groups, clock
        self._at = float("-inf")
        self.started_ns = time.time_ns()
        self.snapshot: Snapshot | None = None
        self._found: dict[str, Observations] = {}

    def observations(self, name: str) -> Observations:
        """Return the values of one instrument."""
        if self._clock.monotonic() - self._at > FRESH_S:
            self.snapshot = self._snapshots.latest()
            self._found = {} if self.snapshot is None else self._all(self.snapshot)
            self._at = self._clock.monotonic()
        return self._found.get(name, [])

    def forget(self) -> None:
        """Drop the snapshot, so the next call takes a new one."""
        self._at = float("-inf")

    def _all(self, snapshot: Snapshot) -> dict[str, Observations]:
        found: dict[str, Observations] = {}
        for row, series in series_of(snapshot, self._groups):
            found[name_of(row)] = [Observation(value, _attributes(labels)) for labels, value in series]
            if row.of == "component" and row.name in CONVENTIONAL:
                found[CONVENTIONAL[row.name][0]] = _conventional((row, series))
        found[LAG] = [
            Observation(lag, {"group": group, "topic": topic, "partition": int(number)})
            for (group, topic, number), lag in group_lags(partitions_of(snapshot, self._groups)).items()
        ]
        return found

    def duration(self) -> Metric | None:
        """Return the durations of tuple trees in the buckets that the conventions advise; error at most 2 %."""
        if self.snapshot is None or not (latencies := self.snapshot.metrics.latencies):
            return None
        counts, total = [0.0] * (len(BOUNDS) + 1), 0.0
        for bucket, count in latencies.items():
            seconds = GROWTH ** (bucket + 0.5)
            counts[bisect.bisect_left(BOUNDS, seconds)] += count
            total += seconds * count
        whole = [round(count) for count in counts]
        attributes = {SYSTEM: "kafka", OPERATION: "process", "downspout.topology": self.snapshot.metrics.name}
        point = HistogramDataPoint(
            attributes, self.started_ns, time.time_ns(), sum(whole), total, whole, BOUNDS,
            GROWTH ** min(latencies), GROWTH ** (max(latencies) + 1),
        )  # fmt: skip
        data = Histogram([point], AggregationTemporality.CUMULATIVE)
        return Metric(DURATION, "Time from a spout's emit to its ack.", "s", data)


def name_of(row: Row) -> str:
    """Return a row's name in OpenTelemetry.

    >>> name_of(METRICS["fetch_mean_s"]), name_of(METRICS["rows"]), name_of(PARTITION_METRICS["lag"])
    ('downspout.fetch_mean_time', 'downspout.rows', 'downspout.partition.lag')
    """
    scope = "" if row.of == "component" else f"{row.of}."
    return f"downspout.{scope}{row.name.removesuffix('_s') + '_time' if row.unit == 'seconds' else row.name}"


def _attributes(labels: Mapping[str, str]) -> dict[str, str]:
    return {f"downspout.{name}": value for name, value in labels.items() if value}


def _conventional(series: Series) -> Observations:
    row, found = series
    fixed = CONVENTIONAL[row.name][2]
    return [
        Observation(value, fixed | ({GROUP: labels["group"]} if labels["group"] else {}) | _attributes(labels))
        for labels, value in found
    ]


class WithDurations(MetricExporter):
    """Wraps an exporter, and adds the histogram of latencies."""

    def __init__(self, inner: MetricExporter, asked: Asked) -> None:
        super().__init__(inner._preferred_temporality, inner._preferred_aggregation)
        self._inner, self._asked = inner, asked

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Export these metrics and the histogram."""
        first = metrics_data.resource_metrics[0]
        if (duration := self._asked.duration()) is not None:
            (scope,) = first.scope_metrics  # all instruments are of one meter
            first = replace(first, scope_metrics=[replace(scope, metrics=[*scope.metrics, duration])])
        return self._inner.export(MetricsData([first]), timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Flush the wrapped exporter."""
        return self._inner.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Shut down the wrapped exporter."""
        self._inner.shutdown(timeout_millis, **kwargs)


@contextlib.contextmanager
def exported(
    name: str,  # of the topology: the service's, unless OTEL_SERVICE_NAME is set
    groups: Mapping[str, str],  # the consumer group of each spout
    exporter: MetricExporter | None = None,  # where the metrics go, instead of OTLP
) -> Iterator[Snapshots]:
    """Export a run's metrics while the context lasts, and once at its end; the run's view must fill the snapshots."""
    snapshots = Snapshots()
    asked = Asked(snapshots, groups)
    reader = PeriodicExportingMetricReader(WithDurations(exporter or OTLPMetricExporter(), asked))
    provider = MeterProvider([reader], resource_of(name), shutdown_on_exit=False)
    register(provider, asked)
    try:
        yield snapshots
    finally:
        with contextlib.suppress(Exception):  # after a failure, the last snapshot is exported
            snapshots.finish()
        snapshots.close()
        asked.forget()
        provider.shutdown()


def resource_of(name: str) -> Resource:
    """Return the resource of metrics and spans."""
    given = OTELResourceDetector().detect()
    return Resource.create({} if SERVICE_NAME in given.attributes else {SERVICE_NAME: name})


def register(provider: MeterProvider, asked: Asked) -> None:
    """Create the instruments."""
    meter = provider.get_meter(SCOPE)

    def add(kind: str, name: str, unit: str, text: str) -> None:
        create = meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
        create(name, callbacks=[_callback(asked, name)], unit=unit, description=text)

    for row in (*METRICS.values(), *PARTITION_METRICS.values(), *RUN_METRICS.values()):
        add(row.kind, name_of(row), UNITS.get(row.unit, f"{{{row.unit}}}"), f"{row.help} {row.note}".strip())
    for key, (name, unit, _) in CONVENTIONAL.items():
        add("counter", name, unit, METRICS[key].help)
    add("gauge", LAG, "{message}", PARTITION_METRICS["lag"].help)


def _callback(asked: Asked, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda options: asked.observations(name)
