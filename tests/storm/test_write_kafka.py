"""KafkaBolt on Storm, behind a stock streamparse bolt: committed records are written, despite kills."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from downspout.kafka import TopicPartition
from tests.kafka.broker_stage import read_whole
from tests.storm.support import Place, children
from tests.waiting import eventually

pytestmark = [pytest.mark.storm, pytest.mark.slow]

RECORDS, PARTITIONS, KILLS = 20_000, 3, 4
TOPOLOGY = """\
from streamparse import Topology

from bolts.kafka import KafkaBolt
from spouts.kafka import KafkaSpout
from tests.storm.writing_bolts import Shout


class Loud(Topology):
    config = {{
        "topology.message.timeout.secs": 20,
        "topology.max.spout.pending": 2000,
        "kafka.commit_period_ms": 1000,
        "kafka.emits_per_next_max": 50,
    }}
    spout = KafkaSpout.spec(topics=["{topic}"], fields=["origin", "value"])
    shout = Shout.spec(inputs=[spout], par=2)
    out = KafkaBolt.spec(inputs=[shout], par=2, topic="{topic}-out", acks="all", linger_ms=2)
"""
EXACT = """\
from streamparse import Topology

from bolts.kafka import KafkaBolt
from spouts.kafka import KafkaSpout
from tests.storm.writing_bolts import ShoutWithOrigin


class Exact(Topology):
    config = {{"topology.max.spout.pending": 500, "topology.message.timeout.secs": 10}}
    spout = KafkaSpout.spec(topics=["{topic}"], par=2, fields=["origin", "value"], transaction_ms=300)
    shout = ShoutWithOrigin.spec(inputs=[spout], par=2)
    out = KafkaBolt.spec(inputs=[shout], par=3, topic="{topic}-out", transactional=True, linger_ms=2)
"""
KILLED = ("bolts.kafka.KafkaBolt", "spouts.kafka.KafkaSpout", "writing_bolts.ShoutWithOrigin", "bolts.kafka.KafkaBolt")


def written(storm: Place, topic: str) -> Counter[str]:
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    return Counter((record.value or b"").decode() for record in read_whole(storm.cluster, partitions))


def waited_for(storm: Place, name: str) -> list[int]:
    """Return the processes of a component; those that died are being started again, so wait for one."""
    return eventually(lambda: children(storm.workers_group(), name), every_s=0.2, otherwise=f"no process of {name}")


@pytest.mark.sweep
def test_what_is_committed_is_written(storm: Place) -> None:
    """Each record is in the other topic once; after `kill -9` of a KafkaBolt at least once, and none is missing."""
    topic = storm.publish(RECORDS)
    storm.cluster.ensure_topic(f"{topic}-out", PARTITIONS)
    (storm.project / "topologies" / f"{topic}.py").write_text(TOPOLOGY.format(topic=topic), encoding="utf-8")
    code, output = storm.sparse("submit", "-n", topic)
    assert code == 0, output
    start = time.monotonic()
    storm.wait_for(topic, 0)
    print(f"{RECORDS:,} records in {time.monotonic() - start:.1f} s")
    expected = {f"VALUE {number}" for number in range(RECORDS)}
    assert written(storm, f"{topic}-out") == dict.fromkeys(expected, 1)
    storm.publish(RECORDS, topic)
    storm.wait_for(topic, RECORDS - 1_000)
    pids = children(storm.workers_group(), "bolts.kafka.KafkaBolt")
    assert len(pids) == 2
    os.kill(pids[0], signal.SIGKILL)
    storm.wait_for(topic, 0)
    found = written(storm, f"{topic}-out")
    assert set(found) == expected
    assert min(found.values()) >= 2
    code, output = storm.sparse("kill", "-n", topic, "--wait", "0")
    assert code == 0, output


@pytest.mark.sweep
def test_transactions_survive_the_death_of_any_component(storm: Place) -> None:
    """Two spouts, three transactional sinks: however often a component is killed, each result is committed once."""
    topic = storm.publish(RECORDS)
    storm.cluster.ensure_topic(f"{topic}-out", PARTITIONS)
    (storm.project / "topologies" / f"{topic}.py").write_text(EXACT.format(topic=topic), encoding="utf-8")
    code, output = storm.sparse("submit", "-n", topic)
    assert code == 0, output
    for number in range(KILLS):
        storm.wait_for(topic, RECORDS - RECORDS // (KILLS + 2) * (number + 1))
        pids = waited_for(storm, KILLED[number % len(KILLED)])
        os.kill(pids[number % len(pids)], signal.SIGKILL)
    storm.wait_for(topic, 0)
    assert written(storm, f"{topic}-out") == {f"VALUE {number}": 1 for number in range(RECORDS)}
    code, output = storm.sparse("kill", "-n", topic, "--wait", "0")
    assert code == 0, output
