"""A run's metrics for OpenTelemetry: the whole table, and the messaging conventions' names."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)

from downspout.cli import main
from downspout.engine import bucket_of
from downspout.errors import MissingExtraError
from downspout.export import otel
from downspout.metrics import METRICS
from downspout.run import RunMetrics, Snapshots
from downspout.testing import FakeKafka, VirtualClock
from tests.command import PYTHON_CODE, cli
from tests.export.collector import collecting
from tests.export.test_prometheus import ALL, partition, told

ROOT = Path(__file__).resolve().parents[2]


def metrics_in(data: MetricsData | None) -> dict[str, Metric]:
    assert data is not None
    return {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def read(metrics: RunMetrics) -> dict[str, Metric]:
    snapshots, reader = Snapshots(), InMemoryMetricReader()
    snapshots.look(0.0, lambda: metrics)
    snapshots.close()  # so that nothing waits for another answer
    otel.register(MeterProvider([reader]), otel.Asked(snapshots, {"reader": "g"}))
    return metrics_in(reader.get_metrics_data())


class InMemoryExporter(MetricExporter):
    def __init__(self) -> None:
        super().__init__()
        self.exported: list[dict[str, Metric]] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **kwargs: Any) -> MetricExportResult:
        self.exported.append(metrics_in(metrics_data))
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **kwargs: Any) -> None:
        pass


def test_every_row_of_the_table_is_exported() -> None:
    """Each metric is there with its kind, its base unit and a value, beside those with a conventional name."""
    found = read(told(_0=partition()))
    names = {otel.name_of(row) for row in ALL}
    assert len(names) == len(ALL)
    assert found.keys() == names | {name for name, _, _ in otel.CONVENTIONAL.values()} | {otel.LAG}
    for row in ALL:
        metric = found[otel.name_of(row)]
        assert getattr(metric.data, "is_monotonic", False) == (row.kind == "counter"), row
        assert metric.data.data_points, row
        assert metric.unit == {"seconds": "s", "bytes": "By", "text": "1"}.get(row.unit, f"{{{row.unit}}}")


def test_what_has_a_conventional_name_has_its_attributes() -> None:
    """Messages consumed and sent, by system, operation and group; the lag of a group as collectors name it."""
    found = read(told(_3=partition(committed=90.0, end=100.0)))
    point = found["messaging.client.consumed.messages"].data.data_points[0]
    fetched = list(METRICS).index("fetched") + 1
    assert (getattr(point, "value", None), found["messaging.client.consumed.messages"].unit) == (fetched, "{message}")
    assert point.attributes is not None
    assert {key: value for key, value in point.attributes.items() if key.startswith("messaging.")} == {
        "messaging.system": "kafka",
        "messaging.operation.name": "poll",
        "messaging.consumer.group.name": "g",
    }
    (lag,) = found["kafka.consumer_group.lag"].data.data_points
    assert (getattr(lag, "value", None), lag.attributes) == (10, {"group": "g", "topic": "orders", "partition": 3})


def test_one_collection_asks_a_run_once() -> None:
    taken: list[int] = []
    snapshots, reader = Snapshots(), InMemoryMetricReader()
    over = threading.Event()

    def take() -> RunMetrics:
        taken.append(1)
        return told(_0=partition())

    def turn() -> None:
        while not over.wait(0.001):
            snapshots.look(0.0, take)

    otel.register(MeterProvider([reader]), otel.Asked(snapshots, {}, VirtualClock()))  # however long it takes
    thread = threading.Thread(target=turn)
    thread.start()
    # The first is taken unasked. While it is on its way it would answer the reader too, who then would not have asked.
    snapshots.latest()
    before = len(taken)
    reader.get_metrics_data()
    over.set()
    thread.join()
    assert len(taken) - before == 1


def test_latencies_are_a_histogram_and_the_end_is_exported() -> None:
    """Trees are counted by how long they took; the last export is of how the run ended, though none was due."""
    exporter = InMemoryExporter()
    run = told(_0=partition())
    ended = RunMetrics(run.name, run.result, {}, run.bounds, True, {bucket_of(0.02): 60.0, bucket_of(20.0): 10.0})
    with otel.exported("shop", {}, exporter) as snapshots:
        snapshots.look(0.0, lambda: run)
        snapshots.look(0.0, lambda: ended)
    metric = exporter.exported[-1]["messaging.process.duration"]
    (point,) = metric.data.data_points
    assert (metric.unit, getattr(point, "count", None)) == ("s", 70)
    counts: Sequence[int] = getattr(point, "bucket_counts", ())
    assert [(bound, count) for bound, count in zip([*otel.BOUNDS, "more"], counts, strict=True) if count] == [
        (0.025, 60),
        ("more", 10),
    ]
    assert getattr(point, "sum", 0) == pytest.approx(201.2, rel=0.02)
    assert "messaging.process.duration" not in read(run)


@pytest.mark.fake_only("the command line; a collector is the question")
def test_the_command_sends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`downspout run --otel` sends the final figures to OTEL_EXPORTER_OTLP_ENDPOINT, as of the topology's name."""
    monkeypatch.chdir(tmp_path)
    file = ROOT / "tests" / "web" / "running.py"
    with FakeKafka("otel") as kafka, collecting() as (address, taken):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        kafka.create_topic("orders", 1)
        for number in range(9):
            kafka.produce("orders", f"order {number}".encode(), partition=0)
        given = ["--set", f"kafka.bootstrap={kafka.bootstrap}", "--until", "end", "--quiet", "--otel"]
        assert main(["run", str(file), *given]) == 0
    (resource,) = taken.metrics[-1].resource_metrics
    assert "running" in [each.value.string_value for each in resource.resource.attributes if each.key == "service.name"]
    sent = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    assert sent["downspout.run.completed"].sum.data_points[0].as_double == 9
    assert sent["messaging.process.duration"].histogram.data_points[0].count == 9


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where OpenTelemetry is not installed, the error says what to install."""
    monkeypatch.delitem(sys.modules, "downspout.export.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    code = main(["run", str(ROOT / "tests" / "web" / "running.py"), "--otel", "--set", "kafka.bootstrap=x:1"])
    assert code == MissingExtraError.exit_code
    assert "pip install 'downspout[otel]'" in capsys.readouterr().err


@pytest.mark.slow
def test_without_the_option_nothing_is_imported() -> None:
    """The command and what it serves load no OpenTelemetry."""
    code = "import sys, json, downspout.cli.run, downspout.export.server, downspout.web\n"
    code += "print(json.dumps([name for name in sys.modules if name.startswith('opentelemetry')]))"
    done = cli(code, program=PYTHON_CODE)
    assert json.loads(done.stdout) == []
