"""Streams that carry chunks on Storm: the topology's configuration, and the components' use of it."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
import streamparse
from streamparse import Grouping, JavaBolt, Stream, Topology

from bolts.parse import JsonParseBolt
from downspout.component import Bolt
from downspout.engine import component_of
from downspout.wire import CHUNKS, MultilangComponent
from downspout.wire.side_streams import arriving, whole
from spouts.kafka import KafkaSpout
from topologies.flight_delays import FlightDelays


class Ours(Bolt):
    outputs: ClassVar = [Stream(["value"]), Stream(["value"], name="late")]


class Theirs(MultilangComponent, streamparse.Bolt):
    outputs: ClassVar = ["value"]


class Stock(streamparse.Bolt):
    outputs: ClassVar = ["value"]


class Shop(Topology):
    spout = KafkaSpout.spec(topics=["orders"], emit="chunk", fields=["origin", "value"])
    parse = JsonParseBolt.spec(inputs=[spout], fields=["value"], types={"value": "string"})
    ours = Ours.spec(inputs=[parse])
    theirs = Theirs.spec(inputs=[ours])
    stock = Stock.spec(inputs={ours["late"]: Grouping.SHUFFLE, theirs: Grouping.SHUFFLE})
    java = JavaBolt.spec(
        full_class_name="a.B", args_list=[], inputs={ours["late"]: Grouping.SHUFFLE}, outputs=["value"]
    )


FOUND = {"spout": ["default"], "parse": ["default", "rejects"], "ours": ["default"], "theirs": []}


def conf_of(topology: Any, name: str) -> Any:
    """Return the configuration of a component as Storm gets it."""
    return json.loads({**topology.thrift_spouts, **topology.thrift_bolts}[name].common.json_conf)


def test_components_on_the_wire_are_told_what_carries_chunks() -> None:
    assert {name: conf_of(Shop, name)[CHUNKS] for name in FOUND} == dict.fromkeys(FOUND, FOUND)
    assert conf_of(Shop, "spout")["kafka.emit"] == "chunk"
    assert CHUNKS not in conf_of(Shop, "stock")


def test_the_other_engines_do_not_see_it() -> None:
    """Only what goes to Storm says so: the specs that the other engines read are as they were written."""
    assert all(CHUNKS not in component_of(spec).config for spec in FlightDelays.specs)
    assert conf_of(FlightDelays, "enrich")[CHUNKS]["parse"] == ["default", "rejects"]


@pytest.mark.parametrize(
    ("grouping", "tasks", "goes_whole"),
    [
        ({"type": "SHUFFLE"}, 2, True),
        ({"type": "LOCAL_OR_SHUFFLE"}, 2, True),
        ({"type": "ALL"}, 2, True),
        ({"type": "NONE"}, 2, True),
        ({"type": "DIRECT"}, 2, True),
        ({"type": "FIELDS", "fields": []}, 2, True),  # global
        ({"type": "FIELDS", "fields": ["value"]}, 1, True),
        ({"type": "FIELDS", "fields": ["value"]}, 2, False),
        ({"type": "CUSTOM_OBJECT"}, 1, False),
        ({"type": "CUSTOM_SERIALIZED"}, 2, False),
        ({"type": "of a later Storm"}, 1, False),
    ],
)
def test_a_chunk_goes_whole_where_storm_need_not_look_into_it(grouping: Any, tasks: int, goes_whole: bool) -> None:
    """One reader whose grouping goes by values, or is unknown, is enough for the whole stream to go as records."""
    targets = {"default": {"other": {"type": "SHUFFLE"}, "reader": grouping}, "late": {}}
    context = {
        "componentid": "ours",
        "stream->target->grouping": targets,
        "task->component": {"1": "ours", "2": "other", **{str(3 + number): "reader" for number in range(tasks)}},
    }
    assert whole({CHUNKS: FOUND}, context) == ({"default"} if goes_whole else set())
    assert ("ours", "default") in arriving({CHUNKS: FOUND})


def test_what_nobody_tells_goes_as_records() -> None:
    """Without the topology's word, as with Flux, or without Storm's, no chunk is sent or expected."""
    context = {"componentid": "ours", "stream->target->grouping": {}, "task->component": {}}
    assert whole({}, context) == whole({CHUNKS: FOUND}, {"componentid": "ours"}) == arriving({}) == frozenset()
