"""A topic of events, counted by key and hour while something is killed: for the tests of windows on each engine."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from downspout.kafka import KafkaCluster
from downspout.sink import CommitLog, read_table

START, HOUR = datetime(2013, 1, 1, tzinfo=UTC), timedelta(hours=1)
PARTITIONS = 4
LATENESS_S = 3600
TOPOLOGY = """\
from streamparse import Grouping, Topology

from bolts.aggregate import AggregateBolt
from bolts.parse import JsonParseBolt
from spouts.kafka import KafkaSpout

TYPES = {{"key": "string", "at": "timestamp"}}


class Hours(Topology):
    config = {{"topology.max.spout.pending": 500, "topology.message.timeout.secs": 10}}
    spout = KafkaSpout.spec(
        topics=["{topic}"], fields=["origin", "value"], commit_period_ms=500, emits_per_next_max=50, emit="record"
    )
    parse = JsonParseBolt.spec(inputs=[spout], fields=["key", "at"], types=TYPES)
    hours = AggregateBolt.spec(
        inputs={{parse: Grouping.fields("key")}}, par=2, directory="{directory}", schema=TYPES,
        keys=["key", "window(at, 2 hours, 1 hour)"], aggregates=["count"], flush_age_s=0.5, lateness_s={lateness_s},
        idle_s=5,
    )
"""
"""Sliding windows, in two tasks, with flushes that a kill can hit."""

Windows = Counter[tuple[str, datetime]]


class Hours:
    """What was sent, and what a directory says of it."""

    def __init__(self, cluster: KafkaCluster, topic: str, directory: Path) -> None:
        self.topic, self.directory = topic, directory
        self._cluster, self._rng, self._sent = cluster, random.Random(topic), 0
        self.wanted, self.final = Windows(), Windows()
        cluster.ensure_topic(topic, PARTITIONS)

    @property
    def source(self) -> str:
        """The module of the topology."""
        return TOPOLOGY.format(topic=self.topic, directory=self.directory, lateness_s=LATENESS_S)

    def send(self, count: int) -> None:
        """Write more events to all partitions, a hundred to the hour, each up to an hour out of order."""
        producer = self._cluster.producer()
        for number in range(self._sent, self._sent + count):
            at = START + number * HOUR / 100 - self._rng.random() * timedelta(seconds=LATENESS_S)
            key = self._rng.choice("abc")
            value = json.dumps({"key": key, "at": at.isoformat()}).encode()
            producer.send(self.topic, key=None, value=value, partition=number % PARTITIONS)
            hour = at.replace(minute=0, second=0, microsecond=0)
            self.wanted.update([(key, hour), (key, hour - HOUR)])
        producer.flush()
        producer.close()
        self._sent += count

    def check_final(self) -> int:
        """Read the final windows; return how many there are.

        None may have changed since they were read last, and none may hold a row that was not sent.
        """
        if not has_entries(self.directory):
            return 0
        found = counts_of(self.directory, closed=True)
        changed = {each: (count, found[each]) for each, count in self.final.items() if found[each] != count}
        assert not changed, "a window that was final has another count now"
        assert found <= self.wanted
        self.final = found
        return len(found)

    def check_all(self) -> None:
        """Each event is in its two windows, once; a final window lacks nothing but the rows that are marked late."""
        self.check_final()
        table = read_table(self.directory).to_pylist()
        found, late = Windows(), Windows()
        for row in table:
            found[row["key"], row["window_start"]] += row["count"]
            late[row["key"], row["window_start"]] += row["late_rows"]
        assert found == self.wanted
        assert {each: count + late[each] for each, count in self.final.items()} == {
            each: found[each] for each in self.final
        }


def has_entries(directory: Path) -> bool:
    """Return whether a sink has committed something there."""
    if not directory.exists():
        return False
    log = CommitLog(directory)
    log.refresh()
    return bool(log.length)


def counts_of(directory: Path, *, closed: bool) -> Windows:
    """Return the counts by key and start of the window."""
    found = Windows()
    for row in read_table(directory, closed=closed).to_pylist():
        found[row["key"], row["window_start"]] += row["count"]
    return found
