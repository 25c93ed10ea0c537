"""``kafka.emit`` = ``auto``: chunks if all components that the records reach accept chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import streamparse
from streamparse import Topology

from bolts.dead_letter import DeadLetterBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.engine import from_class, resolve
from downspout.ledger import Origin
from downspout.origins import column_of
from downspout.parse import ChunkBolt
from downspout.spout import choose_mode
from downspout.testing import run_topology
from spouts.kafka import KafkaSpout


class Quiet(JsonParseBolt):
    def process(self, tup: Any) -> None:
        if tup.values.value != '{"n": 1}':
            super().process(tup)


class Loud(JsonParseBolt):
    def emit(self, tup: Any, *given: Any, **how: Any) -> Any:
        return super().emit(tup, *given, **how)


class Plain(streamparse.Bolt):
    outputs: ClassVar[list[str]] = ["origin", "n"]

    def process(self, tup: Any) -> None:
        self.emit([tup.values.origin, tup.values.n])


class Whole(ChunkBolt):
    outputs: ClassVar[list[str]] = ["origin", "n"]

    def process_chunk(self, tup: Any) -> None:
        self.emit(tup.values)


class OwnSpout(KafkaSpout):
    def emit(self, *given: Any, **how: Any) -> Any:
        return super().emit(*given, **how)


def chosen(conf: dict[str, Any], component: str, foreign_serializer: str) -> tuple[str, str]:
    """Return the name of the mode that a spout chooses, and why."""
    mode, why = choose_mode(conf, component, foreign_serializer)
    return mode.name, why


def topology(
    parser: Any = JsonParseBolt,
    between: Any = None,
    spout_class: Any = KafkaSpout,
    types: dict[str, str] | None = None,
    **settings: Any,
) -> Any:
    """Return a topology of a spout, a parser, perhaps a bolt of the user's, and a sink."""

    class Numbers(Topology):
        spout = spout_class.spec(topics=["numbers"], fields=["origin", "value"], **settings)
        parse = parser.spec(inputs=[spout], fields=["n"], **({"types": types} if types else {}))
        letters = DeadLetterBolt.spec(inputs=[parse["rejects"]])
        middle = between.spec(inputs=[parse]) if between else None
        rows = ParquetBolt.spec(inputs=[middle or parse], directory="output/numbers", schema={"n": "int64"})

    return Numbers


TYPES = {"n": "int64"}
CASES = [
    pytest.param({"types": TYPES}, {}, "", id="all take chunks"),
    pytest.param({"types": TYPES, "between": Whole}, {}, "", id="the user's takes chunks"),
    pytest.param({}, {}, "parse has no types, so it takes records", id="no types"),
    pytest.param({"types": TYPES, "between": Plain}, {}, "middle (Plain) takes records", id="a bolt behind the parser"),
    pytest.param({"types": TYPES, "parser": Quiet}, {}, "parse (Quiet) takes records", id="process is overridden"),
    pytest.param({"types": TYPES, "parser": Loud}, {}, "parse (Loud) takes records", id="emit is overridden"),
    pytest.param({"types": TYPES, "spout_class": OwnSpout}, {}, "OwnSpout emits records", id="the spout's emit"),
    pytest.param(
        {"types": TYPES, "guarantee": "NO_GUARANTEE"},
        {},
        "a chunk depends on acks, which kafka.guarantee = NO_GUARANTEE ignores",
        id="no acks",
    ),
    pytest.param(
        {"types": TYPES, "retries_max": 0},
        {},
        "with kafka.retries_max = 0 the failing record of a chunk cannot be found",
        id="no retries",
    ),
    pytest.param({"types": TYPES}, {"run.records": 5}, "run.records counts tuples", id="so many records"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "given", "why"), CASES)
def test_auto_says_what_and_why(how: dict[str, Any], given: dict[str, Any], why: str) -> None:
    """Auto is chunks unless something needs records, and the source of the value names that."""
    graph = from_class(topology(**how), "numbers")
    found = resolve(graph, {"kafka.emit": "auto", **given}, environ={}, file=Path("/nonexistent")).components
    assert found["spout"].values["kafka.emit"] == ("record" if why else "chunk")
    assert found["spout"].sources["kafka.emit"] == f"auto: {why or 'all that its records reach takes chunks'}"
    assert found["letters"].values["kafka.emit"] == "record"  # it reads the scope too, and emits nothing


@pytest.mark.parametrize(("how", "given", "why"), [case for case in CASES if not case.values[1]])
def test_storm_is_told_the_same(how: dict[str, Any], given: dict[str, Any], why: str) -> None:
    """What a spec writes into a spout's configuration leads its task on Storm to the same choice."""
    made = topology(**how, emit="auto")
    spec = next(spec for spec in made.specs if spec.name == "spout")
    conf = json.loads(spec.common.json_conf)
    if spec.component_cls is OwnSpout:
        assert conf["spout.emit"] == {}
        why = ""
        assert chosen(conf, "spout", "") == ("record", "")
    else:
        assert chosen(conf, "spout", "") == (("record", why) if why else ("chunk", ""))


def test_without_a_topology_records_leave() -> None:
    """A spout that is run where nothing knows its readers emits records."""
    assert chosen({"kafka.emit": "auto", "kafka.topics": ["numbers"]}, "spout", "") == ("record", "")
    assert chosen({"kafka.emit": "auto", "spout.emit": {"spout": ""}}, "spout", "Msgpack")[0] == "record"


def test_a_subclass_that_overrides_process_gets_records(tmp_path: Path) -> None:
    """A bolt's own ``process`` is called for each record, even if chunks come and its base takes chunks."""
    origins = [Origin("numbers", "", 0, offset) for offset in range(3)]
    values = [f'{{"n": {number}}}' for number in range(3)]
    chunk = pa.RecordBatch.from_arrays([column_of(origins), pa.array(values)], names=["origin", "value"])

    class Quietly(Topology):
        spout = KafkaSpout.spec(topics=["numbers"], fields=["origin", "value"])
        parse = Quiet.spec(inputs=[spout], fields=["n"], types=TYPES)
        rows = ParquetBolt.spec(inputs=[parse], directory="output/numbers", schema={"n": "int64"})

    found = run_topology(Quietly, spouts={"spout": [chunk]}, output=tmp_path)
    assert sorted(row[1] for row in found.emitted("parse")) == [0, 2]
