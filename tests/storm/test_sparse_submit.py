"""Stock ``sparse submit``, ``list`` and ``kill`` on the single-node Storm."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from downspout import jars
from downspout.cli import main
from downspout.storm import keep, nimbus, node_files, readiness
from downspout.storm.logs import show
from downspout.storm.node_files import HOST
from downspout.storm.stats import TopologyStats
from tests.storm.support import BUSY_S_MAX, ROOT, Place, asked, children

pytestmark = pytest.mark.storm

RECORDS = 5_000
FLIGHTS = 5_000
CHUNK = 250


def _submit(storm: Place, name: str, *options: str) -> str:
    code, output = storm.sparse("submit", "-n", name, *options)
    assert code == 0, output
    return storm.figures(name).id


def _kill(storm: Place, name: str) -> None:
    code, output = storm.sparse("kill", "-n", name, "--wait", "0")
    assert code == 0, output
    while name in storm.topologies():  # the next one may have the same name
        time.sleep(0.2)


def test_submit_counts_and_writes_every_record_once(storm: Place) -> None:
    """Nimbus counts each record as acked, the lag is 0, the files are exact, and list and kill do what they say."""
    topic = storm.topology(storm.publish(RECORDS))
    _submit(storm, topic)
    code, listed = storm.sparse("list")
    assert code == 0
    assert "ACTI" in listed  # sparse breaks the words of its table
    storm.wait_for(topic, 0)
    found = _counted(storm, topic, lambda got: min(got.component(name).acked for name in ("spout", "rows")) >= RECORDS)
    assert found.component("spout").acked == found.component("spout").emitted == RECORDS
    assert found.component("spout").failed == found.component("rows").failed == 0
    assert found.component("rows").acked >= RECORDS  # ticks are acked too
    assert found.component("spout").complete_ms > 0
    assert storm.audit(topic).exit_code == 0
    _kill(storm, topic)


def _counted(storm: Place, name: str, all_is_told: Callable[[TopologyStats], bool]) -> TopologyStats:
    """Return nimbus's figures once they hold what Kafka shows already; they come from the workers every 5 s."""
    deadline = time.monotonic() + 120
    while True:
        found = storm.figures(name)
        with contextlib.suppress(StopIteration):  # a component that has told nothing yet
            if all_is_told(found):
                return found
        assert time.monotonic() < deadline, found
        time.sleep(1)


VICTIMS = {
    "spout process": "spouts.kafka.KafkaSpout",
    "bolt process": "bolts.parquet.ParquetBolt",
    "worker jvm": "-server -Dlogging.sensitivity",  # its log writer has this behind other words
}


@pytest.mark.slow
@pytest.mark.parametrize("victim", [*VICTIMS, "submit --force"])
def test_whatever_is_killed_the_rows_are_the_same(storm: Place, victim: str) -> None:
    """After `kill -9` of a component or of a worker's JVM, and after a new version, each record has one row."""
    records = 30_000
    topic = storm.topology(storm.publish(records))
    before = _submit(storm, topic)
    storm.wait_for(topic, records - 2_000)
    if victim == "submit --force":
        assert _submit(storm, topic, "--force", "--wait", "1") != before
    else:
        pids = children(storm.workers_group(), VICTIMS[victim])
        assert pids
        os.kill(pids[-1], signal.SIGKILL)
    storm.wait_for(topic, 0)
    report = storm.audit(topic)
    assert report.exit_code == 0, report.verdict
    assert sorted(storm.values(topic)) == sorted(f"value {number}" for number in range(records))
    _kill(storm, topic)


@pytest.mark.slow
def test_daemons_that_are_killed_are_started_again(storm: Place) -> None:
    """After `kill -9` of ZooKeeper, nimbus, the supervisor and a worker their topology goes on, and no row is lost."""
    records = 30_000
    topic = storm.topology(storm.publish(records))
    submitted = _submit(storm, topic)
    storm.wait_for(topic, records - 2_000)
    daemons = asked(storm.daemons)
    # The worker is for the next supervisor to replace: it has to remember that there was one.
    for pid in (*daemons.values(), *children(storm.workers_group(), VICTIMS["worker jvm"])):
        os.kill(pid, signal.SIGKILL)
    storm.wait_for(topic, 0)
    assert storm.figures(topic).id == submitted
    assert not set(asked(storm.daemons).values()) & set(daemons.values())
    report = storm.audit(topic)
    assert report.exit_code == 0, report.verdict
    logs = show(storm.node.directory / "logs")
    for name in daemons:
        assert f"{name} was ended by signal 9 and is started again" in logs
    _kill(storm, topic)


@pytest.mark.slow
def test_a_nimbus_that_is_registered_no_more_is_started_again(storm: Place) -> None:
    """Where ZooKeeper has forgotten nimbus, after a long pause, it leads again soon, and its topology goes on."""
    topic = storm.topology(storm.publish(RECORDS))
    submitted = _submit(storm, topic)
    storm.wait_for(topic, 0)
    before = asked(storm.daemons)
    ports = node_files.read_ports(storm.node.directory)
    assert ports is not None
    assert keep.knows_leader(ports.nimbus) is True
    library = jars.resolve("storm")[0].parent
    client = [str(jars.java()), "-cp", f"{library}/*", "org.apache.storm.shade.org.apache.zookeeper.ZooKeeperMain"]
    forget = ["-server", f"{HOST}:{ports.zookeeper}", "delete", f"/storm/nimbuses/{HOST}"]
    subprocess.run([*client, *forget], check=True, capture_output=True)
    assert keep.knows_leader(ports.nimbus) is False
    assert storm.node.status().trouble == readiness.LEADERLESS
    deadline = time.monotonic() + BUSY_S_MAX
    while keep.knows_leader(ports.nimbus) is not True:
        assert time.monotonic() < deadline, show(storm.node.directory / "logs")
        time.sleep(0.5)
    after = asked(storm.daemons)
    assert {name for name in before if before[name] != after[name]} == {"nimbus"}
    # For another worker the supervisor asks nimbus for the leader.
    os.kill(children(storm.workers_group(), VICTIMS["worker jvm"])[-1], signal.SIGKILL)
    _goes_on(storm, topic, submitted)


@pytest.mark.slow
def test_a_start_starts_daemons_that_hang_again(
    storm: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While ZooKeeper or nimbus hangs the status names it; a start replaces the daemons alone, and topologies go on."""
    monkeypatch.setattr("downspout.storm.node.SILENT_S_MAX", 1.0)
    topic = storm.topology(storm.publish(RECORDS))
    submitted = _submit(storm, topic)
    storm.wait_for(topic, 0)
    before, folder = asked(storm.daemons), str(storm.node.directory)
    try:
        os.kill(before["zookeeper"], signal.SIGSTOP)
        assert main(["storm", "status", "--dir", folder]) == 1
        assert "is silent: ZooKeeper does not answer" in capsys.readouterr().out
        os.kill(before["nimbus"], signal.SIGSTOP)
        assert main(["storm", "start", "--dir", folder]) == 0
    finally:
        for pid in before.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    said = capsys.readouterr().out
    assert "ZooKeeper does not answer; it has 1 s" in said
    assert "its daemons are started again; topologies go on" in said
    assert not set(asked(storm.daemons).values()) & set(before.values())
    _goes_on(storm, topic, submitted)


def _goes_on(storm: Place, topic: str, submitted: str) -> None:
    """See that the topology is the one that was submitted, and processes more; then kill it."""
    storm.publish(RECORDS, topic)
    storm.wait_for(topic, 0)
    assert storm.figures(topic).id == submitted
    report = storm.audit(topic)
    assert report.exit_code == 0, report.verdict
    _kill(storm, topic)


@pytest.mark.slow
def test_tuples_get_from_worker_to_worker(storm: Place) -> None:
    """With two workers origins and floats arrive, on a Storm that registers no classes: every flight once."""
    storm.publish_flights(FLIGHTS)
    for name in ("flights", "route_delays"):
        shutil.rmtree(storm.project / "output" / name, ignore_errors=True)
    group = f"two-workers-{uuid.uuid4().hex[:8]}"
    _submit(storm, "flight_delays", "-o", "topology.workers=2", "-o", f"kafka.group={group}")
    storm.wait_for("flight_delays", 0)
    found = storm.figures("flight_delays").id
    with nimbus.connect(*asked(lambda: storm.node.address), timeout_s=60.0) as client:
        info = client.getTopologyInfo(id=found)
    assert len({each.port for each in info.executors}) == 2
    storm.audit_flights(FLIGHTS)
    _kill(storm, "flight_delays")


def test_chunks_reach_the_sinks(storm: Place) -> None:
    """In chunk mode, over two workers, each flight is there once and added up once, and Storm sees chunks."""
    storm.publish_flights(FLIGHTS)
    for name in ("flights", "route_delays"):
        shutil.rmtree(storm.project / "output" / name, ignore_errors=True)
    options = {"kafka.group": f"chunks-{uuid.uuid4().hex[:8]}", "kafka.emit": "chunk", "kafka.chunk_records_max": CHUNK}
    given = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    _submit(storm, "flight_delays", "-o", "topology.workers=2", *given)
    storm.wait_for("flight_delays", 0)
    # All are counted when the ends agree: what came out of the spout is acked, and has come out of the parser.
    found = _counted(
        storm,
        "flight_delays",
        lambda got: (
            0 < got.component("spout").emitted == got.component("spout").acked == got.component("parse").emitted
        ),
    )
    assert {found.component(name).failed for name in ("spout", "parse", "enrich", "flights")} == {0}
    assert 0 < found.component("spout").emitted <= 2 * FLIGHTS / CHUNK  # ends of partitions and of polls
    assert found.component("parse").emitted == found.component("spout").emitted
    storm.audit_flights(FLIGHTS)
    _kill(storm, "flight_delays")


def test_a_quickstart_project_submits_with_the_config_of_the_page(storm: Place, quickstart: Path) -> None:
    """The config.json that docs/how-to/run-on-storm.md shows is all that a stock project needs to submit and kill."""
    page = (ROOT / "docs" / "how-to" / "run-on-storm.md").read_text(encoding="utf-8")
    (quickstart / "config.json").write_text(page.partition("```json\n")[2].partition("```")[0], encoding="utf-8")
    code, output = storm.sparse("submit", folder=quickstart)
    assert code == 0, output
    assert "wordcount" in storm.topologies()
    code, output = storm.sparse("kill", "-n", "wordcount", "--wait", "0", folder=quickstart)
    assert code == 0, output
    while "wordcount" in storm.topologies():
        time.sleep(0.2)
