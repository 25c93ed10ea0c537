"""Streams of our own between components on Storm, and streams on which a chunk may travel whole.

**Flush** (:data:`FLUSH`): how a spout asks the sinks to flush while it waits for acks. A sink holds rows until they are
many or old. While one record is out alone, or a hand-over waits, no further rows come, and everything would wait for
that age. The local engine drains its bolts itself; Storm cannot. So each spout of ours has one more stream, to which
all bolts with a method ``drain`` subscribe by an ``all`` grouping, whatever bolts are in between. It is added when the
topology is built (:mod:`downspout.wire.specs`), and no engine of ours sees it. The request may come before the tuple
that it is about, so it holds for :data:`FLUSH_S`: for that time, the bolt drains whenever its input is idle. A spout
that dies need not cancel it.

**Transactions** (:data:`TRANSACTIONS`): from each Kafka spout to all tasks of a transactional sink, added in the same
way. The sink's transaction holds the results of a spout's records and the spout's offsets, so the spout says when it
ends; ``downspout.producing.spout_transaction`` has the messages. All results of one input partition have to be in one
transaction. With several tasks of the sink, each gets every tuple and takes those of its own partitions: no grouping
of Storm's looks at a part of a field.

**Chunks** (:data:`CHUNKS`): to Storm a chunk is a text, so a grouping by values would send it anywhere; and to a
component that is not on our wire (a stock streamparse bolt, a Java bolt) it is a text, too. On such a stream the
emitter sends the records one by one: slower, and right. *Who reads* is known when the topology is built:
:mod:`downspout.wire.specs` writes into the configuration of each component which streams only components on our wire
read. *How they read*, and with how many tasks, is known when the topology runs: Storm tells each component how its own
streams are grouped (``stream->target->grouping``). A stream of which neither is known carries records.
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

FLUSH = "downspout.flush"  # The stream; not to be seen in a graph of ours
FLUSH_S = 5.0  # How long a request holds; spouts repeat it meanwhile


def connect(specs: Iterable[Any]) -> None:
    """Let all bolts that hold tuples back hear of the spouts that wait for acks."""
    by_class = [(spec, spec.component_cls) for spec in specs]
    holding = [spec for spec, cls in by_class if issubclass(cls, Bolt) and offers(cls, BoltOffers.drain)]
    for spec, cls in by_class:
        if holding and issubclass(cls, Spout) and offers(cls, SpoutOffers.waits_for_acks):
            spec.outputs[FLUSH] = StreamInfo(output_fields=["seconds"], direct=False)
            for bolt in holding:
                bolt.inputs[GlobalStreamId(componentId=spec.name, streamId=FLUSH)] = Grouping.ALL


class Flusher:
    """Drains one bolt, once it was asked to, whenever there is nothing to read.

    Args:
        pipe: from which it reads; None: another wire, on which it drains only when a request comes.
    """

    def __init__(self, bolt: Any, pipe: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._bolt, self._pipe, self._clock = bolt, pipe, clock
        self._until = 0.0
        self._idle: Callable[[], None] | None = None  # What the bolt does itself while there is nothing to read

    def processor(self, stock: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return the ``process`` of the bolt, which takes requests and hands all else to its own."""

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
        """Nothing is there to be read."""
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
    """Connect each transactional sink with the Kafka spouts from which its tuples come.

    It is called again for each component of a topology, and changes nothing then.
    """
    by_name = {spec.name: spec for spec in specs}
    for sink in [spec for spec in by_name.values() if _is_transactional(spec)]:
        for name in set(_spouts_of(sink.name, by_name)):
            scopes = scopes_of(getattr(by_name[name], "component_cls", None))
            if "kafka" in scopes and "batch" not in scopes:  # a coordinator of batches reads no records
                _connect(by_name[name], sink)


def _connect(spout: Any, sink: Any) -> None:
    _hand_on_length(spout, sink)
    spout.outputs[TRANSACTIONS] = StreamInfo(output_fields=[MESSAGE], direct=False)
    if (sink.par or 1) > 1:
        for source in list(sink.inputs):
            sink.inputs[source] = Grouping.ALL
    sink.inputs[GlobalStreamId(componentId=spout.name, streamId=TRANSACTIONS)] = Grouping.ALL


def _hand_on_length(spout: Any, sink: Any) -> None:
    """The sink's producer has to know how long transactions may be: its broker aborts longer ones."""
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
    """Return the configuration of a spec, which streamparse may have made a text."""
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


CHUNKS = "wire.chunks"  # The key of the configuration: streams by component
BLIND = frozenset({"shuffle", "local_or_shuffle", "none", "all", "direct"})
"""Groupings that do not look into a tuple. A global one is a fields grouping without fields, to Storm."""


def readable(specs: Iterable[Any], on_wire: Iterable[str]) -> dict[str, list[str]]:
    """Return the streams of each component on our wire that only such components read."""
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
    """Return the streams of this component on which a chunk goes whole, from Storm's handshake.

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
    """Return whether Storm delivers to a reader of so many tasks without looking into the tuples.

    >>> is_blind({"type": "SHUFFLE"}, 2), is_blind({"type": "FIELDS", "fields": ["key"]}, 2)
    (True, False)
    """
    kind = str(grouping.get("type")).lower()
    return kind in BLIND or (kind == "fields" and (not grouping.get("fields") or tasks == 1))


def arriving(conf: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return the component and stream of all chunks that may be on their way in this topology."""
    return frozenset((name, stream) for name, streams in (conf.get(CHUNKS) or {}).items() for stream in streams)
