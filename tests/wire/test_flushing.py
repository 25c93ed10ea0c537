"""Requests to flush, from a spout on Storm to the sinks: connections, and a bolt's reaction."""

from __future__ import annotations

import os
import threading
from collections import namedtuple
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import streamparse
from pystorm.component import Tuple
from streamparse import Topology

from bolts.parquet import ParquetBolt
from downspout.component import input_fields
from downspout.engine import from_class
from downspout.ledger import Origin
from downspout.origins import column_of
from downspout.wire import FLUSH, Pipe, reader
from downspout.wire.side_streams import FLUSH_S, Flusher
from spouts.kafka import KafkaSpout


class Stock(streamparse.Bolt):
    outputs: ClassVar = ["origin", "value"]


class Flow(Topology):
    """Stock bolts between a spout and a sink."""

    spout = KafkaSpout.spec(topics=["t"], fields=["origin", "value"])
    stock = Stock.spec(inputs=[spout])
    sink = ParquetBolt.spec(inputs=[stock], directory="x", schema=["value:string"])


class Dry(Topology):
    spout = KafkaSpout.spec(topics=["t"], fields=["origin", "value"])
    stock = Stock.spec(inputs=[spout])


def test_the_sinks_of_a_topology_hear_of_its_spout() -> None:
    """On Storm each task of a bolt that can drain reads the spout's requests, past all bolts in between."""
    sink = next(spec for spec in Flow.specs if spec.name == "sink")
    groupings = {(source.componentId, source.streamId): grouping for source, grouping in sink.common.inputs.items()}
    assert groupings["spout", FLUSH].all is not None
    assert list(Flow.thrift_spouts["spout"].common.streams[FLUSH].output_fields) == ["seconds"]
    read = {(each["from"], each["to"], each["grouping"]["streamId"]) for each in Flow.to_flux_dict("flow")["streams"]}
    assert read == {("spout", "stock", "default"), ("stock", "sink", "default"), ("spout", "sink", FLUSH)}
    assert FLUSH not in Dry.thrift_spouts["spout"].common.streams


def test_no_engine_of_ours_sees_the_requests() -> None:
    """They are in no graph, and no input of a bolt: there the engine asks the bolts itself."""
    graph = from_class(Flow, "flow")
    assert list(graph.components["spout"].streams) == ["default"]
    assert [given.source for given in graph.components["sink"].inputs] == ["stock"]
    fields = {"spout": {FLUSH: ["seconds"], "default": ["value"]}}
    assert input_fields({"source->stream->fields": fields}) == {("spout", "default"): ["value"]}


class Holder:
    """A bolt that notes what is done with it."""

    auto_ack = False

    def __init__(self) -> None:
        self.done: list[str] = []

    def drain(self) -> None:
        self.done.append("drained")

    def ack(self, tup: Any) -> None:
        self.done.append(f"acked {tup.id}")

    def process(self, tup: Any) -> None:
        self.done.append(f"processed {tup.id}")


def test_a_bolt_drains_whenever_nothing_is_there_while_a_request_holds() -> None:
    """Not between two tuples that are both there; and not after the time for which the request holds."""
    source, feed = os.pipe()
    with os.fdopen(source, "rb", buffering=0) as stream:
        pipe = Pipe(stream, open(os.devnull, "wb", buffering=0), threading.RLock(), threading.RLock())  # noqa: SIM115
        bolt, now = Holder(), [100.0]
        process = Flusher(bolt, pipe, lambda: now[0]).processor(bolt.process)

        def send_later() -> None:
            bolt.done.append("waits")
            os.write(feed, b"later\nend\n")

        pipe.rest = send_later
        os.write(feed, b"one\nend\ntwo\nend\n")
        pipe.rest = None
        assert pipe.read() == b"one"
        process(Tuple(1, "spout", FLUSH, 1, (FLUSH_S,)))
        assert pipe.read() == b"two"
        process(Tuple(2, "stock", "default", 1, ()))
        assert bolt.done == ["acked 1", "processed 2"]
        pipe.rest = send_later
        pipe.read()
        assert bolt.done[2:] == ["drained", "waits"]
        now[0] += FLUSH_S
        pipe.read()
        assert bolt.done[4:] == ["waits"]
        assert pipe.idle is None
        pipe.sink.close()
    os.close(feed)


def test_on_another_wire_a_request_is_answered_once() -> None:
    """Without a pipe of ours the bolt drains when it is asked."""
    bolt = Holder()
    bolt.auto_ack = True
    Flusher(bolt, None).processor(bolt.process)(Tuple(1, "spout", FLUSH, 1, (FLUSH_S,)))
    assert bolt.done == ["drained"]


class Heard:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def begin(self, *what: Any) -> None:
        self.said.append(what)

    def begin_unknown(self) -> None:
        self.said.append("something")

    def begin_tick(self) -> None:
        self.said.append("tick")


def test_a_bolt_notes_what_it_begins_with() -> None:
    """The record of a tuple, all records of a chunk; a tick changes nothing about it."""
    chunk = pa.RecordBatch.from_arrays([column_of([Origin("t", "", 3, n) for n in (7, 8, 9)])], names=["origin"])
    commands = [
        {"id": "1", "comp": "spout", "stream": "default", "task": 1, "tuple": [["t", "", 3, 5, "a.0"]]},
        {"id": "2", "comp": "__system", "stream": "__tick", "task": -1, "tuple": [1]},
        {"id": "3", "comp": "spout", "stream": "default", "task": 1, "tuple": chunk},
        {"id": "4", "comp": "spout", "stream": "plain", "task": 1, "tuple": ["x"]},
    ]
    kinds = {"spout": {"default": namedtuple("Default", "origin"), "plain": namedtuple("Plain", "value")}}
    bolt = SimpleNamespace(read_command=iter(commands).__next__, _source_tuple_types=kinds)
    note: Any = Heard()
    read = reader(bolt, {"source->stream->fields": {"spout": {"default": ["origin"], "plain": ["value"]}}}, note)
    for _ in commands:
        read()
    assert note.said == [("t", 3, 5, 5), "tick", ("t", 3, 7, 9), "something"]
