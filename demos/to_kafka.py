"""From Kafka to Kafka, exactly once, while the processes are killed and the broker is restarted.

    python -m demos.drill kafka            # or: make kafka-demo

1. starts its own Kafka broker and publishes the flights;
2. runs ``topologies/flight_topics.py``; kills it ten times with ``kill -9``, each time while it works on a transaction,
   and kills the broker twice: under a process that goes on, one that is killed as the broker comes back, or together
   with it; then lets it run to the end;
3. audits: a read_committed reader finds the result of each flight once; and says what a read_uncommitted one would
   have seen;
4. lets PySpark read the delays, compares its means by route with pandas', and writes them to a third topic.

Each run begins anew: with a new group, and empty topics to write to. ``FLIGHTS=20000``
takes fewer, ``KILLS=3`` kills less. ``make chaos TO=kafka`` kills a hundred times (``tools/chaos/to_kafka.py``).
"""

from __future__ import annotations

import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median

import orjson

from demos.audit import Finding
from demos.drill import Drill, Step
from demos.flights_data import PARTITIONS
from demos.killed import LOOK_S, KilledRun
from demos.screen import Screen
from downspout.kafka.client import KafkaCluster
from downspout.kafka.port import ConsumerPort, Record, TopicPartition
from topologies.flight_topics import DELAYS, REJECTS

TARGET = "topologies/flight_topics.py"
MEANS = "route-means"
OUT_PARTITIONS = 4
BROKER_KILLS = 2
UNDER, BACK, WITH = DEATHS = ("under a process", "whose process is killed as it comes back", "after its process")
OPEN_S_MAX = 5.0


@dataclass
class Fire:
    """What happened to the processes."""

    kills: int = 0
    hits: int = 0
    """Kills while a transaction was open."""
    broker_kills: int = 0
    seconds: float = 0.0
    first_commits_s: list[float] = field(default_factory=list)
    """How long processes took from their start, or the broker's, to their first commit; of those that got there."""
    before: tuple[float, int] | None = None
    """When the last one began, and what was committed by then, until it commits."""


class KafkaDemo(Drill):
    """One run of the demo."""

    NAME = "kafka"

    def __init__(
        self,
        flights: int,
        kills: int,
        screen: Screen,
        broker_kills: int = BROKER_KILLS,
        seed: int | None = None,
        *,
        with_spark: bool = True,
    ) -> None:
        super().__init__(flights, kills, screen, seed)
        self.broker_kills, self.with_spark = broker_kills, with_spark
        self.group = f"kafka-demo-{uuid.uuid4().hex[:8]}"

    def steps(self) -> Iterator[Step]:
        """Yield what is done with the flights."""
        self.fire = Fire()
        title = f"downspout run {TARGET}, killed {self.kills} times; the broker, {self.broker_kills} times"
        yield title, self.burn
        yield "Audit", self.audit
        if self.with_spark:
            yield "PySpark reads the delays, and writes their means", lambda: [self.means_by_spark()]

    # --- 1 ---

    def publish(self) -> None:
        """Publish the flights to the input topic, and make the topics to write to."""
        super().publish()
        cluster = KafkaCluster(self.kafka.bootstrap)
        for topic in (DELAYS, REJECTS, MEANS):
            cluster.delete_topic(topic)
            cluster.ensure_topic(topic, OUT_PARTITIONS)

    # --- 2 ---

    def burn(self) -> Iterator[Finding]:
        """Run the topology to the end, through all kills; what is found, the audit says."""
        self.loose, self.strict = self.reader("read_uncommitted"), self.reader("read_committed")
        self.group_reader = self.reader("read_uncommitted", self.group)  # else it waits for who died in a commit
        with closing(self.loose), closing(self.strict), closing(self.group_reader):
            self.run_through_kills(self.fire)
        return iter(())

    def run_through_kills(self, fire: Fire) -> None:
        """Start processes until one comes to the end."""
        began, step = time.monotonic(), max(len(self.flights) // (2 * self.kills + 4), 50)
        given = {"bootstrap": self.kafka.bootstrap, "topics": self.topic, "group": self.group}
        settings = [f"kafka.{key}={value}" for key, value in given.items()]
        log = self.folder / "run.log"
        self.killed_run = KilledRun(TARGET, settings, log, self.written, self.screen)
        broker_at = {self.kills * (number + 1) // (self.broker_kills + 1) for number in range(self.broker_kills)}
        while self.live(fire, self.random.randint(step // 2, step), kills_broker=fire.kills in broker_at):
            broker_at.discard(fire.kills - 1)
        fire.seconds = time.monotonic() - began

    def live(self, fire: Fire, records: int, *, kills_broker: bool) -> bool:
        """Run a process until it is killed; return whether it was, and did not end."""
        death = DEATHS[fire.broker_kills % len(DEATHS)] if kills_broker else ""
        with self.killed_run.process() as process:
            fire.before = time.monotonic(), self.committed()
            if fire.kills >= self.kills:
                self.killed_run.wait_for_the_end(process)
                return False
            first = self.written()
            if not self.wait_for(process, fire, lambda: self.written() - first >= records):
                return False
            if death in (UNDER, BACK):
                self.kill_broker(fire, death)
            if death == UNDER:
                fire.before = time.monotonic(), self.committed()
                if not self.wait_for(process, fire, lambda: fire.before is None):
                    return False
            hit = self.stop_in_a_transaction(process)
            process.kill()
            process.wait()
            fire.kills += 1
            fire.hits += hit
            self.screen.say(f"kill -9 of process {process.pid}: a transaction was {'open' if hit else 'not open'}")
            if death == WITH:
                self.kill_broker(fire, death)
        return True

    def wait_for(self, process: subprocess.Popen[bytes], fire: Fire, condition: Callable[[], bool]) -> bool:
        """Wait until a condition holds, and note the first commit; return False if the run has ended before."""

        def noted() -> bool:
            if condition():
                return True
            if fire.before is not None and self.committed() > fire.before[1]:
                fire.first_commits_s.append(time.monotonic() - fire.before[0])
                fire.before = None
            return False

        return self.killed_run.wait_for(process, noted)

    def kill_broker(self, fire: Fire, death: str) -> None:
        """Kill the broker, and start it again."""
        pid = self.kafka.broker.pid
        self.kafka.kill()
        fire.broker_kills += 1
        self.kafka.start(progress=lambda line: None)
        self.screen.say(f"kill -9 of the broker, process {pid}, {death}; started again")

    def stop_in_a_transaction(self, process: subprocess.Popen[bytes]) -> bool:
        """Stop the process (SIGSTOP) while it has a transaction open; return False if it has none for some time."""
        until = time.monotonic() + OPEN_S_MAX
        while time.monotonic() < until:
            self.wait_until(self.is_open)
            process.send_signal(signal.SIGSTOP)
            time.sleep(2 * LOOK_S)  # a commit that is on its way may be made
            if self.is_open():
                return True
            process.send_signal(signal.SIGCONT)
        return False

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds; the run may have ended before."""
        until = time.monotonic() + OPEN_S_MAX
        while not condition() and time.monotonic() < until:
            time.sleep(LOOK_S)

    def written(self) -> int:
        """Return how many records the topics hold, committed or not."""
        return sum(self.loose.end_offsets(self.partitions()).values())

    def committed(self) -> int:
        """Return how many flights the group has committed."""
        flights = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        return sum(entry.offset for entry in self.group_reader.committed(flights).values() if entry is not None)

    def is_open(self) -> bool:
        """Return whether a transaction with records in it is open."""
        return self.strict.end_offsets(self.partitions()) != self.loose.end_offsets(self.partitions())

    # --- 3 ---

    def reader(self, level: str, group: str | None = None) -> ConsumerPort:
        """Return a reader that joins no group."""
        return KafkaCluster(self.kafka.bootstrap).consumer(group=group, client={"isolation_level": level})

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that the topology writes."""
        return [TopicPartition(topic, n) for topic in (DELAYS, REJECTS) for n in range(OUT_PARTITIONS)]

    def records(self, level: str, partitions: Sequence[TopicPartition]) -> Iterator[Record]:
        """Yield all records that a reader sees; by positions, since the ends of transactions are not records."""
        with closing(self.reader(level)) as reader:
            reader.assign(partitions)
            for tp in partitions:
                reader.seek(tp, 0)
            ends = reader.end_offsets(partitions)
            while any(reader.position(tp) < ends[tp] for tp in partitions):
                for records in reader.poll(200, 10_000).values():
                    yield from records

    def seen(self, level: str) -> Counter[str]:
        """Return how often a reader sees the result of each flight."""
        records = self.records(level, self.partitions())
        return Counter(dict(record.headers)["flight"].decode() for record in records)

    def audit(self) -> Iterator[Finding]:
        """Yield the answers to the audit's questions."""
        flights, fire = self.flights, self.fire
        wanted = {f"{number}@{offset}" for number, rows in enumerate(flights.rows) for offset in range(len(rows))}
        found, loose = self.seen("read_committed"), self.seen("read_uncommitted")
        doubled = sum(count > 1 for count in found.values())
        yield Finding(
            not doubled and found.keys() == wanted,
            f"read_committed: {len(found):,} of {len(wanted):,} flights have a result, {doubled:,} more than one",
        )
        yield Finding(
            (fire.kills, fire.broker_kills) == (self.kills, self.broker_kills) and fire.hits * 100 >= fire.kills * 95,
            f"{fire.kills} of {self.kills} kills, {fire.hits} in an open transaction, "
            f"{fire.broker_kills} of {self.broker_kills} kills of the broker, {fire.seconds:.0f} s",
        )
        if waits := sorted(fire.first_commits_s):
            yield Finding(
                True, f"start to first commit, {len(waits)} times: {median(waits):.1f} s, at most {waits[-1]:.1f} s"
            )
        more = sum(loose.values()) - len(wanted)
        yield Finding(True, f"read_uncommitted would have seen {sum(loose.values()):,} results: {more:,} too many")
        offsets = KafkaCluster(self.kafka.bootstrap).group_offsets(self.group)
        yield Finding(
            {tp.partition: entry.offset for tp, entry in offsets.items()}
            == {number: len(flights.rows[number]) for number in range(PARTITIONS)},
            f"the offsets of group {self.group} are the end of the flights",
        )

    # --- 4 ---

    def means_by_spark(self) -> Finding:
        """Read the delays with PySpark, write means by route to a topic, read those, and compare them with pandas'."""
        from pyspark.sql import functions

        from downspout.spark import register
        from downspout.spark.session import spark_session

        brokers = {"kafka.bootstrap.servers": self.kafka.bootstrap}
        with self.screen.busy("Spark reads and writes"), spark_session("kafka-demo") as spark:
            register(spark)
            source = spark.read.format("downspout").options(**brokers, subscribe=DELAYS).load()
            delay = functions.from_json(source.value.cast("string"), "route string, arr_delay int")
            means = (
                source.select(delay.alias("delay"))
                .groupBy("delay.route")
                .agg(functions.count("*").alias("flights"), functions.sum("delay.arr_delay").alias("minutes"))
                .selectExpr("route AS key", "to_json(struct(*)) AS value")
            )
            means.write.format("downspout-kafka").options(**brokers, topic=MEANS).mode("append").save()
        found = self.read_means()
        arrived = self.frame.dropna(subset=["arr_delay"])
        groups = arrived.groupby(arrived["origin"] + "-" + arrived["dest"])["arr_delay"]
        wanted = {route: (len(delays), int(delays.sum())) for route, delays in groups}
        return Finding(
            found == wanted, f"PySpark wrote {len(found):,} routes to {MEANS}; counts and minutes equal pandas'"
        )

    def read_means(self) -> dict[str, tuple[int, int]]:
        """Return what PySpark wrote."""
        partitions = [TopicPartition(MEANS, number) for number in range(OUT_PARTITIONS)]
        rows = [orjson.loads(record.value or b"null") for record in self.records("read_committed", partitions)]
        return {row["route"]: (row["flights"], row["minutes"]) for row in rows}
