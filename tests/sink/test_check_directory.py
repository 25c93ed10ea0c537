"""`downspout check` compares a sink with its directory: it reports only problems that would stop the start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from streamparse import Topology

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.engine import Graph, from_class
from downspout.errors import SinkError
from downspout.run import runner
from downspout.run import topology_check as check
from downspout.testing import FakeKafka, VirtualClock
from spouts.kafka import KafkaSpout

SCHEMA = ["n:int32", "paid:decimal(9,2)", "word:string"]
SUMS = {"cls": AggregateBolt, "keys": ["word"], "aggregates": ["sum:n"]}


def graph(
    directory: Path, *, topology: str = "lines", topic: str = "lines", name: str = "out", cls: Any = ParquetBolt,
    schema: list[str] = SCHEMA, **settings: Any,
) -> Graph:  # fmt: skip
    spout = KafkaSpout.spec(name="spout", topics=[topic], fields=["origin", "value"])
    parse = JsonParseBolt.spec(name="parse", inputs=[spout], fields=["n", "paid", "word", "more"])
    sink = cls.spec(name=name, inputs=[parse], directory=str(directory), schema=schema, **settings)
    made = type("Lines", (Topology,), {"spout": spout, "parse": parse, name: sink})
    return from_class(made, topology)


def errors_of_check(made: Graph, given: Mapping[str, Any]) -> list[str]:
    found = check.findings(made, check.resolve(made, given, environ={}))
    return [f"{each.what}. Try: {each.cure}" for each in found if each.is_error]


@pytest.mark.parametrize(("idle_s", "warned"), [(10.0, True), (60.0, False)])
def test_a_partition_is_not_left_out_between_two_flushes(tmp_path: Path, idle_s: float, warned: bool) -> None:
    """Where windows wait for partitions that are shorter idle than flushes are apart, the check warns."""
    settings: dict[str, Any] = {
        "schema": ["n:timestamp"],
        "keys": ["window(n, 1 hour)"],
        "aggregates": ["count"],
        "idle_s": idle_s,
    }
    made = graph(tmp_path / "new", cls=AggregateBolt, **settings)
    found = check.findings(made, check.resolve(made, {}, environ={}))
    assert any("parquet.idle_s of at least 32" in str(each.cure) for each in found) == warned


BEFORE: dict[str, dict[str, Any]] = {"rows": {}, "sums": SUMS, "rebuilt": {"rebuild": 2}}
CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("rows", {}, ""),
    ("rows", {"schema": ["n:int64", *SCHEMA[1:], "more:string"]}, ""),
    ("rows", {"schema": ["n:int32"], "rebuild": 1}, ""),
    ("rows", {"name": "renamed"}, "belongs to out of topology lines, not to renamed"),
    ("rows", {"topology": "others"}, "belongs to topology lines, not to others"),
    ("rows", {"topic": "elsewhere"}, "holds only rows of lines, and topology lines reads elsewhere"),
    ("rows", {"schema": ["n:int32", "paid:float64", "word:string"]}, "paid changes from decimal(9,2) to float64"),
    ("rows", {"schema": ["n:int16", *SCHEMA[1:]]}, "n narrows from int32 to int16"),
    ("rows", {"schema": SCHEMA[:2]}, "word is dropped"),
    ("rows", {"schema": [*SCHEMA, "more:string!"]}, "more is new and required"),
    ("rows", {"partition_by": ["word"]}, "folders, keys and aggregates stay as they are"),
    ("rows", SUMS, "folders, keys and aggregates stay as they are"),
    ("sums", SUMS, ""),
    ("sums", SUMS | {"aggregates": ["sum:n", "count"]}, "folders, keys and aggregates stay as they are"),
    ("rebuilt", {"rebuild": 1}, "was rebuilt (rebuild 2)"),
]


@pytest.mark.fake_only("the broker has no part in it")
@pytest.mark.parametrize(("before", "change", "why"), CHANGES)
def test_check_says_what_the_start_would(tmp_path: Path, before: str, change: dict[str, Any], why: str) -> None:
    """After rows were written: each change that the sink refuses is an error of check, in the start's own words."""
    out, clock = tmp_path / "out", VirtualClock()
    with FakeKafka("lines", clock) as kafka:
        given = {"kafka.bootstrap": kafka.bootstrap, "kafka.group": "g", "run.until": "end"}
        for topic in ("lines", "elsewhere"):
            kafka.create_topic(topic)
            kafka.produce(topic, b'{"n": 1, "paid": "1.50", "word": "a", "more": "b"}')
        runner.run(graph(out, **BEFORE[before]), overrides=given, clock=clock)
        made, entries = graph(out, **change), sorted(tmp_path.rglob("*"))
        found = errors_of_check(made, given)
        assert sorted(tmp_path.rglob("*")) == entries
        if not why:
            assert found == []
            runner.run(made, overrides=given, clock=clock)
            return
        with pytest.raises(SinkError) as refused:
            runner.run(made, overrides=given, clock=clock)
        assert why in str(refused.value)
        assert found == [str(refused.value)]
