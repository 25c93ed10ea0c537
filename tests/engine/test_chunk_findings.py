"""`downspout check` on chunks on Storm, for topologies as users write them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import streamparse
from streamparse import Grouping, Stream, Topology

from bolts.parse import JsonParseBolt
from downspout.cli import main
from downspout.component import Bolt
from downspout.engine import chunk_findings as findings
from downspout.engine import from_class, resolve
from downspout.parse import ChunkBolt
from spouts.kafka import KafkaSpout


class Rows(Bolt):
    outputs: ClassVar = ["value"]


class Columns(ChunkBolt):
    outputs: ClassVar = ["value"]

    def process_chunk(self, tup: Any) -> None:
        pass


class Stock(streamparse.Bolt):
    outputs: ClassVar = ["value"]


BY_VALUE = Grouping.fields("value")


def spout(emit: Any = "chunk") -> Any:
    return KafkaSpout.spec(topics=["orders"], emit=emit, fields=["origin", "value"])


def found(cls: Any) -> list[str]:
    graph = from_class(cls, "shop")
    return [str(finding) for finding in findings(graph, resolve(graph, environ={}))]


def test_a_reader_by_fields_is_named_with_the_stream_that_goes_as_records_for_its_sake() -> None:
    class Shop(Topology):
        orders = spout()
        parse = JsonParseBolt.spec(inputs=[orders], fields=["value"], types={"value": "string"})
        rows = Columns.spec(inputs=[parse])
        sums = Columns.spec(inputs={parse: BY_VALUE}, par=2)

    (line,) = found(Shop)
    assert line.startswith(
        "warning: parse: on Storm its stream 'default' goes as records, not in chunks, to rows too, because sums reads "
        "it by fields (value) with 2 tasks. Try: a separate stream for sums; "
    )


def test_a_bolt_that_is_not_on_our_wire_is_named() -> None:
    """A stock streamparse bolt cannot read a chunk, so those who share its stream get records."""

    class Shop(Topology):
        orders = spout()
        columns = Columns.spec(inputs=[orders])
        stock = Stock.spec(inputs=[orders])

    (line,) = found(Shop)
    assert "orders: on Storm its stream 'default' goes as records, not in chunks, to columns too, because stock" in line
    assert "stock (Stock) is not a Downspout bolt" in line


def one_task_by_fields() -> Any:
    class Shop(Topology):
        orders = spout()
        sums = Columns.spec(inputs={orders: BY_VALUE})

    return Shop


def globally() -> Any:
    class Shop(Topology):
        orders = spout()
        sums = Columns.spec(inputs={orders: Grouping.GLOBAL}, par=2)

    return Shop


def records() -> Any:
    class Shop(Topology):
        orders = spout("record")
        sums = Columns.spec(inputs={orders: BY_VALUE}, par=2)

    return Shop


def behind_records() -> Any:
    """By fields behind bolts that emit records: one knows only these, one has no types."""

    class Shop(Topology):
        orders = spout()
        rows = Rows.spec(inputs=[orders])
        sums = Columns.spec(inputs={rows: BY_VALUE}, par=2)
        parse = JsonParseBolt.spec(inputs=[orders], fields=["value"])
        more = Columns.spec(inputs={parse: BY_VALUE}, par=2)

    return Shop


def on_two_streams() -> Any:
    """The reader by fields has a stream of its own."""

    class Two(Columns):
        outputs: ClassVar[list[Any]] = [Stream(["value"]), Stream(["value"], name="keyed")]

    class Shop(Topology):
        orders = spout()
        two = Two.spec(inputs=[orders])
        rows = Columns.spec(inputs=[two])
        sums = Columns.spec(inputs={two["keyed"]: BY_VALUE}, par=2)

    return Shop


@pytest.mark.parametrize("topology", [one_task_by_fields, globally, records, behind_records, on_two_streams])
def test_where_chunks_stay_whole_or_are_none_nothing_is_said(topology: Any) -> None:
    """One task, a global grouping, a stream of its own, records to begin with: nobody loses, and no line says so."""
    assert found(topology()) == []


def test_behind_a_stream_that_goes_as_records_there_is_nothing_to_lose() -> None:
    """What reads records emits records, so only the first stream is named; a spout's even if nobody shares it."""

    class Shop(Topology):
        orders = spout()
        first = Columns.spec(inputs={orders: BY_VALUE}, par=2)
        second = Columns.spec(inputs={first: BY_VALUE}, par=2)
        third = Columns.spec(inputs=[first])

    (line,) = found(Shop)
    assert "orders: on Storm its stream 'default' goes as records, not in chunks, because first reads it by" in line


def test_the_command_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    """`downspout check` prints the line and counts it; where chunks are not asked for, it has nothing to say."""
    target = "topologies/flight_delays.py"
    assert main(["check", target, "--set", "spout:kafka.emit=chunk"]) == 0
    said = capsys.readouterr().out
    assert "warning: enrich: on Storm its stream 'default' goes as records, not in chunks, to flights too" in said
    assert "because route_delays reads it by fields (route, hour) with 2 tasks" in said
    assert "0 errors, 1 warning" in said
    assert main(["check", target]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out
