"""The page of a topology on Storm: the figures are those of ``downspout storm stats``, and nothing is made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition
from playwright.sync_api import Page, expect

from downspout.cli import main
from downspout.engine import Graph
from downspout.errors import BrokerError, ConfigError, StormError
from downspout.ledger import encode
from downspout.storm import nimbus, stats, submitted
from downspout.testing import FakeKafka
from downspout.web import serving
from downspout.web.storm import StormPage
from tests.web.nimbus import TRACEBACK, UPTIME_S, Nimbus
from tests.web.running import GROUP, SCRIPT, TOPIC, Running

pytestmark = pytest.mark.fake_only("its nimbus is made up; tests/storm/test_ui_storm.py has a real one, and a broker")
RECORDS = 50


@pytest.fixture
def storm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nimbus]:
    """A nimbus with one topology, whose spout has committed 20 of 50 records."""
    with FakeKafka("storm-page") as kafka:
        kafka.create_topic(TOPIC, 2)
        for number in range(RECORDS):
            kafka.produce(TOPIC, b"x", partition=0 if number < 40 else 1)
        consumer = kafka.consumer(group=GROUP)
        metadata = encode(20, topology_id="t-1", task=4, topic_id=kafka.topic_id(TOPIC))
        consumer.commit({TopicPartition(TOPIC, 0): OffsetAndMetadata(20, metadata, -1)})
        kafka.create_topic(f"{GROUP}.dead-letters", 1)
        kafka.produce(f"{GROUP}.dead-letters", b"x")
        made = Nimbus(kafka.bootstrap)
        monkeypatch.setattr(nimbus, "connect", made.connect)
        yield made


@pytest.fixture
def shown(storm: Nimbus) -> Iterator[Running]:
    """Its page."""
    with serving(StormPage(graph(), collect, "0", every_s=0.1)) as page:
        yield Running(page.url)


def graph() -> Graph:
    """Return the graph that nimbus has."""
    return submitted.collect("nimbus", 1, "shop")


def collect(with_lag: bool = True) -> stats.TopologyStats:
    """Return what `downspout storm stats` shows."""
    return stats.collect("nimbus", 1, "shop", with_lag=with_lag)


def test_the_graph_is_the_one_that_was_submitted(shown: Running) -> None:
    """Components by the names of their classes, streams without our own, and edges with groupings."""
    found = shown.api("topology")
    assert (found["topology"], found["engine"], found["windows"]) == ("shop", "storm", ["10m", "all"])
    assert [(each["name"], each["kind"], each["class"], each["tasks"]) for each in found["components"]] == [
        ("reader", "spout", "spouts.kafka.KafkaSpout", 1),
        ("check", "bolt", "tests.web.running.CheckBolt", 2),
        ("count", "bolt", "tests.web.running.CountBolt", 1),
    ]
    assert [(edge["source"], edge["target"], edge["grouping"], edge["fields"]) for edge in found["edges"]] == [
        ("reader", "check", "shuffle", []),
        ("check", "count", "fields", ["value"]),
        ("reader", "count", "all", []),
    ]
    assert found["components"][0]["streams"] == {"default": ["origin", "value"]}


def test_the_figures_are_those_of_storm_stats(shown: Running) -> None:
    """Counters, times, capacity, rates of the last ten minutes, the last error, and the lag."""
    run, known = shown.until(lambda run: True), collect()
    assert (run["state"], run["duration_s"]) == ("active", UPTIME_S)
    for component in run["components"]:
        figures = known.component(component["name"])
        counters = ("emitted", "executed", "acked", "failed")
        assert [component["totals"][name] for name in counters] == [getattr(figures, name) for name in counters]
        lately, rate = component["windows"]["10m"], "acked_per_s" if figures.kind == "spout" else "executed_per_s"
        assert lately[rate] == pytest.approx(figures.per_s)
        assert component["windows"]["all"]["capacity"] is None
        if figures.kind == "bolt":
            times = (figures.execute_ms, figures.process_ms, figures.capacity)
            assert (lately["execute_ms"], lately["process_ms"], lately["capacity"]) == times == (0.5, 2.5, 0.25)
    reader, check, _ = run["components"]
    assert (reader["windows"]["10m"]["complete_ms"], reader["windows"]["10m"]["execute_ms"]) == (40.0, None)
    assert (check["last_error"], check["stack"]) == (f"ValueError: {SCRIPT}", TRACEBACK)
    assert run["totals"]["lag"] == sum(each.lag for each in known.lag) == 30
    assert run["totals"]["dead_lettered"] == 1
    rates = {"span_s": 600, "completed_per_s": 5_990 / 600, "failed_per_s": 1 / 60}
    means = {"complete_ms": 40.0, "p50_ms": None, "p99_ms": None}
    assert run["windows"]["10m"] == pytest.approx({**rates, **means})


def test_partitions_have_their_owner_and_no_made_up_figures(shown: Running) -> None:
    """What the commit says, and null where there is none or Storm does not know."""
    shown.until(lambda run: True)
    first, second = shown.api("partitions?sort=partition")["rows"]
    assert (first["committed"], first["end"], first["lag"], first["done"], first["owner"]) == (20, 40, 20, 0, "task 4")
    assert (first["position"], first["in_flight"]) == (None, None)
    assert shown.api("partitions")["lag"] == shown.api("run")["totals"]["lag"] == 30
    assert (second["committed"], second["end"], second["lag"], second["done"], second["owner"]) == (
        None, 10, None, None, None,
    )  # fmt: skip


def test_what_storm_does_not_count_is_null(shown: Running) -> None:
    """Nothing that nimbus does not have is a zero, and the panel says so."""
    run = shown.until(lambda run: True)
    assert {run["totals"][name] for name in ("in_flight", "retry_waiting", "disconnected", "latency_p50_ms")} == {None}
    for component in run["components"]:
        assert {component[name] for name in ("queue", "held")} == {None}
        assert {component["totals"][name] for name in ("errors", "restarts", "busy_s")} == {None}
    assert run["sinks"] == run["workers"] == run["dead_letters"] == run["batches"] == []
    assert set(shown.api("topology")["notes"]) == {"components", "curves", "sinks", "dead-letters", "workers"}


def test_what_happened_before_the_page_is_no_event(shown: Running, storm: Nimbus) -> None:
    """The failures of an hour are not of this moment; those that come are."""
    assert [each["kind"] for each in shown.until(lambda run: True)["events"]] == ["assignment"]
    first = shown.until(lambda found: len(found["wall_s"]) >= 2, "history")
    assert set(first["done_per_s"]) == {0.0}
    storm.scale = 2.0
    shown.until(lambda run: run["components"][1]["totals"]["executed"] == 180_000)


def test_settings_are_those_that_were_submitted(shown: Running) -> None:
    """The topology's and the components', without what is Storm's, and without secrets."""
    answer = shown.get("api/settings").data.decode()
    assert "hush" not in answer
    rows = {(row["component"], row["key"]): row for row in shown.api("settings")["settings"]}
    assert rows["reader", "kafka.topics"]["value"] == [TOPIC]
    secret = rows["", "kafka.client.sasl_plain_password"]
    assert (secret["value"], secret["source"]) == ("…", "topology")
    assert ("", "storm.id") not in rows


def test_a_topology_that_is_gone_is_named(shown: Running, storm: Nimbus) -> None:
    """The figures stay, with the reason why there are no later ones; where there never was one, there is no page."""
    shown.until(lambda run: run["state"] == "active")
    storm.status = ""
    run = shown.until(lambda run: bool(run["stuck"]))
    assert "There is no topology shop" in run["stuck"]
    storm.status = "INACTIVE"
    shown.until(lambda run: run["state"] == "inactive" and not run["stuck"])
    with pytest.raises(StormError, match="There is no topology other"):
        submitted.collect("nimbus", 1, "other")


def test_without_kafka_nimbus_goes_on(shown: Running, storm: Nimbus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts are renewed, the lag stays as it was, and the page says why; a page that begins so knows no lag."""
    shown.until(lambda run: run["totals"]["lag"] == 30)

    def away(*given: object) -> list[stats.Lag]:
        raise BrokerError("no broker answers at here:1")

    with monkeypatch.context() as patch:
        patch.setattr(stats, "_lag", away)
        storm.scale = 2.0
        run = shown.until(lambda run: run["components"][1]["totals"]["executed"] == 180_000)
        assert "No figures from Kafka: no broker answers at here:1" in run["stuck"]
        assert (run["totals"]["lag"], run["partitions"]["count"]) == (30, 2)
        with serving(StormPage(graph(), collect, "0", every_s=0.1)) as page:
            late = Running(page.url)
            run = late.until(lambda run: True)
            assert (run["totals"]["lag"], run["totals"]["dead_lettered"]) == (None, None)
            patch.undo()
            run = late.until(lambda run: run["totals"]["dead_lettered"] == 1 and not run["stuck"])
            assert [each["kind"] for each in run["events"]] == ["assignment"]


def test_a_port_that_is_taken_is_named_by_its_option(shown: Running) -> None:
    """The error says --port, which is what the command has."""
    port = shown.url.rstrip("/").rpartition(":")[2]
    with pytest.raises(ConfigError, match=f"--port 127.0.0.1:{port}: cannot listen there"):
        StormPage(graph(), collect, port)


def test_without_a_storm_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `downspout storm stats` does, with its exit code."""
    assert main(["ui", "storm", "shop", "--dir", str(tmp_path / "storm")]) == StormError.exit_code
    assert "Storm is stopped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "address"),
    [("far", ("far", 6627)), ("far:7000", ("far", 7000)), ("[::1]:7000", ("::1", 7000)), ("[::1]", ("::1", 6627))],
)
def test_another_storm_is_asked(
    given: str,
    address: tuple[str, int],
    storm: Nimbus,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With --nimbus no node is needed, nothing is written, and a worker's death takes no counts from the page."""
    monkeypatch.chdir(tmp_path)
    assert main(["storm", "stats", "shop", "--nimbus", given]) == 0
    assert "check" in capsys.readouterr().out
    assert storm.asked == {address}
    assert list(tmp_path.iterdir()) == []
    counters = stats.Counters(None)
    (before,) = counters.whole([collect()])
    storm.scale = 0.5
    (after,) = counters.whole([collect()])
    assert [each.executed for each in after.components] == [each.executed for each in before.components]


@pytest.mark.parametrize("given", ["far:x", ":7000", "far:0"])
def test_an_address_that_is_none_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the option."""
    with pytest.raises(SystemExit):
        main(["ui", "storm", "shop", "--nimbus", given])
    assert "argument --nimbus" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.xdist_group("chromium")
def test_the_page_shows_them(page: Page, shown: Running) -> None:
    """Graph, counters and partitions are there; the panels without figures say why, and none shows a zero for it."""
    page.goto(shown.url)
    expect(page.locator("#graph svg .node")).to_have_count(3)
    expect(page.locator("#components tbody tr")).to_have_count(3)
    expect(page.locator("#windows button")).to_have_text(["10 min", "all"])
    expect(page.locator("#partitions tbody tr")).to_have_count(2)
    expect(page.locator("#state")).to_have_text("active")
    for panel in ("sinks", "dead-letters", "workers"):
        expect(page.locator(f"#{panel} .note")).to_be_visible()
        expect(page.locator(f"#{panel} table")).to_have_count(0)
    expect(page.locator("#tiles")).to_contain_text("complete latency")
    expect(page.locator("#latency")).to_be_hidden()
    expect(page.locator("#partition-count")).to_contain_text("2 in all, 30 records behind")
    assert "in flight" not in page.locator("#tiles").inner_text()
    cells: list[Any] = page.locator("#components tbody tr").nth(1).locator("td").all_inner_texts()
    assert cells[0] == "check ×2"
    assert "90,000" in cells
