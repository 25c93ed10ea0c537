"""Checks before any worker starts, with a broker in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import streamparse

from downspout.engine import Component, Graph, Input, OutputStream, configurations, resolve
from downspout.errors import BrokerError, ConfigError, TopologyError
from downspout.run import findings
from downspout.run.start_workers import WorkerPlan, make_plan
from spouts.kafka import KafkaSpout

if TYPE_CHECKING:
    from tests.spout.spout_driver import Kafka

END: dict[str, Any] = {"run.until": "end"}


class Keeps(streamparse.Bolt):
    pass


class Sink(streamparse.Bolt):
    settings_scopes = ("parquet",)


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """Give a broker with two topics, of 4 partitions and of 1, 3 records in each."""
    for topic, partitions in (("orders", 4), ("others", 1)):
        bare_kafka.ensure_topic(topic, partitions)
        for partition in range(partitions):
            publish(bare_kafka, topic, partition, 3)
    return bare_kafka


def publish(kafka: Kafka, topic: str, partition: int, count: int) -> None:
    producer = kafka.producer()
    for number in range(count):
        producer.send(topic, key=None, value=b"%d" % number, partition=partition)
    producer.flush()
    producer.close()


def topology(
    kafka: Kafka | None = None, *bolts: Component, cls: type = KafkaSpout, par: int = 1, **config: Any
) -> Graph:
    """Return a topology of one spout, and bolts behind it."""
    bootstrap = kafka.bootstrap if kafka else "127.0.0.1:1"
    given = {f"kafka.{key}": value for key, value in ({"bootstrap": bootstrap, "topics": ["orders"]} | config).items()}
    spout = Component("spout", cls, par, given, {"default": OutputStream("default", ("key", "value"))})
    return Graph("t", {"spout": spout, **{bolt.name: bolt for bolt in bolts}})


def plan(graph: Graph, workers: int = 2, *overrides: str, **options: Any) -> WorkerPlan:
    settings = resolve(graph, overrides, options={"run.workers": workers, **options})
    return make_plan(graph, settings, configurations(graph, settings), workers)


def stops(found: WorkerPlan, graph: Graph) -> list[str]:
    """Return where the spout of a worker that is given a plan stops."""
    settings = resolve(graph, found.overrides, options=END)
    return list(settings.components["spout"].values["kafka.stop_offsets"])


def test_the_end_is_the_same_for_all(kafka: Kafka) -> None:
    """Workers of a bounded run are told its end as of one moment, whatever is written until they start."""
    graph = topology(kafka)
    found = plan(graph, **END)
    publish(kafka, "orders", 0, 1)
    assert stops(found, graph) == [f"orders[{partition}]=3" for partition in range(4)]
    assert (found.warnings, plan(graph).overrides) == ([], [])


def test_the_end_of_topics_by_pattern(kafka: Kafka) -> None:
    graph = topology(kafka, topics=None, pattern="o.*s")
    assert stops(plan(graph, **END), graph) == [*(f"orders[{partition}]=3" for partition in range(4)), "others[0]=3"]
    assert stops(plan(topology(kafka, topics=["others"]), **END), graph) == ["others[0]=3"]


def test_an_end_that_is_named_earlier_stays(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """kafka.stop_offsets holds where it is lower; where the log is shorter, one warning says so."""
    graph = topology(kafka, stop_offsets=["orders[1]=2", "orders[2]=9"])
    assert stops(plan(graph, **END), graph) == ["orders[0]=3", "orders[1]=2", "orders[2]=3", "orders[3]=3"]
    assert caplog.text.count("orders[2] ends at 3, before kafka.stop_offsets") == 1


def test_a_start_beyond_the_log_is_left_to_the_spout(kafka: Kafka) -> None:
    """Where reading is to start behind the end, kafka.on_data_loss decides, as without workers; no stop forbids it."""
    graph = topology(kafka, start="OFFSETS", start_offsets=["orders[0]=7", "orders[1]=1"])
    assert stops(plan(graph, **END), graph) == [f"orders[{partition}]=3" for partition in (1, 2, 3)]


@pytest.mark.parametrize(
    ("workers", "par", "topics", "warned"),
    [
        (4, 1, ["orders"], ""),
        (2, 2, ["orders"], ""),
        (
            5,
            1,
            ["orders"],
            "spout: 5 workers share 4 partitions, so 1 of them will have nothing to read. Try: 4 workers",
        ),
        (3, 2, ["orders"], "spout: 3 workers with 2 tasks each share 4 partitions, so 2 of them"),
        (5, 1, ["orders", "others"], ""),
        (2, 1, ["absent"], ""),
    ],
)
def test_more_workers_than_partitions_are_warned_of(
    kafka: Kafka, workers: int, par: int, topics: list[str], warned: str
) -> None:
    """Workers without work are told of, and started all the same: partitions may be added."""
    found = plan(topology(kafka, par=par, topics=topics), workers)
    assert [line[: len(warned)] for line in found.warnings] == ([warned] if warned else [])


def refused(graph: Graph, *, error: type[Exception], says: str, **options: Any) -> None:
    with pytest.raises(error) as raised:
        plan(graph, **options)
    assert says in str(raised.value)


def test_what_cannot_be_shared_is_refused(kafka: Kafka) -> None:
    """Spouts that are no members of a group, modes that count tasks, and numbers given by hand are errors."""
    says = "spout (Spout) is not a KafkaSpout, so each worker would emit all of its tuples"
    refused(topology(kafka, cls=streamparse.Spout), error=TopologyError, says=says)
    refused(Graph("t", {}), error=TopologyError, says="there is no spout")
    refused(topology(kafka, mode="assign"), error=ConfigError, says="kafka.mode = assign shares the partitions")
    refused(topology(kafka), error=ConfigError, says="one of --workers and --member", **{"run.member": 2})
    refused(topology(kafka, topics=["absent"]), error=BrokerError, says="topic absent does not exist", **END)
    refused(topology(kafka, stop_offsets=["orders[9]=1"]), error=BrokerError, says="orders[9]", **END)
    refused(topology(kafka, start="TIMESTAMP"), error=ConfigError, says="but there is no time")


def test_no_broker_is_told_before_any_worker_starts() -> None:
    with pytest.raises(BrokerError, match=r"No Kafka at 127\.0\.0\.1:1"):
        plan(topology(), **END)


@pytest.mark.parametrize(
    ("cls", "grouping", "fields", "warned"),
    [
        (Keeps, "shuffle", (), False),
        (Keeps, "fields", ("key",), True),
        (Keeps, "global", (), True),
        (Sink, "fields", ("key",), False),
    ],
)
def test_groupings_that_hold_within_a_process_are_warned_of(
    kafka: Kafka, cls: type, grouping: str, fields: tuple[str, ...], warned: bool
) -> None:
    """A bolt that may count on seeing all of a key is named, by run and by check; a sink, which does not, is not."""
    graph = topology(kafka, Component("bolt", cls, inputs=(Input("spout", "default", grouping, fields),)))
    says = f"it reads 'spout' with a {grouping} grouping{' on key' if fields else ''}, which applies within one process"
    assert [says in line for line in plan(graph).warnings] == [True] * warned

    def checked(**options: Any) -> list[bool]:
        return [
            says in found.what
            for found in findings(graph, resolve(graph, options=options))
            if found.where == "bolt" and says in found.what
        ]

    assert checked(**{"run.workers": 2}) == checked(**{"run.member": 1}) == [True] * warned
    assert checked() == checked(**{"run.workers": 1}) == []


def test_check_refuses_what_run_refuses() -> None:
    """`downspout check` finds spouts that several workers cannot share."""
    graph = topology(cls=streamparse.Spout)
    settings = resolve(graph, options={"run.workers": 2})
    assert any(found.is_error and "not a KafkaSpout" in found.what for found in findings(graph, settings))


def test_offsets_are_named_as_the_spout_reads_them(kafka: Kafka) -> None:
    """Names with dots and dashes come through."""
    kafka.ensure_topic("a.b-c_d", 1)
    graph = topology(kafka, topics=["a.b-c_d"])
    assert stops(plan(graph, **END), graph) == ["a.b-c_d[0]=0"]
