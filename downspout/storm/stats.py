"""Nimbus's counters for a topology, by component, and the lag of its Kafka spouts.

``sparse stats`` gets these from Storm's UI, which is not on Maven Central. Nimbus has the same figures: workers send
them every ``executor.metrics.frequency.secs`` (60 by Storm's default, 5 in our node) and count only a sample of the
tuples if ``topology.stats.sample.rate`` is below 1 (0.05 by default, 1 in our node).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from downspout.errors import coordinates
from downspout.formatting import columns, counted
from downspout.kafka.port import ConsumerPort, LogState
from downspout.kafka.retry_gate import answer_of
from downspout.ledger.metadata import decode
from downspout.offsets.lag import PartitionLag, number, reckon
from downspout.settings.secrets import with_secrets
from downspout.settings.table import parse_scope
from downspout.spout.settings import dead_letter_topic, reading
from downspout.spout.starting import partitions_of, topics_of
from downspout.storm import nimbus
from downspout.storm.node_logs import python_part, without_frames
from downspout.system import files

ALL_TIME = ":all-time"
WINDOW_S = 600  # The period of rates: the shortest window that Storm keeps
PARTITIONS_SHOWN = 12  # Of a topic
PARTITION_HEAD = ("partition", "committed", "end", "lag", "done beyond", "uncommitted", "failed", "committed by")
COUNTERS = ("emitted", "acked", "failed", "executed", "timeouts")


@dataclass(frozen=True)
class ComponentStats:
    """The figures of one component since the topology was submitted, as reported by its workers so far."""

    name: str
    kind: str  # ``spout`` or ``bolt``
    tasks: int = 0
    emitted: int = 0  # tuples
    acked: int = 0  # spout: complete tuple trees; bolt: tuples
    failed: int = 0  # likewise
    executed: int = 0  # input tuples; 0 for a spout
    # spout: trees that failed although no bolt failed them, so they timed out; of several spouts the first gets all, as
    # their shares are unknown
    timeouts: int = 0
    # spout: complete trees (emitted tuples if none is tracked), bolt: input tuples; per second in the last ten minutes
    per_s: float = 0.0
    complete_ms: float = 0.0  # spout: from emit to the ack of the whole tree, on average
    execute_ms: float = 0.0  # bolt: in ``execute``, which for a Python bolt only passes the tuple to the process
    process_ms: float = 0.0  # bolt: from ``execute`` to the ack
    capacity: float = 0.0  # bolt: share of the last ten minutes in which its busiest executor was in ``execute``
    error: str = ""  # the last one reported; Python's traceback if it has one


@dataclass(frozen=True)
class Lag:
    """The lag of a consumer group in a topic; a partition without a commit counts from its beginning.

    ``alone_until``: for each partition that is read one record at a time because processes died there, the offset at
    which that ends.
    """

    spout: str
    group: str
    topic: str
    lag: int
    dead_letters: int = 0
    alone_until: dict[int, int] = field(default_factory=dict)
    partitions: list[PartitionLag] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """The lag for people; limited to the :data:`PARTITIONS_SHOWN` partitions that are furthest behind."""
        shown = sorted(self.partitions, key=lambda row: (-row.unread, row.partition))[:PARTITIONS_SHOWN]
        table = [PARTITION_HEAD, *(_cells(row) for row in sorted(shown, key=lambda row: row.partition))]
        rows = [f"  {line}" for line in columns(table, range(1, len(PARTITION_HEAD) - 1))] if shown else []
        if more := len(self.partitions) - len(shown):
            rows.append(f"  and {counted(more, 'partition')} that are no further behind")
        rows += [
            f"  {coordinates(row.topic, row.partition, row.blocks)} blocks: {row.why}"
            for row in shown
            if row.blocks is not None
        ]
        slow = [
            f"  {self.topic}[{partition}] is read one record at a time up to offset {until}, since processes died"
            " there: docs/how-to/bad-records.md"
            for partition, until in self.alone_until.items()
        ]
        dead_letters = f"; {counted(self.dead_letters, 'dead letter')}" if self.dead_letters else ""
        return [f"lag of group {self.group} in {self.topic}: {self.lag:,}{dead_letters}", *rows, *slow]


def _cells(row: PartitionLag) -> tuple[str, ...]:
    beyond = (row.done, row.uncommitted, row.failed) if row.committed is not None else (None, None, None)
    counts = (row.committed, row.end, row.lag, *beyond)
    return coordinates(row.topic, row.partition), *map(number, counts), "–" if row.task is None else f"task {row.task}"


@dataclass(frozen=True)
class TopologyStats:
    """The figures of a topology.

    ``id`` is name, number and time of submission. ``workers`` counts those that nimbus has assigned; ``has_reported``
    says whether any has reported. ``lately`` has the components' figures of the last ten minutes.
    """

    name: str
    id: str
    status: str
    uptime_s: int
    workers: int
    components: list[ComponentStats] = field(default_factory=list)
    lag: list[Lag] = field(default_factory=list)
    has_reported: bool = True
    lately: list[ComponentStats] = field(default_factory=list)

    @property
    def lately_s(self) -> int:
        """The period of ``lately`` in seconds."""
        return max(1, min(WINDOW_S, self.uptime_s))

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
    """Return the figures of a topology. Raises StormError: nimbus does not answer; BrokerError: Kafka does not."""
    with nimbus.connect(host, port) as client:
        found = nimbus.topology_named(client, name)
        page = client.getTopologyPageInfo(found.id, ALL_TIME, False)
        recent = client.getTopologyPageInfo(found.id, str(WINDOW_S), False)
        info = client.getTopologyInfo(found.id)
        spouts = client.getTopology(found.id).spouts
        conf = json.loads(client.getTopologyConf(found.id))
    lately = _components(recent, {})
    components = _with_timeouts(_components(page, info.errors or {}))
    lag = [each for spout in sorted(spouts) for each in _lag(spout, name, conf, spouts[spout])] if with_lag else []
    stats = TopologyStats(
        name,
        found.id,
        found.status,
        found.uptime_secs,
        found.num_workers,
        components,
        lag,
        has_reported=any(each.stats is not None for each in info.executors or ()),
        lately=lately,
    )
    return replace(stats, components=_with_rates(components, lately, stats.lately_s))


def _components(page: Any, errors: Mapping[str, list[Any]]) -> list[ComponentStats]:
    """Return the components' figures from a page of nimbus, spouts first."""
    return [
        _component(component, kind, stats, errors.get(component) or [])
        for kind, by_name in (("spout", page.id_to_spout_agg_stats), ("bolt", page.id_to_bolt_agg_stats))
        for component, stats in sorted((by_name or {}).items())
    ]


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
        capacity=(bolt and bolt.capacity) or 0.0,
        error=python_part(last) or without_frames(last),
    )


def _with_rates(
    components: Iterable[ComponentStats], lately: Iterable[ComponentStats], seconds: float
) -> list[ComponentStats]:
    """Set ``per_s`` and ``capacity`` from the recent figures."""
    known = {each.name: each for each in lately}
    found = []
    for each in components:
        last = known.get(each.name, replace(each, acked=0, emitted=0, executed=0, capacity=0.0))
        done = (last.acked or last.emitted) if each.kind == "spout" else last.executed
        found.append(replace(each, per_s=done / seconds, capacity=last.capacity))
    return found


def _with_timeouts(components: Iterable[ComponentStats]) -> list[ComponentStats]:
    """Set ``timeouts``: Storm counts a timeout as a fail of the spout, without a fail of a bolt."""
    found = list(components)
    failed = {kind: sum(each.failed for each in found if each.kind == kind) for kind in ("spout", "bolt")}
    first = next((at for at, each in enumerate(found) if each.kind == "spout"), None)
    if first is not None:
        found[first] = replace(found[first], timeouts=max(0, failed["spout"] - failed["bolt"]))
    return found


class Counters:
    """Counters that never shrink: nimbus drops those of a dead worker, and these keep them.

    Tuples counted between the last call and the death are lost. ``path`` stores the counters between calls; None: they
    stay in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._kept: dict[str, Any] = {}

    def whole(self, stats: Iterable[TopologyStats]) -> list[TopologyStats]:
        """Add the counts of dead workers to the figures, and store them for the next call."""
        before = self._before()
        kept: dict[str, Any] = {}
        found = []
        for each in stats:
            known = before.get(each.id, {})
            now = kept.setdefault(each.id, dict(known))  # nimbus may omit a component while its workers are dead
            components = [_never_less(component, known.get(component.name, {}), now) for component in each.components]
            found.append(replace(each, components=components))
        self._kept = {**before, **kept}
        if self._path is not None:
            files.write(self._path, json.dumps(self._kept))
        return found

    def _before(self) -> dict[str, Any]:
        if self._path is None:
            return self._kept
        try:
            return dict(json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}


def _never_less(component: ComponentStats, before: Mapping[str, Any], now: dict[str, Any]) -> ComponentStats:
    """Return a component's figures plus the lost counts; ``before`` and ``now`` map counters to [raw, lost]."""
    mine: dict[str, list[int]] = now.setdefault(component.name, {})
    for name in COUNTERS:
        raw = getattr(component, name)
        last, lost = before.get(name, (0, 0))
        mine[name] = [raw, lost + max(0, last - raw)]
    whole: dict[str, Any] = {name: raw + lost for name, (raw, lost) in mine.items()}
    return replace(component, **whole)


def _lag(spout: str, topology: str, conf: Mapping[str, Any], spec: Any) -> list[Lag]:
    """Return the lag of a spout by topic; empty if it is not a KafkaSpout."""
    own = {**conf, **json.loads(spec.common.json_conf or "{}")}
    if not own.keys() & {"kafka.topics", "kafka.pattern"}:
        return []
    from downspout.kafka.clusters import cluster_for

    values = parse_scope(with_secrets(own), "kafka")
    group = values["group"] or topology
    cluster = cluster_for(values["bootstrap"], values["client"])
    with closing(cluster.consumer(group=group, client=values["client"])) as consumer:
        return answer_of(lambda: _lag_by_topic(spout, group, values, consumer), f"the lag of spout {spout}")


def _lag_by_topic(spout: str, group: str, values: Mapping[str, Any], consumer: ConsumerPort) -> list[Lag]:
    """Return the lag of each topic; the first also carries the number of dead letters."""
    dead_letters = _records_in(dead_letter_topic(values, group), consumer)
    found = [lag_of(spout, group, topic, consumer) for topic in topics_of(consumer, reading(values, group))]
    return [replace(each, dead_letters=dead_letters if at == 0 else 0) for at, each in enumerate(found)]


def _records_in(topic: str, consumer: ConsumerPort) -> int:
    """Return the number of records in a topic; 0 if it does not exist."""
    partitions = partitions_of(consumer, [topic] if topic else [])
    ends, begins = consumer.end_offsets(partitions), consumer.beginning_offsets(partitions)
    return sum(ends[each] - begins[each] for each in partitions)


def lag_of(spout: str, group: str, topic: str, consumer: ConsumerPort) -> Lag:
    """Return the lag of one topic."""
    partitions = partitions_of(consumer, [topic])
    ends, begins = consumer.end_offsets(partitions), consumer.beginning_offsets(partitions)
    commits = consumer.committed(partitions) if partitions else {}
    topic_id = consumer.topic_id(topic)
    alone_until = {}
    rows = []
    for each in partitions:
        commit = commits.get(each)
        rows.append(reckon(each, LogState(begins[each], ends[each], ends[each]), commit, topic_id=topic_id))
        if commit is not None:
            isolation = decode(commit.offset, commit.metadata, topic_id=topic_id).isolation
            if isolation.single:
                alone_until[each.partition] = isolation.narrow_until
    return Lag(spout, group, topic, sum(row.unread for row in rows), alone_until=alone_until, partitions=rows)


def render(stats: TopologyStats) -> str:
    """Format the figures for people: a line per component, then lags and errors."""
    head = (
        "component", "tasks", "emitted", "acked", "failed", "timeouts", "executed", "per s",
        "complete ms", "execute ms", "process ms", "capacity",
    )  # fmt: skip
    table: list[tuple[str, ...]] = [head]
    for each in stats.components:
        counts = (each.tasks, each.emitted, each.acked, each.failed, each.timeouts, each.executed)
        times = [f"{time:,.1f}" for time in (each.per_s, each.complete_ms, each.execute_ms, each.process_ms)]
        table.append((each.name, *(f"{count:,}" for count in counts), *times, f"{each.capacity:.3f}"))
    lines = [f"{stats.name} ({stats.id}): {stats.status}, {stats.uptime_s} s, {counted(stats.workers, 'worker')}"]
    lines += [f"  {line}" for line in columns(table, range(1, len(head)))]
    if not stats.has_reported:
        lines.append("no worker has reported so far; if that lasts, `downspout storm logs` says why")
    lines += [line for each in stats.lag for line in each.lines]
    for each in stats.components:
        if each.error:
            lines += [f"{each.name} reported:", *(f"    {line}" for line in each.error.splitlines())]
    return "\n".join(lines)
