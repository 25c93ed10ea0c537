"""What `downspout storm stats` says of Kafka."""

from __future__ import annotations

from dataclasses import replace

from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.ledger.metadata import encode
from downspout.ledger.watch import AT_WORK
from downspout.storm.stats import ComponentStats, TopologyStats, lag_of, render
from tests.topology.spout_driver import Kafka


def test_a_partition_whose_records_go_one_by_one_is_named(bare_kafka: Kafka) -> None:
    """The lag counts each partition from its commit, or its beginning, and names those that are slow after deaths."""
    kafka = bare_kafka
    kafka.create_topic("orders", 3)
    for partition, count in enumerate((300, 20, 5)):
        for number in range(count):
            kafka.produce("orders", f"{number}".encode(), partition=partition)
    consumer = kafka.consumer(group="g")
    suspicious = AT_WORK.start(10, 1000, 300).start(10, 1000, 300)
    told = encode(10, topology_id="t-1", task=4, topic_id=kafka.topic_id("orders"), watch=suspicious)
    ordinary = encode(20, topology_id="t-1", task=4, topic_id=kafka.topic_id("orders"))
    consumer.commit(
        {
            TopicPartition("orders", 0): OffsetAndMetadata(10, told, -1),
            TopicPartition("orders", 1): OffsetAndMetadata(20, ordinary, -1),
        }
    )
    lag = lag_of("spout", "g", "orders", consumer)
    assert (lag.lag, lag.alone_until) == (295, {0: 110})
    assert lag.lines == [
        "lag of group g in orders: 295",
        "  orders[0] has one record out at a time up to offset 110, since processes died there: "
        "docs/how-to/bad-records.md",
    ]


def test_a_topology_of_which_no_worker_has_told_says_where_to_look() -> None:
    """A topology whose workers are assigned, and silent, names the command that shows why."""
    silent = TopologyStats(
        "rows", "rows-1-2", "ACTIVE", 60, 1, [ComponentStats("spout", "spout", 1)], has_reported=False
    )
    said = "no worker has reported so far; if that lasts, `downspout storm logs` says why"
    assert said in render(silent).splitlines()
    assert said not in render(replace(silent, has_reported=True))
