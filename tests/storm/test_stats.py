"""The figures on Kafka in `downspout storm stats`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.errors import BrokerError
from downspout.ledger import AT_WORK, encode
from downspout.offsets import PartitionLag
from downspout.storm import TopologyStats
from downspout.storm.stats import (
    PARTITIONS_SHOWN,
    ComponentStats,
    Counters,
    Lag,
    _lag,
    _records_in,
    _with_rates,
    _with_timeouts,
    lag_of,
    render,
)
from tests.spout.spout_driver import Kafka


def test_a_partition_whose_records_go_one_by_one_is_named(bare_kafka: Kafka) -> None:
    """The lag counts each partition from its commit, or its beginning, and names those that are slow after deaths."""
    kafka = bare_kafka
    kafka.create_topic("orders", 3)
    for partition, count in enumerate((300, 20, 5)):
        for number in range(count):
            kafka.produce("orders", f"{number}".encode(), partition=partition)
    consumer = kafka.consumer(group="g")
    suspicious = AT_WORK.start(10, 1000, 300, died_with=10)
    told = encode(10, topology_id="t-1", task=4, topic_id=kafka.topic_id("orders"), isolation=suspicious)
    ordinary = encode(20, topology_id="t-1", task=4, topic_id=kafka.topic_id("orders"))
    consumer.commit(
        {
            TopicPartition("orders", 0): OffsetAndMetadata(10, told, -1),
            TopicPartition("orders", 1): OffsetAndMetadata(20, ordinary, -1),
        }
    )
    lag = lag_of("spout", "g", "orders", consumer)
    assert (lag.lag, lag.alone_until) == (295, {0: 11})
    assert lag.lines == [
        "lag of group g in orders: 295",
        "  partition  committed  end  lag  done beyond  uncommitted  failed  committed by",
        "  orders[0]         10  300  290            0            0       0  task 4",
        "  orders[1]         20   20    0            0            0       0  task 4",
        "  orders[2]          –    5    –            –            –       –  –",
        "  orders[0]@10 blocks: processes died here: up to offset 11 one record is processed at a time",
        "  orders[0] is read one record at a time up to offset 11, since processes died there: "
        "docs/how-to/bad-records.md",
    ]


def test_the_lag_is_asked_for_again_while_a_coordinator_moves(bare_kafka: Kafka) -> None:
    """An error that passes costs a moment; one that does not is an error for users that names the spout."""
    kafka = bare_kafka
    kafka.create_topic("orders", 1)
    kafka.produce("orders", b"x")
    spec = SimpleNamespace(common=SimpleNamespace(json_conf=None))
    conf = {"kafka.topics": ["orders"], "kafka.bootstrap": kafka.bootstrap}
    kafka.faults.fail_next("committed", errors.NotCoordinatorError, 2)
    assert [each.lag for each in _lag("reader", "rows", conf, spec)] == [1]
    kafka.faults.fail_next("committed", errors.GroupAuthorizationFailedError)
    with pytest.raises(BrokerError, match="the lag of spout reader"):
        _lag("reader", "rows", conf, spec)


@pytest.mark.parametrize(
    ("dead_letters", "count"),
    [({}, 4), ({"kafka.dead_letter_topic": "orders-l"}, 5), ({"kafka.dead_letter_topic": ""}, 0)],
)
def test_a_spout_that_reads_by_a_pattern_has_a_lag_too(
    bare_kafka: Kafka, dead_letters: dict[str, str], count: int
) -> None:
    """Its topics are those that match now, as the spout sees them: not its own dead letters, which are counted."""
    kafka = bare_kafka
    topics = {"orders-a": 3, "orders-b": 2, "orders": 7, "rows.dead-letters": 4, "orders-l": 5}
    for topic, records in topics.items():
        if topic != "orders-l" or count == 5:
            kafka.create_topic(topic, 2)
            for number in range(records):
                kafka.produce(topic, b"x", partition=number % 2)
    conf = {"kafka.pattern": "orders-.*", "kafka.bootstrap": kafka.bootstrap, **dead_letters}
    spec = SimpleNamespace(common=SimpleNamespace(json_conf=json.dumps(conf)))
    found = _lag("reader", "rows", {}, spec)
    assert [(lag.topic, lag.lag) for lag in found] == [("orders-a", 3), ("orders-b", 2)]
    assert [lag.dead_letters for lag in found] == [count, 0]
    assert _lag("other", "rows", {}, SimpleNamespace(common=SimpleNamespace(json_conf=None))) == []


def test_the_records_of_a_dead_letter_topic_are_counted(bare_kafka: Kafka) -> None:
    """Of all partitions, without those that were purged; no topic, or one that nobody has made, has none."""
    kafka = bare_kafka
    kafka.create_topic("letters", 3)
    for number in range(10):
        kafka.produce("letters", b"x", partition=number % 2)
    consumer = kafka.consumer(group="g")
    assert _records_in("letters", consumer) == 10
    kafka.delete_records("letters", 0, 2)
    assert _records_in("letters", consumer) == 8
    assert (_records_in("", consumer), _records_in("nowhere", consumer)) == (0, 0)


def test_a_topology_of_which_no_worker_has_told_says_where_to_look() -> None:
    """A topology whose workers are assigned, and silent, names the command that shows why."""
    silent = TopologyStats(
        "rows", "rows-1-2", "ACTIVE", 60, 1, [ComponentStats("spout", "spout", 1)], has_reported=False
    )
    said = "no worker has reported so far; if that lasts, `downspout storm logs` says why"
    assert said in render(silent).splitlines()
    assert said not in render(replace(silent, has_reported=True))


def stats_of(**figures: Any) -> TopologyStats:
    return TopologyStats("rows", "rows-1-2", "ACTIVE", 60, 1, [ComponentStats("parse", "bolt", 1, **figures)])


def test_counters_do_not_shrink_when_a_worker_dies(tmp_path: Path) -> None:
    """What a dead worker had counted by the last look stays in the sum, over processes that look; others go on."""
    path = tmp_path / "counters.json"
    shown = []
    for executed in (100, 250, 40, 90, 0, 5):
        (found,) = Counters(path).whole([stats_of(executed=executed, acked=executed)])
        shown.append((found.component("parse").executed, found.component("parse").acked))
    assert shown == [(count, count) for count in (100, 250, 250, 300, 300, 305)]
    (found,) = Counters(path).whole([replace(stats_of(executed=7), id="rows-2-3")])
    assert found.component("parse").executed == 7  # submitted anew
    path.write_text("no json")
    assert Counters(path).whole([stats_of(executed=1)])[0].component("parse").executed == 1


def test_counters_outlast_a_component_that_nimbus_omits() -> None:
    """While no worker of a component reports, nimbus may not list it; its counts come back with it."""
    counters = Counters(None)
    counters.whole([stats_of(executed=100)])
    counters.whole([replace(stats_of(), components=[])])
    (found,) = counters.whole([stats_of(executed=5)])
    assert found.component("parse").executed == 100


def test_fails_that_no_bolt_has_sent_are_timeouts() -> None:
    """Of the trees that failed, those that no bolt failed have timed out; rates are what was done in a window."""
    made = [ComponentStats("spout", "spout", failed=12), ComponentStats("parse", "bolt", failed=5)]
    lately = [
        ComponentStats("spout", "spout", acked=300),
        ComponentStats("parse", "bolt", executed=600, capacity=0.25),
    ]
    spout, parse = _with_rates(_with_timeouts(made), lately, 60.0)
    assert (spout.timeouts, parse.timeouts) == (7, 0)
    assert (spout.per_s, parse.per_s, parse.capacity) == (5.0, 10.0, 0.25)
    text = render(TopologyStats("rows", "rows-1-2", "ACTIVE", 60, 1, [spout, parse], [Lag("spout", "g", "t", 3, 2)]))
    assert "lag of group g in t: 3; 2 dead letters" in text
    assert "timeouts" in text.splitlines()[1]


def test_of_very_many_partitions_those_that_are_behind_most_are_shown() -> None:
    """A topic with hundreds of partitions does not fill the screen, and what is left out is no worse."""
    rows = [PartitionLag("t", n, committed=0, begin=0, end=n % 40, lag=n % 40) for n in range(100)]
    lines = Lag("spout", "g", "t", sum(row.unread for row in rows), partitions=rows).lines
    shown = [line.split()[3] for line in lines[2:-1]]
    assert len(shown) == PARTITIONS_SHOWN
    assert sorted(map(int, shown)) == sorted((row.unread for row in rows), reverse=True)[:PARTITIONS_SHOWN][::-1]
    assert lines[-1] == "  and 88 partitions that are no further behind"


def test_figures_of_partitions_are_in_the_json() -> None:
    lag = Lag("spout", "g", "t", 3, partitions=[PartitionLag("t", 0, committed=7, end=10, lag=3)])
    told = json.loads(json.dumps(TopologyStats("rows", "rows-1-2", "ACTIVE", 60, 1, [], [lag]).as_dict()))
    assert told["lag"][0]["partitions"][0]["lag"] == 3
