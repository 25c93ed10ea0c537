"""Internal streams between components on Storm, and the streams that carry whole chunks.

**Flush** (:data:`FLUSH`): a spout that waits for acks asks the sinks to flush. A sink holds rows until they are many or
old. If only one record is in flight, or a hand-over is pending, no further rows come, and everything would wait for
that age. The local engine drains its bolts itself; Storm cannot. So each of our spouts gets an extra stream, to which
all bolts with a method ``drain`` subscribe by an ``all`` grouping, however many bolts are in between. It is added when
the topology is built (:mod:`downspout.wire.specs`); our own engines do not see it. The request may overtake the tuple
it concerns, so it holds for :data:`FLUSH_S`: for that time, the bolt drains whenever its input is idle. A spout that
dies need not cancel it.

**Transactions** (:data:`TRANSACTIONS`): from each Kafka spout to all tasks of a transactional sink, added in the same
way. The sink's transaction holds the results of a spout's records and the spout's offsets, so the spout signals its
end; ``downspout.producing.transaction`` defines the messages. All results of one input partition must be in one
transaction. If the sink has several tasks, each gets every tuple and uses those of its own partitions: no grouping of
Storm's can look at part of a field.

**Chunks** (:data:`CHUNKS`): Storm sees a chunk as text, so a grouping by values would route it arbitrarily, and a
component that is not on this wire (a stock streamparse bolt, a Java bolt) could not read it. On such a stream the
emitter sends the records one by one, which is slower but correct. The *readers* are known when the topology is built:
:mod:`downspout.wire.specs` writes the streams with no other readers than ours into each component's configuration. The
*groupings* and numbers of tasks are known when the topology runs: Storm tells each component how its own streams are
grouped (``stream->target->grouping``). A stream carries records unless both are known.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pystorm.bolt import Bolt
from pystorm.spout import Spout
from streamparse import Grouping
from streamparse.thrift import GlobalStreamId, StreamInfo

from downspout.protocols import BoltOffers, SpoutOffers, offers, scopes_of

FLUSH = "downspout.flush"  # Stream name; our graphs omit it
FLUSH_S = 5.0  # How long a request holds; spouts repeat it meanwhile


def connect(specs: Iterable[Any]) -> None:
    """Subscribe all bolts that hold tuples back to the flush requests of spouts that wait for acks."""
    by_class = [(spec, spec.component_cls) for spec in specs]
    holding = [spec for spec, cls in by_class if issubclass(cls, Bolt) and offers(cls, BoltOffers.drain)]
    for spec, cls in by_class:
        if holding and issubclass(cls, Spout) and offers(cls, SpoutOffers.waits_for_acks):
            spec.outputs[FLUSH] = StreamInfo(output_fields=["seconds"], direct=False)
            for bolt in holding:
                bolt.inputs[GlobalStreamId(componentId=spec.name, streamId=FLUSH)] = Grouping.ALL


class Flusher:
    """After a flush request, drains a bolt whenever its input is idle.

    Args:
        pipe: the bolt's input; None (another serializer): the bolt drains only once per request.
    """

    def __init__(self, bolt: Any, pipe: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._bolt, self._pipe, self._clock = bolt, pipe, clock
        self._until = 0.0
        self._idle: Callable[[], None] | None = None  # The bolt's own idle callback

    def processor(self, stock: Callable[[Any], None]) -> Callable[[Any], None]:
        """Wrap the bolt's ``process`` to intercept flush requests."""

        def process(tup: Any) -> None:
            if tup.stream == FLUSH:
                self._take(tup)
            else:
                stock(tup)

        return process

    def _take(self, tup: Any) -> None:
        self._until = self._clock() + FLUSH_S
        if self._pipe is None:
            self._bolt.drain()
        else:
            if self._pipe.idle != self._on_idle:
                self._idle = self._pipe.idle
            self._pipe.idle = self._on_idle
        if not self._bolt.auto_ack:
            self._bolt.ack(tup)

    def _on_idle(self) -> None:
        if self._clock() < self._until:
            self._bolt.drain()
        else:
            self._pipe.idle = self._idle
        if self._idle is not None:
            self._idle()


TRANSACTIONS = "downspout.transactions"  # The stream
MESSAGE = "message"  # Its only field
KEY, LENGTH = "produce.transactional", "kafka.transaction_ms"


def connect_transactions(specs: Iterable[Any]) -> None:
    """Connect each transactional sink with the Kafka spouts upstream. Idempotent: called once per component."""
    by_name = {spec.name: spec for spec in specs}
    for sink in [spec for spec in by_name.values() if _is_transactional(spec)]:
        for name in set(_spouts_of(sink.name, by_name)):
            scopes = scopes_of(getattr(by_name[name], "component_cls", None))
            if "kafka" in scopes and "batch" not in scopes:  # a batch coordinator reads no records
                _connect(by_name[name], sink)


def _connect(spout: Any, sink: Any) -> None:
    _hand_on_length(spout, sink)
    spout.outputs[TRANSACTIONS] = StreamInfo(output_fields=[MESSAGE], direct=False)
    if (sink.par or 1) > 1:
        for source in list(sink.inputs):
            sink.inputs[source] = Grouping.ALL
    sink.inputs[GlobalStreamId(componentId=spout.name, streamId=TRANSACTIONS)] = Grouping.ALL


def _hand_on_length(spout: Any, sink: Any) -> None:
    """Give the sink's producer the maximal length of transactions: its broker aborts longer ones."""
    length = max(int(config_of(each).get(LENGTH) or 0) for each in (spout, sink))
    if not length:
        return
    if isinstance(sink.config, dict):
        sink.config[LENGTH] = length
    else:
        sink.config = json.dumps({**config_of(sink), LENGTH: length})
    sink.common.json_conf = json.dumps({**json.loads(sink.common.json_conf or "{}"), LENGTH: length})


def _is_transactional(spec: Any) -> bool:
    if "produce" not in scopes_of(getattr(spec, "component_cls", None)):
        return False
    return str(config_of(spec).get(KEY, "")).lower() in ("true", "1", "yes", "on")


def config_of(spec: Any) -> Mapping[str, Any]:
    """Return the configuration of a spec, which streamparse may have serialized."""
    found: Mapping[str, Any] = spec.config if isinstance(spec.config, dict) else json.loads(spec.config or "{}")
    return found


def _spouts_of(name: str, by_name: Mapping[str, Any], seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the names of the spouts upstream of a component."""
    inputs = getattr(by_name.get(name), "inputs", None)
    if not inputs:
        if name in by_name:
            yield name
        return
    for source in inputs:
        if source.componentId not in seen:
            yield from _spouts_of(source.componentId, by_name, seen | {name})


CHUNKS = "wire.chunks"  # Configuration key: streams by component
BLIND = frozenset({"shuffle", "local_or_shuffle", "none", "all", "direct"})
"""Groupings that ignore a tuple's values. Storm expresses a global grouping as a fields grouping without fields."""


def readable(specs: Iterable[Any], on_wire: Iterable[str]) -> dict[str, list[str]]:
    """Return the streams of each component on this wire that only such components read."""
    specs, ours = list(specs), set(on_wire)
    readers: dict[tuple[str, str], set[str]] = {}
    for spec in specs:
        for source in spec.inputs or {}:
            readers.setdefault((source.componentId, source.streamId), set()).add(spec.name)
    return {
        spec.name: sorted(
            stream
            for stream in spec.outputs or {}
            if stream not in (FLUSH, TRANSACTIONS) and readers.get((spec.name, stream), set()) <= ours
        )
        for spec in specs
        if spec.name in ours
    }


def whole(conf: Mapping[str, Any], context: Mapping[str, Any]) -> frozenset[str]:
    """Return the component's streams that carry whole chunks, from Storm's handshake.

    >>> conf = {"wire.chunks": {"parse": ["default", "rejects"]}}
    >>> targets = {"default": {"rows": {"type": "SHUFFLE"}}, "rejects": {"sums": {"type": "FIELDS", "fields": ["key"]}}}
    >>> tasks = {"1": "parse", "2": "rows", "3": "sums", "4": "sums"}
    >>> context = {"componentid": "parse", "stream->target->grouping": targets, "task->component": tasks}
    >>> sorted(whole(conf, context))
    ['default']
    """
    targets = context.get("stream->target->grouping")
    if targets is None:
        return frozenset()
    tasks = Counter((context.get("task->component") or {}).values())
    named = (conf.get(CHUNKS) or {}).get(context.get("componentid"), ())
    return frozenset(
        stream
        for stream in named
        if all(is_blind(grouping, tasks[reader]) for reader, grouping in (targets.get(stream) or {}).items())
    )


def is_blind(grouping: Mapping[str, Any], tasks: int) -> bool:
    """Return whether Storm delivers to a reader with so many tasks regardless of the tuples' values.

    >>> is_blind({"type": "SHUFFLE"}, 2), is_blind({"type": "FIELDS", "fields": ["key"]}, 2)
    (True, False)
    """
    kind = str(grouping.get("type")).lower()
    return kind in BLIND or (kind == "fields" and (not grouping.get("fields") or tasks == 1))


def arriving(conf: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return component and stream of all chunks that this topology may carry."""
    return frozenset((name, stream) for name, streams in (conf.get(CHUNKS) or {}).items() for stream in streams)
