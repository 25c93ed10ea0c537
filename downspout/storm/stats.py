"""What nimbus counts for a topology, by component, and how far its Kafka spouts are behind.

``sparse stats`` asks Storm's UI for this, which Maven Central does not have. Nimbus has the same figures: they arrive
from the workers every ``executor.metrics.frequency.secs`` (60 by Storm's default, 5 in our node), and count only a
sample of the tuples where ``topology.stats.sample.rate`` is below 1 (0.05 by default, 1 in our node).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from downspout import config
from downspout.errors import StormError
from downspout.kafka.port import ConsumerPort, TopicPartition
from downspout.ledger.metadata import decode
from downspout.storm import nimbus
from downspout.storm.traceback import python_part, without_frames
from downspout.wording import counted

ALL_TIME = ":all-time"


@dataclass(frozen=True)
class ComponentStats:
    """The figures of one component since the topology was submitted, as far as its workers have reported.

    Attributes:
        name: of the component.
        kind: ``spout`` or ``bolt``.
        tasks: how many it has.
        emitted: tuples.
        acked: spout: tuple trees that are done; bolt: tuples.
        failed: likewise.
        executed: tuples that came in; 0 for a spout.
        complete_ms: spout: from emit to the ack of the whole tree, on average.
        execute_ms: bolt: in ``execute``, which for a Python bolt only hands the tuple over.
        process_ms: bolt: from ``execute`` to the ack.
        error: what it reported last; Python's traceback where there is one.
    """

    name: str
    kind: str
    tasks: int = 0
    emitted: int = 0
    acked: int = 0
    failed: int = 0
    executed: int = 0
    complete_ms: float = 0.0
    execute_ms: float = 0.0
    process_ms: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Lag:
    """How far a consumer group is behind the end of a topic; a partition without a commit counts from its beginning.

    Attributes:
        spout: the component that reads.
        group: its consumer group.
        topic: what it reads.
        lag: records, of all partitions.
        alone_until: for each partition whose records go one by one, since processes died there, until which offset.
    """

    spout: str
    group: str
    topic: str
    lag: int
    alone_until: dict[int, int] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """What it says, for people."""
        slow = [
            f"  {self.topic}[{partition}] has one record out at a time up to offset {until}, since processes died"
            " there: docs/how-to/bad-records.md"
            for partition, until in self.alone_until.items()
        ]
        return [f"lag of group {self.group} in {self.topic}: {self.lag:,}", *slow]


@dataclass(frozen=True)
class TopologyStats:
    """The figures of a topology.

    Attributes:
        name: of the topology.
        id: name, number and time of submission.
        status: ``ACTIVE``, ``INACTIVE``, ``KILLED`` or ``REBALANCING``.
        uptime_s: since it was submitted.
        workers: how many nimbus has assigned; whether they run, only a report says.
        components: in the order of spouts, then bolts.
        lag: of each Kafka spout and topic.
        has_reported: whether any executor has.
    """

    name: str
    id: str
    status: str
    uptime_s: int
    workers: int
    components: list[ComponentStats] = field(default_factory=list)
    lag: list[Lag] = field(default_factory=list)
    has_reported: bool = True

    def component(self, name: str) -> ComponentStats:
        """Return the figures of one component."""
        return next(each for each in self.components if each.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        return asdict(self)


def names(host: str, port: int) -> list[str]:
    """Return the names of the topologies that run."""
    return sorted(topology.name for topology in nimbus.summary(host, port).topologies)


def collect(host: str, port: int, name: str, *, with_lag: bool = True) -> TopologyStats:
    """Return the figures of a topology.

    Args:
        host: of nimbus.
        port: of nimbus.
        name: of the topology.
        with_lag: whether Kafka is asked, too.

    Raises:
        StormError: nimbus does not answer, or there is no such topology.
        BrokerError: Kafka does not answer.
    """
    with nimbus.connect(host, port) as client:
        found = [each for each in client.getClusterInfo().topologies if each.name == name]
        if not found:
            raise StormError(f"There is no topology {name}", cure="`sparse list`")
        page = client.getTopologyPageInfo(found[0].id, ALL_TIME, False)
        info = client.getTopologyInfo(found[0].id)
        spouts = client.getTopology(found[0].id).spouts
        conf = json.loads(client.getTopologyConf(found[0].id))
    components = [
        _component(component, kind, stats, (info.errors or {}).get(component) or [])
        for kind, by_name in (("spout", page.id_to_spout_agg_stats), ("bolt", page.id_to_bolt_agg_stats))
        for component, stats in sorted((by_name or {}).items())
    ]
    lag = [each for spout in sorted(spouts) for each in _lag(spout, name, conf, spouts[spout])] if with_lag else []
    return TopologyStats(
        name,
        found[0].id,
        found[0].status,
        found[0].uptime_secs,
        found[0].num_workers,
        components,
        lag,
        has_reported=any(each.stats is not None for each in info.executors or ()),
    )


def _component(name: str, kind: str, stats: Any, errors: list[Any]) -> ComponentStats:
    common, specific = stats.common_stats, stats.specific_stats
    bolt, spout = specific and specific.bolt, specific and specific.spout
    last = max(errors, key=lambda error: error.error_time_secs).error if errors else ""
    return ComponentStats(
        name,
        kind,
        tasks=common.num_tasks or 0,
        emitted=common.emitted or 0,
        acked=common.acked or 0,
        failed=common.failed or 0,
        executed=(bolt and bolt.executed) or 0,
        complete_ms=(spout and spout.complete_latency_ms) or 0.0,
        execute_ms=(bolt and bolt.execute_latency_ms) or 0.0,
        process_ms=(bolt and bolt.process_latency_ms) or 0.0,
        error=python_part(last) or without_frames(last),
    )


def _lag(spout: str, topology: str, conf: Mapping[str, Any], spec: Any) -> list[Lag]:
    """Return the lag of a spout by topic; nothing where it is not ours, or reads by a pattern."""
    own = {**conf, **json.loads(spec.common.json_conf or "{}")}
    if "kafka.topics" not in own:
        return []
    from downspout.kafka.port import cluster_for

    values = config.parse_scope(config.with_secrets(own), "kafka")
    group = values["group"] or topology
    consumer = cluster_for(values["bootstrap"], values["client"]).consumer(group=group, client=values["client"])
    try:
        return [lag_of(spout, group, topic, consumer) for topic in values["topics"]]
    finally:
        consumer.close()


def lag_of(spout: str, group: str, topic: str, consumer: ConsumerPort) -> Lag:
    """Return the lag of one topic.

    Args:
        spout: the component that reads it.
        group: its consumer group.
        topic: what it reads.
        consumer: a consumer of that group.
    """
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for(topic))]
    ends, begins = consumer.end_offsets(partitions), consumer.beginning_offsets(partitions)
    commits = consumer.committed(partitions) if partitions else {}
    topic_id = consumer.topic_id(topic)
    behind, alone_until = 0, {}
    for each in partitions:
        if (commit := commits.get(each)) is None:
            behind += ends[each] - begins[each]
            continue
        behind += max(0, ends[each] - commit.offset)
        watch = decode(commit.offset, commit.metadata, topic_id=topic_id).watch
        if watch.solo:
            alone_until[each.partition] = watch.lone_until
    return Lag(spout, group, topic, behind, alone_until)


def render(stats: TopologyStats) -> str:
    """Return the figures for people: a line per component, then lags and errors."""
    head = ("component", "tasks", "emitted", "acked", "failed", "executed", "complete ms", "execute ms", "process ms")
    table: list[tuple[str, ...]] = [head]
    for each in stats.components:
        counts = (each.tasks, each.emitted, each.acked, each.failed, each.executed)
        times = (each.complete_ms, each.execute_ms, each.process_ms)
        table.append((each.name, *(f"{count:,}" for count in counts), *(f"{time:,.1f}" for time in times)))
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    lines = [f"{stats.name} ({stats.id}): {stats.status}, {stats.uptime_s} s, {counted(stats.workers, 'worker')}"]
    for row in table:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  " + "  ".join(cells))
    if not stats.has_reported:
        lines.append("no worker has reported so far; if that lasts, `downspout storm logs` says why")
    lines += [line for each in stats.lag for line in each.lines]
    for each in stats.components:
        if each.error:
            lines += [f"{each.name} reported:", *(f"    {line}" for line in each.error.splitlines())]
    return "\n".join(lines)
