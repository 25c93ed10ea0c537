"""Stock ``sparse submit``, ``list`` and ``kill`` on the single-node Storm."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from downspout.storm import StormNode, TopologyStats, nimbus
from tests.storm.support import ROOT, STALLED_S_MAX, Place, asked, children
from tests.waiting import eventually

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
    eventually(lambda: name not in storm.topologies(), every_s=0.2)  # the next one may have the same name


class Rows:
    """A topology with two workers that runs on: each test publishes more, and does something to it meanwhile."""

    def __init__(self, storm: Place) -> None:
        self._storm, self._sent = storm, Counter[str]()
        self.topic = storm.topology(storm.publish(0), workers=2)

    def publish(self, count: int) -> None:
        self._storm.publish(count, self.topic)
        self._sent.update(f"value {number}" for number in range(count))

    @contextlib.contextmanager
    def under_load(self) -> Iterator[None]:
        """Publish as long as this lasts, so that always some records are in flight; then see that all are there."""
        self.publish(RECORDS)
        self._storm.wait_for(self.topic, RECORDS - 1_000)
        is_over = threading.Event()

        def go_on() -> None:
            while not is_over.wait(0.2):
                self.publish(500)

        publisher = threading.Thread(target=go_on)
        publisher.start()
        try:
            yield
        finally:
            is_over.set()
            publisher.join()
        self.publish(RECORDS)
        self.all_are_there()

    def all_are_there(self) -> None:
        """Wait for the end of the topic, and see that each of its records has one row."""
        self._storm.wait_for(self.topic, 0)
        report = self._storm.audit(self.topic)
        assert report.exit_code == 0, report.verdict
        assert Counter(self._storm.values(self.topic)) == self._sent


@pytest.fixture(scope="module")
def rows(place: Place, node: StormNode) -> Iterator[Rows]:
    """The topology; to submit and to kill it for each test anew would take longer than the tests."""
    made = Rows(place)
    _submit(place, made.topic)
    yield made
    _kill(place, made.topic)


@pytest.mark.sweep
def test_submit_counts_and_writes_every_record_once(storm: Place, rows: Rows) -> None:
    """Nimbus counts all that was emitted as acked, the lag is 0, the files are exact, and list names the topology."""
    rows.publish(RECORDS)
    code, listed = storm.sparse("list")
    assert code == 0
    assert "ACTI" in listed  # sparse breaks the words of its table
    rows.all_are_there()
    # The sink takes chunks: nimbus counts these. A machine that stands still times tuples out; they come again.
    found = _counted(
        storm,
        rows.topic,
        lambda got: 0 < got.component("spout").acked == got.component("spout").emitted - got.component("spout").failed,
    )
    assert found.component("rows").failed == 0
    assert found.component("rows").acked >= found.component("spout").acked  # ticks are acked too
    assert found.component("spout").complete_ms > 0


def _counted(storm: Place, name: str, all_is_told: Callable[[TopologyStats], bool]) -> TopologyStats:
    """Return nimbus's figures once they hold what Kafka shows already; they come from the workers every 5 s."""

    def told() -> TopologyStats | None:
        found = storm.figures(name)
        with contextlib.suppress(StopIteration):  # a component that has told nothing yet
            return found if all_is_told(found) else None
        return None

    return eventually(told, STALLED_S_MAX, every_s=1.0, otherwise=lambda: storm.figures(name))


VICTIMS = {
    "spout process": "spouts.kafka.KafkaSpout",
    "bolt process": "bolts.parquet.ParquetBolt",
    "worker jvm": "-server -Dlogging.sensitivity",  # its log writer has this behind other words
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("spout process", marks=pytest.mark.sweep),
        "bolt process",
        pytest.param("worker jvm", marks=pytest.mark.sweep),  # it is killed with the daemons too
        pytest.param("submit --force", marks=pytest.mark.sweep),
    ],
)
def test_whatever_is_killed_the_rows_are_the_same(storm: Place, rows: Rows, victim: str) -> None:
    """After `kill -9` of a component or of a worker's JVM, and after a new version, each record has one row."""
    before = storm.figures(rows.topic).id
    with rows.under_load():
        if victim == "submit --force":
            assert _submit(storm, rows.topic, "--force", "--wait", "1") != before
        else:
            pids = children(storm.workers_group(), VICTIMS[victim])
            assert pids
            os.kill(pids[-1], signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.sweep  # origins go from worker to worker in the tests of `rows`, values in those of conformance
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


@pytest.mark.sweep
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
    eventually(lambda: "wordcount" not in storm.topologies(), every_s=0.2)
