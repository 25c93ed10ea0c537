"""Where a part of chaos happens: brokers, a topic with a backlog, three processes, and what is seen of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kafka.errors import KafkaError

from demos.s3 import KEYS, FaultProxy
from downspout.broker import EmbeddedCluster, EmbeddedKafka
from downspout.errors import BrokerError
from downspout.kafka import KafkaCluster, TopicPartition
from downspout.ledger import decode
from downspout.settings import ObjectPath
from tests.object_store_faults import Faults
from tests.sink.cloud_support import server_of
from tools.chaos import recorder
from tools.chaos.feeder import Feeder
from tools.chaos.members import ROOT, Members
from tools.chaos.plan import MEMBERS
from tools.waiting import wait_turning

PARTITIONS = 4
GROUP = "chaos"
TOPIC = "chaos"
AHEAD = 20_000
AUDIT_S_MAX = 1_800


@dataclass
class Gap:
    """A time without progress in a partition.

    Attributes:
        partition: which.
        seconds: how long.
        since: when it began, on the monotonic clock.
        undisturbed: how much of it there was after the last fault in it, and after brokers were back.
    """

    partition: int
    seconds: float
    since: float
    undisturbed: float


@dataclass
class Pulse:
    """The longest times without progress, per partition, while records wait (and they always do)."""

    last: list[float] = field(default_factory=list)
    longest: Gap | None = None
    longest_undisturbed: Gap | None = None

    def look(self, progress: list[float], now: float, disturbed_at: float) -> None:
        """Take when each partition last made progress; before the first time nothing is counted."""
        for partition, seen in enumerate(progress):
            if not seen:
                continue
            gap = Gap(partition, now - seen, seen, now - max(seen, disturbed_at))
            if self.longest is None or gap.seconds > self.longest.seconds:
                self.longest = gap
            if self.longest_undisturbed is None or gap.undisturbed > self.longest_undisturbed.undisturbed:
                self.longest_undisturbed = gap


class Stage:
    """Brokers, a backlog and processes; as a context manager all of it is stopped at the end, whatever happens.

    Args:
        folder: for everything.
        nodes: brokers: one, or a cluster.
        ahead: records that wait in each partition at least.
        emit: what tuples are, one of :data:`~tools.chaos.members.EMITS`.
        bucket: whether the rows go to an S3 server, some of whose answers are 503 or lost, and not to the disk.
    """

    def __init__(self, folder: Path, nodes: int, ahead: int = AHEAD, emit: str = "mixed", bucket: bool = False) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._bucket = bucket
        self.store: FaultProxy | None = None
        self._emit = emit
        self._ahead = ahead
        self.kafka: EmbeddedKafka | EmbeddedCluster = (
            EmbeddedKafka(folder / "kafka") if nodes == 1 else EmbeddedCluster(folder / "kafka", nodes)
        )
        self.output: Path = ObjectPath("s3://bucket/chaos") if bucket else folder / "output"
        self.pulse = Pulse()
        self.disturbed_at = 0.0
        self.brokers_away = 0
        """Brokers that are down at the moment because of a fault."""
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._bound = 0
        self.records: recorder.Records
        self.members: Members
        self.feeder: Feeder

    def __enter__(self) -> Self:
        recorder.prepare(self.folder, PARTITIONS)
        self.records = recorder.Records(self.folder, PARTITIONS)
        try:
            self.kafka.start()
            self._stack.callback(self.kafka.stop)
            if self._bucket:
                url = self._stack.enter_context(server_of("s3proxy"))
                self.store = self._stack.enter_context(FaultProxy(url, Faults()))
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _open(self) -> None:
        self.cluster = KafkaCluster(self.kafka.bootstrap)
        self.cluster.ensure_topic(TOPIC, PARTITIONS)
        consumer = self.cluster.consumer(group=None)
        self.topic_id = consumer.topic_id(TOPIC)
        consumer.close()
        settings = {
            "kafka.bootstrap": self.kafka.bootstrap,
            "kafka.group": GROUP,
            "parquet.directory": self.output,
        }
        environment = {recorder.FOLDER: str(self.folder)}
        if self.store is not None:
            environment |= {**KEYS, "AWS_ENDPOINT_URL": self.store.url}
        self.members = Members(self.folder, "tools/chaos/topology.py", settings, environment, self._emit)
        self.feeder = Feeder(self.kafka.bootstrap, TOPIC, PARTITIONS, self._ahead, self.records.out_to)
        self.feeder.start()
        for number in range(1, MEMBERS + 1):
            self.members.start(number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.members.kill()
        self.feeder.end()
        self._stack.close()

    # --- time ---

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do it in so many seconds, while :meth:`wait_for` waits for something else."""
        self._timers.append((time.monotonic() + seconds, what))

    @property
    def has_plans(self) -> bool:
        """Whether something that was killed or stopped is to come back still."""
        return bool(self._timers)

    def disturb(self) -> None:
        """Note that somebody was disturbed now."""
        self.disturbed_at = time.monotonic()

    def turn(self) -> None:
        """Do what is due, start again who has fallen, and look at the pulse."""
        for number in self.members.reap():  # before others take their numbers
            if number <= MEMBERS:
                self.members.start(number)
                self.disturb()
        now = time.monotonic()
        due = [what for at, what in self._timers if at <= now]
        self._timers = [(at, what) for at, what in self._timers if at > now]
        for what in due:
            what()
        self.records.follow([member.pid for member in self.members.alive.values()])
        progress = self.records.last_progress_s()
        self.pulse.look(progress, time.monotonic(), time.monotonic() if self.brokers_away else self.disturbed_at)

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds; return whether it does."""
        return wait_turning(holds, seconds, self.turn)

    # --- what is seen ---

    def group_progress(self) -> dict[int, tuple[int, tuple[tuple[int, int], ...]]]:
        """Return by partition what the group has committed, and which ranges beyond it that calls done."""
        found = {}
        for partition in range(PARTITIONS):
            found[partition] = (0, ())
        for tp, commit in self.cluster.group_offsets(GROUP).items():
            done = decode(commit.offset, commit.metadata, topic_id=self.topic_id).done
            found[tp.partition] = (commit.offset, done)
        return found

    def may_come_again(self, partitions: list[int]) -> int:
        """Return how many records of some partitions would be emitted again if they changed hands now."""
        progress = self.group_progress()
        return sum(self.records.untold(partition, *progress[partition]) for partition in partitions)

    def lag(self) -> int | None:
        """Return how many records the group has not committed; None: no broker said so."""
        try:
            return self._lag()
        except (BrokerError, KafkaError):
            return None

    def _lag(self) -> int:
        consumer = self.cluster.consumer(group=None)
        try:
            ends = consumer.end_offsets([TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)])
        finally:
            consumer.close()
        progress = self.group_progress()
        return sum(end - progress[tp.partition][0] for tp, end in ends.items())

    # --- the end ---

    def finish(self, seconds: float) -> tuple[int | None, list[int]]:
        """Write no more, let the processes come to the end and stop in order; return the lag and their exit codes."""
        self.wait_for(lambda: not self.has_plans, seconds)
        self.feeder.end()
        lag = self.lag()
        end = time.monotonic() + seconds
        while lag != 0 and time.monotonic() < end:
            self.wait_for(lambda: False, 1.0)
            lag = self.lag()
        return lag, self.members.end()

    def audit(self) -> dict[str, Any]:
        """Let `downspout audit` judge."""
        command = [sys.executable, "-m", "downspout", "audit", str(self.output), "--topic", TOPIC, "--json"]
        command += ["--bootstrap", self.kafka.bootstrap]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.members.environment,
            capture_output=True,
            text=True,
            timeout=AUDIT_S_MAX,
            check=False,
        )
        try:
            report: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            report = {"verdict": f"audit failed: {done.stderr[-500:]}"}
        return report | {"exit_code": done.returncode}
