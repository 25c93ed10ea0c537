"""A run's metrics for Prometheus: the whole table, with Prometheus's names."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from downspout.engine import Bounds, RunResult, TaskResult, WorkerResult
from downspout.export import GROUP_LAG, RunCollector
from downspout.metrics import METRICS, PARTITION_METRICS, RUN_METRICS
from downspout.run import RunMetrics, Snapshots

ALL = [*METRICS.values(), *PARTITION_METRICS.values(), *RUN_METRICS.values()]
PLACE = {"topology": "shop", "component": "reader", "topic": "orders", "group": "g"}


def partition(**figures: object) -> dict[str, object]:
    """Return what a spout reports of a partition, all of it known."""
    texts = {
        name: "failed 3 times, out for 12 s" for name, metric in PARTITION_METRICS.items() if metric.unit == "text"
    }
    return {name: float(at) for at, name in enumerate(PARTITION_METRICS, 1)} | texts | figures


def told(**partitions: dict[str, object]) -> RunMetrics:
    """Return a run in which each row of the table has a value."""
    values = {name: float(at) for at, name in enumerate(METRICS, 1)}
    result = RunResult(
        "running", False, 9.0, {}, 70, 1, 0, 2, 5.0, 250.0, spouts=["reader"],
        partitions={"reader": {f"orders[{name[1:]}]": figures for name, figures in partitions.items()}},
        tasks=[TaskResult("reader", 4, values, 1), TaskResult("reader", 4, {"records": 1.0}, 2)],
        workers=[WorkerResult(1, "running", 4711), WorkerResult(2, "restarting", None, 3)],
    )  # fmt: skip
    return RunMetrics("shop", result, {}, Bounds(), False)


def registry(metrics: RunMetrics) -> CollectorRegistry:
    snapshots, found = Snapshots(), CollectorRegistry()
    snapshots.look(0.0, lambda: metrics)
    snapshots.close()  # so that nothing waits for another answer
    found.register(RunCollector(snapshots, {"reader": "g"}))
    return found


def scraped(metrics: RunMetrics) -> dict[str, Family]:
    """Return what the library's own parser reads, by name of the series."""
    families = read_text(generate_latest(registry(metrics)).decode())
    return {f"{each.name}_total" if each.type == "counter" else each.name: each for each in families}


def test_every_row_of_the_table_is_exported() -> None:
    """Each metric is there under its name, with its kind and its help, and nothing else but the group's lag."""
    found = scraped(told(_0=partition()))
    assert found.keys() == {metric.series for metric in ALL} | {GROUP_LAG}
    for metric in ALL:
        assert found[metric.series].type == metric.kind
        assert found[metric.series].documentation.startswith(metric.help.replace("`", ""))
        assert found[metric.series].samples, metric.series


def test_names_differ() -> None:
    """No two rows of the table have one name in Prometheus."""
    assert len({metric.series for metric in ALL}) == len(ALL)


def test_the_parser_of_openmetrics_reads_it() -> None:
    """The stricter format, which a newer Prometheus asks for, is right as well."""
    text = openmetrics.generate_latest(registry(told(_0=partition(), _1=partition()))).decode()
    assert len(list(read_openmetrics(text))) == len(ALL) + 1


def test_labels_say_whose_figure_it_is() -> None:
    """A component's series name task, worker and group; a partition's topic, number and group, and not who has it."""
    found = scraped(told(_7=partition(lag=5.0, committed=10, end=18)))
    rows = found[METRICS["records"].series].samples
    labels = {"topology": "shop", "component": "reader", "task": "4", "group": "g"}
    assert [sample.labels for sample in rows] == [labels | {"worker": "1"}, labels | {"worker": "2"}]
    (lag,) = found["downspout_partition_lag"].samples
    assert (lag.labels, lag.value) == (PLACE | {"partition": "7"}, 5.0)
    (group,) = found[GROUP_LAG].samples
    assert group.labels == {"consumergroup": "g", "group": "g", "topic": "orders", "partition": "7"}
    assert group.value == 8.0


def test_a_partition_without_a_commit_has_no_lag() -> None:
    """No series stands for a commit that is not there, and none for what is not known."""
    unknown = partition(committed=3, lag=None, end=None, blocks=None)
    found = scraped(told(_0=partition(committed=None, lag=5.0), _1=unknown))
    assert [sample.labels["partition"] for sample in found["downspout_partition_committed"].samples] == ["1"]
    assert [sample.labels["partition"] for sample in found["downspout_partition_blocks"].samples] == ["0"]
    assert "downspout_partition_lag" not in found
    assert GROUP_LAG not in found


def test_a_text_is_a_label_without_numbers_and_without_data() -> None:
    """Why a partition waits is a series of its own, in words that do not change every second."""
    (why,) = scraped(told(_0=partition()))["downspout_partition_why"].samples
    assert (why.labels, why.value) == (PLACE | {"partition": "0", "why": "failed N times, out for N s"}, 1.0)


@pytest.mark.parametrize("name", ['t"x', "back\\slash", "line\nbreak", "{a=b}", "ünï"])
def test_names_of_any_kind_survive(name: str) -> None:
    """A topology's name is data: it is read back as it was."""
    metrics = told(_0=partition())
    named = RunMetrics(name, metrics.result, {}, Bounds(), False)
    found = scraped(named)
    assert {sample.labels["topology"] for sample in found["downspout_run_completed_total"].samples} == {name}


def test_a_run_that_has_not_begun_has_no_series() -> None:
    """A scrape before the first turn of the loop is empty, and no error."""
    snapshots, found = Snapshots(), CollectorRegistry()
    snapshots.close()
    found.register(RunCollector(snapshots, {}))
    assert generate_latest(found) == b""


def test_units_are_base_units() -> None:
    """What is measured in seconds says so, and is exported in seconds."""
    found = scraped(told())
    (sample,) = found["downspout_run_latency_p99_seconds"].samples
    assert sample.value == 0.25
    assert {metric.series for metric in ALL if metric.unit == "seconds" and "_seconds" not in metric.series} == set()
