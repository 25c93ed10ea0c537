"""Retention on a real broker comes near to a commit, and the dashboard's alert says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from docs.grafana import ALERTS
from downspout.broker import EmbeddedKafka
from downspout.engine import Bounds, RunResult
from downspout.export import RunCollector
from downspout.run import RunMetrics, Snapshots
from tests.broker.scene import Member, Scene, run_until
from tests.export.alerts import firing
from tests.kafka.stage import unique

pytestmark = [pytest.mark.broker, pytest.mark.slow]
SMALL = {"segment.bytes": str(1024 * 1024), "retention.bytes": str(2 * 1024 * 1024)}
(ALERT,) = [alert.expression for alert in ALERTS if alert.name == "Retention is near"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that looks at its retention twice a second."""
    properties = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "100"}
    with EmbeddedKafka(tmp_path_factory.mktemp("retention"), properties=properties) as made:
        yield made


def scrape(member: Member) -> str:
    """Return what Prometheus would read of a run with this spout."""
    partitions = {"reader": member.spout.report_partitions()}
    result = RunResult("running", False, 9.0, {}, 0, 0, 0, 0, None, None, spouts=["reader"], partitions=partitions)
    snapshots, registry = Snapshots(), CollectorRegistry()
    snapshots.look(0.0, lambda: RunMetrics("shop", result, {}, Bounds(), False))
    snapshots.close()
    registry.register(RunCollector(snapshots, {"reader": "g"}))
    return generate_latest(registry).decode()


def read_on(scene: Scene, member: Member) -> None:
    """Write a segment of records, and have them read before retention takes them."""
    known = len(member.emitted)
    scene.fill(100, value=lambda _: b"x" * 10_000)
    run_until(lambda: len(member.emitted) >= known + 100, member)


def begin_of(member: Member) -> int:
    """Return where the log of the one partition begins, as the spout knows it."""
    (figures,) = member.spout.report_partitions().values()
    return int(figures["begin"])


def test_the_alert_fires_when_retention_comes_near_to_the_commit(broker: EmbeddedKafka) -> None:
    """While the log is whole it is silent, however far the commit is behind; once segments are deleted, it fires.

    It names the partition. When all is committed, it is silent again, though the log is still deleted from.
    """
    with Scene(broker.bootstrap, unique("retention"), config=SMALL) as scene:
        member = scene.member()
        read_on(scene, member)
        member.ack(range(20))
        member.commit()
        assert firing(ALERT, scrape(member)) == []
        for _ in range(5):
            read_on(scene, member)
        run_until(lambda: firing(ALERT, scrape(member)) != [], member)
        ((labels),) = firing(ALERT, scrape(member))
        assert (labels["topic"], labels["partition"], labels["component"]) == (scene.topic, "0", "reader")
        run_until(lambda: begin_of(member) == scene.bounds()[0], member)
        (figures,) = member.spout.report_partitions().values()
        assert figures["retention_records"] == 20 - figures["begin"] < 0.1 * figures["log_records"]
        member.ack_all()
        member.commit()
        assert firing(ALERT, scrape(member)) == []
