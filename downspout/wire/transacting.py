"""How a spout and a transactional sink speak: a stream of its own, from each Kafka spout to all tasks of the sink.

The sink's transaction holds the results of a spout's records and the spout's offsets, so the spout says when it ends.
The stream is added where the topology is built (:mod:`downspout.wire.specs`), with an ``all`` grouping, however many
bolts are in between; what goes over it is in ``downspout.producing.messages``.

All results of one input partition have to be in one transaction. With several tasks of the sink, each gets every tuple
and takes those of its own partitions: no grouping of Storm's looks at a part of a field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from streamparse import Grouping
from streamparse.thrift import GlobalStreamId, StreamInfo

from downspout.protocols import scopes_of

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
