"""What the tests on a real Storm share: a project in which stock ``sparse`` runs, and what is seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow.dataset as ds

from demos import flights_data
from downspout.audit import AuditReport
from downspout.audit.audit import audit
from downspout.broker import EmbeddedKafka
from downspout.errors import BrokerError, StormError
from downspout.kafka import KafkaCluster, TopicPartition, answer_of
from downspout.storm import StormNode, TopologyStats, groups, nimbus, program, show, stats
from downspout.storm.node_files import read_daemons

Answer = TypeVar("Answer")
ROOT = Path(__file__).resolve().parents[2]
STALLED_S_MAX = 300.0
BUSY_S_MAX = 180.0
"""So long nimbus may have no time for us: two seconds, by which a Storm counts as silent, are few on a busy machine."""

SHORT_LIVED = {"worker.childopts": "-Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"}
"""For workers that live for a minute: what a good compiler costs, it does not bring in again."""

ROWS = """\
from streamparse import Topology

from bolts.parquet import ParquetBolt
from spouts.kafka import KafkaSpout


class Rows(Topology):
    config = {{
        "topology.max.spout.pending": 4000,
        "topology.workers": {workers},
        "topology.message.timeout.secs": 15,
        "topology.spout.wait.progressive.level3.sleep.millis": 50,
        "kafka.commit_period_ms": 1000,
        "kafka.emits_per_next_max": 50,
        "parquet.flush_rows": 1000,
        "parquet.flush_age_s": 2,
    }}
    spout = KafkaSpout.spec(topics=["{topic}"], fields=["origin", "value"])
    rows = ParquetBolt.spec(inputs=[spout], par=2, directory="output/{topic}", schema={{"value": "string"}})
"""
"""A topology of one topic, with small flushes: there is always something in flight that a kill can hit.

What a kill has hit comes again after one to two message timeouts.
"""


@dataclass
class Place:
    home: Path
    project: Path
    kafka: EmbeddedKafka

    @property
    def cluster(self) -> KafkaCluster:
        return KafkaCluster(self.kafka.bootstrap)

    @property
    def node(self) -> StormNode:
        return StormNode(self.home / "storm", project=self.project)

    def environment(self) -> dict[str, str]:
        environ = {**os.environ, "DOWNSPOUT_HOME": str(self.home)}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
        return {**environ, **program.environment(self.node, environ), "DOWNSPOUT_HOME": str(self.home)}

    @contextmanager
    def inside(self) -> Iterator[None]:
        before = dict(os.environ)
        os.environ.update(self.environment())
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def start_sparse(self, *arguments: str, folder: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("sparse")), *arguments],
            cwd=folder or self.project,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def sparse(self, *arguments: str, folder: Path | None = None) -> tuple[int, str]:
        """Run stock ``sparse`` to its end; return its exit code and what it printed."""
        deadline = time.monotonic() + BUSY_S_MAX
        while True:
            process = self.start_sparse(*arguments, folder=folder)
            output, _ = process.communicate()
            # Who is told this has done nothing yet.
            if "Storm is silent" not in output or process.returncode == 0 or time.monotonic() > deadline:
                return process.returncode, output

    def run_to_the_end(self, name: str, topic: str, *options: str) -> str:
        """Run ``sparse run`` until all of a topic is committed, end it as Ctrl-C does; return what it printed."""
        run = self.start_sparse("run", "-n", name, *options)
        heard: list[str] = []
        reader = threading.Thread(target=lambda: heard.extend(run.stdout or ()))
        reader.start()
        best, moved_at = 1 << 62, time.monotonic()
        while (lag := self.lag(name, topic)) > 0 and run.poll() is None and time.monotonic() - moved_at < STALLED_S_MAX:
            if lag < best:
                best, moved_at = lag, time.monotonic()
            time.sleep(0.5)
        ended_by_itself = run.poll() is not None
        if not ended_by_itself:
            os.killpg(run.pid, signal.SIGINT)
        reader.join()
        run.wait()
        output = "".join(heard)
        assert not ended_by_itself, output
        assert lag == 0, output
        return output

    def local_jvm(self) -> int | None:
        """Return the process of the LocalCluster that runs here, or None."""
        listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True)
        mine = f"-Dstorm.log.dir={self.home / 'storm' / 'logs'} "
        for line in listed.stdout.splitlines():
            if mine in line and "org.apache.storm.LocalCluster" in line:
                return int(line.split()[0])
        return None

    def lag(self, group: str, topic: str) -> int:
        """Return how far a group is behind the end of a topic."""
        return answer_of(lambda: self._lag(group, topic), f"the lag of {group}")

    def _lag(self, group: str, topic: str) -> int:
        consumer = self.cluster.consumer(group=group)
        try:
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
            commits, ends = consumer.committed(partitions), consumer.end_offsets(partitions)
            return sum(ends[each] - (commit.offset if (commit := commits[each]) else 0) for each in partitions)
        finally:
            consumer.close()

    def daemons(self) -> dict[str, int]:
        """Return the processes of nimbus, supervisor and ZooKeeper, all of which run and answer."""
        found = self.node.status()
        keepers = {each.pid for each in found.daemons.processes.values()} if found.daemons else set()
        if found.state != "running" or keepers & set(found.alive.values()):
            raise StormError(f"Storm is {found.condition}", cure="wait")
        return found.alive

    def workers_group(self) -> int:
        """Return the process group of this Storm's supervisor and of all that it started."""
        daemons = read_daemons(self.home / "storm")
        assert daemons is not None
        return daemons.processes["supervisor"].pid

    def publish(self, count: int, topic: str | None = None, partitions: int = 2) -> str:
        """Write numbered records to a topic of their own; return its name."""
        topic = topic or f"rows_{uuid.uuid4().hex[:8]}"
        self.cluster.ensure_topic(topic, partitions)
        producer = self.cluster.producer()
        for number in range(count):
            producer.send(topic, key=None, value=f"value {number}".encode(), partition=number % partitions)
        producer.flush()
        producer.close()
        return topic

    def publish_flights(self, count: int) -> None:
        """Write the first so many real flights to their topic, or as many more as are missing there."""
        flights_data.publish(self.cluster, flights_data.Flights(flights_data.load_flights(count)))

    def audit_flights(self, count: int) -> None:
        """Look at both directories of flight_delays: each flight is there once, and added up once."""
        output = self.project / "output"
        for name in ("flights", "route_delays"):
            report = audit(output / name, cluster=self.cluster)
            assert report.exit_code == 0, f"{name}: {report.verdict}"
        assert ds.dataset(output / "flights", format="parquet", partitioning="hive").count_rows() == count
        counted = ds.dataset(output / "route_delays", format="parquet").to_table(["count"])["count"].to_pylist()
        assert sum(counted) == count

    def topology(self, topic: str, workers: int = 1) -> str:
        text = ROWS.format(topic=topic, workers=workers)
        (self.project / "topologies" / f"{topic}.py").write_text(text, encoding="utf-8")
        return topic

    def audit(self, topic: str) -> AuditReport:
        return audit(self.project / "output" / topic, cluster=self.cluster, topics=[topic])

    def figures(self, name: str) -> TopologyStats:
        with self.inside():
            return asked(lambda: stats.collect(self.node.address[0], self.node.address[1], name))

    def topologies(self) -> list[str]:
        return asked(lambda: [each.name for each in nimbus.summary(*self.node.address).topologies])

    def wait_for(self, name: str, lag_max: int) -> TopologyStats:
        """Wait until the lag is at most this; fail if it stands still for minutes."""
        best, moved_at = 1 << 62, time.monotonic()
        while True:
            found = self.figures(name)
            lag = sum(each.lag for each in found.lag)
            if found.lag and lag <= lag_max:
                return found
            if lag < best:
                best, moved_at = lag, time.monotonic()
            assert time.monotonic() - moved_at < STALLED_S_MAX, (
                f"the lag stays at {lag}\n{stats.render(found)}\n{show(self.node.directory / 'logs')}"
            )
            time.sleep(1.0)  # each look costs nimbus and us a fifth of a second of work

    def values(self, topic: str) -> list[str]:
        return list(ds.dataset(self.project / "output" / topic, format="parquet").to_table()["value"].to_pylist())


def asked(question: Callable[[], Answer]) -> Answer:
    """Return what nimbus and Kafka answer; while they have no time to, they are asked again."""
    deadline = time.monotonic() + BUSY_S_MAX
    while True:
        try:
            return question()
        except (StormError, BrokerError) as error:
            if "There is no topology" in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def children(group: int, program: str) -> list[int]:
    """Return the ids of the processes of a group whose command line holds a text: never those of anybody else."""
    pids = ",".join(str(member.pid) for member in groups.members(group))
    if not pids:
        return []
    listed = subprocess.run(["ps", "-ww", "-o", "pid=,args=", "-p", pids], capture_output=True, text=True, check=False)
    rows = [line.strip().partition(" ") for line in listed.stdout.splitlines()]
    return [int(pid) for pid, _, command in rows if program in command]
