"""The page of a run on Spark: the driver's sums by batch, and nothing that Spark does not report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition
from playwright.sync_api import Page, expect

from downspout.engine import Counts, from_class, resolve
from downspout.spark import CommittedBatch, to_json
from downspout.spark.topology.query import QuerySnapshot, partitions_of
from downspout.web import serving
from downspout.web.spark import SparkPage
from tests.web.running import TOPIC, Running, Shop, result

pytestmark = pytest.mark.fake_only("its query is made up; tests/spark/topology/test_topology_ui.py has a real one")
REPORTED = {"rows": 90, "files": 2, "bytes": 900, "flushes": 2}


def progress(*offsets: tuple[int, int]) -> dict[str, Any]:
    """Return what Spark reports of a batch: end and latest offset of each partition."""
    ends, latest = (
        to_json({TopicPartition(TOPIC, number): pair[at] for number, pair in enumerate(offsets)}) for at in (0, 1)
    )
    return {"sources": [{"description": "PythonMicroBatchStream", "endOffset": ends, "latestOffset": latest}]}


def look(at_s: float, done: int, **other: Any) -> QuerySnapshot:
    """Return a look at a query that has done so many records, in two batches."""
    made = result(at_s, done, reports={"reader": {"dead_lettered": 1}, "check": REPORTED})
    made = replace(made, components={**made.components, "count": Counts(executed=done, acked=done)})
    batches = [CommittedBatch(1, done - 50, 2.0, 1, 2_000), CommittedBatch(0, 50, 4.0, 0, 1_000)]
    partitions = partitions_of(progress((40, 45), (done - 40, done)), lambda topic: "reader")
    return QuerySnapshot(made, batches, 3, 2, False, partitions)


class Query:
    def __init__(self) -> None:
        self.now: QuerySnapshot | None = None
        self.looks = SimpleNamespace(latest=lambda: self.now)


@pytest.fixture
def query() -> Query:
    return Query()


@pytest.fixture
def shown(query: Query) -> Iterator[Running]:
    graph = from_class(Shop, "shop")
    with serving(SparkPage(graph, resolve(graph, []), "127.0.0.1:0")) as page:
        page.watch(query.looks)
        yield Running(page.url)


def test_a_query_that_has_not_begun_is_starting(shown: Running, query: Query) -> None:
    """Spark takes seconds to start: the graph is there at once, figures with the first look."""
    assert shown.api("run")["state"] == "starting"
    assert [each["name"] for each in shown.api("topology")["components"]] == ["reader", "check", "count"]
    query.now = look(10, 100)
    assert shown.until(lambda run: True)["state"] == "running"


def test_batches_and_sinks_are_those_of_the_driver(shown: Running, query: Query) -> None:
    """Each batch with its rate, the latest first; counts of components and sinks as of the last one."""
    query.now = look(10, 100)
    run = shown.until(lambda run: True)
    assert [(each["number"], each["records"], each["records_per_s"]) for each in run["batches"]] == [
        (1, 50, 25.0),
        (0, 50, 12.5),
    ]
    assert run["batches"][0]["dead_lettered"] == 1
    assert (run["totals"]["completed"], run["totals"]["dead_lettered"], run["totals"]["computed_again"]) == (100, 1, 3)
    (sink,) = run["sinks"]
    assert {name: sink[name] for name in REPORTED} == REPORTED
    check = run["components"][1]
    assert (check["totals"]["executed"], check["windows"]["all"]["executed_per_s"]) == (100, 10)
    assert check["windows"]["all"]["capacity"] == pytest.approx(100 / 1000 / 10 / 2)  # of two cores


def test_partitions_are_as_of_sparks_last_report(shown: Running, query: Query) -> None:
    """Where the last batch ended, and what is behind it; what is not known is null."""
    query.now = look(10, 100)
    run = shown.until(lambda run: True)
    rows = {row["number"]: row for row in run["partitions"]["rows"]}
    assert [(rows[each]["committed"], rows[each]["end"], rows[each]["lag"]) for each in (0, 1)] == [
        (40, 45, 5),
        (60, 100, 40),
    ]
    assert run["totals"]["lag"] == 45
    assert {rows[0][name] for name in ("position", "in_flight", "owner", "done", "blocks")} == {None}
    query.now = replace(look(11, 100), partitions=partitions_of({"sources": []}, lambda topic: "reader"))
    assert shown.until(lambda run: run["partitions"]["count"] == 0)["totals"]["lag"] is None


def test_what_spark_does_not_know_is_null(shown: Running, query: Query) -> None:
    """No tuple has a latency, and nothing is in flight between batches."""
    query.now = look(10, 100)
    run = shown.until(lambda run: True)
    unknown = ("timeouts", "in_flight", "retry_waiting", "disconnected", "latency_p50_ms", "latency_p99_ms")
    assert {run["totals"][name] for name in unknown} == {None}
    for component in run["components"]:
        assert (component["queue"], component["held"], component["windows"]["all"]["process_ms"]) == (None, None, None)
    assert set(shown.api("topology")["notes"]) == {"batches", "components", "curves", "dead-letters", "workers"}
    query.now = replace(look(11, 100), stopping=True)
    assert shown.until(lambda run: run["state"] == "draining")


@pytest.mark.slow
@pytest.mark.xdist_group("chromium")
def test_the_page_shows_them(page: Page, shown: Running, query: Query) -> None:
    """Batches, sinks and partitions are there, and the panels say what Spark lacks."""
    page.goto(shown.url)
    expect(page.locator("#state")).to_have_text("starting")
    query.now = look(10, 100)
    expect(page.locator("#batches tbody tr")).to_have_count(2)
    expect(page.locator("#sinks tbody tr")).to_have_count(1)
    expect(page.locator("#partition-count")).to_contain_text("2 in all, 45 records behind")
    expect(page.locator("#dead-letters .note")).to_be_visible()
    expect(page.locator("#latency")).to_be_hidden()
    expect(page.locator("#tiles")).to_contain_text("computed again")
    assert "latency" not in page.locator("#tiles").inner_text()
